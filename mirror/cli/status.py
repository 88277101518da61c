"""``twinsite status``: how a running mirror is, once or again and again."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from typing import NoReturn

import click
from rich.console import RenderableType
from rich.live import Live

from mirror.api.schema import status_from_json, status_to_json
from mirror.cli.client import MirrorClient, url_option
from mirror.cli.output import can_redraw, console, output_option, plain, print_json
from mirror.cli.render import status_table
from mirror.errors import ConnectionFailedError
from mirror.model import FlowStatus, State

NOT_ACTIVE = 3

Seen = FlowStatus | ConnectionFailedError


@click.command()
@output_option
@click.option("--watch", is_flag=True, help="Show it again and again, until Ctrl-C.")
@click.option(
    "--every", type=click.FloatRange(0.1, 3600), default=2.0, show_default=True, help="Seconds, with --watch."
)
@click.option("--all", "everything", is_flag=True, help="A row for every partition, however many there are.")
@url_option
def status(output: str, watch: bool, every: float, everything: bool, url: str) -> int:
    """Ask a running mirror how it is.

    \b
    twinsite status --watch
    twinsite status -o json --url http://mirror-1.west:9640

    Ends with 0 when every partition is ACTIVE, with 3 when one is not or when there is none at all,
    with 1 when nobody answers.
    """
    client = MirrorClient(url)
    if watch:
        _watch(client, output, every, everything=everything)
    seen = status_from_json(client.get("status"))
    if output == "json":
        print_json(status_to_json(seen))
    else:
        console().print(status_table(seen, everything=everything))
    fine = bool(seen.partitions) and all(one.state is State.ACTIVE for one in seen.partitions)
    return 0 if fine else NOT_ACTIVE


def _watch(client: MirrorClient, output: str, every: float, *, everything: bool) -> NoReturn:
    """Until a signal comes: on a terminal in place, elsewhere one after the other."""
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
    """Leave the terminal as it was found, then end as the signal would have it."""
    sys.exit(128 + received)


def _print_line(seen: Seen) -> None:
    if isinstance(seen, FlowStatus):
        print_json(status_to_json(seen), indent=None)
    else:
        click.echo(f"error: {seen}", err=True)
    sys.stdout.flush()


def _shown(seen: Seen, *, everything: bool, one_screen: bool = False) -> RenderableType:
    if isinstance(seen, FlowStatus):
        return status_table(seen, everything=everything, one_screen=one_screen)
    return plain(seen)


def _snapshots(client: MirrorClient, every: float) -> Iterator[Seen]:
    """A snapshot each so many seconds; a mirror that is away may come back."""
    while True:
        try:
            yield status_from_json(client.get("status"))
        except ConnectionFailedError as error:
            yield error
        time.sleep(every)
