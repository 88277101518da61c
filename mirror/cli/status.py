"""``twinsite status``: how a running mirror or relay is, once or repeatedly."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from typing import Any, NoReturn

import click
from rich.console import RenderableType
from rich.live import Live

from mirror.api.relay_schema import is_of_relay, relay_from_json, relay_to_json
from mirror.api.schema import status_from_json, status_to_json
from mirror.cli.client import MirrorClient, url_option
from mirror.cli.output import Finite, can_redraw, clean, console, output_option, plain, print_json
from mirror.cli.render import status_table
from mirror.cli.render_relay import relay_table
from mirror.errors import ExitCode, TwinsiteError
from mirror.model import FlowStatus, State
from mirror.model_relay import RelayStatus

Seen = FlowStatus | RelayStatus | TwinsiteError


@click.command()
@output_option
@click.option("--watch", is_flag=True, help="Show it repeatedly, until Ctrl-C.")
@click.option(
    "--every", type=Finite(0.1, 3600), default=2.0, show_default=True, help="Seconds, with --watch."
)
@click.option("--all", "everything", is_flag=True, help="A row for every partition, however many there are.")
@url_option
def status(output: str, watch: bool, every: float, everything: bool, url: str) -> int:
    """Show the status of a running mirror, or of a relay.

    \b
    twinsite status --watch
    twinsite status -o json --url http://mirror-1.west:9640
    twinsite status --url http://127.0.0.1:9651

    Ends with 0 if every partition is ACTIVE; with 3 if one is not, if there is none at all, or if it is
    unknown whether a topic is to be copied; with 1 if nobody answers. A relay has no partitions: 0 if
    mirrors may connect, 3 while it waits for its source.
    """
    client = MirrorClient(url)
    if watch:
        _watch(client, output, every, everything=everything)
    seen = _read(client)
    if output == "json":
        print_json(_document(seen))
    else:
        console().print(_table(seen, everything=everything))
    if isinstance(seen, RelayStatus):
        return ExitCode.NOT_THERE if seen.waits_for else ExitCode.DONE
    known = all(topic.is_known for topic in seen.topics_left_out)
    fine = known and bool(seen.partitions) and all(one.state is State.ACTIVE for one in seen.partitions)
    return ExitCode.DONE if fine else ExitCode.NOT_THERE


def _read(client: MirrorClient) -> FlowStatus | RelayStatus:
    document = client.get("status")
    return relay_from_json(document) if is_of_relay(document) else status_from_json(document)


def _document(seen: FlowStatus | RelayStatus) -> dict[str, Any]:
    return relay_to_json(seen) if isinstance(seen, RelayStatus) else status_to_json(seen)


def _table(seen: FlowStatus | RelayStatus, *, everything: bool, one_screen: bool = False) -> RenderableType:
    if isinstance(seen, RelayStatus):
        return relay_table(seen, everything=everything)
    return status_table(seen, everything=everything, one_screen=one_screen)


def _watch(client: MirrorClient, output: str, every: float, *, everything: bool) -> NoReturn:
    """Show snapshots until a signal comes: on a terminal in place, elsewhere one after the other."""
    screen = console()
    if output == "json":
        for seen in _snapshots(client, every):
            _print_line(seen)
    elif can_redraw(screen):
        signal.signal(signal.SIGTERM, _end)
        with Live(console=screen, screen=True, auto_refresh=False) as live:
            for seen in _snapshots(client, every):
                live.update(_shown(seen, everything=everything, one_screen=True), refresh=True)
    else:
        for seen in _snapshots(client, every):
            screen.print(_shown(seen, everything=everything))
    raise AssertionError("snapshots never end")


def _end(received: int, _frame: object) -> NoReturn:
    """End with the signal's exit code, so that the terminal is restored on the way out."""
    sys.exit(128 + received)


def _print_line(seen: Seen) -> None:
    if isinstance(seen, TwinsiteError):
        click.echo(f"error: {clean(seen)}", err=True)
    else:
        print_json(_document(seen), indent=None)
    sys.stdout.flush()


def _shown(seen: Seen, *, everything: bool, one_screen: bool = False) -> RenderableType:
    if isinstance(seen, TwinsiteError):
        return plain(seen)
    return _table(seen, everything=everything, one_screen=one_screen)


def _snapshots(client: MirrorClient, every: float) -> Iterator[Seen]:
    """A snapshot, or why there is none, after every so many seconds: a mirror that is away may come back."""
    while True:
        try:
            yield _read(client)
        except TwinsiteError as error:
            yield error
        time.sleep(every)
