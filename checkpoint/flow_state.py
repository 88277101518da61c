"""Everything a flow remembers, in memory, and the one way to change it.

A change is written first and believed afterwards. When a write fails, nobody
knows what of it is stored, so before the next change everything is loaded again.
Changes come one after the other, each for many partitions in one write; where one gets no
answer, those that wait behind it get none either.

Whoever only looks on loads again and again: a load costs what has changed, and not what the
flow remembers.

The flow's own record is never removed. Where it was stored and is no more, somebody has
deleted the topic: what was known is known still, and nothing else, until the record is
there again. What is there by then may be of another time, or a part: of both together
nobody knows whether they fit. Whoever copies writes all of it again; and whoever takes its
place before that does, ahead of its first change.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

import structlog

from checkpoint.content import Content, decode
from checkpoint.errors import StateTakenOverError
from checkpoint.insertions import Inserted
from checkpoint.map_chunk import CHUNK_RUNS, ChunkChanges, changed_chunks, chunks_below, chunks_of
from checkpoint.model import (
    FLOW_KEY,
    OWNER_KEY,
    FlowRecord,
    Insertion,
    OwnerRecord,
    PartitionRecord,
    insertion_key,
    map_key,
    whole_in_order,
)
from checkpoint.offset_map import OffsetMap, Run
from checkpoint.store import StateStore, apply
from checkpoint.waiting_line import WaitingLine
from mirror.errors import UnknownPartitionError
from mirror.model import OffsetMode, TopicPartition

log = structlog.get_logger(__name__)

Update = Callable[[PartitionRecord], PartitionRecord]


class FlowState:
    """The durable state of one flow. :meth:`load` it before anything else.

    What the questions answer is what was loaded or written last, without waiting.
    """

    def __init__(self, store: StateStore) -> None:
        self._store = store
        self._line = WaitingLine()
        self._in_step = False
        self._stored: dict[str, bytes] = {}
        """What records and maps were made of, always: what is stored so still need not be decoded again."""
        self._found = self._stored
        """The same; or what was there instead where the flow's own record was stored and is no more."""
        self._unwritten_since: float | None = None
        self._flow: FlowRecord | None = None
        self._owner: OwnerRecord | None = None
        self._partitions: dict[TopicPartition, PartitionRecord] = {}
        self._maps: dict[TopicPartition, OffsetMap] = {}
        self._insertions: dict[TopicPartition, Insertion] = {}

    # -- questions -------------------------------------------------------------------------------

    @property
    def in_step(self) -> bool:
        """False before the first load, and after a write that failed."""
        return self._in_step

    @property
    def flow(self) -> FlowRecord | None:
        """The flow's own record; None before the first run."""
        return self._flow

    @property
    def unwritten_since(self) -> float | None:
        """Since when nothing has come of a state without the flow's own record (monotonic seconds); None
        where that is there, as far as it was read.
        """
        return self._unwritten_since

    @property
    def owner(self) -> OwnerRecord | None:
        """Where the owner said it runs; None when nobody has said so."""
        return self._owner

    @property
    def partitions(self) -> Mapping[TopicPartition, PartitionRecord]:
        """All partitions known, by their name at the source."""
        return self._partitions

    def partition(self, tp: TopicPartition) -> PartitionRecord | None:
        """What is known of a partition."""
        return self._partitions.get(tp)

    def map(self, tp: TopicPartition) -> OffsetMap | None:
        """The offset map of a ``mapped`` partition; look at it, do not change it."""
        record = self._partitions.get(tp)
        return self._maps.get(tp) if record is not None and record.mode is OffsetMode.MAPPED else None

    def insertion(self, tp: TopicPartition) -> Insertion | None:
        """What is about to be appended to a partition, and may stand there already."""
        return self._insertions.get(tp)

    # -- reading ---------------------------------------------------------------------------------

    async def load(self) -> None:
        """Read everything that is stored. What is as it was costs next to nothing.

        Raises:
            CorruptStateError: What is stored cannot be trusted.
            StateUnavailableError: It cannot be read just now.
        """
        async with self._line.alone():
            await self._load()

    async def _load(self) -> None:
        self._in_step = False
        items = await self._store.load()
        if FLOW_KEY in items:
            self._unwritten_since = None
        elif self._unwritten_since is None or items != self._found:
            self._unwritten_since = time.monotonic()
        if FLOW_KEY in items or FLOW_KEY not in self._stored:
            if items != self._stored:
                content = await asyncio.to_thread(decode, items, self._stored, self._partitions, self._maps)
                self._take(items, content)
            items = self._stored
        self._found = items
        self._in_step = True

    def _take(self, items: dict[str, bytes], content: Content) -> None:
        """Believe what is stored, all of it or nothing."""
        content.join_maps()
        self._flow, self._owner, self._partitions, self._maps, self._insertions = content
        self._stored = items

    # -- changing --------------------------------------------------------------------------------

    async def save_flow(self, record: FlowRecord) -> None:
        """Set the flow's own record.

        Raises:
            StateUnavailableError: It may not have been written. So for all that follow.
            StateTakenOverError: Another mirror has written meanwhile. So for all that follow.
        """
        async with self._line.alone():
            await self._catch_up()
            await self._write({FLOW_KEY: record.to_bytes()})
            self._flow, self._unwritten_since = record, None

    async def save_owner(self, record: OwnerRecord | None) -> None:
        """Set where the owner runs; None when nobody says so any more."""
        async with self._line.alone():
            await self._catch_up()
            await self._write({OWNER_KEY: record.to_bytes() if record else None})
            self._owner = record

    async def begin(self, record: PartitionRecord, runs: Sequence[Run] = ()) -> None:
        """Set how a partition is copied, together with a whole new offset map, or with none.

        Args:
            runs: The first run of a ``mapped`` partition.
        """
        if record.mode is OffsetMode.MAPPED and not runs:
            raise ValueError(f"{record.key} is to be mapped, and has no run to begin with")
        async with self._line.alone():
            await self._catch_up()
            tp = record.tp
            items: dict[str, bytes | None] = {map_key(*tp, n): None for n in self._chunk_numbers(tp)}
            fresh = OffsetMap(begins_at=record.start_offset)
            for number, chunk in changed_chunks(fresh, runs).written.items():
                items[map_key(*tp, number)] = chunk
            fresh.extend(runs)
            if tp in self._insertions:
                items[insertion_key(*tp)] = None
            await self._write({**items, record.key: record.to_bytes()})
            self._partitions[tp], self._maps[tp] = record, fresh
            self._insertions.pop(tp, None)

    async def forget(self, tps: Collection[TopicPartition]) -> None:
        """Forget all that is known of partitions. What a crash leaves of that speaks of no partition.

        Raises:
            UnknownPartitionError: One of them is not known; nothing was changed.
        """
        async with self._line.alone():
            await self._catch_up()
            items: dict[str, bytes | None] = {self._known(tp).key: None for tp in tps}
            for tp in tps:
                items |= {map_key(*tp, number): None for number in self._chunk_numbers(tp)}
                if tp in self._insertions:
                    items[insertion_key(*tp)] = None
            await self._write(items)
            for tp in tps:
                del self._partitions[tp]
                self._maps.pop(tp, None)
                self._insertions.pop(tp, None)

    async def update_partitions(self, updates: Mapping[TopicPartition, Update]) -> None:
        """Change the records of partitions, each by a function of what it is now.

        Raises:
            UnknownPartitionError: One of them is not known; nothing was changed.
        """
        async with self._line.alone():
            await self._catch_up()
            await self._save({tp: update(self._known(tp)) for tp, update in updates.items()})

    async def begin_insertion(self, tp: TopicPartition, insertion: Insertion) -> None:
        """Write down what is about to be appended to a partition, ahead of it.

        Raises:
            UnknownPartitionError: The partition is not known; nothing was changed.
        """
        async with self._line.alone():
            await self._catch_up()
            self._known(tp)
            await self._write({insertion_key(*tp): insertion.to_bytes()})
            self._insertions[tp] = insertion

    async def end_insertion(
        self,
        tp: TopicPartition,
        insertion: Insertion,
        stands: Sequence[Inserted],
        following: Insertion | None = None,
    ) -> None:
        """Note what has become of an insertion.

        Args:
            stands: The target offsets that are no copies, its own among them; none when it never will stand.
            following: What is about to be appended next.
        """
        async with self._line.alone():
            await self._catch_up()
            record = self._known(tp)
            if stands:
                record = replace(record.with_inserted(*stands), producer_epoch=insertion.producer_epoch)
            after = None if following is None else following.to_bytes()
            await self._write({record.key: record.to_bytes(), insertion_key(*tp): after})
            self._partitions[tp] = record
            self._insertions.pop(tp, None)
            if following is not None:
                self._insertions[tp] = following

    async def extend_maps(self, runs: Mapping[TopicPartition, Sequence[Run]]) -> None:
        """Add runs to offset maps, ahead of the records they speak of.

        Raises:
            UnknownPartitionError: One of the partitions has no offset map; nothing was changed.
        """
        async with self._line.alone():
            await self._catch_up()
            changes = {tp: self._plan(tp, added) for tp, added in runs.items()}
            await self._change_chunks(changes)
            for tp, added in runs.items():
                self._maps[tp].extend(added)

    async def drop_ahead(self, tp: TopicPartition, target_log_end: int) -> None:
        """Forget the runs that were written ahead and not reached, as what is read there has other gaps; call
        it before anything is sent that would reach them.

        Nothing is written when there are none.
        """
        async with self._line.alone():
            await self._catch_up()
            offsets = self._known_map(tp)
            if offsets.ahead_of(target_log_end):
                await self._change_chunks({tp: self._plan(tp, drop_ahead_of=target_log_end)})
                self._maps[tp].drop_ahead(target_log_end)

    def may_forget(self, tp: TopicPartition) -> bool:
        """True when the offset map has more than one chunk: as the log start moves, the first may go."""
        offsets = self.map(tp)
        return offsets is not None and len(offsets) > CHUNK_RUNS

    async def forget_below(self, target_log_starts: Mapping[TopicPartition, int]) -> None:
        """Forget the chunks of offset maps that speak only of records below the target's log start.

        Nothing is written when there are none. A write that fails leaves maps that begin somewhere between.

        Raises:
            UnknownPartitionError: One of the partitions has no offset map; nothing was changed.
        """
        async with self._line.alone():
            await self._catch_up()
            starts = target_log_starts.items()
            gone = {tp: chunks_below(self._known_map(tp), start) for tp, start in starts}
            await self._write(
                {map_key(*tp, number): None for tp, chunks in gone.items() for number in chunks}
            )
            for tp, chunks in gone.items():
                self._maps[tp].forget(len(chunks) * CHUNK_RUNS)

    # -- while alone -----------------------------------------------------------------------------

    async def _catch_up(self) -> None:
        if not self._in_step:
            await self._load()
        if self._found is not self._stored:
            await self._remove_what_was_found()
            await self._write(whole_in_order(self._stored))
            self._found, self._unwritten_since = self._stored, None
            log.warning("state_written_again", keys=len(self._stored))

    async def _remove_what_was_found(self) -> None:
        """Each partition ahead of its offset map, and of that the end first: whoever reads in between finds
        nothing that does not fit.
        """
        gone: dict[str, bytes | None] = dict.fromkeys(reversed(whole_in_order(self._found)))
        self._in_step = False
        await self._store.put(gone)

    async def _write(self, items: Mapping[str, bytes | None]) -> None:
        if not items:
            return
        self._in_step = False
        await self._store.put(items)
        for key, value in items.items():
            apply(self._stored, key, value)
        self._in_step = True

    async def _save(self, records: dict[TopicPartition, PartitionRecord]) -> None:
        await self._write({record.key: record.to_bytes() for record in records.values()})
        self._partitions.update(records)

    async def _change_chunks(self, changes: Mapping[TopicPartition, ChunkChanges]) -> None:
        """Two writes when chunks fall away: what is stored between them is the beginning of each map."""
        gone: dict[str, bytes | None] = {}
        written: dict[str, bytes | None] = {}
        for tp, change in changes.items():
            gone |= {map_key(*tp, number): None for number in change.gone}
            written |= {map_key(*tp, number): chunk for number, chunk in change.written.items()}
        await self._write(gone)
        for tp, change in changes.items():
            if change.gone:
                kept = min(change.gone) - chunks_of(self._maps[tp]).start
                self._maps[tp] = self._maps[tp].head(kept * CHUNK_RUNS)
        await self._write(written)

    def _plan(
        self, tp: TopicPartition, runs: Sequence[Run] = (), *, drop_ahead_of: int | None = None
    ) -> ChunkChanges:
        try:
            return changed_chunks(self._known_map(tp), runs, drop_ahead_of=drop_ahead_of)
        except ValueError as error:
            raise StateTakenOverError(
                f"{tp}: the offset map is not the one this change was made for: {error}"
            ) from error

    def _known(self, tp: TopicPartition) -> PartitionRecord:
        record = self._partitions.get(tp)
        if record is None:
            raise UnknownPartitionError(f"{tp} is not known to this flow")
        return record

    def _known_map(self, tp: TopicPartition) -> OffsetMap:
        offsets = self.map(tp)
        if offsets is None:
            raise UnknownPartitionError(f"{tp} has no offset map in this flow")
        return offsets

    def _chunk_numbers(self, tp: TopicPartition) -> list[int]:
        """Of the chunks stored, the last one first."""
        return list(reversed(chunks_of(self._maps[tp]))) if tp in self._maps else []
