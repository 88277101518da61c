"""``twinsite offsets``: what an offset on one side is called on the other."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from mirror.cli.client import MirrorClient, url_option
from mirror.cli.output import output_option, print_json
from mirror.model import TopicPartition

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
    help="Ask the target itself, by the settings of the flow: no mirror need run, the source may be gone.",
)
@output_option
@url_option
@click.pass_context
def translate(
    ctx: click.Context,
    topic: str,
    partition: int,
    offset: int,
    reverse: bool,
    config: Path | None,
    output: str,
    url: str,
) -> None:
    """Say where a record is on the other side.

    The answer is exact or there is none: nothing is extrapolated. A running mirror is asked,
    or with --config the target cluster.

    \b
    twinsite offsets translate --topic orders --partition 0 --offset 4711
    twinsite offsets translate --topic orders --partition 0 --offset 4711 --config flow.yaml
    """
    if config is not None and ctx.get_parameter_source("url") is ParameterSource.COMMANDLINE:
        raise click.UsageError("--config and --url do not go together")
    tp = TopicPartition(topic, partition)
    if config is not None:
        answer = _from_target(config, tp, offset, reverse=reverse)
    else:
        query = {**tp._asdict(), "offset": offset, "reverse": str(reverse).lower()}
        answer = MirrorClient(url).get("offsets", "translate", **query)
    if output == "json":
        print_json(answer)
    else:
        click.echo(answer["source_offset"] if reverse else answer["target_offset"])


def _from_target(config: Path, tp: TopicPartition, offset: int, *, reverse: bool) -> dict[str, Any]:
    """The same document as a running mirror gives."""
    from mirror.config import load
    from mirror.offline import translate as ask_target

    translated = asyncio.run(ask_target(load(config), tp, offset, reverse=reverse))
    source, target = (translated, offset) if reverse else (offset, translated)
    return {"schema": SCHEMA, **tp._asdict(), "source_offset": source, "target_offset": target}
