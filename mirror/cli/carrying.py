"""Run comparisons of sites that no machine reaches together, from the command line: a folder is carried
between them."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from mirror import logs
from mirror.cli import comparing, noting
from mirror.cli.comparing import SiteName
from mirror.cli.spark_options import SparkOptions
from mirror.cli.steps import steps
from mirror.errors import TwinsiteError, UsageError
from mirror.model import TopicPartition
from mirror.proving import asking
from spark_jobs import carried, reconcile
from spark_jobs.asking import first_questions
from spark_jobs.costs import Counted
from spark_jobs.documents import Scope, leaving, scope_of_document, scope_to_document
from spark_jobs.failures import renamed_errors
from spark_jobs.history import has_ended
from spark_jobs.result import Result, begun
from spark_jobs.sites import KafkaSite, Sites, forget, forget_old_keys, kept_keys

SCOPE = "scope.json"


def begin(
    config: Path,
    folder: Path,
    *,
    since_last_match: bool,
    sample: str | None,
    overtaken: Path | None,
    history: Path,
    **limits: Any,
) -> None:
    """Find out what is compared, and leave it in a new folder with the first questions to both sites.

    Args:
        overtaken: The folder of a comparison whose records were deleted before they were read.

    Raises:
        UsageError: The folder holds a comparison already; the one that was overtaken is of another flow, or
            has lost nothing.
        NotCompletedError: A request to a cluster failed.
    """
    if (folder / SCOPE).exists():
        raise UsageError(f"{folder} already holds a comparison", hint="begin each comparison in a new folder")
    settings = comparing.loaded(config)
    noting.check_places(history, None)
    wanted = comparing.wanted_of(settings, history, limits, since_last_match=since_last_match, sample=sample)
    with noting.noted():
        scope = asyncio.run(asking.scope(settings, wanted))
        if overtaken is not None:
            scope = asyncio.run(asking.scope(settings, wanted, _lost_of(overtaken, scope)))
    for questions in first_questions(scope.append_only, scope.compacted, scope.extent.sample, scope.hashing):
        for site, question in zip(("source", "target"), questions, strict=True):
            if question.ranges:
                carried.leave(folder, site, question)
    carried.write_json(folder / SCOPE, scope_to_document(scope))
    _note_begun(folder, history, scope)
    click.echo(f"{folder}: now run `twinsite reconcile digest` for both sites")


def _lost_of(overtaken: Path, scope: Scope) -> Mapping[TopicPartition, int]:
    """Logs that have lost their start since then, each with the offset to begin at so as to keep ahead."""
    earlier = _scope(overtaken)
    if earlier.flow != scope.flow:
        raise UsageError(f"{overtaken} belongs to flow {earlier.flow}, the settings to flow {scope.flow}")
    lost = leaving(earlier, scope)
    if not lost:
        raise UsageError(
            f"--overtaken {overtaken}: all that it compares can still be read",
            hint="continue with it: run `twinsite reconcile digest` for both sites",
        )
    return lost


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
        UsageError: The folder holds no comparison, or one of another flow; or a directory that is named is
            no log directory.
        NotCompletedError: The cluster or Spark failed; finished answers stay.
    """
    settings = comparing.loaded(config)
    scope = _scope(folder)
    if scope.flow != settings.flow:
        raise UsageError(f"{folder} belongs to flow {scope.flow}, the settings to flow {settings.flow}")
    forget_old_keys(keys_folder, time.time())
    questions = list(carried.unanswered(folder, site))
    if not questions:
        if has_ended(folder):
            forget(kept_keys(keys_folder, site, scope.hashing))
        click.echo(f"{folder}: nothing is left to answer for the {site}")
        return
    files = comparing.absolute(segments)
    with noting.noted():
        records = comparing.records_of(settings, site, files, scope)
        if files:
            carried.note_files(folder, site, files)
        with steps(sys.stderr) as shown, comparing.spark_session(shown, spark_options) as spark:
            names, bytes_per_second = comparing.names_of(site, scope), comparing.bytes_per_second(rate)
            asked = KafkaSite(spark, records, names, folder, keys_folder, shown.tell, bytes_per_second)
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
    """Compare as far as there are answers; show the result if all are there.

    Args:
        history: The folder of runs among which the result is noted, unless it lies there already.

    Returns:
        The exit code.

    Raises:
        UnansweredError: A site has to answer more; the questions are in the folder.
        UsageError: What is in the folder cannot be used.
        NotCompletedError: Spark failed. The history says so, too.
    """
    logs.set_up(level="warning")
    scope = _scope(folder)
    noting.check_places(history, metrics_file)
    run = _run(folder, history, scope)

    def note(error: TwinsiteError) -> None:
        asked = scope.extent, scope.hashing.algorithm
        files = carried.files(folder)
        if not has_ended(history / run):
            noting.note_failure(history / run, error, scope.flow, scope.asked_at_ms, *asked, files)

    try:
        with noting.noted(note):
            if not has_ended(history / run):
                _note_begun(folder, history, scope)  # scope may have noted it on another machine
            result = _compare_answers(folder, scope, run, spark_options)
            if not _is_run_of(folder, history):
                reconcile.note_elsewhere(history / run, folder, result)
    finally:
        if metrics_file is not None:
            noting.write_metrics(metrics_file, scope.flow, history)
    return comparing.conclude(result, folder, output)


def _compare_answers(folder: Path, scope: Scope, run: str, spark_options: SparkOptions) -> Result:
    began = time.monotonic()
    with steps(sys.stderr) as shown, comparing.spark_session(shown, spark_options) as spark:
        source, target = (carried.CarriedSite(spark, site, folder) for site in ("source", "target"))
        asked: list[tuple[Counted, Counted]] = []
        sites = comparing.counted(asked, Sites(spark, source, target, shown.say, scope.hashing, scope.logs))
        found = reconcile.compare(sites, scope)
        result = comparing.result_of(scope, found, run, time.monotonic() - began, carried.files(folder))
        seconds = carried.answer_seconds(folder, "source"), carried.answer_seconds(folder, "target")
        result = replace(result, costs=comparing.costs_of(asked), answer_seconds=seconds)
        reconcile.write(spark, folder, result, keep_answers=True)
    return result


def _note_begun(folder: Path, history: Path, scope: Scope) -> None:
    """Note the run as unfinished: it stays so if a site never answers."""
    run = _run(folder, history, scope)
    asked = scope.extent, scope.hashing.algorithm
    reconcile.note_begun(history / run, folder, begun(run, scope.flow, scope.asked_at_ms, *asked))


def _run(folder: Path, history: Path, scope: Scope) -> str:
    """The name of the comparison among the runs of ``history``."""
    if _is_run_of(folder, history):
        return folder.name
    return f"{comparing.time_name(scope.asked_at_ms)}-{folder.resolve().name}"


def _is_run_of(folder: Path, history: Path) -> bool:
    return folder.resolve().parent == history.resolve()


def _scope(folder: Path) -> Scope:
    path = folder / SCOPE
    return scope_of_document(carried.read_json(path), str(path))
