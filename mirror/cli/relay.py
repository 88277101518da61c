"""``twinsite relay``: let mirrors at the other end of a slow link read the source next to which it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click


@click.command(short_help="Run next to the source, for mirrors far away.")
@click.option("--cluster", metavar="HOST:PORT,...", help="Brokers of the source.")
@click.option("--listen", metavar="HOST:PORT", help="Where mirrors connect.  [default: 127.0.0.1:9650]")
@click.option(
    "--api-port",
    type=click.IntRange(-1, 65535),
    help="Port for status and metrics; 0 any free, -1 none.  [default: 9651]",
)
@click.option(
    "--config", type=click.Path(path_type=Path), metavar="FILE", help="A settings file; options override it."
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    help="The lowest level that is logged.",
)
def relay(**options: Any) -> int:
    """Read the source for mirrors that are far away from it, until told to stop.

    \b
    twinsite relay --cluster kafka-1.east:9092 --listen 0.0.0.0:9650

    Mirrors connect with "twinsite mirror --relay HOST:PORT". A relay keeps no state: any number may run in
    parallel, and a mirror goes on with another one.
    """
    from mirror.cli.flags import relay_settings_of
    from mirror.relay.run import run

    return run(relay_settings_of(options))
