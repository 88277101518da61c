"""``twinsite offsets``: what an offset on one side is called on the other."""

from __future__ import annotations

from pathlib import Path

import click

from mirror.cli.client import MirrorClient, url_option
from mirror.cli.output import output_option, print_json
from mirror.model import OFFSET_MAX, TopicPartition

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
    help="At the source; with --reverse at the target.",
)
@click.option("--reverse", is_flag=True, help="From the target to the source.")
@click.option(
    "--committed", is_flag=True, help="A group has committed this offset: say where the group goes on."
)
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Read the map from the target, with these settings; needs no running mirror and no source.",
)
@output_option
@url_option
def translate(
    topic: str,
    partition: int,
    offset: int,
    reverse: bool,
    committed: bool,
    config: Path | None,
    output: str,
    url: str,
) -> None:
    """Say where a record is on the other side.

    Asks a running mirror or, with --config, the target itself. Either the answer is exact, or the
    offset is refused: nothing is extrapolated.

    A group commits the next offset that it reads. So with --committed the offset may be the end of the
    log, or one without a record, such as a transaction marker's: the group goes on after it.

    \b
    twinsite offsets translate --topic orders --partition 0 --offset 4711
    twinsite offsets translate --topic orders --partition 0 --offset 4711 --committed
    twinsite offsets translate --topic orders --partition 0 --offset 4711 --config flow.yaml
    """
    if config is None:
        query = {"topic": topic, "partition": partition, "offset": offset}
        flags = {"reverse": str(reverse).lower(), "committed": str(committed).lower()}
        answer = MirrorClient(url).get("offsets", "translate", **query, **flags)
    else:
        tp = TopicPartition(topic, partition)
        translated = _from_target(config, tp, offset, reverse=reverse, committed=committed)
        source, target = (translated, offset) if reverse else (offset, translated)
        answer = {"schema": SCHEMA, "topic": topic, "partition": partition}
        answer |= {"source_offset": source, "target_offset": target}
    if output == "json":
        print_json(answer)
    else:
        click.echo(answer["source_offset"] if reverse else answer["target_offset"])


def _from_target(path: Path, tp: TopicPartition, offset: int, *, reverse: bool, committed: bool) -> int:
    import asyncio

    from mirror import logs, offline
    from mirror.config import load

    settings = load(path)
    logs.set_up(level="warning", form=settings.log.format)
    return asyncio.run(offline.translate(settings, tp, offset, reverse=reverse, committed=committed))
