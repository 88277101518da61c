"""What all comparing commands have in common: what is asked for, where records are, what the result is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from secrets import token_hex
from typing import Any, Literal

import click
from pyspark.sql import SparkSession

from mirror import logs
from mirror.acknowledged import Mirror
from mirror.api.schema import status_from_json
from mirror.cli.client import MirrorClient
from mirror.cli.comparisons import show
from mirror.cli.output import clean, print_json
from mirror.cli.spark_options import SparkOptions
from mirror.cli.steps import Steps
from mirror.config import Settings, load
from mirror.consumer_options import consumer_options
from mirror.errors import UsageError
from mirror.model import TopicPartition
from mirror.proving.asking import Held
from mirror.proving.wanted import Wanted
from spark_jobs.algorithms import SALT_BYTES, Hashing
from spark_jobs.costs import Counted
from spark_jobs.documents import Scope
from spark_jobs.history import DAMAGED, NAME_TIME, last_to_continue, runs
from spark_jobs.kafka_source import Cluster
from spark_jobs.logs import Compared
from spark_jobs.result import Cost, Files, Result, summary, time_text
from spark_jobs.sampling import next_sample, parse_fraction
from spark_jobs.segments.logs import find
from spark_jobs.segments.source import SegmentFiles
from spark_jobs.session import session
from spark_jobs.sites import Records, Sites, names_at_target

SiteName = Literal["source", "target"]


def loaded(config: Path) -> Settings:
    """Settings of a flow, for a command that logs only warnings.

    Raises:
        UsageError: They are not accepted, or the flow copies uncommitted records, which are not compared.
    """
    settings = load(config)
    if settings.read.isolation != "read_committed":
        raise UsageError(
            f"flow {settings.flow} copies records of aborted and open transactions (read.isolation: "
            f"{settings.read.isolation}), which a comparison skips at the source and would report as extra",
            hint="if no source producer uses transactions, compare with read.isolation: read_committed",
        )
    logs.set_up(level="warning", form=settings.log.format)
    return settings


def wanted_of(
    settings: Settings, folder: Path, limits: dict[str, Any], *, since_last_match: bool, sample: str | None
) -> Wanted:
    """What the command line asks for, given the earlier runs in a folder.

    Args:
        limits: Options of the command, by name.

    Raises:
        UsageError: An option is not valid, or two of them leave nothing between them.
    """
    hashing = Hashing(limits["digest"], token_hex(SALT_BYTES))
    _check_order(("--from-offset", "--to-offset"), limits["from_offset"], limits["to_offset"])
    _check_order(("--since", "--until"), limits["since"], limits["until"], time_text)
    found = runs(folder)
    for run in found:
        if run.outcome == DAMAGED:
            words = clean(f"{folder / run.name}: left out: {run.summary['error']}")
            click.echo(f"warning: {words}", err=True)
    seen = [run for run in found if run.is_of_clusters and run.flow == settings.flow]
    known = [run for run in seen if run.is_as_strong_as(hashing.algorithm)]
    wanted = Wanted(
        topics=tuple(sorted({*limits["topic"]})),
        start=limits["from_offset"],
        end=limits["to_offset"],
        since_ms=limits["since"],
        until_ms=limits["until"],
        continues=last_to_continue(known, settings.flow) if since_last_match else None,
        seen=[run for run in seen if run.has_ended],
        same_offsets=limits["same_offsets"],
        hashing=hashing,
        mirror=_mirror(limits["url"]),
    )
    if sample is None:
        return wanted
    alike = [run for run in known if (run.topics, run.limits) == (wanted.topics, wanted.limits)]
    return replace(wanted, sample=next_sample(parse_fraction(sample), alike, settings.flow))


def _check_order(
    options: tuple[str, str], start: int | None, end: int | None, said: Callable[[int], str] = str
) -> None:
    """
    Raises:
        UsageError: Nothing lies between them.
    """
    if start is not None and end is not None and start >= end:
        words = f"{options[0]} {said(start)} is not before {options[1]} {said(end)}"
        raise UsageError(words, hint="the second one is excluded: give a larger one")


def _mirror(url: str | None) -> Mirror | None:
    """
    Raises:
        UsageError: The address is not valid.
    """
    if not url:
        return None
    client = MirrorClient(url)
    return Mirror(client.url, lambda: status_from_json(client.get("status")))


def time_name(at_ms: int) -> str:
    """How the name of a run's folder begins, by when the run began."""
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC):{NAME_TIME}}Z"


def absolute(segments: Sequence[Path]) -> list[str]:
    """Directories as the summary names them: absolute, as it may be read elsewhere."""
    return [str(folder.absolute()) for folder in segments]


def bytes_per_second(megabytes: float | None) -> float | None:
    """What ``--rate`` allows, from megabytes a second; None for no limit."""
    return None if megabytes is None else megabytes * 1e6


def records_of(settings: Settings, site: SiteName, files: Sequence[str], scope: Scope) -> Records:
    """Where to read a site's records: from its brokers, or from log directories if any are named.

    Raises:
        UsageError: They are not log directories, or do not hold all partitions.
    """
    if not files:
        way = settings.target if site == "target" else settings.way_to_source
        return Cluster(site, consumer_options(way))
    names = names_of(site, scope)
    folders = [Path(file) for file in files]
    find(folders, [TopicPartition(names[log.name.topic], log.name.partition) for log in scope.logs])
    return SegmentFiles(site, folders, {names[log.name.topic] for log in scope.compacted})


def held_in(files: Files) -> Held:
    """The logs that directories hold, to be read in place of brokers."""
    ends = {
        site: SegmentFiles(site, [Path(file) for file in some], set()).ends for site, some in files.items()
    }
    return Held(ends.get("source"), ends.get("target"))


def names_of(site: SiteName, scope: Scope) -> Mapping[str, str]:
    """The source's topics, with their names at a site."""
    at_target = names_at_target(scope.logs)
    return at_target if site == "target" else {name: name for name in at_target}


def counted(asked: list[tuple[Counted, Counted]], sites: Sites) -> Sites:
    """The sites, with their questions and answers counted; the counters are appended to ``asked``."""
    source, target = Counted(sites.source), Counted(sites.target)
    asked.append((source, target))
    return replace(sites, source=source, target=target)


def costs_of(asked: Sequence[tuple[Counted, Counted]]) -> tuple[Cost, Cost]:
    """What all questions have cost, at the source and at the target."""
    source, target = (sum((one.cost for one in some), Cost()) for some in zip(*asked, strict=True))
    return source, target


def result_of(scope: Scope, found: list[Compared], run: str, seconds: float, files: Files) -> Result:
    """What was asked for and what was found, together."""
    return Result(
        run=run,
        flow=scope.flow,
        source_cluster_id=scope.source_cluster_id,
        target_cluster_id=scope.target_cluster_id,
        started_at_ms=scope.asked_at_ms,
        seconds=seconds,
        extent=scope.extent,
        compared=found,
        algorithm=scope.hashing.algorithm,
        mirror=scope.mirror,
        not_compared=scope.not_compared,
        files=files,
    )


@contextmanager
def spark_session(shown: Steps, options: SparkOptions) -> Iterator[SparkSession]:
    """A session with the command line's options; raises what :func:`spark_jobs.session.session` does."""
    shown.say("starting Spark")
    with session(master=options.master, jars_folder=options.jars, settings=options.settings) as spark:
        yield spark


def conclude(result: Result, folder: Path, output: str) -> int:
    """Show the result; returns the exit code of the command."""
    if output == "json":
        print_json(summary(result))
    else:
        show(result, folder)
    return result.outcome.exit_code
