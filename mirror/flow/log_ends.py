"""Whether the target's logs end where we left them.

The log end is the position, and each append shows whether it still is. For an idle copy nothing would
show that its topic was deleted, that it lost its end, or that somebody else wrote to it; yet the target
is promoted going by its status. So the mirror that holds the right asks once a minute, many partitions
per question, and looks at each log that ends elsewhere: the look finds out what has happened.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterable
from typing import Protocol

from mirror.flow.context import Flow
from mirror.flow.partition import PartitionCopy
from mirror.kafka.offsets import DEBUGGER, LATEST, by_leader, list_offsets

PARTITIONS_AT_ONCE = 5_000
"""In one question: writing it and reading the answer takes some 40 ms, in which nothing else is done."""


class Right(Protocol):
    """The right to copy the flow; see :class:`mirror.flow.owner.Owner`."""

    held: bool


class LogEnds:
    """Checks the log ends of the partitions that one flow copies.

    Args:
        partitions: All partitions of the flow.
    """

    def __init__(self, flow: Flow, right: Right, partitions: Callable[[], Iterable[PartitionCopy]]) -> None:
        self._flow = flow
        self._right = right
        self._partitions = partitions
        self._asking: set[int] = set()

    async def run(self) -> None:
        """Ask until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                await asyncio.sleep(self._flow.limits.idle_look_seconds)
                group.create_task(self.check())

    async def check(self) -> None:
        """Ask once about all partitions that are copied and have nothing in flight, if we hold the right.

        The answer to what is in flight will say where it stands. A broker that does not answer holds up only
        its own partitions: it is left out until it has answered.
        """
        idle = {copy.target: copy for copy in self._partitions() if copy.copying and not copy.unanswered}
        if not idle or not self._right.held:
            return
        async with asyncio.TaskGroup() as group:
            for node, led in by_leader(self._flow.target, idle).items():
                if node not in self._asking:
                    group.create_task(self._ask(node, [idle[target] for target in led]))

    async def _ask(self, node: int, copies: list[PartitionCopy]) -> None:
        self._asking.add(node)
        try:
            async with asyncio.TaskGroup() as group:
                for begin in range(0, len(copies), PARTITIONS_AT_ONCE):
                    group.create_task(not_as_left(self._flow, copies[begin : begin + PARTITIONS_AT_ONCE]))
                    await asyncio.sleep(0)
        finally:
            self._asking.discard(node)


async def not_as_left(flow: Flow, copies: Collection[PartitionCopy]) -> set[PartitionCopy]:
    """The copies whose log does not end where we left it, or for which nobody says where it ends.

    A copy whose log ends elsewhere is looked at, if it is being copied. Where no answer came, the target's
    metadata is refreshed.
    """
    left_at = {copy: copy.acknowledged_target_offset for copy in copies}
    targets = [copy.target for copy in left_at]
    ends = await list_offsets(flow.target, targets, LATEST, replica_id=DEBUGGER)
    doubtful = {copy for copy, at in left_at.items() if not _ends_as_left(copy, at, ends[copy.target])}
    known = {copy for copy in doubtful if isinstance(ends[copy.target], int)}
    look_at(flow, known)
    if known != doubtful:
        flow.hooks.stale(flow.target)
    return doubtful


def look_at(flow: Flow, copies: Iterable[PartitionCopy]) -> None:
    """Look, before anything more is sent, at those that are being copied: their logs may have changed."""
    now = time.monotonic()
    for copy in copies:
        if copy.copying:
            copy.look_first(now)
            flow.hooks.changed(copy)


def _ends_as_left(copy: PartitionCopy, left_at: int | None, end: object) -> bool:
    """Whether a target log holds our copy and nothing after it.

    What is in flight may be after it too: the answer to that will say where it stands.

    Args:
        left_at: Up to where it was acknowledged before its end was asked for.
        end: Where it ends, or why that is not known.
    """
    now = copy.acknowledged_target_offset
    if left_at is None or now is None or not isinstance(end, int):
        return False
    return left_at <= end and (end <= now or copy.unanswered)
