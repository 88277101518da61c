"""The command line: ``twinsite COMMAND``, or ``python -m mirror.cli.main COMMAND``.

A command and what it needs are imported when it is run, so ``twinsite --help`` is quick.
Results go to standard output, everything else to standard error.

Exit codes: 0 done, 1 fault, 2 wrong command or settings, 3 some partition is not
there, 4 refused, 5 time is up, 10 the sites differ, 130 and 143 ended by a signal.
"""

from __future__ import annotations

import importlib
import io
import os
import sys
from collections.abc import Sequence

import click

from mirror import __version__
from mirror.cli.words import clean
from mirror.errors import OF_DISKS, ExitCode, TwinsiteError, UsageError

COMMANDS = {
    "mirror": "mirror.cli.mirror:mirror",
    "relay": "mirror.cli.relay:relay",
    "link": "mirror.cli.link:link",
    "status": "mirror.cli.status:status",
    "pause": "mirror.cli.control:pause",
    "resume": "mirror.cli.control:resume",
    "accept-loss": "mirror.cli.control:accept_loss",
    "offsets": "mirror.cli.offsets:offsets",
    "reconcile": "mirror.cli.reconcile:reconcile",
    "repair": "mirror.cli.repair:repair",
    "config": "mirror.cli.config:config",
}

INTERRUPTED = 130


class LazyCommands(click.Group):
    """A group whose commands are imported when they are asked for."""

    def list_commands(self, _: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, _: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module, attribute = COMMANDS[name].split(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command


@click.group(cls=LazyCommands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="twinsite")
def cli() -> None:
    """Keeps a second site's copy of a Kafka cluster exact, provable and ready to take over."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        arguments: None for those of the process.

    Returns:
        The exit code. An error raised on purpose is shown as a line and a hint on standard error.
    """
    _fill_streams()
    try:
        code = cli.main(arguments, prog_name="twinsite", standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except TwinsiteError as error:
        show_error(error)
        return error.exit_code
    except BrokenPipeError:
        # The reader of our output has gone, and the interpreter flushes it again when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.FAULT
    except OSError as error:
        if error.errno not in OF_DISKS:
            raise
        show_error(_of_a_disk(error))
        return ExitCode.FAULT
    return code if isinstance(code, int) else 0


def _fill_streams() -> None:
    """Open closed standard streams on the null device: else the next file or connection would become one.

    Characters that the locale lacks are written as escapes.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115  (to the end of the process)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _of_a_disk(error: OSError) -> TwinsiteError:
    where = "" if error.filename is None else f"{error.filename}: "
    return TwinsiteError(f"{where}{error.strerror}", hint="check that it exists, is accessible and has space")


def show_error(error: TwinsiteError) -> None:
    """Print what happened as ``error:``, the way out as ``hint:``. Only usage errors have several lines."""
    lines = str(error).split("\n  ") if isinstance(error, UsageError) else [str(error)]
    click.echo("error: " + "\n  ".join(map(clean, lines)), err=True)
    if error.hint:
        click.echo(f"hint: {clean(error.hint)}", err=True)


if __name__ == "__main__":
    sys.exit(main())
