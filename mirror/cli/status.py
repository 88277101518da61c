"""``twinsite status``: how a running mirror is, once or again and again."""

from __future__ import annotations

import time
from collections.abc import Iterator

import click
from rich.live import Live

from mirror.api.schema import status_from_json, status_to_json
from mirror.cli.client import MirrorClient, url_option
from mirror.cli.output import console, output_option, plain, print_json
from mirror.cli.render import status_table
from mirror.errors import ConnectionFailedError
from mirror.model import FlowStatus, State

NOT_ACTIVE = 3


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

    Ends with 0 when every partition is ACTIVE, with 3 when one is not, with 1 when nobody answers.
    """
    client = MirrorClient(url)
    if watch:
        return _watch(client, output, every, everything=everything)
    seen = status_from_json(client.get("status"))
    if output == "json":
        print_json(status_to_json(seen))
    else:
        console().print(status_table(seen, everything=everything))
    return 0 if all(one.state is State.ACTIVE for one in seen.partitions) else NOT_ACTIVE


def _watch(client: MirrorClient, output: str, every: float, *, everything: bool) -> int:
    if output == "json":
        for seen in _snapshots(client, every):
            if isinstance(seen, FlowStatus):
                print_json(status_to_json(seen), indent=None)
            else:
                click.echo(f"error: {seen}", err=True)
        return 0
    screen = console()
    with Live(console=screen, auto_refresh=False, vertical_overflow="visible") as live:
        for seen in _snapshots(client, every):
            shown = status_table(seen, everything=everything) if isinstance(seen, FlowStatus) else plain(seen)
            live.update(shown, refresh=True)
            if not screen.is_terminal:
                screen.print(shown)
    return 0


def _snapshots(client: MirrorClient, every: float) -> Iterator[FlowStatus | ConnectionFailedError]:
    """A snapshot each so many seconds; a mirror that is away may come back."""
    while True:
        try:
            yield status_from_json(client.get("status"))
        except ConnectionFailedError as error:
            yield error
        time.sleep(every)
