"""``twinsite mirror``: copy topics, forever or until everything seen at the start is there."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from mirror.cli.output import Finite, output_option


@click.command(short_help="Copy topics from one cluster to another.")
@click.option("--source", metavar="HOST:PORT,...", help="Brokers of the source cluster.")
@click.option(
    "--relay", metavar="HOST:PORT,...", help="Relays next to the source cluster, instead of --source."
)
@click.option("--target", metavar="HOST:PORT,...", help="Brokers of the target cluster.")
@click.option(
    "--topics",
    multiple=True,
    metavar="REGEX,!REGEX,...",
    help="Topics to copy, and with ! those to leave out; each REGEX matches a whole name. May be repeated. "
    "Only !REGEX: all topics but these. What FILE excludes stays out, unless there is a ! here.",
)
@click.option(
    "--config", type=click.Path(path_type=Path), metavar="FILE", help="A settings file; options override it."
)
@click.option("--flow", metavar="NAME", help="Name of the flow.  [default: default]")
@click.option(
    "--offsets",
    type=click.Choice(["same", "auto", "mapped"]),
    help="How target offsets relate to source offsets.  [default: same]",
)
@click.option(
    "--names",
    type=click.Choice(["identity", "prefix"]),
    help="Names of target topics.  [default: identity]",
)
@click.option("--prefix", metavar="TEXT", help="Goes in front of names, for example east. with the dot.")
@click.option("--once", is_flag=True, help="Copy what is there now, then end.")
@click.option("--timeout-seconds", type=Finite(min=0.1), help="With --once: give up after this time.")
@click.option(
    "--api-port",
    type=click.IntRange(-1, 65535),
    help="Port for status and metrics; 0 any free, -1 none.  [default: 9640, none with --once]",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    help="The lowest level that is logged.",
)
@output_option
def mirror(output: str, once: bool, timeout_seconds: float | None, **options: Any) -> int:
    """Copy topics of one Kafka cluster to another, exactly, until told to stop.

    \b
    twinsite mirror --source a:9092 --target b:9092 --topics 'orders.*,!orders\\.tmp'
    twinsite mirror --config flow.yaml --once -o json

    SIGTERM or Ctrl-C lets what is in flight arrive, then ends; a second one ends at once.

    With --once it ends with 0 if every partition got as far as the source was at the start,
    with 3 if one did not, with 5 if time was up.
    """
    from mirror.cli.flags import settings_of
    from mirror.cli.running import run_for_ever, run_once

    if timeout_seconds is not None and not once:
        raise click.UsageError("--timeout-seconds requires --once")
    if output == "json" and not once:
        raise click.UsageError("-o json requires --once; for a running mirror use 'twinsite status -o json'")
    settings = settings_of(options, once=once, terminal=sys.stderr.isatty())
    return run_once(settings, timeout_seconds, output) if once else run_for_ever(settings)
