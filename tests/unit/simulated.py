"""Two logs, the flow's state, and what a broker does with them: the world in which mirrors of a flow live.

The source is written to, compacted, loses its beginning by retention, and may lose its end. The target
appends on conditions (KIP-98), may forget who wrote, is compacted, and what is not replicated may vanish with
its leader. The topic of the state is written to by whoever has the newest right, and may lose its end.
Nothing here waits or decides: a test says what happens next.

Each record has a *serial*, which is its value, so that it is known wherever it turns up.

Sources: KIP-98 (sequences), KIP-101 and KIP-320 (leader epochs), KIP-664 (DescribeProducers).
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from kafka.record import MemoryRecords

from checkpoint.map_chunk import decode_map
from checkpoint.model import PartitionRecord, parse_map_key, partition_key
from checkpoint.offset_map import OffsetMap
from checkpoint.store import apply
from mirror.errors import BrokerError
from mirror.flow.position import SEQUENCES
from mirror.kafka.offsets import Marking, ProducerState
from tests.contract.memory_log import MemoryLog
from tests.unit.batches import HEADER, Entry, control, read_v2, v2
from tests.unit.target_model import BROKERS_MEMORY, ORDERS_0, OURS, Appended

OLD_MS = 1_700_000_000_000
"""A broker may forget at any time who has written records of then."""
OFFSET_OUT_OF_RANGE, OUT_OF_ORDER, COORDINATOR_FENCED = 1, 45, 52


class Origin(NamedTuple):
    """Where a record was at the source."""

    offset: int
    key: bytes


@dataclass
class SourceBatch:
    """As the cleaner leaves them: the ends stay where they were."""

    base_offset: int
    next_offset: int
    epoch: int
    records: list[Entry]
    producer_id: int = -1
    marker: int | None = None

    def data(self) -> memoryview:
        if self.marker is not None:
            return control(self.base_offset, self.producer_id, self.marker, self.epoch)
        transactional = self.producer_id >= 0
        return v2(
            self.records,
            attributes=0x10 if transactional else 0,
            base_offset=self.base_offset,
            last_offset=self.next_offset - 1,
            leader_epoch=self.epoch,
            producer=(self.producer_id, 0, 0) if transactional else (-1, -1, -1),
        )


class Answer(NamedTuple):
    """What the source's broker answers to Fetch; see :class:`mirror.kafka.fetch.Fetched`."""

    error_code: int
    diverging: tuple[int, int] | None
    aborted: list[tuple[int, int]]
    records: bytes


