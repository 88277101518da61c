"""One comparison of both sites, from what is to be compared to the files of its result.

Each run has a folder of its own: ``summary.json``, ``report.html``, ``differences`` (Parquet, one row a
difference), and ``plan.json`` for a repair. While it runs, ``answers`` holds what both sites answered. A run
that failed leaves a page and a summary too, which say so.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from mirror.errors import TwinsiteError
from mirror.model import TopicPartition
from spark_jobs.append_only import compare_logs, compare_sample
from spark_jobs.compacted import compare_compacted
from spark_jobs.documents import Scope, leaving
from spark_jobs.failures import SparkFailedError, renamed_errors
from spark_jobs.history import SUMMARY
from spark_jobs.logs import Compared
from spark_jobs.plan import PLAN, plan_of, plan_to_document
from spark_jobs.report import failure_page, page
from spark_jobs.result import DIFFERENCE_SCHEMA, Result, rows, summary
from spark_jobs.sites import ANSWERS, KafkaSite, Records, Sites, UnansweredError, keep, names_at_target
from spark_jobs.watching import Tell

DIFFERENCES = "differences"
REPORT = "report.html"

Say = Callable[[str], None]
ATTEMPTS = 3
"""How often a comparison is tried while logs lose their start as they are read."""


def compare_as_it_stands(
    ask: Callable[[Mapping[TopicPartition, int]], Scope], sites: Callable[[Scope], Sites]
) -> tuple[Scope, list[Compared]]:
    """Compare what both sites hold, and again where retention deleted something while it was read.

    Each further attempt leaves out what retention may delete before it is read. There are at most
    :data:`ATTEMPTS` in all.

    Args:
        ask: Finds out what can be compared now; of the logs it is given, only from a source offset on.
        sites: The sites to ask about a scope.

    Returns:
        What was compared, and the result for each log.

    Raises:
        SparkFailedError: As :func:`compare`.
    """
    scope = ask({})
    for _ in range(ATTEMPTS - 1):
        asked = sites(scope)
        try:
            return scope, compare(asked, scope)
        except SparkFailedError as failed:
            lost = leaving(scope, _asked_again(ask, failed))
            if not lost:
                raise
            asked.say("a log lost its start while it was read: comparing again, from a later start")
            scope = ask(lost)
    return scope, compare(sites(scope), scope)


def _asked_again(ask: Callable[[Mapping[TopicPartition, int]], Scope], failed: SparkFailedError) -> Scope:
    """What can be compared now, after reading has failed.

    Raises:
        SparkFailedError: ``failed`` itself, where that cannot be found out: all topics may be gone.
    """
    try:
        return ask({})
    except TwinsiteError as error:
        raise failed from error


def compare(sites: Sites, scope: Scope) -> list[Compared]:
    """All that differs, for each log of the scope.

    Raises:
        SparkFailedError: It could not be found out; says why.
        UnansweredError: A site that cannot be reached from here has to answer first; all that it can be asked
            now has been asked.
    """
    found: list[Compared] = []
    waiting: list[UnansweredError] = []
    for part in (_append_only, _compacted):
        try:
            found += part(sites, scope)
        except UnansweredError as error:
            waiting.append(error)
    if waiting:
        raise waiting[0]
    return found


def _append_only(sites: Sites, scope: Scope) -> list[Compared]:
    with renamed_errors("comparing append-only topics"):
        if scope.extent.sample is None:
            return compare_logs(sites, scope.append_only)
        return compare_sample(sites, scope.append_only, scope.extent.sample)


def _compacted(sites: Sites, scope: Scope) -> list[Compared]:
    with renamed_errors("comparing compacted topics"):
        return compare_compacted(sites, scope.compacted)


def _unheard(_share: float) -> None:
    """Ignore the progress."""


def kafka_sites(
    spark: SparkSession,
    records: tuple[Records, Records],
    scope: Scope,
    folder: Path,
    say: Say,
    *,
    tell: Tell = _unheard,
    bytes_per_second: float | None = None,
) -> Sites:
    """Both sites, where both can be reached from here.

    Args:
        records: Of the source and of the target.
        folder: Where answers are kept while the comparison runs.
        say: Called with what is done now, a few words a step.
        tell: Called with the share of the step that is done.
        bytes_per_second: The most that is read from each, on average; None: as fast as possible.
    """
    source, target = records
    there = names_at_target(scope.logs)
    here = {name: name for name in there}
    return Sites(
        spark,
        KafkaSite(spark, source, here, folder, folder / ANSWERS, tell, bytes_per_second),
        KafkaSite(spark, target, there, folder, folder / ANSWERS, tell, bytes_per_second),
        say,
        scope.hashing,
        scope.logs,
    )


def write(spark: SparkSession, folder: Path, result: Result, *, keep_answers: bool = False) -> None:
    """Leave the result in the folder of its run; the summary last.

    Args:
        keep_answers: Do not delete the answers: they were carried here.

    Raises:
        SparkFailedError: The differences could not be written.
    """
    with renamed_errors("writing the differences"):
        found = spark.createDataFrame(list(rows(result)), DIFFERENCE_SCHEMA)
        keep(found.coalesce(1), folder / DIFFERENCES)
    if not keep_answers:
        shutil.rmtree(folder / ANSWERS, ignore_errors=True)
    (folder / REPORT).write_text(page(result, str(folder)), encoding="utf-8")
    plan = plan_of(result)
    if plan.partitions:
        _write_json(folder / PLAN, plan_to_document(plan))
    _write_json(folder / SUMMARY, summary(result))


def note_elsewhere(place: Path, folder: Path, result: Result) -> None:
    """Note a result among the runs of another folder than its own.

    Args:
        place: The folder of the run there; it gets the summary only.
        folder: Where the result lies.
    """
    place.mkdir(parents=True, exist_ok=True)
    (place / REPORT).unlink(missing_ok=True)  # left by an attempt that failed
    _write_json(place / SUMMARY, summary(result) | {"folder": str(folder.absolute())})


def note_begun(place: Path, folder: Path, document: dict[str, Any]) -> None:
    """Note among the runs of a folder that one has begun.

    Args:
        place: The folder of the run there.
        folder: Where its result will lie.
    """
    place.mkdir(parents=True, exist_ok=True)
    (place / REPORT).unlink(missing_ok=True)  # left by an attempt that failed
    _write_json(place / SUMMARY, document | {"folder": str(folder.absolute())})


def write_failure(folder: Path, document: dict[str, Any]) -> None:
    """Leave the page and the summary of a run that was not completed; the summary last."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / REPORT).write_text(failure_page(document), encoding="utf-8")
    _write_json(folder / SUMMARY, document)


def _write_json(path: Path, document: dict[str, Any]) -> None:
    """Write a document whole or not at all."""
    beside = path.with_name(f".{path.name}")
    beside.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n")
    beside.replace(path)
