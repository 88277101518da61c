"""``twinsite offsets``: what an offset on one side is called on the other."""

from __future__ import annotations

import click

from mirror.cli.client import MirrorClient, url_option
from mirror.cli.output import output_option, print_json

OFFSET_MAX = 2**63 - 1


@click.group()
def offsets() -> None:
    """Translate offsets between source and target."""


@offsets.command()
@click.option("--topic", required=True, help="The topic, by its name at the source.")
@click.option("--partition", type=click.IntRange(0, 2**31 - 1), required=True)
@click.option(
    "--offset",
    type=click.IntRange(0, OFFSET_MAX),
    required=True,
    help="Of the source; with --reverse of the target.",
)
@click.option("--reverse", is_flag=True, help="From the target to the source.")
@output_option
@url_option
def translate(topic: str, partition: int, offset: int, reverse: bool, output: str, url: str) -> None:
    """Ask a running mirror where a record is on the other side.

    The answer is exact or there is none: nothing is extrapolated.
    """
    query = {"topic": topic, "partition": partition, "offset": offset, "reverse": str(reverse).lower()}
    answer = MirrorClient(url).get("offsets", "translate", **query)
    if output == "json":
        print_json(answer)
    else:
        click.echo(answer["source_offset"] if reverse else answer["target_offset"])