class SourceLog:
    """One partition of the source.

    Attributes:
        epochs: Where each leader epoch begins, (epoch, first offset).
        transactions: (producer id, first offset, offset of the marker) of each.
        aborted: Producer ids of those that were aborted.
        origins: Of all serials there ever were.
        uncommitted: Serials of those that were aborted.
        replaced: Serials that were cut off in an unclean election.
        expired: Serials of committed records that retention has removed.
    """

    def __init__(self) -> None:
        self.start = self.end = 0
        self.batches: list[SourceBatch] = []
        self.epochs = [(0, 0)]
        self.transactions: list[tuple[int, int, int]] = []
        self.aborted: set[int] = set()
        self.origins: dict[int, Origin] = {}
        self.uncommitted: set[int] = set()
        self.replaced: set[int] = set()
        self.expired: set[int] = set()
        self._serials = 0
        self._producers = 100
        self._elections = 0

    @property
    def epoch(self) -> int:
        return self.epochs[-1][0]

    # -- producers -------------------------------------------------------------------------------

    def append(self, keys: bytes, timestamp_ms: int, *, producer_id: int = -1, aborted: bool = False) -> None:
        """One batch with a record of each key."""
        records = []
        for offset, key in enumerate(keys, self.end):
            self._serials += 1
            records.append(Entry(offset, timestamp_ms, bytes([key]), b"%d" % self._serials))
            self.origins[self._serials] = Origin(offset, bytes([key]))
            if aborted:
                self.uncommitted.add(self._serials)
        self.batches.append(SourceBatch(self.end, self.end + len(keys), self.epoch, records, producer_id))
        self.end += len(keys)

    def transaction(self, keys: bytes, timestamp_ms: int, *, aborted: bool) -> None:
        """A batch and the marker behind it."""
        self._producers += 1
        first = self.end
        self.append(keys, timestamp_ms, producer_id=self._producers, aborted=aborted)
        marker = SourceBatch(self.end, self.end + 1, self.epoch, [], self._producers, 0 if aborted else 1)
        self.transactions.append((self._producers, first, self.end))
        if aborted:
            self.aborted.add(self._producers)
        self.batches.append(marker)
        self.end += 1

    # -- what happens to the log -----------------------------------------------------------------

    def compact(self, active: int, *, markers_too: bool, keep_empty: bool) -> None:
        """The cleaner passes over all but the last ``active`` batches. The very last stays, be it empty."""
        cleaned = self.batches[: len(self.batches) - active]
        newest: dict[bytes | None, int] = {}
        for batch in cleaned:
            if batch.producer_id not in self.aborted:
                newest.update({record.key: record.offset for record in batch.records})
        kept: list[SourceBatch] = []
        for batch in cleaned:
            batch.records = [one for one in batch.records if newest.get(one.key) == one.offset]
            gone = markers_too if batch.marker is not None else not (batch.records or keep_empty)
            if not gone or batch is self.batches[-1]:
                kept.append(batch)
        self.batches[: len(cleaned)] = kept

    def lose_its_end(self, batches: int) -> None:
        """An unclean election: the new leader never had the last so many batches, nor a half transaction."""
        kept = self.batches[: max(0, len(self.batches) - batches)]
        if kept == self.batches:
            return
        self.end = self.batches[len(kept)].base_offset
        open_ones = {one for one, first, last in self.transactions if first < self.end <= last}
        self.end = min([self.end, *(first for one, first, _ in self.transactions if one in open_ones)])
        self.end = max(self.start, self.end)
        self.batches = [batch for batch in kept if batch.next_offset <= self.end]
        self.replaced |= {serial for serial, at in self.origins.items() if at.offset >= self.end}
        self.transactions = [one for one in self.transactions if one[2] < self.end]
        self.aborted &= {one for one, _, _ in self.transactions}
        self.epochs = [pair for pair in self.epochs if pair[1] < self.end]
        self.elect()

    def retain(self, batches: int) -> None:
        """Retention: all but the last so many are gone, and what was known of leader epochs with them."""
        kept = self.batches[max(0, len(self.batches) - batches) :]
        before = self.records()
        self.batches, self.start = kept, kept[0].base_offset if kept else self.end
        self.expired |= before.keys() - self.records().keys()
        first = max(pair for pair in self.epochs if pair[1] <= self.start)
        self.epochs = [(first[0], self.start), *(pair for pair in self.epochs if pair > first)]

    def elect(self) -> None:
        """A clean election: nothing is lost."""
        self._elections += 1
        self.epochs.append((self._elections, self.end))

    # -- what it has -----------------------------------------------------------------------------

    def records(self) -> dict[int, Origin]:
        """By serial, what a consumer may read just now that reads committed records."""
        serials = [int(record.value or b"") for batch in self.batches for record in batch.records]
        return {serial: self.origins[serial] for serial in serials if serial not in self.uncommitted}

    def fetch(self, offset: int, last_epoch: int, batches: int) -> Answer:
        """Batches from the one that holds an offset on, or the next one."""
        if offset < self.start:
            return Answer(OFFSET_OUT_OF_RANGE, None, [], b"")
        diverging = self._diverging(offset, last_epoch)
        if diverging is not None:
            return Answer(0, diverging, [], b"")
        if offset > self.end:
            return Answer(OFFSET_OUT_OF_RANGE, None, [], b"")
        found = [batch for batch in self.batches if batch.next_offset > offset][:batches]
        reached = found[-1].next_offset if found else offset
        aborted = [
            (one, first)
            for one, first, last in self.transactions
            if one in self.aborted and last >= offset and first < reached
        ]
        return Answer(0, None, aborted, b"".join(batch.data() for batch in found))

    def _diverging(self, offset: int, last_epoch: int) -> tuple[int, int] | None:
        if last_epoch < 0:
            return None
        epoch = max((one for one, _ in self.epochs if one <= last_epoch), default=last_epoch)
        end = min((start for one, start in self.epochs if one > last_epoch), default=self.end)
        return (epoch, end) if epoch < last_epoch or end < offset else None


