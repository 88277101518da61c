"""Runs comparisons from the command line: both sites in one job, or each in its own, with a folder that is
carried between them."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from secrets import token_hex
from typing import Any, Literal

import click
from pyspark.sql import SparkSession

from mirror import logs, proving
from mirror.acknowledged import Mirror
from mirror.api.schema import status_from_json
from mirror.cli.client import MirrorClient
from mirror.cli.comparisons import show
from mirror.cli.output import print_json
from mirror.cli.spark_options import SparkOptions
from mirror.cli.steps import Steps, steps
from mirror.config import Settings, load
from mirror.consumer_options import consumer_options
from mirror.errors import TwinsiteError, UsageError
from mirror.model import TopicPartition
from mirror.proving import Wanted
from monitoring.comparisons import Comparison, textfile
from spark_jobs import carried, reconcile
from spark_jobs.algorithms import SALT_BYTES, Hashing
from spark_jobs.asking import first_questions
from spark_jobs.costs import Counted
from spark_jobs.documents import Scope, scope_of_document, scope_to_document
from spark_jobs.failures import renamed_errors
from spark_jobs.findings import Kind
from spark_jobs.history import NAME_TIME, SUMMARY, Run, last_to_continue, runs
from spark_jobs.kafka_source import Cluster
from spark_jobs.logs import Compared
from spark_jobs.result import Cost, Files, Outcome, Result, failure, summary
from spark_jobs.sampling import next_sample, parse_fraction
from spark_jobs.segments.logs import find
from spark_jobs.segments.source import SegmentFiles
from spark_jobs.session import session
from spark_jobs.sites import (
    KafkaSite,
    Records,
    Sites,
    UnansweredError,
    forget,
    forget_old_keys,
    kept_keys,
    names_at_target,
)

SiteName = Literal["source", "target"]
SCOPE = "scope.json"
UNNAMED = "unnamed"
"""The kind, in metrics, of differences that were only counted."""


class NotCompletedError(TwinsiteError):
    """The comparison was not completed: nothing is said about the copy."""


# -- both sites in one job -----------------------------------------------------------------------


def run(
    config: Path,
    *,
    output: str,
    folder: Path,
    since_last_match: bool,
    sample: str | None,
    metrics_file: Path | None,
    rate: float | None,
    source_segments: Sequence[Path],
    target_segments: Sequence[Path],
    spark_options: SparkOptions,
    **limits: Any,
) -> int:
    """Compare, show the result, and return the exit code.

    Raises:
        UsageError: Settings or options are wrong, or something is not installed.
        NotCompletedError: A cluster or Spark stood in the way. The folder of the run says so too.
    """
    settings = _loaded(config)
    wanted = _wanted(settings, folder, limits, since_last_match=since_last_match, sample=sample)
    began_at_ms = round(time.time() * 1000)
    named = {"source": _paths(source_segments), "target": _paths(target_segments)}
    files = {site: paths for site, paths in named.items() if paths}
    place = folder / f"{_time_name(began_at_ms)}-{token_hex(2)}"
    try:
        with steps(sys.stderr) as shown:
            result = _compare(settings, wanted, place, shown, files, rate=rate, spark_options=spark_options)
    except TwinsiteError as error:
        asked = str(wanted), wanted.hashing.algorithm
        words = str(error), error.hint
        document = failure(place.name, settings.flow, began_at_ms, *asked, *words, files)
        reconcile.write_failure(place, document)
        if isinstance(error, UsageError):
            raise
        raise NotCompletedError(str(error), hint=error.hint) from error
    finally:
        if metrics_file is not None:
            _write_metrics(metrics_file, settings.flow, folder)
    return _conclude(result, place, output)


def _time_name(at_ms: int) -> str:
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC):{NAME_TIME}}Z"


def _loaded(config: Path) -> Settings:
    settings = load(config)
    logs.set_up(level="warning")
    return settings


def _wanted(
    settings: Settings, folder: Path, limits: dict[str, Any], *, since_last_match: bool, sample: str | None
) -> Wanted:
    hashing = Hashing(limits["digest"], token_hex(SALT_BYTES))
    known = [run for run in runs(folder) if run.is_of_clusters and run.is_as_strong_as(hashing.algorithm)]
    topics = tuple(sorted({*limits["topic"]}))
    alike = [run for run in known if run.topics == topics]
    continues = last_to_continue(known, settings.flow) if since_last_match else None
    return Wanted(
        topics=topics,
        start=limits["from_offset"],
        end=limits["to_offset"],
        since_ms=limits["since"],
        until_ms=limits["until"],
        continues=continues,
        sample=None if sample is None else next_sample(parse_fraction(sample), alike, settings.flow),
        same_offsets=limits["same_offsets"],
        hashing=hashing,
        mirror=_mirror(limits["url"]),
    )


def _mirror(url: str | None) -> Mirror | None:
    """
    Raises:
        UsageError: The address is none.
    """
    if not url:
        return None
    client = MirrorClient(url)
    return Mirror(client.url, lambda: status_from_json(client.get("status")))


def _compare(
    settings: Settings,
    wanted: Wanted,
    folder: Path,
    shown: Steps,
    files: Files,
    *,
    rate: float | None,
    spark_options: SparkOptions,
) -> Result:
    began = time.monotonic()

    def records(scope: Scope) -> tuple[Records, Records]:
        source = _records(settings, "source", files.get("source", ()), scope)
        return source, _records(settings, "target", files.get("target", ()), scope)

    shown.say("asking both clusters")
    records(asyncio.run(proving.scope(settings, wanted)))  # what is wrong is said before Spark starts
    asked: list[tuple[Counted, Counted]] = []
    with _spark(shown, spark_options) as spark:

        def sites(scope: Scope) -> Sites:
            made = reconcile.kafka_sites(
                spark,
                records(scope),
                scope,
                folder,
                shown.say,
                tell=shown.tell,
                bytes_per_second=_bytes_per_second(rate),
            )
            return _counted(asked, made)

        scope, found = reconcile.compare_as_it_stands(
            lambda leaving: asyncio.run(proving.scope(settings, wanted, leaving)), sites
        )
        result = _result(scope, found, folder.name, time.monotonic() - began, files)
        result = replace(result, costs=_costs(asked))
        reconcile.write(spark, folder, result)
    return result


def _paths(segments: Sequence[Path]) -> list[str]:
    return [str(folder.absolute()) for folder in segments]


def _bytes_per_second(megabytes: float | None) -> float | None:
    return None if megabytes is None else megabytes * 1e6


def _records(settings: Settings, site: SiteName, files: Sequence[str], scope: Scope) -> Records:
    """The brokers of a site, or its files where directories are named.

    Raises:
        UsageError: They are no log directories, or do not hold all partitions.
    """
    if not files:
        return Cluster(site, consumer_options(getattr(settings, site)))
    names = _names(site, scope)
    folders = [Path(file) for file in files]
    find(folders, [TopicPartition(names[log.name.topic], log.name.partition) for log in scope.logs])
    return SegmentFiles(site, folders, {names[log.name.topic] for log in scope.compacted})


def _names(site: SiteName, scope: Scope) -> Mapping[str, str]:
    """What a site calls the source's topics."""
    at_target = names_at_target(scope.logs)
    return at_target if site == "target" else {name: name for name in at_target}


