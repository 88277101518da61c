"""The owner's work: note leader epochs and offset runs, fill gaps with control markers.

Partitions wait here with something at the head of their queue that only the owner
may write. One pass serves all that wait, each step for many partitions at once.

Order of the steps of a partition: what must be known after a crash is written
before the records it speaks of.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Protocol

from mirror.errors import TwinsiteError
from mirror.failpoints import reach
from mirror.flow.context import Flow
from mirror.flow.owner import Owner
from mirror.flow.partition import PartitionCopy
from mirror.flow.states import append_refusal, pause_seconds
from mirror.kafka.offsets import Answers, Marking, write_markers
from mirror.model import OffsetMode, Reason, State, TopicPartition

MARKERS_AT_ONCE = 2_000
"""Markers of one partition in one request: a fifth of a second for the broker."""
STANDBY_LOOK_SECONDS = 1.0
CLUSTER_AUTHORIZATION_FAILED = 31


class Ledger(Protocol):
    """The flow's durable state as the owner writes it."""

    async def note_epochs(self, epochs: dict[TopicPartition, Sequence[tuple[int, int]]]) -> None:
        """Note leader epochs, (epoch, first offset), per source partition."""

    async def note_runs(self, runs: dict[TopicPartition, Sequence[tuple[int, int]]]) -> None:
        """Add (source offset, target offset) runs to offset maps."""

    async def become_mapped(self, tp: TopicPartition) -> None:
        """Turn a partition with the same offsets into a mapped one, from its first record on."""


class Keeper:
    """Serves partitions that need the owner."""

    def __init__(self, flow: Flow, owner: Owner, ledger: Ledger, *, offsets: str) -> None:
        self._flow = flow
        self._owner = owner
        self._ledger = ledger
        self._auto = offsets == "auto"
        self._waiting: dict[PartitionCopy, None] = {}
        self._wake = asyncio.Event()

    def offer(self, partition: PartitionCopy) -> None:
        """The partition waits for the owner."""
        self._waiting[partition] = None
        self._wake.set()

    async def run(self) -> None:
        """Serve until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            ready = [p for p in self._waiting if p.owner_work]
            if not ready or self._flow.draining:
                continue
            try:
                if await self._owner.confirm():
                    await self._serve([p for p in ready if p.owner_work])
                else:
                    self._stand_by(ready)
            except TwinsiteError as error:
                now = time.monotonic()
                for partition in ready:
                    self._waiting.pop(partition, None)
                    partition.refused(append_refusal(-1), str(error), now)
            for partition in ready:
                self._flow.hooks.changed(partition)

    def forget(self, partition: PartitionCopy) -> None:
        """The partition has moved on, or stopped: it does not wait any more."""
        if not partition.owner_work:
            self._waiting.pop(partition, None)

    # -- not the owner ---------------------------------------------------------------------------

    def _stand_by(self, partitions: Sequence[PartitionCopy]) -> None:
        """Another mirror holds the right: look whether it makes progress."""
        now = time.monotonic()
        for partition in partitions:
            self._waiting.pop(partition, None)
            partition.wait_for_owner(now, STANDBY_LOOK_SECONDS)

    # -- the owner -------------------------------------------------------------------------------

    async def _serve(self, partitions: Sequence[PartitionCopy]) -> None:
        await self._note_epochs([p for p in partitions if p.epochs_ahead()])
        await self._note_runs([p for p in partitions if p.mode is OffsetMode.MAPPED and p.gap_ahead()])
        await self._mark([p for p in partitions if p.mode is OffsetMode.SAME and p.gap_ahead()])
        for partition in partitions:
            self._waiting.pop(partition, None)

    async def _note_epochs(self, partitions: Sequence[PartitionCopy]) -> None:
        epochs = {p: p.epochs_ahead() for p in partitions}
        if not epochs:
            return
        await self._ledger.note_epochs({p.tp: pairs for p, pairs in epochs.items()})
        reach("epoch_noted")
        for partition, pairs in epochs.items():
            partition.epochs_noted(pairs)

    async def _note_runs(self, partitions: Sequence[PartitionCopy]) -> None:
        runs = {p: (p.runs_ahead(), p.generation) for p in partitions}
        if not runs:
            return
        await self._ledger.note_runs({p.tp: pairs for p, (pairs, _) in runs.items()})
        reach("map_written")
        now = time.monotonic()
        for partition, (pairs, generation) in runs.items():
            if partition.generation == generation:
                partition.runs_noted(len(pairs), now)

    async def _mark(self, partitions: Sequence[PartitionCopy]) -> None:
        allowed = [p for p in partitions if not await self._too_large(p)]
        markings = {}
        for partition in allowed:
            gap = partition.gap_ahead()
            if gap is not None and not partition.unanswered:
                markings[partition] = Marking(min(gap.offsets, MARKERS_AT_ONCE), partition.coordinator_epoch)
        if not markings:
            return
        generations = {p: p.generation for p in markings}
        answers = await self._written(markings)
        reach("markers_written")
        now = time.monotonic()
        for partition, marking in markings.items():
            answer = answers[partition.target]
            if partition.generation != generations[partition]:
                continue  # in doubt since: a look sees what has become of them
            if answer is None:
                partition.gap_marked(marking.count, now)
            else:
                await self._refused(partition, answer)

    async def _written(self, markings: Mapping[PartitionCopy, Marking]) -> Answers[None]:
        """Nobody is looked at while its markers are on their way: its log end would say nothing."""
        for partition in markings:
            partition.markers_under_way = True
        try:
            return await write_markers(
                self._flow.target,
                {p.target: marking for p, marking in markings.items()},
                producer_id=self._flow.producer_id,
                producer_epoch=self._flow.producer_epoch,
            )
        finally:
            for partition in markings:
                partition.markers_under_way = False
            self._flow.room.set()

    async def _too_large(self, partition: PartitionCopy) -> bool:
        gap, limit = partition.gap_ahead(), self._flow.limits.gap_limit
        if gap is None or gap.offsets <= limit:
            return False
        seen = f"a gap of {gap.offsets} offsets at {gap.base_offset}"
        words = f"{seen} is above the limit of {limit} (offsets.gap_limit)"
        await self._cannot_keep_offsets(partition, Reason.GAP_TOO_LARGE, words)
        return True

    async def _refused(self, partition: PartitionCopy, error: TwinsiteError) -> None:
        code = getattr(error, "code", CLUSTER_AUTHORIZATION_FAILED if error.exit_code == 4 else -1)
        if code == CLUSTER_AUTHORIZATION_FAILED:
            words = f"control markers are not allowed: {error}"
            await self._cannot_keep_offsets(partition, Reason.MARKERS_NOT_AUTHORIZED, words)
        else:
            partition.refused(append_refusal(code), str(error), time.monotonic())
            if partition.look_due_at is not None:
                # some of the markers may still be on their way: let them land first
                partition.look_due_at = time.monotonic() + STANDBY_LOOK_SECONDS

    async def _cannot_keep_offsets(self, partition: PartitionCopy, reason: Reason, words: str) -> None:
        now = time.monotonic()
        if not self._auto:
            partition.stop(State.BLOCKED, reason, words, now + pause_seconds(16))
            return
        await self._ledger.become_mapped(partition.tp)
        partition.doubt(now)