@dataclass
class Kept:
    """A batch of the target."""

    base_offset: int
    next_offset: int
    data: bytes
    sequences: tuple[int, int] | None
    """The first and the last; None for a control marker."""
    newest_ms: int
    producer_epoch: int = 0
    coordinator_epoch: int = -1


@dataclass
class TargetLog:
    """One partition of the target.

    Attributes:
        start: Where it begins.
        ever: What was ever at each offset from there on, whatever compaction has made of it since: a serial,
            or None for a marker.
        replicated: Up to where it is on all replicas in sync.
        memory: The last batches of our producer id; None when the broker has forgotten it.
    """

    start: int
    ever: list[int | None] = field(default_factory=list)
    batches: list[Kept] = field(default_factory=list)
    replicated: int = 0
    memory: list[Appended] | None = None
    newest_ms: int = 0
    coordinator_epoch: int = -1

    def __post_init__(self) -> None:
        self.replicated = self.start

    @property
    def end(self) -> int:
        return self.start + len(self.ever)

    # -- writers ---------------------------------------------------------------------------------

    def append(self, data: memoryview) -> tuple[int, int, bool]:
        """A batch as it comes in a Produce request: (error code, base offset, whether it was there)."""
        fields = HEADER.unpack_from(data)
        records = read_v2(data)
        assert (fields[0], fields[9], fields[10]) == (0, OURS, 0)
        sequence, last = fields[11], (fields[11] + len(records) - 1) % SEQUENCES
        for known in self.memory or ():
            if known[:2] == (sequence, last):
                return 0, known.base_offset, True
        if self.memory and sequence != (self.memory[-1].last_sequence + 1) % SEQUENCES:
            return OUT_OF_ORDER, -1, False
        base = self.end
        stored = bytearray(data)
        stored[:8] = base.to_bytes(8, "big")
        self.ever += [int(record.value or b"") for record in records]
        self.batches.append(Kept(base, self.end, bytes(stored), (sequence, last), fields[8]))
        self.memory = [*(self.memory or []), Appended(sequence, last, base)][-BROKERS_MEMORY:]
        self.newest_ms = fields[8]
        return 0, base, False

    def mark(self, marking: Marking, count: int) -> int:
        """The first ``count`` markers of a request; answers an error code."""
        if marking.coordinator_epoch < self.coordinator_epoch:
            return COORDINATOR_FENCED
        for _ in range(count):
            data = bytes(control(self.end, OURS, 0))
            self.ever.append(None)
            self.batches.append(
                Kept(self.end - 1, self.end, data, None, 0, coordinator_epoch=marking.coordinator_epoch)
            )
            self.coordinator_epoch = marking.coordinator_epoch
        return 0

    # -- what happens to the log -----------------------------------------------------------------

    def compact(self, active: int) -> None:
        """The cleaner passes over what is replicated, but for the last ``active`` batches. Where the log ends
        does not change.
        """
        cleaned = [one for one in self.batches if one.next_offset <= self.replicated]
        cleaned = cleaned[: max(0, min(len(cleaned), len(self.batches) - active))]
        decoded = [(kept, [] if kept.sequences is None else read_v2(kept.data)) for kept in cleaned]
        newest = {record.key: record.offset for _, records in decoded for record in records}
        left: list[Kept] = []
        for kept, records in decoded:
            still = [record for record in records if newest[record.key] == record.offset]
            if kept.sequences is None:
                left.append(kept)
            elif still or kept is self.batches[-1]:
                fields = HEADER.unpack_from(kept.data)
                kept.data = bytes(
                    v2(
                        still,
                        base_offset=kept.base_offset,
                        last_offset=kept.next_offset - 1,
                        base_timestamp_ms=fields[7],
                        producer=(fields[9], fields[10], fields[11]),
                    )
                )
                left.append(kept)
        self.batches[: len(cleaned)] = left

    def lose_its_leader(self) -> None:
        """What was on the leader alone is gone; the next one remembers of producers what its log says."""
        del self.ever[self.replicated - self.start :]
        gone = [kept for kept in self.batches if kept.base_offset >= self.replicated]
        self.batches = [kept for kept in self.batches if kept.base_offset < self.replicated]
        if any(kept.sequences for kept in gone):
            self._remember()

    def forget(self) -> bool:
        """The newest record of our producer is of long ago; True where it was."""
        if self.memory is None or self.newest_ms > OLD_MS:
            return False
        self.memory = None
        return True

    def _remember(self) -> None:
        ours = [kept for kept in self.batches if kept.sequences is not None][-BROKERS_MEMORY:]
        self.memory = [Appended(*(kept.sequences or (0, 0)), kept.base_offset) for kept in ours] or None
        self.newest_ms = ours[-1].newest_ms if ours else 0

    # -- what it has -----------------------------------------------------------------------------

    def producer(self) -> ProducerState | None:
        if not self.memory:
            return None
        return ProducerState(0, self.memory[-1].last_sequence, self.coordinator_epoch)

    def fetch(self, offset: int) -> bytes:
        """The batch that holds an offset, or the next one, and what follows, as far as it is replicated."""
        readable = [kept for kept in self.batches if offset < kept.next_offset <= self.replicated]
        return b"".join(kept.data for kept in readable)