def _counted(asked: list[tuple[Counted, Counted]], sites: Sites) -> Sites:
    source, target = Counted(sites.source), Counted(sites.target)
    asked.append((source, target))
    return replace(sites, source=source, target=target)


def _costs(asked: Sequence[tuple[Counted, Counted]]) -> tuple[Cost, Cost]:
    """Of both sites, whatever was asked."""
    source, target = (sum((one.cost for one in some), Cost()) for some in zip(*asked, strict=True))
    return source, target


def _result(scope: Scope, found: list[Compared], run: str, seconds: float, files: Files) -> Result:
    return Result(
        run=run,
        flow=scope.flow,
        source_cluster_id=scope.source_cluster_id,
        target_cluster_id=scope.target_cluster_id,
        started_at_ms=scope.asked_at_ms,
        seconds=seconds,
        wanted=scope.wanted,
        reaches_back=scope.reaches_back,
        topics=scope.topics,
        compared=found,
        algorithm=scope.hashing.algorithm,
        sample=scope.sample,
        mirror=scope.mirror,
        not_compared=scope.not_compared,
        files=files,
    )


def _conclude(result: Result, folder: Path, output: str) -> int:
    if output == "json":
        print_json(summary(result))
    else:
        show(result, folder)
    return result.outcome.exit_code


# -- sites that do not see each other --------------------------------------------------------------


def begin(
    config: Path, folder: Path, *, since_last_match: bool, sample: str | None, history: Path, **limits: Any
) -> None:
    """Find out what is compared, and leave it in a new folder with the first questions to both sites.

    Raises:
        UsageError: The folder holds a comparison already.
        TwinsiteError: As :func:`mirror.proving.scope`.
    """
    if (folder / SCOPE).exists():
        raise UsageError(f"{folder} holds a comparison already", hint="begin each one with a new folder")
    settings = _loaded(config)
    wanted = _wanted(settings, history, limits, since_last_match=since_last_match, sample=sample)
    scope = asyncio.run(proving.scope(settings, wanted))
    for questions in first_questions(scope.append_only, scope.compacted, scope.sample, scope.hashing):
        for site, question in zip(("source", "target"), questions, strict=True):
            if question.ranges:
                carried.leave(folder, site, question)
    carried.write_json(folder / SCOPE, scope_to_document(scope))
    click.echo(f"{folder}: both sites have to answer, with `twinsite reconcile digest`")


