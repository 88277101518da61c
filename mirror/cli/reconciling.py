"""Run comparisons from the command line that reach both sites."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from secrets import token_hex
from typing import Any

from mirror.cli import comparing, noting
from mirror.cli.spark_options import SparkOptions
from mirror.cli.steps import Steps, steps
from mirror.config import Settings
from mirror.errors import TwinsiteError, UsageError
from mirror.model import TopicPartition
from mirror.proving import asking
from mirror.proving.wanted import Wanted
from spark_jobs import reconcile
from spark_jobs.costs import Counted
from spark_jobs.documents import Scope
from spark_jobs.result import Files, Result
from spark_jobs.sites import Records, Sites


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
        NotCompletedError: A cluster or Spark failed. The folder of the run says so, too.
    """
    settings = comparing.loaded(config)
    noting.check_places(folder, metrics_file)
    wanted = comparing.wanted_of(settings, folder, limits, since_last_match=since_last_match, sample=sample)
    if target_segments:
        wanted = _of_files(wanted)
    began_at_ms = round(time.time() * 1000)
    named = {"source": comparing.absolute(source_segments), "target": comparing.absolute(target_segments)}
    files = {site: paths for site, paths in named.items() if paths}
    place = folder / f"{comparing.time_name(began_at_ms)}-{token_hex(2)}"

    def note(error: TwinsiteError) -> None:
        asked = wanted.extent, wanted.hashing.algorithm
        noting.note_failure(place, error, settings.flow, began_at_ms, *asked, files)

    try:
        with noting.noted(note), steps(sys.stderr) as shown:
            result = _compare(settings, wanted, place, shown, files, rate=rate, spark_options=spark_options)
    finally:
        if metrics_file is not None:
            noting.write_metrics(metrics_file, settings.flow, folder)
    return comparing.conclude(result, place, output)


def _of_files(wanted: Wanted) -> Wanted:
    """What is wanted, without what earlier runs saw at the brokers: files may be much older.

    Raises:
        UsageError: A mirror is to be asked.
    """
    if wanted.mirror is not None:
        raise UsageError(
            "--url asks how far the mirror is at the brokers, but --target-segments reads files instead",
            hint="remove one of them",
        )
    return replace(wanted, seen=())


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
        source = comparing.records_of(settings, "source", files.get("source", ()), scope)
        return source, comparing.records_of(settings, "target", files.get("target", ()), scope)

    def ask(leaving: Mapping[TopicPartition, int]) -> Scope:
        return asyncio.run(asking.scope(settings, wanted, leaving, comparing.held_in(files)))

    shown.say("asking both clusters")
    records(ask({}))  # so that errors are reported before Spark starts
    asked: list[tuple[Counted, Counted]] = []
    with comparing.spark_session(shown, spark_options) as spark:

        def sites(scope: Scope) -> Sites:
            made = reconcile.kafka_sites(
                spark,
                records(scope),
                scope,
                folder,
                shown.say,
                tell=shown.tell,
                bytes_per_second=comparing.bytes_per_second(rate),
            )
            return comparing.counted(asked, made)

        scope, found = reconcile.compare_as_it_stands(ask, sites)
        result = comparing.result_of(scope, found, folder.name, time.monotonic() - began, files)
        result = replace(result, costs=comparing.costs_of(asked))
        reconcile.write(spark, folder, result)
    return result
