"""Offset maps forget what the target has deleted: otherwise they would grow for ever.

Once a minute the owner asks where those target logs begin that have a long map. What is
below, by retention or DeleteRecords, can no longer be read there, and its part of the map
is dropped: a query for such an offset is answered with where the map begins.

Only partitions that are being copied count. One that stopped, for whatever reason, keeps
its map.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

import structlog

from mirror.errors import TwinsiteError
from mirror.flow.context import Flow
from mirror.flow.owner import Owner
from mirror.flow.partition import PartitionCopy
from mirror.kafka.offsets import EARLIEST, list_offsets
from mirror.logs import Repeats, warn_repeated
from mirror.model import OffsetMode, TopicPartition

log = structlog.get_logger(__name__)

PAUSE_SECONDS = 60.0
"""A broker removes old segments every five minutes by default."""


class Maps(Protocol):
    """The flow's offset maps."""

    def may_forget(self, tp: TopicPartition) -> bool:
        """Whether the offset map of a partition is long enough to be shortened."""

    async def forget_below(self, target_log_starts: Mapping[TopicPartition, int]) -> None:
        """Drop from offset maps what the target no longer holds, per source partition."""


class Forgetter:
    """Shortens the offset maps of one flow.

    Args:
        partitions: All partitions of the flow.
    """

    def __init__(
        self, flow: Flow, owner: Owner, maps: Maps, partitions: Callable[[], Iterable[PartitionCopy]]
    ) -> None:
        self._flow = flow
        self._owner = owner
        self._maps = maps
        self._partitions = partitions
        self._repeats = Repeats()

    async def run(self) -> None:
        """Shorten maps until cancelled. Copying does not depend on it: failures are logged and retried."""
        while True:
            await asyncio.sleep(PAUSE_SECONDS)
            await self._attempt()

    async def forget_at_last(self, timeout_seconds: float) -> None:
        """One pass before the end of a mirror that did not run for long; a failure is logged."""
        await self._attempt(timeout_seconds)

    async def _attempt(self, timeout_seconds: float | None = None) -> None:
        try:
            async with asyncio.timeout(timeout_seconds):
                await self.forget()
        except (TwinsiteError, TimeoutError) as error:
            words = str(error) or "no answer"
            warn_repeated(log, self._repeats, "forget", "offset_maps_not_shortened", error=words)

    async def forget(self) -> None:
        """One pass, if we are the owner; a partition whose log start the broker does not report is left out.

        Raises:
            TwinsiteError: Neither the coordinator nor the flow's state can be asked, or the state could not
                be written.
        """
        asked = {p: p.generation for p in self._partitions() if self._may_forget(p)}
        if not asked or not await self._owner.confirm():
            return
        starts = await list_offsets(self._flow.target, [p.target for p in asked], EARLIEST)
        below: dict[TopicPartition, int] = {}
        for partition, generation in asked.items():
            start, end = starts[partition.target], partition.acknowledged_target_offset
            undisturbed = self._may_forget(partition) and partition.generation == generation
            if undisturbed and isinstance(start, int) and end is not None:
                below[partition.tp] = min(start, end)
        if below and await self._owner.confirm():
            await self._maps.forget_below(below)

    def _may_forget(self, partition: PartitionCopy) -> bool:
        mapped = partition.mode is OffsetMode.MAPPED and partition.copying
        return mapped and self._maps.may_forget(partition.tp)
