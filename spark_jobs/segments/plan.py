"""What each task reads: stretches of logs, of about the same size.

Logs are divided by offsets, at the beginning of files and, where there is an index, within them. Where they
are cut matters only for the balance: a task finds its offsets by itself. Pure.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from spark_jobs.segments.logs import SegmentLog
from spark_jobs.window import Range

TASK_BYTES_MIN, TASK_BYTES_MAX = 16 << 20, 1 << 30
"""Bytes of files that a task reads."""
TASKS_PER_CORE = 4
NEAR_OFFSETS = 1024
"""Ranges less than this far apart are read in one go, with what lies between them."""


class Part(NamedTuple):
    """What is wanted of a stretch of a log.

    Attributes:
        size_bytes: Bytes of files that have to be read for it, about.
    """

    log: SegmentLog
    wanted: Sequence[Range]
    size_bytes: int


def tasks(wanted: Iterable[tuple[SegmentLog, Sequence[Range]]], cores: int) -> list[list[Part]]:
    """What is wanted of some logs, one list a task.

    Args:
        wanted: Ranges in order, none touching the next.
    """
    logs = list(wanted)
    total = sum(part.size_bytes for log, some in logs for part in _parts(log, some, TASK_BYTES_MAX))
    size = min(max(total // (cores * TASKS_PER_CORE), TASK_BYTES_MIN), TASK_BYTES_MAX)
    return list(_gathered((part for log, some in logs for part in _parts(log, some, size)), size))


def near(wanted: Sequence[Range]) -> Iterator[Sequence[Range]]:
    """Ranges that are read in one go."""
    first = 0
    for at, (one, other) in enumerate(pairwise(wanted), 1):
        if other.start - one.end >= NEAR_OFFSETS:
            yield wanted[first:at]
            first = at
    if wanted:
        yield wanted[first:]


def _gathered(parts: Iterable[Part], size_bytes: int) -> Iterator[list[Part]]:
    task: list[Part] = []
    for part in parts:
        task.append(part)
        if sum(one.size_bytes for one in task) >= size_bytes:
            yield task
            task = []
    if task:
        yield task


def _parts(log: SegmentLog, wanted: Sequence[Range], size_bytes: int) -> Iterator[Part]:
    for stretch, stretch_bytes in _stretches(log, wanted[-1].end if wanted else 0, size_bytes):
        if not stretch.offsets:  # a large segment may have fewer offsets than pieces
            continue
        first = bisect_right(wanted, stretch.start, key=lambda one: one.end)
        last = bisect_left(wanted, stretch.end, key=lambda one: one.start)
        some = [one.within(stretch) for one in wanted[first:last]]
        if some:
            share = sum(one.offsets for one in some) / stretch.offsets
            yield Part(log, some, round(stretch_bytes * share))


def _stretches(log: SegmentLog, end: int, size_bytes: int) -> Iterator[tuple[Range, float]]:
    """Stretches of all offsets up to an end, with their bytes of files; small where there is an index."""
    yield Range(0, log.segments[0].base_offset), 0.0
    for number, segment in enumerate(log.segments):
        start = segment.base_offset
        stop = log.next_base(number) or max(start, end)
        pieces = max(1, -(-segment.size_bytes // size_bytes)) if segment.is_indexed else 1
        cuts = [start + (stop - start) * piece // pieces for piece in range(pieces + 1)]
        for one in (Range(*both) for both in pairwise(cuts)):
            yield one, segment.size_bytes / pieces