class State(MemoryLog):
    """The topic of the flow's durable state.

    Attributes:
        items: What whoever reads it from its start finds.
        whole: The same, had it never lost its end.
        first: So many batches are never lost.
    """

    def __init__(self) -> None:
        super().__init__()
        self.items: dict[str, bytes] = {}
        self.whole: dict[str, bytes] = {}
        self.first = 0
        self._changes = 0
        self._map: tuple[int, OffsetMap | None] = -1, None

    @property
    def owner(self) -> int:
        """The newest right under which somebody has written."""
        return self._producers[OURS][0] if OURS in self._producers else 0

    @property
    def cut_short(self) -> bool:
        """Something that was lost with the end of the topic is not written again."""
        return self.items != self.whole

    def arrive(self, batch: bytes) -> None:
        """A write that was given up on; what the broker makes of it nobody hears."""
        with suppress(BrokerError):
            self._accept(batch)

    def lose_its_end(self, batches: int) -> None:
        """An unclean election, or a power cut: the last so many are gone."""
        if len(self.batches) > self.first:
            self.truncate(self.batches[max(self.first, len(self.batches) - batches)][0])
            self.items = {}
            for _, batch in self.batches:
                self._apply(self.items, batch)

    def _write(self, batch: bytes) -> int:
        self._apply(self.items, batch)
        self._apply(self.whole, batch)
        return super()._write(batch)

    def _apply(self, items: dict[str, bytes], batch: bytes) -> None:
        self._changes += 1
        for record in next(MemoryRecords(batch)):
            apply(items, record.key.decode(), record.value)

    # -- of the one partition --------------------------------------------------------------------

    @property
    def record(self) -> PartitionRecord | None:
        """What is known of it, also where that was lost with the end."""
        data = self.whole.get(partition_key(*ORDERS_0))
        return PartitionRecord.from_bytes(data) if data else None

    @property
    def map(self) -> OffsetMap | None:
        """Its offset map, as whoever reads it now would see it."""
        if self._map[0] != self._changes:
            chunks = {
                parse_map_key(key)[2]: value for key, value in self.items.items() if key.startswith("map/")
            }
            self._map = self._changes, decode_map(chunks) if chunks else None
        return self._map[1]


def now_ms() -> int:
    return int(time.time() * 1000)
