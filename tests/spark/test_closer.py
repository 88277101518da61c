"""What is asked for when much differs: digests of few places, of what differs and no more than may be."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql import DataFrame, SparkSession

from spark_jobs import closer
from spark_jobs.algorithms import Hashing
from spark_jobs.questions import Question
from spark_jobs.stretches import RANGE_PLACES, Island
from spark_jobs.window import Range
from tests.unit.reading_again import log_of


def test_of_too_much_the_first_is_digested_closer_and_the_rest_counted(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Nothing beside what differs is: here it is at places 1024 to 4096, of which two ranges may be asked for.
    """
    monkeypatch.setattr(closer, "WHOLE_MAX", 0)
    monkeypatch.setattr(closer, "CLOSER_MAX", 2 * RANGE_PLACES)
    log = log_of(Range(0, 8192), Range(0, 8192))
    columns = "topic string, partition int, range long, records long, lane_0 long"
    same = spark.createDataFrame([("t", 0, 130, 8, 7)], columns)
    asked: list[Question] = []

    def ask_closer(here: Question, there: Question) -> tuple[DataFrame, DataFrame]:
        asked.extend((here, there))
        return same, same

    sites = cast(Any, SimpleNamespace(hashing=Hashing(), ask_closer=ask_closer))

    [plan], _ = closer.plans(sites, [log], {}, {log.name: [Island(1, 3)]}, same)

    assert [one.ranges for one in asked] == [{log.name: [Range(1024, 3072)]}] * 2
    assert {one.width for one in asked} == {closer.CLOSER_PLACES}
    assert (plan.reads, plan.unread) == ([], [Range(3072, 4096)])
