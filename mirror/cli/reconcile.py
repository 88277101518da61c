"""``twinsite reconcile``: prove that the copy is the original, or say where it is not."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from mirror.cli.output import Finite, output_option
from mirror.cli.spark_options import spark_options
from mirror.errors import UsageError
from spark_jobs.algorithms import Algorithm

FOLDER = "reconcile"
KEYS_FOLDER = "reconcile-keys"


class Moment(click.ParamType[int]):
    """A point in time: ISO 8601, in UTC unless it names a zone. It becomes milliseconds since 1970."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            words = "write 2026-11-22T14:30, or with a zone 2026-11-22T14:30+01:00"
            self.fail(f"{value!r} is not a time: {words}", param, ctx)
        return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


config_option: Callable[[Any], Any] = click.option(
    "--config", type=click.Path(path_type=Path), metavar="FILE", required=True, help="Settings of the flow."
)
folder_option: Callable[[Any], Any] = click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=FOLDER,
    show_default=True,
    help="Where each run makes a folder of its own.",
)
metrics_option: Callable[[Any], Any] = click.option(
    "--metrics-file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write metrics to it, for node_exporter's textfile collector.",
)
carried_argument: Callable[[Any], Any] = click.argument(
    "carried", metavar="DIRECTORY", type=click.Path(path_type=Path, file_okay=False)
)


def limit_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say which part is compared, and how."""
    for option in reversed(LIMITS):
        command = option(command)
    return command


LIMITS = (
    click.option(
        "--topic",
        multiple=True,
        metavar="NAME",
        help="Only this topic of the flow, by its name at the source; may be repeated.",
    ),
    click.option(
        "--since-last-match",
        is_flag=True,
        help="Only what came after the last run that found both sites equal.",
    ),
    click.option(
        "--from-offset", "from_offset", type=click.IntRange(0), help="Only source offsets from this one on."
    ),
    click.option(
        "--to-offset", "to_offset", type=click.IntRange(0), help="Only source offsets below this one."
    ),
    click.option("--since", type=Moment(), help="Only what the source dates from this time on."),
    click.option(
        "--until",
        type=Moment(),
        help="Only what comes before the first record that the source dates at this time or later.",
    ),
    click.option(
        "--sample",
        metavar="1/N",
        help="Only one part in N of append-only topics, another one in each run; whole where it differs.",
    ),
    click.option(
        "--same-offsets",
        is_flag=True,
        help="Something other than twinsite made the copy; a record has the same offset on both sides.",
    ),
    click.option(
        "--url",
        envvar="TWINSITE_URL",
        help="The port of the running mirror, to ask how far it is: this finds what the target has lost at "
        "its end; also from TWINSITE_URL.",
    ),
    click.option(
        "--digest",
        type=click.Choice(Algorithm, case_sensitive=False),
        default=Algorithm.XXHASH64,
        show_default=Algorithm.XXHASH64.value,
        help="xxhash64 finds damage; sha256, which is slower, also finds what was made to look the same.",
    ),
)


rate_option: Callable[[Any], Any] = click.option(
    "--rate",
    type=Finite(min=0.1),
    metavar="MB",
    help="The most megabytes of keys and values that are read from a cluster per second, on average.",
)


def segments_option(name: str, whose: str) -> Callable[[Any], Any]:
    """An option that names files to read instead of brokers; it may be given several times."""
    return click.option(
        name,
        multiple=True,
        type=click.Path(path_type=Path, file_okay=False),
        metavar="DIRECTORY",
        help=f"Read {whose} records from a broker's log directory, or a copy of one, instead of brokers.",
    )


@click.group(invoke_without_command=True)
@click.option("--config", type=click.Path(path_type=Path), metavar="FILE", help="Settings of the flow.")
@folder_option
@limit_options
@rate_option
@segments_option("--source-segments", "the source's")
@segments_option("--target-segments", "the target's")
@spark_options
@metrics_option
@output_option
@click.pass_context
def reconcile(context: click.Context, /, config: Path | None, output: str, **options: Any) -> int | None:
    """Compare both sites of a flow, record by record, and name what differs.

    Data in flight is no difference: what is compared is what the copy has reached, and both sites still have.
    A target that has lost its end does not know that it had one; the mirror does, and is asked with --url.

    \b
    Exit codes: 0 both are the same, 10 they differ, 1 the comparison was not completed, 2 wrong use.

    \b
    twinsite reconcile --config flow.yaml --url http://mirror-1.west:9640
    twinsite reconcile --config flow.yaml --since 2026-11-22T00:00 -o json
    twinsite reconcile history

    If Spark cannot read both clusters from one machine, carry a folder between them: scope begins it, digest
    answers for a site, compare says what is the same.
    """
    if context.invoked_subcommand is not None:
        return None
    if config is None:
        raise click.UsageError("--config: missing")
    return int(_job("reconciling").run(config, output=output, **options))


@reconcile.command()
@folder_option
@output_option
def history(folder: Path, output: str) -> None:
    """Show the runs of a folder, the last one first.

    \b
    twinsite reconcile history --folder reconcile
    """
    from mirror.cli.comparisons import show_history

    show_history(folder, output)


@reconcile.command()
@config_option
@folder_option
@limit_options
@click.option(
    "--overtaken",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIRECTORY",
    help="A comparison whose records retention deleted before they were read; what retention deletes in as "
    "long a time is left out now.",
)
@carried_argument
def scope(config: Path, folder: Path, carried: Path, **options: Any) -> None:
    """Begin a comparison in a folder that is carried between the sites.

    Asks both clusters for offsets and nothing else. Then run digest at each site; compare says what is the
    same.

    \b
    twinsite reconcile scope --config flow.yaml proof
    twinsite reconcile scope --config flow.yaml --overtaken proof proof-2
    """
    _job("carrying").begin(config, carried, history=folder, **options)


@reconcile.command()
@config_option
@click.option("--site", type=click.Choice(["source", "target"]), required=True, help="The site that is read.")
@rate_option
@segments_option("--segments", "the site's")
@click.option(
    "--keys-folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=KEYS_FOLDER,
    show_default=True,
    help="Where keys of compacted topics are kept for the next question; it stays at the site.",
)
@spark_options
@carried_argument
def digest(config: Path, site: str, carried: Path, **options: Any) -> None:
    """Answer for one site what a comparison asks, with digests.

    \b
    twinsite reconcile digest --config flow.yaml --site source proof
    twinsite reconcile digest --config flow.yaml --site target --segments /backup/kafka-logs proof
    """
    _job("carrying").digest(config, carried, site, **options)


@reconcile.command()
@folder_option
@metrics_option
@spark_options
@output_option
@carried_argument
def compare(carried: Path, output: str, folder: Path, **options: Any) -> int:
    """Compare what both sites have answered.

    The result is in DIRECTORY, and is noted among the runs of --folder, where the next scope looks for it.

    \b
    Exit codes: 0 both are the same, 10 they differ, 3 a site has to answer more, 1 and 2 as always.

    \b
    twinsite reconcile compare proof
    """
    return int(_job("carrying").compare(carried, output, history=folder, **options))


def _job(module: str) -> Any:
    """The module that runs a job, imported now, as a mirror is installed without Spark.

    Raises:
        UsageError: Spark, or something it needs, is not installed.
    """
    try:
        return import_module(f"mirror.cli.{module}")
    except ModuleNotFoundError as error:
        if error.name not in {"pyspark", "py4j", "pyarrow", "numpy"}:
            raise
        raise UsageError(
            f"{error.name} is not installed",
            hint="only reconcile needs it: run pip install '.[spark]' in twinsite's folder",
        ) from None
