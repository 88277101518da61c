"""Errors of Spark and of Kafka's Java consumer become one of ours: what was being done, and why it failed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import PySparkException

from mirror.errors import TwinsiteError


class SparkFailedError(TwinsiteError):
    """Spark could not do what it was asked for; nothing was concluded."""

    hint = "the comparison was not completed: fix what is named and run it again"


_OURS = re.compile(r"^spark_jobs\.[\w.]+: ")
"""The class name in front of the message of an error of ours."""
CAUSE = "Caused by: "
CALLING = "An error occurred while calling "
"""How a message of Py4J begins; the reason follows."""
HINTS = {
    "has no end in": "take a newer copy; to compare both sites in one job, copy the .snapshot files with the "
    ".log files: they say which transactions are open, and the comparison ends before those",
    "TopicAuthorizationException": "Spark reads as the user of the settings, who needs Read on these topics: "
    "docs/permissions.md",
    "OffsetOutOfRangeException": "retention deletes it faster than it is read: start again, with a carried "
    "folder by `twinsite reconcile scope --overtaken DIRECTORY`, which leaves out what is deleted next",
    "SaslAuthenticationException": "check the credentials of this cluster",
    "JAVA_GATEWAY_EXITED": "what Java said is above; Spark needs Java 17 or newer, and takes the one in "
    "JAVA_HOME, if that is set",
    "stopped SparkContext": "it has ended by itself, mostly because nothing answers at --master: what it "
    "said is above",
    "Failed to find data source: kafka": "pass the jars in docs/reconcile.md to spark-submit with --jars",
}

ENDED = (
    "usually out of memory: give it more (--conf spark.driver.memory=4g), or compare less at a time "
    "(--sample, --since-last-match)"
)


@contextmanager
def renamed_errors(doing: str) -> Iterator[None]:
    """Turn errors of Spark in the block into ours.

    Args:
        doing: What is being done.

    Raises:
        SparkFailedError: In place of an error of Spark, Py4J, or the connection to Java.
    """
    try:
        yield
    except (Py4JNetworkError, ConnectionError) as error:
        raise SparkFailedError(f"{doing}: Spark's Java process has ended", hint=ENDED) from error
    except (PySparkException, Py4JError) as error:
        reason = reason_of(str(error)) or type(error).__name__
        hint = next((words for said, words in HINTS.items() if said in reason), None)
        raise SparkFailedError(f"{doing}: {reason}", hint=hint) from error


def reason_of(said: str) -> str:
    """What Python raised in a task, or the innermost cause that Java names, in one line."""
    _, begins, traceback = said.rpartition("Traceback (most recent call last):\n")
    if begins:
        raised = next(line for line in traceback.splitlines() if not line.startswith(" "))
        return _OURS.sub("", raised)
    lines = [line.strip().removeprefix(": ") for line in said.splitlines()]
    causes = [line.removeprefix(CAUSE) for line in lines if line.startswith(CAUSE)]
    others = [line for line in lines if line and not line.startswith(CALLING)]
    return causes[-1] if causes else next(iter(others), "")
