"""What ``--help`` says can be typed as it stands."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path as File

import click
import pytest

from mirror.cli.main import cli

Path = tuple[str, ...]

ROOT = File(__file__).parents[2]


def commands(command: click.Command, path: Path = ()) -> Iterator[tuple[Path, click.Command]]:
    """Every command that does something, with the words that lead to it."""
    if not isinstance(command, click.Group):
        yield path, command
        return
    if command.invoke_without_command:
        yield path, command
    with click.Context(command) as ctx:
        for name in command.list_commands(ctx):
            inner = command.get_command(ctx, name)
            assert inner is not None
            yield from commands(inner, (*path, name))


def examples(command: click.Command) -> list[str]:
    """The lines of a help text that show how the command is called."""
    text = command.get_help(click.Context(command, terminal_width=100))
    return [line.strip() for line in text.splitlines() if line.startswith("  twinsite ")]


ALL = dict(commands(cli))


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_every_command_shows_how_it_is_called(path: Path) -> None:
    """
    Each example is a line of its own, begins with the command, and is accepted as it stands.
    """
    command = ALL[path]
    shown = examples(command)

    assert shown, f"twinsite {' '.join(path)} has no example"
    for line in shown:
        words, _, _ = line.partition(" > ")
        program, *arguments = shlex.split(words)
        assert (program, tuple(arguments[: len(path)])) == ("twinsite", path)
        command.make_context("example", arguments[len(path) :])


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
WRITTEN = [
    (page.name, line)
    for page in PAGES
    for block in re.findall(r"^```\w*\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    for line in block.splitlines()
    if line.startswith("twinsite ")
]
"""Every command line in the code blocks of the documentation, and its page."""


def test_the_documentation_shows_commands() -> None:
    """
    In the pages people read first.
    """
    assert {"README.md", "commands.md", "states.md"} <= {page for page, _ in WRITTEN}


@pytest.mark.parametrize(("page", "line"), WRITTEN, ids=[f"{page}: {line}" for page, line in WRITTEN])
def test_every_command_in_the_documentation_is_accepted_as_it_stands(page: str, line: str) -> None:
    """
    Whoever copies a line from the pages has typed something that exists.
    """
    words = shlex.split(line, comments=True)[1:]
    path = max((path for path in ALL if tuple(words[: len(path)]) == path), key=len)

    ALL[path].make_context("written", words[len(path) :])


def test_every_option_is_explained() -> None:
    """
    Also those whose name seems to say it all, but for numbers of partitions.
    """
    silent = [
        f"{' '.join(path)}: {option.name}"
        for path, command in ALL.items()
        for option in command.params
        if isinstance(option, click.Option) and not option.help and option.name not in {"partition", "output"}
    ]

    assert silent == []