def digest(
    config: Path,
    folder: Path,
    site: SiteName,
    *,
    rate: float | None,
    segments: Sequence[Path],
    keys_folder: Path,
    spark_options: SparkOptions,
) -> None:
    """Answer the questions to a site that have no answer yet.

    Args:
        keys_folder: Where the site keeps the keys of compacted topics from one round to the next.

    Raises:
        UsageError: The folder holds no comparison, or not of this flow; what is named is no log directory.
        SparkFailedError: The cluster or Spark stood in the way; answers that were finished stay.
    """
    settings = _loaded(config)
    scope = _scope(folder)
    if scope.flow != settings.flow:
        raise UsageError(f"{folder} is about flow {scope.flow}, the settings are about {settings.flow}")
    forget_old_keys(keys_folder, time.time())
    questions = list(carried.unanswered(folder, site))
    if not questions:
        if (folder / SUMMARY).exists():
            forget(kept_keys(keys_folder, site, scope.hashing))
        click.echo(f"{folder}: there is nothing to answer for the {site}")
        return
    files = _paths(segments)
    records = _records(settings, site, files, scope)
    if files:
        carried.note_files(folder, site, files)
    with steps(sys.stderr) as shown, _spark(shown, spark_options) as spark:
        rate_bytes = _bytes_per_second(rate)
        asked = KafkaSite(spark, records, _names(site, scope), folder, keys_folder, shown.tell, rate_bytes)
        for name, question in questions:
            shown.say(f"answering {name}")
            with renamed_errors(f"answering {name}"):
                carried.give(folder, name, question, asked)
    click.echo(f"{folder}: {len(questions)} questions answered for the {site}")


def compare(
    folder: Path,
    output: str,
    *,
    history: Path,
    metrics_file: Path | None,
    spark_options: SparkOptions,
) -> int:
    """Compare as far as there are answers; the result where all are there.

    Args:
        history: Among its runs the result is noted, unless it lies there anyhow.

    Returns:
        The exit code.

    Raises:
        UnansweredError: A site has to answer more; the questions are in the folder.
        UsageError: What is in the folder cannot be used.
        NotCompletedError: Spark stood in the way. The history says so too.
    """
    logs.set_up(level="warning")
    scope = _scope(folder)
    is_there = folder.resolve().parent == history.resolve()
    run = folder.name if is_there else f"{_time_name(scope.asked_at_ms)}-{folder.resolve().name}"
    try:
        result = _compare_answers(folder, scope, run, spark_options)
        if not is_there:
            reconcile.note_elsewhere(history / run, folder, result)
    except (UnansweredError, UsageError):
        raise
    except TwinsiteError as error:
        asked = scope.wanted, scope.hashing.algorithm
        words = str(error), error.hint
        document = failure(run, scope.flow, scope.asked_at_ms, *asked, *words, carried.files(folder))
        reconcile.write_failure(history / run, document)
        raise NotCompletedError(str(error), hint=error.hint) from error
    finally:
        if metrics_file is not None:
            _write_metrics(metrics_file, scope.flow, history)
    return _conclude(result, folder, output)


def _compare_answers(folder: Path, scope: Scope, run: str, spark_options: SparkOptions) -> Result:
    began = time.monotonic()
    with steps(sys.stderr) as shown, _spark(shown, spark_options) as spark:
        source, target = (carried.CarriedSite(spark, site, folder) for site in ("source", "target"))
        asked: list[tuple[Counted, Counted]] = []
        sites = _counted(asked, Sites(spark, source, target, shown.say, scope.hashing, scope.logs))
        found = reconcile.compare(sites, scope)
        result = _result(scope, found, run, time.monotonic() - began, carried.files(folder))
        result = replace(result, costs=_costs(asked), is_carried=True)
        reconcile.write(spark, folder, result, keep_answers=True)
    return result


def _scope(folder: Path) -> Scope:
    path = folder / SCOPE
    return scope_of_document(carried.read_json(path), str(path))


@contextmanager
def _spark(shown: Steps, options: SparkOptions) -> Iterator[SparkSession]:
    shown.say("starting Spark")
    with session(master=options.master, jars_folder=options.jars, settings=options.settings) as spark:
        yield spark


# -- metrics -------------------------------------------------------------------------------------


def _write_metrics(path: Path, flow: str, folder: Path) -> None:
    """What the folder says of the flow, as a whole file or none."""
    known = [one for one in runs(folder) if one.flow == flow and one.is_of_clusters]
    if not known:
        return
    matches = [_began_at(one) for one in known if one.outcome == Outcome.MATCH and not one.topics]
    text = textfile(_comparison(known[-1], flow), max(matches, default=None), [*Outcome])
    beside = path.with_name(f".{path.name}")
    beside.write_bytes(text)
    beside.replace(path)


def _comparison(last: Run, flow: str) -> Comparison:
    document = last.summary
    completed = "source" in document
    differences = document.get("differences", {}) | {UNNAMED: document.get("unnamed", 0)}
    return Comparison(
        flow=flow,
        began_at=_began_at(last),
        outcome=last.outcome,
        mismatches={kind: differences.get(kind, 0) for kind in (*Kind, UNNAMED)} if completed else None,
        records=document["source"]["records"] if completed else None,
        bytes=document["source"]["bytes"] if completed else None,
        seconds=document.get("seconds"),
    )


def _began_at(one: Run) -> float:
    return datetime.fromisoformat(one.summary["started_at"]).timestamp()
