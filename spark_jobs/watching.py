"""Report Spark's progress while it works.

Spark counts tasks, and knows the tasks of a stage only when the stage is about to begin: a share may be
smaller than the one reported before.
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
"""Called with the share of a step that is done, from 0 to 1; also from another thread."""

LOOK_SECONDS = 0.5
JOB_GROUP = "spark.jobGroup.id"


class Tasks(NamedTuple):
    """Tasks of a stage: in all, running now, and done."""

    total: int
    running: int
    done: int


def share(stages: Iterable[Tasks]) -> float | None:
    """The share of the known tasks that is done; None before any stage has begun.

    Stages that have not begun are left out: Spark skips those whose output it still has.
    """
    begun = [stage for stage in stages if stage.running or stage.done]
    total = sum(stage.total for stage in begun)
    return sum(stage.done for stage in begun) / total if total else None


@contextmanager
def watched(spark: SparkSession, tell: Tell, *, look_seconds: float = LOOK_SECONDS) -> Iterator[None]:
    """Report how far Spark is with the jobs of the block, until the block ends in whatever way."""
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
        context.setLocalProperty(JOB_GROUP, before)  # type: ignore[arg-type]  # None removes it


def _watch(context: SparkContext, group: str, tell: Tell, over: Event, look_seconds: float) -> None:
    """End quietly where Spark is gone: whoever waits for its result reports that."""
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
