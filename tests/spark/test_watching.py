"""How far Spark is, told by somebody who looks on."""

from __future__ import annotations

import threading
from collections.abc import Iterable

import pytest
from pyspark.sql import DataFrame, SparkSession

from spark_jobs.kafka_source import TASK_OFFSETS_ENOUGH, TASK_OFFSETS_MIN, task_offsets
from spark_jobs.watching import JOB_GROUP, Tasks, share, watched


@pytest.mark.parametrize(
    ("stages", "done"),
    [
        ([], None),
        ([Tasks(8, 0, 0)], None),
        ([Tasks(8, 2, 0)], 0.0),
        ([Tasks(8, 2, 4)], 0.5),
        ([Tasks(8, 0, 8), Tasks(8, 0, 0), Tasks(2, 1, 1)], 0.9),
    ],
)
def test_what_has_not_begun_does_not_count(stages: Iterable[Tasks], done: float | None) -> None:
    """
    A stage whose outcome is there already is listed once more, and never begins.
    """
    assert share(stages) == done


def sleepers(spark: SparkSession, tasks: int) -> DataFrame:
    """Each task takes its time."""
    return spark.range(tasks, numPartitions=tasks).selectExpr("reflect('java.lang.Thread', 'sleep', 200L)")


def test_while_spark_works_it_is_told_how_far_it_is(spark: SparkSession) -> None:
    """
    And nothing of it once the work is done, though other work goes on.
    """
    shares: list[float] = []

    with watched(spark, shares.append, look_seconds=0.05):
        sleepers(spark, 6).write.format("noop").mode("overwrite").save()
    told = list(shares)
    sleepers(spark, 2).write.format("noop").mode("overwrite").save()

    assert told == sorted(told)
    assert any(0 < one < 1 for one in told)
    assert shares == told


def test_nobody_looks_on_at_work_that_has_failed(spark: SparkSession) -> None:
    before = {thread.ident for thread in threading.enumerate()}

    with pytest.raises(ZeroDivisionError), watched(spark, lambda _: None, look_seconds=60.0):
        raise ZeroDivisionError

    assert {thread.ident for thread in threading.enumerate()} <= before
    assert spark.sparkContext.getLocalProperty(JOB_GROUP) is None


@pytest.mark.parametrize(
    ("total", "offsets"),
    [
        (1_000, TASK_OFFSETS_MIN),
        (8_000_000, 1_000_000),
        (400_000_000, TASK_OFFSETS_ENOUGH),
        (128_000_000_000, 1_000_000_000),
    ],
)
def test_tasks_are_as_large_as_they_must_be_and_no_larger(total: int, offsets: int) -> None:
    """
    On two cores: small ones are not worth it, large ones show too late how far they are.
    """
    assert task_offsets(total, 2) == offsets
