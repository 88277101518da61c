"""Items of the state as raw, uncompressed record batches of format v2, and back. Pure: no I/O.

An item is a record: a key, and a value or none. The batch header tells who wrote it.

Sources: KIP-98 (producer ids, epochs and sequences).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Self

from kafka.errors import KafkaError
from kafka.record.default_records import DefaultRecordBatchBuilder
from kafka.record.memory_records import MemoryRecords

from checkpoint.errors import CorruptStateError, StateUnavailableError

BATCH_BYTES_MAX = 512 * 1024
"""Half of a broker's default batch limit. What fits into one batch is written completely or not at all."""
Item = tuple[str, bytes | None]
Writer = tuple[int, int]
"""Producer id and epoch. Only the writer with the highest epoch can write."""
NOBODY: Writer = (-1, -1)


class Tail(NamedTuple):
    """The last batch of a log, as far as the log was read."""

    base_offset: int
    crc: int
    max_timestamp_ms: int

    @classmethod
    def of(cls, header: Any) -> Self:
        return cls(header.base_offset, header.crc, header.max_timestamp)

    def begins(self, data: bytes) -> bool:
        """True when this is the first batch in ``data``."""
        first = next(iter(MemoryRecords(data)), None)
        return first is not None and Tail.of(first) == self


def is_newer(one: Writer, ours: Writer) -> bool:
    """Whether writer ``one`` got the right after ``ours``: a higher epoch, or another producer id, which is
    given out when epochs run out.
    """
    return one != NOBODY and (one[0] != ours[0] or one[1] > ours[1])


def batch_of(items: Sequence[Item], writer: Writer, sequence: int, *, timestamp_ms: int) -> tuple[bytes, int]:
    """One record batch with as many of the items as fit, and their number."""
    builder = DefaultRecordBatchBuilder(2, 0, False, *writer, sequence, BATCH_BYTES_MAX)
    count = 0
    for key, value in items:
        if builder.append(count, timestamp_ms, key.encode(), value, []) is None:
            break
        count += 1
    return bytes(builder.build()), count


def headers_of(data: bytes, at: int) -> list[Any]:
    """The headers of the whole batches in ``data``.

    Raises:
        StateUnavailableError: There are none, or none of them reaches beyond offset ``at``.
    """
    headers = list(MemoryRecords(data))
    if not headers or headers[-1].next_offset <= at:
        raise StateUnavailableError(f"the state cannot be read at offset {at}: the batch is incomplete")
    return headers


def records_of(data: bytes) -> Iterator[tuple[int, Item]]:
    """The records of raw batches, with their offsets, without those of control batches.

    Raises:
        CorruptStateError: A batch does not match its CRC, or makes no sense; or a record has no key.
    """
    try:
        yield from _decoded(data)
    except (KafkaError, UnicodeDecodeError, ValueError, IndexError) as error:
        raise CorruptStateError(f"the state topic holds a batch that cannot be read: {error}") from error


def _decoded(data: bytes) -> Iterator[tuple[int, Item]]:
    for batch in MemoryRecords(data):
        if not batch.validate_crc():
            raise CorruptStateError(f"the batch at offset {batch.base_offset} does not match its CRC")
        if batch.is_control_batch:
            continue
        for record in batch:
            if record.key is None:
                raise CorruptStateError(f"the state holds a record without a key at offset {record.offset}")
            yield record.offset, (bytes(record.key).decode(), _value(record.value))


def _value(value: object) -> bytes | None:
    return None if value is None else bytes(value)  # type: ignore[call-overload]
