"""Durable state in a compacted topic of one partition, by default on the target cluster.

A value is a record, the last one of its key counts, a record without a value removes
the key. The topic is read once, from start to end, when the mirror begins.

A writer notices when somebody else has written meanwhile: what it appends does not
land where the log ended before. That may be its own batch, sent twice because an
answer was lost, and is checked; anything else ends in :class:`StateTakenOverError`,
after which everything is to be loaded again.

The broker is behind a narrow Protocol. Nothing here is on the hot path.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from kafka.errors import KafkaError
from kafka.record.default_records import DefaultRecordBatchBuilder
from kafka.record.memory_records import MemoryRecords

from checkpoint.errors import CorruptStateError, StateTakenOverError, StateUnavailableError
from checkpoint.store import apply

BATCH_BYTES_MAX = 512 * 1024
"""Half of what a broker takes in one batch by default. What fits into one batch is written whole or not."""
Item = tuple[str, bytes | None]


class LogPort(Protocol):
    """One partition as a log of raw record batches of format v2."""

    async def append(self, batch: bytes) -> int:
        """Append a batch; on all in-sync replicas when it returns. A lost answer may mean it is there twice.

        Returns:
            The offset of its first record.
        """

    async def read(self, offset: int) -> bytes:
        """Batches from the one that holds ``offset`` on, as many as fit an answer; b'' at the end."""

    async def start(self) -> int:
        """The first offset."""

    async def end(self) -> int:
        """The offset after the last record that is on all in-sync replicas."""


class TopicStore:
    """A store in a compacted topic.

    Args:
        log: The way to its partition.
    """

    def __init__(self, log: LogPort) -> None:
        self._log = log
        self._end: int | None = None
        self._lock = asyncio.Lock()

    async def load(self) -> dict[str, bytes]:
        async with self._lock:
            items: dict[str, bytes] = {}
            end = await self._log.end()
            for key, value in await self._read(await self._log.start(), end):
                apply(items, key, value)
            self._end = end
            return items

    async def put(self, items: Mapping[str, bytes | None]) -> None:
        async with self._lock:
            for batch, count in _batches(list(items.items())):
                await self._append(batch, count)

    async def close(self) -> None:
        return

    async def _append(self, batch: bytes, count: int) -> None:
        base = await self._log.append(batch)
        if self._end is not None and base != self._end:
            await self._check_between(self._end, base, batch)
        self._end = base + count

    async def _check_between(self, expected: int, base: int, batch: bytes) -> None:
        """What stands between may only be the same batch, whose answer was lost."""
        ours = [item for _, item in _records(batch)]
        between = await self._read(expected, base)
        if base < expected or any(item not in ours for item in between):
            raise StateTakenOverError(
                f"the state ended at offset {expected} and the next write landed at {base}: "
                f"somebody else has written to it"
            )

    async def _read(self, start: int, end: int) -> list[Item]:
        """All items of the offsets [start, end), in order."""
        items: list[Item] = []
        at = start
        while at < end:
            data = await self._log.read(at)
            if not data:
                raise StateUnavailableError(
                    f"the state could be read up to offset {at} only, it ends at {end}"
                )
            read = [(offset, item) for offset, item in _records(data) if at <= offset < end]
            items.extend(item for _, item in read)
            at = max(at + 1, _next_offset(data))
        return items


def _batches(items: Sequence[Item]) -> Iterator[tuple[bytes, int]]:
    """The items as record batches, each with its number of records."""
    while items:
        builder = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, BATCH_BYTES_MAX)
        now, count = int(time.time() * 1000), 0
        for key, value in items:
            if builder.append(count, now, key.encode(), value, []) is None:
                break
            count += 1
        yield bytes(builder.build()), count
        items = items[count:]


def _records(data: bytes) -> Iterator[tuple[int, Item]]:
    """The records of raw batches, with their offsets. Control batches hold none."""
    try:
        yield from _decode_records(data)
    except (KafkaError, UnicodeDecodeError, ValueError, IndexError) as error:
        raise CorruptStateError(f"the state topic holds a batch that cannot be read: {error}") from error


def _decode_records(data: bytes) -> Iterator[tuple[int, Item]]:
    for batch in MemoryRecords(data):
        if not batch.validate_crc():
            raise CorruptStateError(f"the batch at offset {batch.base_offset} does not match its CRC")
        if batch.is_control_batch:
            continue
        for record in batch:
            if record.key is None:
                raise CorruptStateError(f"the state topic holds a record without a key at {record.offset}")
            yield record.offset, (bytes(record.key).decode(), _value(record.value))


def _value(value: object) -> bytes | None:
    return None if value is None else bytes(value)  # type: ignore[call-overload]


def _next_offset(data: bytes) -> int:
    """The offset after the last whole batch."""
    return max((int(batch.next_offset) for batch in MemoryRecords(data)), default=0)
