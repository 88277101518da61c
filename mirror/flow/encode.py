"""The slow path: take a batch apart and write it again, dense and in format v2.

It is for what cannot be appended as it is: offset gaps left by compaction, formats v0
and v1, LogAppendTime, batches above the target's limit, a read that begins inside a
batch. Key, value and headers are copied byte for byte; only lengths, timestamp deltas
and offset deltas are rewritten. The codec stays the source's.

Sources: KIP-98 (format v2), docs/design.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

from mirror.errors import CorruptBatchError, MisplacedBatchError, RecordTooLargeError, UnreadableBatchError
from mirror.flow.legacy import decode_legacy
from mirror.flow.records import Record
from mirror.kafka.codecs import CodecError, deflate, deflate_harder, inflate
from mirror.kafka.record_batch import (
    CODEC_BITS,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    MAGIC_V2,
    BatchHeader,
    build,
)
from mirror.kafka.varint import decode_varint, encode_varint
from mirror.model import Batch

DECODED_BYTES_MAX = 512 << 20
"""A batch that inflates to more is rejected as a decompression bomb."""
HARDER_TIMES_MAX = 2
"""A record more than this many times too large is not compressed harder: no level would make it fit."""
Compress = Callable[[int, bytearray], bytes]
_HALF, _MASK = 1 << 63, (1 << 64) - 1


def reencode(
    header: BatchHeader,
    view: memoryview,
    *,
    start_offset: int,
    batch_bytes_max: int,
    lowest_offset: int = 0,
    decoded_bytes_max: int = DECODED_BYTES_MAX,
) -> list[Batch]:
    """The records from ``start_offset`` on, as batches without gaps that the target accepts.

    Args:
        lowest_offset: No record of the batch may be below it, even one that is not wanted.

    Raises:
        MisplacedBatchError: One is.
        CorruptBatchError: The batch contradicts itself.
        UnreadableBatchError: It cannot be inflated, or inflates to more than ``decoded_bytes_max``.
        RecordTooLargeError: A single record makes a batch above ``batch_bytes_max``.
    """
    records, codec = decode(header, view, decoded_bytes_max)
    if records and records[0].offset < lowest_offset:
        raise MisplacedBatchError(lowest_offset, f"it holds a record with offset {records[0].offset}")
    batches: list[Batch] = []
    for run in _dense_runs([record for record in records if record.offset >= start_offset]):
        batches += _encode_within(run, codec, header.leader_epoch, batch_bytes_max)
    return batches


def decode(header: BatchHeader, view: memoryview, decoded_bytes_max: int) -> tuple[list[Record], int]:
    """All records of a batch of any format, in offset order, and its codec.

    Raises:
        CorruptBatchError, UnreadableBatchError: As :func:`reencode`.
    """
    if header.magic != MAGIC_V2:
        records, codec = decode_legacy(view, decoded_bytes_max)
    else:
        codec = header.attributes & CODEC_BITS
        records = _decode_v2(header, view, codec, decoded_bytes_max)
    _check(header, records)
    return records, codec


def _check(header: BatchHeader, records: Sequence[Record]) -> None:
    """Reject records out of order or outside their batch's offsets: they would displace the next one's."""
    if any(later.offset <= earlier.offset for earlier, later in pairwise(records)):
        raise CorruptBatchError(header.base_offset, "its records are not in offset order")
    first = header.base_offset if header.magic == MAGIC_V2 else 0
    if records and not first <= records[0].offset <= records[-1].offset < header.next_offset:
        raise CorruptBatchError(
            header.base_offset,
            f"it covers offsets {first} to {header.next_offset - 1}, "
            f"its records have offsets {records[0].offset} to {records[-1].offset}",
        )


def _decode_v2(header: BatchHeader, view: memoryview, codec: int, bytes_max: int) -> list[Record]:
    try:
        data = inflate(codec, view[HEADER_BYTES:], bytes_max)
    except CodecError as error:
        raise UnreadableBatchError(header.base_offset, str(error)) from error
    append_time = header.max_timestamp if header.attributes & LOG_APPEND_TIME else None
    records: list[Record] = []
    at = 0
    try:
        for _ in range(header.records):
            length, at = decode_varint(data, at)
            end = at + length
            delta, body = decode_varint(data, at + 1)
            offset_delta, body = decode_varint(data, body)
            if body > end or end > len(data):
                raise CorruptBatchError(header.base_offset, f"a record of {length} bytes does not fit")
            timestamp = _wrapped(header.base_timestamp + delta) if append_time is None else append_time
            records.append(Record(header.base_offset + offset_delta, timestamp, data[body:end]))
            at = end
    except (ValueError, IndexError) as error:
        raise CorruptBatchError(header.base_offset, f"its records cannot be read: {error}") from error
    if at != len(data):
        raise CorruptBatchError(header.base_offset, f"{len(data) - at} bytes follow its last record")
    return records


def _wrapped(time_ms: int) -> int:
    """A timestamp, or the difference of two, in 64 bits. It wraps around as in brokers and clients, which
    accept any 64-bit number as a timestamp.
    """
    return ((time_ms + _HALF) & _MASK) - _HALF


def _dense_runs(records: Sequence[Record]) -> Iterator[Sequence[Record]]:
    start = 0
    for index in range(1, len(records) + 1):
        if index == len(records) or records[index].offset != records[index - 1].offset + 1:
            yield records[start:index]
            start = index


def _encode_within(
    run: Sequence[Record], codec: int, leader_epoch: int, batch_bytes_max: int
) -> Iterator[Batch]:
    """One batch, or as many as it takes: the run is halved until each batch is small enough. A single record
    is first compressed harder, as its producer may have done.
    """
    batch = encode(run, codec, leader_epoch)
    if len(run) == 1 and batch_bytes_max < len(batch.view) <= HARDER_TIMES_MAX * batch_bytes_max:
        batch = encode(run, codec, leader_epoch, deflate_harder)
    if len(batch.view) <= batch_bytes_max:
        yield batch
        return
    if len(run) == 1:
        raise RecordTooLargeError(
            run[0].offset, f"one record takes {len(batch.view)} bytes, the target accepts {batch_bytes_max}"
        )
    middle = len(run) // 2
    yield from _encode_within(run[:middle], codec, leader_epoch, batch_bytes_max)
    yield from _encode_within(run[middle:], codec, leader_epoch, batch_bytes_max)


def encode(run: Sequence[Record], codec: int, leader_epoch: int = -1, compress: Compress = deflate) -> Batch:
    """One v2 batch, with CreateTime, of records with consecutive offsets."""
    first = run[0]
    payload = bytearray()
    for delta, record in enumerate(run):
        head = b"\0" + encode_varint(_wrapped(record.timestamp - first.timestamp)) + encode_varint(delta)
        payload += encode_varint(len(head) + len(record.tail)) + head + record.tail
    latest = max(record.timestamp for record in run)
    view = build(
        compress(codec, payload),
        count=len(run),
        codec=codec,
        base_timestamp=first.timestamp,
        max_timestamp=latest,
        base_offset=first.offset,
        leader_epoch=leader_epoch,
    )
    return Batch(first.offset, first.offset + len(run), leader_epoch, latest, view)
