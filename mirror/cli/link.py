"""``twinsite link``: what the way from the source is like."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import click

from mirror.cli.output import Finite, clean, console, output_option, print_json
from mirror.errors import ExitCode
from mirror.link.probe import RATE_MIN, SECONDS_MAX


@click.group()
def link() -> None:
    """Look at the link between a mirror and the relays next to its source."""


@link.command()
@click.option("--relay", metavar="HOST:PORT,...", help="Relays; they are measured one after the other.")
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The mirror's settings: its link and its topics; options override it.",
)
@click.option(
    "--topics",
    multiple=True,
    metavar="REGEX,!REGEX,...",
    help="Topics to copy, as for 'twinsite mirror': is the link fast enough for what is produced?",
)
@click.option(
    "--seconds",
    type=Finite(1, SECONDS_MAX),
    default=10.0,
    show_default=True,
    help="How long each link is filled.",
)
@click.option(
    "--rate-max",
    type=click.IntRange(min=RATE_MIN),
    metavar="BYTES",
    help="The most bytes per second that are sent.  [default: what link.limits allow now, or it carries]",
)
@output_option
def test(output: str, seconds: float, rate_max: int | None, **options: Any) -> int:
    """Measure the link, and say what lag to expect.

    \b
    twinsite link test --relay relay.east:9650
    twinsite link test --config flow.yaml --seconds 20
    twinsite link test --relay relay.east:9650 --topics 'orders.*' --rate-max 1000000 -o json

    Measures round trips, then sends incompressible bytes from the relay to here. The link is full
    meanwhile, and what is copied over it shares it.

    Ends with 0 if everything was measured, with 3 if a link carries less than what is produced. If a
    relay or the source fails, it ends with the code of the first error: 1 if one does not answer, 4 if
    one refuses.
    """
    from mirror import logs
    from mirror.cli.flags import link_settings_of
    from mirror.cli.link_report import document, report
    from mirror.cli.main import show_error
    from mirror.survey.run import Wish, survey

    settings, topics, flow = link_settings_of(options)
    logs.set_up(level="warning", form=flow.log.format if flow else "auto")
    found = asyncio.run(survey(settings, Wish(seconds, rate_max, topics, flow), _say))
    if output == "json":
        print_json(document(found))
    else:
        console().print(report(found))
    for error in found.errors:
        show_error(error)
    if found.errors:
        return found.errors[0].exit_code
    return ExitCode.NOT_THERE if found.too_slow else ExitCode.DONE


def _say(words: str) -> None:
    click.echo(clean(words), err=True)
