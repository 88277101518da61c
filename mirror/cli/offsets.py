"""``twinsite offsets``: what an offset on one side is called on the other."""

from __future__ import annotations

from pathlib import Path

import click

from mirror.cli.client import MirrorClient, url_option
from mirror.cli.output import output_option, print_json

OFFSET_MAX = 2**63 - 1
SCHEMA = 1


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
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Read it from the target, with these settings: needs no running mirror and no source.",
)
@output_option
@url_option
def translate(
    topic: str, partition: int, offset: int, reverse: bool, config: Path | None, output: str, url: str
) -> None:
    """Say where a record is on the other side.

    A running mirror is asked, or with --config the target itself. The answer is exact or there is
    none: nothing is extrapolated.

    \b
    twinsite offsets translate --topic orders --partition 0 --offset 4711
    twinsite offsets translate --topic orders --partition 0 --offset 4711 --config flow.yaml
    """
    if config is None:
        query = {"topic": topic, "partition": partition, "offset": offset, "reverse": str(reverse).lower()}
        answer = MirrorClient(url).get("offsets", "translate", **query)
    else:
        translated = _from_target(config, topic, partition, offset, reverse=reverse)
        source, target = (translated, offset) if reverse else (offset, translated)
        answer = {"schema": SCHEMA, "topic": topic, "partition": partition}
        answer |= {"source_offset": source, "target_offset": target}
    if output == "json":
        print_json(answer)
    else:
        click.echo(answer["source_offset"] if reverse else answer["target_offset"])


def _from_target(path: Path, topic: str, partition: int, offset: int, *, reverse: bool) -> int:
    import asyncio

    from mirror import logs, offline
    from mirror.config import load
    from mirror.model import TopicPartition

    settings = load(path)
    logs.set_up(level="warning")
    return asyncio.run(offline.translate(settings, TopicPartition(topic, partition), offset, reverse=reverse))
