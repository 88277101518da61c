"""What Spark raises, in one line for people."""

from __future__ import annotations

import pytest
from py4j.protocol import Py4JError, Py4JNetworkError

from spark_jobs.failures import SparkFailedError, renamed_errors

DENIED = """Job aborted due to stage failure: Task 0 in stage 4.0 failed 1 times
\tat org.apache.spark.Somewhere
Caused by: java.util.concurrent.ExecutionException: see below
\tat org.apache.spark.Elsewhere
Caused by: org.apache.kafka.common.errors.TopicAuthorizationException: Not authorized to access topics: [a]
\t... 12 more"""
WITHOUT_A_CAUSE = """An error occurred while calling o72.parquet.
: org.apache.spark.SparkException: the disk is full
\tat org.apache.spark.Somewhere"""

IN_A_TASK = """An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "/somewhere/transactions.py", line 68, in _look_ahead
    raise SegmentsError(
spark_jobs.segments.logs.SegmentsError: a-0: the transaction at offset 13 has no end in /b/a-0
"""


@pytest.mark.parametrize(
    ("said", "reason", "hint"),
    [
        (IN_A_TASK, "a-0: the transaction at offset 13 has no end in /b/a-0", ".snapshot"),
        (DENIED, "TopicAuthorizationException: Not authorized to access topics: [a]", "needs Read on these"),
        (WITHOUT_A_CAUSE, "org.apache.spark.SparkException: the disk is full", "fix what is named"),
        ("", "Py4JError", "fix what is named"),
    ],
)
def test_the_innermost_cause_is_told_with_what_was_being_done(said: str, reason: str, hint: str) -> None:
    with pytest.raises(SparkFailedError) as renamed, renamed_errors("asking the source: digests"):
        raise Py4JError(said)

    assert str(renamed.value).startswith("asking the source: digests: ")
    assert str(renamed.value).endswith(reason)
    assert hint in renamed.value.hint


@pytest.mark.parametrize(
    "error", [Py4JNetworkError("Answer from Java side is empty"), ConnectionRefusedError()]
)
def test_a_java_machine_that_has_ended_is_no_riddle(error: Exception) -> None:
    """
    The first question after its end fails in one way, all others in another.
    """
    with (
        pytest.raises(SparkFailedError, match="Spark's Java process has ended") as renamed,
        renamed_errors("asking the source: digests"),
    ):
        raise error

    assert "spark.driver.memory" in renamed.value.hint
