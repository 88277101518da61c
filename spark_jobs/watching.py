"""How far Spark is with what it is doing, told while it does it.

Spark counts tasks, and knows of those to come only when their stage is about to begin: a share may be smaller
than the one told before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from secrets import token_hex
from threading import Event
from typing import NamedTuple

from py4j.protocol import Py4JError
from pyspark import InheritableThread, SparkContext
from pyspark.sql import SparkSession

Tell = Callable[[float], None]
"""Told which share of a step is done, from 0 to 1; by another thread."""

LOOK_SECONDS = 0.5
JOB_GROUP = "spark.jobGroup.id"


class Tasks(NamedTuple):
    """Tasks of a stage: how many there are, run now, and are done."""

    total: int
    running: int
    done: int


def share(stages: Iterable[Tasks]) -> float | None:
    """How much of what is known is done; None while nothing runs.

    Stages that have not begun are left out: Spark skips those whose outcome it still has.
    """
    begun = [stage for stage in stages if stage.running or stage.done]
    total = sum(stage.total for stage in begun)
    return sum(stage.done for stage in begun) / total if total else None


@contextmanager
def watched(spark: SparkSession, tell: Tell, *, look_seconds: float = LOOK_SECONDS) -> Iterator[None]:
    """Tell how far Spark is with what the block asks of it, until the block ends, however it does."""
    context = spark.sparkContext
    group, before = f"twinsite-{token_hex(4)}", context.getLocalProperty(JOB_GROUP)
    over = Event()
    watcher = InheritableThread(target=_watch, args=(context, group, tell, over, look_seconds))
    context.setLocalProperty(JOB_GROUP, group)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
        context.setLocalProperty(JOB_GROUP, before)  # type: ignore[arg-type]  # None takes it away


def _watch(context: SparkContext, group: str, tell: Tell, over: Event, look_seconds: float) -> None:
    """Where Spark has gone, whoever waits for it says so."""
    with suppress(Py4JError):
        while not over.wait(look_seconds):
            done = share(_stages(context, group))
            if done is not None:
                tell(done)


def _stages(context: SparkContext, group: str) -> Iterator[Tasks]:
    tracker = context.statusTracker()
    for job in tracker.getJobIdsForGroup(group):
        info = tracker.getJobInfo(job)
        for stage in info.stageIds if info else ():
            one = tracker.getStageInfo(stage)
            if one is not None:
                yield Tasks(one.numTasks, one.numActiveTasks, one.numCompletedTasks)
