"""Everything a flow remembers, in memory, and the one way to change it.

A change is written first and takes effect afterwards. When a write fails, nobody knows how much of it is
stored, so everything is loaded again before the next change. Changes come one after the other, each for many
partitions in one write. If one gets no answer, those waiting for it fail with the same error.

A mirror that only reads loads again and again: a load costs as much as has changed, not as much as the flow
remembers.

The flow's own record is never removed. If it was stored and is missing, somebody has deleted the topic. Then
what was known stays known, and nothing is added until the record is there again: what is stored meanwhile may
be from another time, or incomplete, and nobody knows whether it fits what was known. The owner writes
everything again; a mirror that takes its place before that does so, too, ahead of its first change.
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
from mirror.failpoints import Write, reach
from mirror.model import OffsetMode, TopicPartition

log = structlog.get_logger(__name__)

Update = Callable[[PartitionRecord], PartitionRecord]


class FlowState:
    """The durable state of one flow. :meth:`load` it before anything else.

    Questions are answered without waiting, from what was last loaded or written. Every change first loads
    again if the last write failed.

    Raises:
        StateUnavailableError: By :meth:`load`: the state cannot be read just now. By a change: it may not
            have been written.
        StateTakenOverError: By a change: another mirror has written meanwhile.
        CorruptStateError: By both: what is stored cannot be trusted.
    """

    def __init__(self, store: StateStore) -> None:
        self._store = store
        self._line = WaitingLine()
        self._in_step = False
        self._stored: dict[str, bytes] = {}
        """What records and maps were decoded from: items that have not changed are not decoded again."""
        self._found = self._stored
        """What was last read: the same, unless the flow's own record was stored and is now missing."""
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
        """When a state that lacks the flow's own record was last seen to change (monotonic seconds); None if
        that record is there, or if nothing was read yet.
        """
        return self._unwritten_since

    @property
    def owner(self) -> OwnerRecord | None:
        """Where the owner says it runs; None if nobody says so."""
        return self._owner

    @property
    def partitions(self) -> Mapping[TopicPartition, PartitionRecord]:
        """All partitions known, by their name at the source."""
        return self._partitions

    def partition(self, tp: TopicPartition) -> PartitionRecord | None:
        """What is known of a partition; None if nothing is."""
        return self._partitions.get(tp)

    def map(self, tp: TopicPartition) -> OffsetMap | None:
        """The offset map of a ``mapped`` partition, None for others; do not change it."""
        record = self._partitions.get(tp)
        return self._maps.get(tp) if record is not None and record.mode is OffsetMode.MAPPED else None

    def insertion(self, tp: TopicPartition) -> Insertion | None:
        """What a repair is about to append to a partition, or has appended already; None if nothing."""
        return self._insertions.get(tp)

    # -- reading ---------------------------------------------------------------------------------

    async def load(self) -> None:
        """Read everything that is stored. What has not changed costs next to nothing.

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
        """Take over what is stored, all of it or nothing."""
        content.join_maps()
        self._flow, self._owner, self._partitions, self._maps, self._insertions = content
        self._stored = items

    # -- changing --------------------------------------------------------------------------------

    async def save_flow(self, record: FlowRecord) -> None:
        """Set the flow's own record.

        Raises:
            StateUnavailableError: It may not have been written.
            StateTakenOverError: Another mirror has written meanwhile.
        """
        async with self._line.alone():
            await self._catch_up()
            await self._write(Write.FLOW_INTRODUCED, {FLOW_KEY: record.to_bytes()})
            self._flow, self._unwritten_since = record, None

    async def save_owner(self, record: OwnerRecord | None) -> None:
        """Set where the owner runs; None removes that."""
        async with self._line.alone():
            await self._catch_up()
            if record is None:
                await self._write(Write.OWNER_WITHDRAWN, {OWNER_KEY: None})
            else:
                await self._write(Write.OWNER_NOTED, {OWNER_KEY: record.to_bytes()})
            self._owner = record

    async def begin(self, record: PartitionRecord, runs: Sequence[Run] = ()) -> None:
        """Set how a partition is copied, with a new offset map or none; a former map and insertion go.

        Args:
            runs: The first run of a ``mapped`` partition.

        Raises:
            ValueError: The partition is to be ``mapped`` and there is no run.
        """
        await self._begin(Write.REGISTERED, record, runs)

    async def turn_to_mapped(self, record: PartitionRecord, runs: Sequence[Run]) -> None:
        """Set that a partition that kept its offsets is mapped from now on, by a map of these runs.

        Raises:
            ValueError: There are none.
        """
        await self._begin(Write.TURNED_TO_MAPPED, record, runs)

    async def _begin(self, write: Write, record: PartitionRecord, runs: Sequence[Run]) -> None:
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
            await self._write(write, {**items, record.key: record.to_bytes()})
            self._partitions[tp], self._maps[tp] = record, fresh
            self._insertions.pop(tp, None)

    async def forget(self, tps: Collection[TopicPartition]) -> None:
        """Forget all that is known of partitions: their records first, so that what a crash leaves of their
        maps belongs to no partition.

        Raises:
            UnknownPartitionError: One of them is not known; nothing was changed.
        """
        await self._forget(Write.TOPICS_FORGOTTEN, tps)

    async def take_back(self, tp: TopicPartition) -> None:
        """Forget that a partition was begun.

        Raises:
            UnknownPartitionError: It is not known.
        """
        await self._forget(Write.TAKEN_BACK, [tp])

    async def _forget(self, write: Write, tps: Collection[TopicPartition]) -> None:
        async with self._line.alone():
            await self._catch_up()
            items: dict[str, bytes | None] = {self._known(tp).key: None for tp in tps}
            for tp in tps:
                items |= {map_key(*tp, number): None for number in self._chunk_numbers(tp)}
                if tp in self._insertions:
                    items[insertion_key(*tp)] = None
            await self._write(write, items)
            for tp in tps:
                del self._partitions[tp]
                self._maps.pop(tp, None)
                self._insertions.pop(tp, None)

    async def update_partitions(self, write: Write, updates: Mapping[TopicPartition, Update]) -> None:
        """Change the records of partitions, each by a function of what it is now.

        Args:
            write: What for.

        Raises:
            UnknownPartitionError: One of them is not known; nothing was changed.
        """
        async with self._line.alone():
            await self._catch_up()
            await self._save(write, {tp: update(self._known(tp)) for tp, update in updates.items()})

    async def begin_insertion(self, tp: TopicPartition, insertion: Insertion) -> None:
        """Store what a repair is about to append to a partition.

        Raises:
            UnknownPartitionError: The partition is not known; nothing was changed.
        """
        async with self._line.alone():
            await self._catch_up()
            self._known(tp)
            await self._write(Write.INSERTION_NOTED, {insertion_key(*tp): insertion.to_bytes()})
            self._insertions[tp] = insertion

    async def end_insertion(
        self,
        tp: TopicPartition,
        insertion: Insertion,
        stands: Sequence[Inserted],
        following: Insertion | None = None,
    ) -> None:
        """Note what became of an insertion.

        Args:
            stands: The target ranges that hold no copies, its own among them; empty if it will never stand.
            following: The insertion that is about to be appended next.

        Raises:
            UnknownPartitionError: The partition is not known; nothing was changed.
        """
        async with self._line.alone():
            await self._catch_up()
            record = self._known(tp)
            if stands:
                record = replace(record.with_inserted(*stands), producer_epoch=insertion.producer_epoch)
            after = None if following is None else following.to_bytes()
            items = {record.key: record.to_bytes(), insertion_key(*tp): after}
            await self._write(Write.INSERTION_ENDED, items)
            self._partitions[tp] = record
            self._insertions.pop(tp, None)
            if following is not None:
                self._insertions[tp] = following

    async def extend_maps(self, runs: Mapping[TopicPartition, Sequence[Run]]) -> None:
        """Add runs to offset maps, ahead of the records they cover.

        Raises:
            UnknownPartitionError: One of the partitions has no offset map; nothing was changed.
        """
        async with self._line.alone():
            await self._catch_up()
            changes = {tp: self._plan(tp, added) for tp, added in runs.items()}
            await self._change_chunks(Write.MAP_WRITTEN, changes)
            for tp, added in runs.items():
                self._maps[tp].extend(added)

    async def drop_ahead(self, tp: TopicPartition, target_log_end: int) -> None:
        """Forget the runs that begin beyond the log end, because what is read there has other gaps. Call it
        before anything is sent that would reach them.

        Nothing is written if there are none.

        Raises:
            UnknownPartitionError: The partition has no offset map; nothing was changed.
        """
        async with self._line.alone():
            await self._catch_up()
            offsets = self._known_map(tp)
            if offsets.ahead_of(target_log_end):
                changes = {tp: self._plan(tp, drop_ahead_of=target_log_end)}
                await self._change_chunks(Write.MAP_CORRECTED, changes)
                self._maps[tp].drop_ahead(target_log_end)

    def may_forget(self, tp: TopicPartition) -> bool:
        """True when the offset map has more than one chunk, so that the first one may become forgettable."""
        offsets = self.map(tp)
        return offsets is not None and len(offsets) > CHUNK_RUNS

    async def forget_below(self, target_log_starts: Mapping[TopicPartition, int]) -> None:
        """Forget the chunks of offset maps that cover only records below the target's log start.

        Nothing is written if there are none. A failed write may leave maps with some of those chunks gone.

        Raises:
            UnknownPartitionError: One of the partitions has no offset map; nothing was changed.
        """
        async with self._line.alone():
            await self._catch_up()
            starts = target_log_starts.items()
            gone = {tp: chunks_below(self._known_map(tp), start) for tp, start in starts}
            keys = (map_key(*tp, number) for tp, chunks in gone.items() for number in chunks)
            await self._write(Write.MAP_SHORTENED, dict.fromkeys(keys))
            for tp, chunks in gone.items():
                self._maps[tp].forget(len(chunks) * CHUNK_RUNS)

    # -- while alone -----------------------------------------------------------------------------

    async def _catch_up(self) -> None:
        if not self._in_step:
            await self._load()
        if self._found is not self._stored:
            await self._remove_what_was_found()
            await self._write(Write.KNOWN_WRITTEN, whole_in_order(self._stored))
            self._found, self._unwritten_since = self._stored, None
            log.warning("state_written_again", keys=len(self._stored))

    async def _remove_what_was_found(self) -> None:
        """Remove it: partitions before their offset maps, and each map from its end, so that a reader in
        between finds nothing inconsistent.
        """
        await self._put(Write.FOUND_REMOVED, dict.fromkeys(reversed(whole_in_order(self._found))))

    async def _write(self, write: Write, items: Mapping[str, bytes | None]) -> None:
        await self._put(write, items)
        for key, value in items.items():
            apply(self._stored, key, value)
        self._in_step = True

    async def _put(self, write: Write, items: Mapping[str, bytes | None]) -> None:
        """Every write goes this way, and has its own failpoint behind it. Without items there is none."""
        if not items:
            return
        self._in_step = False
        await self._store.put(items)
        reach(write)

    async def _save(self, write: Write, records: dict[TopicPartition, PartitionRecord]) -> None:
        await self._write(write, {record.key: record.to_bytes() for record in records.values()})
        self._partitions.update(records)

    async def _change_chunks(self, write: Write, changes: Mapping[TopicPartition, ChunkChanges]) -> None:
        """Write changed chunks; first, in a write of its own, remove those that go. Between the two the
        beginning of each map is stored.
        """
        gone: dict[str, bytes | None] = {}
        written: dict[str, bytes | None] = {}
        for tp, change in changes.items():
            gone |= {map_key(*tp, number): None for number in change.gone}
            written |= {map_key(*tp, number): chunk for number, chunk in change.written.items()}
        await self._write(Write.MAP_END_REMOVED, gone)
        for tp, change in changes.items():
            if change.gone:
                kept = min(change.gone) - chunks_of(self._maps[tp]).start
                self._maps[tp] = self._maps[tp].head(kept * CHUNK_RUNS)
        await self._write(write, written)

    def _plan(
        self, tp: TopicPartition, runs: Sequence[Run] = (), *, drop_ahead_of: int | None = None
    ) -> ChunkChanges:
        try:
            return changed_chunks(self._known_map(tp), runs, drop_ahead_of=drop_ahead_of)
        except ValueError as error:
            raise StateTakenOverError(
                f"{tp}: the offset map is not the one that this change is for: {error}"
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
        """The numbers of the stored chunks, the last one first."""
        return list(reversed(chunks_of(self._maps[tp]))) if tp in self._maps else []
