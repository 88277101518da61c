"""The owner's work: note leader epochs and offset runs, fill gaps with control markers.

Partitions wait here with something at the head of their queue that only the owner
may write. One pass serves all that wait, each step for many partitions at once.

The order of the steps of a partition: what must be known after a crash is written
before the records that it is about.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Protocol

from mirror.errors import BrokerError, NotAuthorizedError, TwinsiteError
from mirror.failpoints import reach
from mirror.flow.context import Flow
from mirror.flow.marking import LANE, mark, until_landed
from mirror.flow.owner import Owner
from mirror.flow.partition import PartitionCopy
from mirror.flow.position import Stop
from mirror.flow.states import RETRY_SECONDS_FIRST, UNANSWERED, append_refusal, look_refusal
from mirror.kafka.answers import Ended
from mirror.model import Gap, OffsetMode, Reason, State, TopicPartition

Ready = Sequence[PartitionCopy]


class Ledger(Protocol):
    """The flow's durable state as the owner writes it."""

    async def note_epochs(self, epochs: dict[TopicPartition, Sequence[tuple[int, int]]]) -> None:
        """Note leader epochs, (epoch, first offset), per source partition."""

    async def note_runs(self, runs: dict[TopicPartition, Sequence[tuple[int, int]]]) -> None:
        """Add (source offset, target offset) runs to offset maps."""

    def runs_after(self, tp: TopicPartition, target_offset: int) -> Sequence[tuple[int, int]]:
        """The (source offset, target offset) runs that an offset map has beyond a target offset."""

    async def drop_runs(self, tp: TopicPartition, target_offset: int) -> None:
        """Forget the runs that were to begin beyond a target offset; one that begins at it is kept."""

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
        self._marked: set[int] = set()

    def offer(self, partition: PartitionCopy) -> None:
        """The partition waits for the owner."""
        self._waiting[partition] = None
        self._wake.set()

    def leaders_moved(self) -> None:
        """Partitions that wait may be served by another broker now."""
        self._wake.set()

    async def run(self) -> None:
        """Serve until cancelled."""
        async with asyncio.TaskGroup() as self._group:
            while True:
                await self._wake.wait()
                self._wake.clear()
                leader = self._flow.target.info.leader
                ready = [p for p in self._waiting if p.owner_work and leader(p.target) not in self._marked]
                if ready and not self._flow.draining:
                    await self._try(self._serve, ready)

    async def _try(self, step: Callable[[Ready], Awaitable[None]], ready: Ready) -> None:
        """Take a step for these as the owner; if another mirror is the owner, let them stand by."""
        try:
            if await self._owner.confirm():
                await step(self._known([p for p in ready if p.owner_work]))
            else:
                self._stand_by([p for p in ready if p.owner_work])
        except TwinsiteError as error:
            now = time.monotonic()
            for partition in ready:
                self._waiting.pop(partition, None)
                partition.refused(look_refusal(error, at_source=False), str(error), now)
        for partition in ready:
            self._flow.hooks.changed(partition)

    def _known(self, partitions: Ready) -> Ready:
        """Those that were looked at since we became the owner; the others are looked at first.

        Another owner may have written to them, above all a repair. That is no copy, and what we note in the
        offset map after it, or mark, would be in the wrong place.
        """
        since, now = self._owner.since, time.monotonic()
        for partition in partitions:
            if partition.looked_at is None or partition.looked_at < since:
                partition.look_first(now)
        return [p for p in partitions if p.owner_work]

    def forget(self, partition: PartitionCopy) -> None:
        """The partition has moved on or stopped: it no longer waits, unless it needs the owner."""
        if not partition.owner_work:
            self._waiting.pop(partition, None)

    # -- not the owner ---------------------------------------------------------------------------

    def _stand_by(self, partitions: Sequence[PartitionCopy]) -> None:
        """Another mirror holds the right, or held it a moment ago: a look decides how these go on."""
        now = time.monotonic()
        for partition in partitions:
            self._waiting.pop(partition, None)
            partition.doubt(now, max(self._owner.since - now, RETRY_SECONDS_FIRST))

    # -- the owner -------------------------------------------------------------------------------

    async def _serve(self, partitions: Ready) -> None:
        await self._note_epochs([p for p in partitions if p.queue.epochs])
        await self._correct_maps([p for p in partitions if p.contradicts_map or p.foresaw_otherwise])
        await self._note_runs([p for p in partitions if p.mode is OffsetMode.MAPPED and p.queue.gap])
        leaders: dict[int, list[PartitionCopy]] = {}
        for partition in [p for p in partitions if p.gap_to_mark and not await self._too_large(p)]:
            leaders.setdefault(self._flow.target.info.leader(partition.target), []).append(partition)
        for partition in partitions:
            self._waiting.pop(partition, None)
        for node, together in leaders.items():
            self._marked.add(node)
            self._group.create_task(self._mark_at(node, together))

    async def _mark_at(self, node: int, partitions: Ready) -> None:
        """One task per broker, so that no partition waits for a broker that is not its own. After a request
        without an answer the next one does not wait until the markers of that can no longer land.

        What had to be noted before may have taken time, so ownership is confirmed again.
        """
        await self._try(partial(self._mark, node), partitions)
        self._marked.discard(node)
        self._wake.set()

    async def _note_epochs(self, partitions: Sequence[PartitionCopy]) -> None:
        epochs = {p: p.queue.epochs for p in partitions}
        if not epochs:
            return
        await self._ledger.note_epochs({p.tp: pairs for p, pairs in epochs.items()})
        for partition, pairs in epochs.items():
            partition.queue.note_epochs(pairs)

    async def _correct_maps(self, partitions: Sequence[PartitionCopy]) -> None:
        for partition in partitions:
            generation, begins = partition.generation, partition.target_next_offset
            assert begins is not None
            await self._ledger.drop_runs(partition.tp, begins)
            if partition.generation == generation:
                partition.map_corrected()

    async def _note_runs(self, partitions: Sequence[PartitionCopy]) -> None:
        runs = {p: (p.runs_ahead(), p.generation) for p in partitions}
        if not runs:
            return
        await self._ledger.note_runs({p.tp: pairs for p, (pairs, _) in runs.items()})
        now = time.monotonic()
        for partition, (pairs, generation) in runs.items():
            if partition.generation == generation:
                following = self._ledger.runs_after(partition.tp, pairs[-1][1])
                partition.runs_noted(len(pairs), now, following)

    async def _mark(self, node: int, partitions: Ready) -> None:
        connection = await self._flow.writer(node, LANE)
        confirmed = await self._owner.confirm()  # opening it may have taken longer than a new owner waits
        token = self._owner.token
        if not confirmed or token is None:
            self._stand_by(partitions)
            return
        free = [p for p in partitions if (gap := p.gap_to_mark) and not self._above_limit(gap)]
        generations = {p: p.generation for p in free}
        answers = await mark(self._flow, connection, node, free, token.epoch)
        reach("markers_written")
        # not whose markers are under way: those may be of a later request, to another broker
        lost = [p for p in free if isinstance(answers.get(p.target), Ended)]
        if lost:
            self._group.create_task(until_landed(self._flow, node, lost))
        now = time.monotonic()
        for partition, generation in generations.items():
            answer = answers.get(partition.target)
            if answer is None or partition.generation != generation:
                continue  # in doubt since then: a look finds what has become of the markers
            if isinstance(answer, int):
                partition.gap_marked(answer, now)
            else:
                await self._refused(partition, answer)

    async def _too_large(self, partition: PartitionCopy) -> bool:
        """Whether the gap is above the limit; if so, the partition is blocked or becomes mapped."""
        gap, limit = partition.queue.gap, self._flow.limits.gap_limit
        if gap is None or not self._above_limit(gap):
            return False
        seen = f"a gap of {gap.offsets} offsets at {gap.base_offset}"
        words = f"{seen} is above the limit of {limit} (offsets.gap_limit)"
        await self._cannot_keep_offsets(partition, Reason.GAP_TOO_LARGE, words)
        return True

    def _above_limit(self, gap: Gap) -> bool:
        """An accepted loss that keeps its offsets is never too large: going on was asked for."""
        return gap.offsets > self._flow.limits.gap_limit and not (gap.lost and not self._auto)

    async def _refused(self, partition: PartitionCopy, error: TwinsiteError) -> None:
        if isinstance(error, NotAuthorizedError):
            words = f"the mirror is not authorized to write control markers: {error}"
            await self._cannot_keep_offsets(partition, Reason.MARKERS_NOT_AUTHORIZED, words)
        else:
            refusal = append_refusal(error.code) if isinstance(error, BrokerError) else UNANSWERED
            partition.refused(refusal, str(error), time.monotonic())

    async def _cannot_keep_offsets(self, partition: PartitionCopy, reason: Reason, words: str) -> None:
        now = time.monotonic()
        if not self._auto:
            partition.found(Stop(State.BLOCKED, reason, words), now)
            return
        partition.mapped_for = reason, words
        await self._ledger.become_mapped(partition.tp)
        partition.doubt(now)
