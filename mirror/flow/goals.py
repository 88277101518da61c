"""When a copy that is to end has reached its end."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterable

from mirror.flow.partition import HOPELESS, PartitionCopy
from mirror.model import Reason, State, is_there

CHECK_SECONDS = 0.02
CHECK_SHARE = 0.05
"""The share of the time that checks may take, however many partitions there are."""
STUCK_SECONDS = 10.0
"""How much longer a partition that is blocked, or stands by, is waited for once none comes nearer to its
goal. The same goes for one that lags because of an open transaction. That, like a silent source, is noticed
only after ``lagging_after_seconds``; until then the partition is waited for."""
ABSENT_SECONDS = 60.0
"""The same where a broker does not answer, or too few do: as long as one takes to restart. Also where another
flow has the target partition: of two that begin at once, one takes back what it has written down, and the
other looks again after a while.
"""
_ABSENT = frozenset(
    {
        Reason.SOURCE_UNAVAILABLE,
        Reason.TARGET_UNAVAILABLE,
        Reason.NOT_ENOUGH_REPLICAS,
        Reason.ANOTHER_FLOW,
    }
)


class Goals:
    """The goal of each partition is its high watermark, as first seen.

    Args:
        awaits: Whether other flows may be writing down just now what they have at the target. A partition
            that cannot begin before that is known comes no nearer to its goal, and waits with good reason.
    """

    def __init__(
        self, partitions: Iterable[PartitionCopy], awaits: Callable[[], bool] = lambda: False
    ) -> None:
        self._partitions = list(partitions)
        self._awaits = awaits
        self._moved_at = time.monotonic()
        self._moved = 0

    async def reached(self, timeout_seconds: float | None) -> None:
        """Wait until every partition has reached its goal or cannot, or the time, if limited, is up."""
        end = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        # states change in many places: polling costs less than a signal in each of them
        began_at = time.monotonic()
        while not self._over() and (end is None or time.monotonic() < end):
            rest = max(CHECK_SECONDS, (time.monotonic() - began_at) / CHECK_SHARE)
            await asyncio.sleep(rest if end is None else min(rest, max(0.0, end - time.monotonic())))
            began_at = time.monotonic()

    def _over(self) -> bool:
        now = time.monotonic()
        missing = [p for p in self._partitions if not self._done(p)]
        moved = sum(_come(p) for p in self._partitions)
        held_up = any(p.reason is Reason.TARGET_UNAVAILABLE for p in missing) and self._awaits()
        if moved != self._moved or held_up:
            self._moved, self._moved_at = moved, now
        return now - self._moved_at >= max(map(_patience_seconds, missing), default=0.0)

    @staticmethod
    def _done(partition: PartitionCopy) -> bool:
        if partition.goal_offset is None:
            partition.goal_offset = partition.source_high_watermark
        return is_there(partition.state, partition.mode, partition.next_offset, partition.goal_offset)


def _come(partition: PartitionCopy) -> int:
    """How far the partition has come towards its goal; what is copied beyond the goal does not count."""
    reached, goal = partition.next_offset or 0, partition.goal_offset
    return reached if goal is None else min(reached, goal)


def _patience_seconds(partition: PartitionCopy) -> float:
    """How long it is waited for while nothing moves: for ever, unless it needs something else to change."""
    if partition.state in HOPELESS:
        return 0.0
    if partition.reason in _ABSENT:
        return ABSENT_SECONDS
    held = partition.state in {State.BLOCKED, State.STANDBY} or partition.reason is Reason.OPEN_TRANSACTION
    return STUCK_SECONDS if held else math.inf
