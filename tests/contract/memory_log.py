"""A log of record batches in memory, with a cleaner, for the state store on a topic."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from kafka.record.default_records import DefaultRecordBatchBuilder
from kafka.record.memory_records import MemoryRecords

from mirror.errors import BrokerError

Record = tuple[int, bytes | None, bytes | None]
"""Offset delta, key, value."""


class MemoryLog:
    """One partition as a broker keeps it.

    Attributes:
        batches: Base offset and bytes of each batch.
        lose_answers: So many appends are written twice, as when a client did not hear the first answer.
    """

    def __init__(self) -> None:
        self.batches: list[tuple[int, bytes]] = []
        self.lose_answers = 0
        self._end = 0
        self._producers: dict[int, tuple[int, int, int, int]] = {}
        """Of each producer id the epoch, and of its last batch the sequences and where it is."""

    async def append(self, batch: bytes) -> int:
        if self.lose_answers:
            self.lose_answers -= 1
            self._accept(batch)
        return self._accept(batch)

    def _accept(self, batch: bytes) -> int:
        """What a broker does with the batch of an idempotent producer; it takes any of an unknown one."""
        header = next(MemoryRecords(batch))
        if header.producer_id < 0:
            return self._write(batch)
        unknown = -1, 0, int(header.base_sequence) - 1, 0
        epoch, first, last, base = self._producers.get(header.producer_id, unknown)
        if header.producer_epoch < epoch:
            raise BrokerError("INVALID_PRODUCER_EPOCH", 47, f"epoch {header.producer_epoch} after {epoch}")
        if header.producer_epoch > epoch >= 0:
            last = -1
        elif (header.base_sequence, header.last_sequence) == (first, last):
            return base
        if header.base_sequence != last + 1:
            raise BrokerError("OUT_OF_ORDER_SEQUENCE_NUMBER", 45, f"{header.base_sequence} after {last}")
        base = self._write(batch)
        latest = (header.producer_epoch, header.base_sequence, header.last_sequence, base)
        self._producers[header.producer_id] = latest
        return base

    def _write(self, batch: bytes) -> int:
        base = self._end
        self.batches.append((base, struct.pack(">q", base) + batch[8:]))
        self._end += next(MemoryRecords(batch)).last_offset_delta + 1
        return base

    async def read(self, offset: int) -> bytes:
        """Three batches at most, and a torn one behind them, as a broker does."""
        following = [data for base, data in self.batches if self._after(data) > offset]
        return b"".join(following[:3]) + b"".join(data[:40] for data in following[3:4])

    @staticmethod
    def _after(data: bytes) -> int:
        """The base offset and the delta of the last one, as they stand in the header."""
        return int.from_bytes(data[:8], "big") + int.from_bytes(data[23:27], "big") + 1

    async def start(self) -> int:
        return 0

    async def end(self) -> int:
        return self._end

    def truncate(self, end: int) -> None:
        """Lose the batches from there on, as after an unclean election."""
        self.batches = [(base, data) for base, data in self.batches if base < end]
        self._end = end
        self._producers.clear()
        for base, data in self.batches:
            header = next(MemoryRecords(data))
            if header.producer_id >= 0:
                latest = header.producer_epoch, header.base_sequence, header.last_sequence, base
                self._producers[header.producer_id] = latest

    def compact(self) -> None:
        """Keep the last record of each key, as the cleaner does; the last batch is not touched.

        Removed keys lose their tombstones too; a batch that loses all its records vanishes.
        """
        last: dict[bytes | None, int] = {}
        for _, data in self.batches:
            for record in next(MemoryRecords(data)):
                last[record.key] = record.offset
        kept = []
        for base, data in self.batches[:-1]:
            batch = next(MemoryRecords(data))
            records = [
                (r.offset - base, r.key, r.value)
                for r in batch
                if last[r.key] == r.offset and r.value is not None
            ]
            if records:
                kept.append((base, struct.pack(">q", base) + self.encode(records)[8:]))
        self.batches = [*kept, *self.batches[-1:]]

    @staticmethod
    def encode(records: Sequence[Record]) -> bytes:
        """A batch of records at these offset deltas."""
        builder = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, 1 << 20)
        for delta, key, value in records:
            builder.append(delta, 1_700_000_000_000, key, value, [])
        return bytes(builder.build())
