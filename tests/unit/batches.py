"""Batches for tests, written and read by kafka-python: the project's own wire code has no part in it.

Gaps, odd headers and old formats, which no client library writes, are made by
giving the pieces that kafka-python wrote another header. Snappy blocks come from
cramjam, as kafka-python's own binding is not installed; its framing is used.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple
from unittest import mock

import cramjam
import kafka.codec
import lz4.frame
from hypothesis import strategies as st
from kafka.record import MemoryRecords
from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from kafka.record.legacy_records import LegacyRecordBatchBuilder
from kafka.record.util import calc_crc32c

Codec = Literal["none", "gzip", "snappy", "lz4", "zstd"]
Magic = Literal[0, 1]

CODECS: dict[Codec, int] = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
OLD_CODECS: tuple[Codec, ...] = ("none", "gzip", "snappy", "lz4")
"""What formats v0 and v1 know."""
HEADER = struct.Struct(">qiibIhiqqqhii")
NOBODY = (-1, -1, -1)
"""Producer id, epoch and sequence of a producer that is not idempotent."""

_ATTRIBUTES_AT = 21
_CRC_AT = 17
_OLD_CRC_AT = 12


class Entry(NamedTuple):
    """One record, and where it is."""

    offset: int
    timestamp_ms: int = 1_700_000_000_000
    key: bytes | None = b"key"
    value: bytes | None = b"value"
    headers: tuple[tuple[str, bytes | None], ...] = ()


def entries(first: int, count: int, value: bytes = b"value") -> list[Entry]:
    """So many records that follow each other, all different."""
    return [
        Entry(first + number, 1_700_000_000_000 + number, b"k%d" % number, value + b"-%d" % (first + number))
        for number in range(count)
    ]


# -- format v2 -----------------------------------------------------------------------------------


def v2(
    records: Sequence[Entry],
    *,
    codec: Codec = "none",
    attributes: int = 0,
    base_offset: int | None = None,
    last_offset: int | None = None,
    base_timestamp_ms: int | None = None,
    max_timestamp_ms: int | None = None,
    leader_epoch: int = 0,
    producer: tuple[int, int, int] = NOBODY,
) -> memoryview:
    """A batch as a broker hands it out, writable.

    Args:
        attributes: Bits beside those of the codec.
        base_offset, last_offset: Where compaction has left the batch's ends; else those of the records.
        base_timestamp_ms: What the records' timestamps are relative to; else that of the first.
        max_timestamp_ms: What the header says; else the largest.
    """
    first = records[0].offset if base_offset is None else base_offset
    last = records[-1].offset if last_offset is None else last_offset
    times = [record.timestamp_ms for record in records] or [-1]
    base_ms = times[0] if base_timestamp_ms is None else base_timestamp_ms
    latest_ms = max(times) if max_timestamp_ms is None else max_timestamp_ms
    payload = compress(codec, _payload(records, first, base_ms)) if records else b""
    fields = (CODECS[codec] | attributes, last - first, base_ms, latest_ms, *producer, len(records))
    return with_header(payload, first, leader_epoch, fields)


def with_header(payload: bytes, base_offset: int, leader_epoch: int, fields: tuple[int, ...]) -> memoryview:
    """Payload behind a header with the right length and CRC; ``fields`` are those from the attributes on."""
    data = bytearray(HEADER.size + len(payload))
    HEADER.pack_into(data, 0, base_offset, len(data) - 12, leader_epoch, 2, 0, *fields)
    data[HEADER.size :] = payload
    struct.pack_into(">I", data, _CRC_AT, calc_crc32c(memoryview(data)[_ATTRIBUTES_AT:]))
    return memoryview(data)


def control(base_offset: int, producer_id: int, kind: int, leader_epoch: int = 0) -> memoryview:
    """The marker at the end of a transaction; ``kind`` is 0 for an abort, 1 for a commit."""
    marker = Entry(base_offset, key=struct.pack(">hh", 0, kind), value=struct.pack(">hi", 0, 0))
    return v2([marker], attributes=0x30, producer=(producer_id, 0, -1), leader_epoch=leader_epoch)


def read_v2(view: memoryview | bytes) -> list[Entry]:
    """The records of a batch as kafka-python sees them; its CRC must be right."""
    batch = DefaultRecordBatch(view)
    assert batch.validate_crc(), "the CRC is wrong"
    with _snappy():
        return [Entry(r.offset, r.timestamp, r.key, r.value, tuple(r.headers)) for r in batch]


def _payload(records: Sequence[Entry], base_offset: int, base_timestamp_ms: int) -> bytes:
    """The records one after the other; a first one, left out again, sets what the times are relative to."""
    builder = DefaultRecordBatchBuilder(2, 0, False, *NOBODY, batch_size=1 << 30)
    dummy = builder.append(0, base_timestamp_ms, None, None, [])
    for offset, timestamp_ms, key, value, headers in records:
        builder.append(offset - base_offset, timestamp_ms, key, value, list(headers))
    return bytes(builder.build()[HEADER.size + dummy.size :])


# -- formats v0 and v1 ---------------------------------------------------------------------------


def old(
    magic: Magic, records: Sequence[Entry], *, codec: Codec = "none", log_append_ms: int | None = None
) -> memoryview:
    """Records of format v0 or v1: message after message, or compressed within one.

    Compressed they are the value of a message with the offset of the last. Inside, v0 has absolute
    offsets and v1 such that count from the first.
    """
    bits = 0x08 if log_append_ms is not None else 0
    if codec == "none":
        return memoryview(
            bytearray().join(_message(magic, record, bits, log_append_ms) for record in records)
        )
    shift = records[0].offset if magic == 1 else 0
    inner = b"".join(_message(magic, r._replace(offset=r.offset - shift), 0, None) for r in records)
    newest = max(record.timestamp_ms for record in records)
    outer = Entry(records[-1].offset, newest, None, _old_compress(magic, codec, inner))
    return memoryview(_message(magic, outer, bits | CODECS[codec], log_append_ms))


def read_old(data: memoryview | bytes) -> list[Entry]:
    """All records of a message set as kafka-python sees them; without a timestamp it is -1.

    It cannot read lz4 of format v0: it misses a library for that.
    """
    found: list[Entry] = []
    with _snappy():
        batches = MemoryRecords(bytes(data))
        while (batch := batches.next_batch()) is not None:
            for r in batch:
                assert r.validate_crc()
                found.append(Entry(r.offset, -1 if r.timestamp is None else r.timestamp, r.key, r.value))
    return found


def _message(magic: Magic, record: Entry, bits: int, timestamp_ms: int | None) -> bytearray:
    builder = LegacyRecordBatchBuilder(magic, 0, batch_size=1 << 30)
    stamp = record.timestamp_ms if timestamp_ms is None else timestamp_ms
    builder.append(record.offset, stamp, record.key, record.value)
    data = bytearray(builder.build())
    data[17] = bits
    struct.pack_into(">I", data, _OLD_CRC_AT, zlib.crc32(data[16:]))
    return data


def _old_compress(magic: Magic, codec: Codec, data: bytes) -> bytes:
    if magic == 0 and codec == "lz4":
        packed = bytes(lz4.frame.compress(data, store_size=False))
        return packed[:6] + bytes((packed[6] ^ 0xFF,)) + packed[7:]  # not the checksum it should have
    return compress(codec, data)


# -- compression ---------------------------------------------------------------------------------


class _Cramjam:
    """What kafka-python calls of a snappy binding."""

    compress = staticmethod(lambda data: bytes(cramjam.snappy.compress_raw(data)))
    decompress = staticmethod(lambda data: bytes(cramjam.snappy.decompress_raw(data)))


def _snappy() -> mock._patch[type[_Cramjam]]:
    return mock.patch.object(kafka.codec, "snappy", _Cramjam)


def compress(codec: Codec, data: bytes) -> bytes:
    """As kafka-python's producer does."""
    writers: dict[Codec, Callable[[bytes], bytes]] = {
        "none": bytes,
        "gzip": kafka.codec.gzip_encode,
        "snappy": kafka.codec.snappy_encode,
        "lz4": kafka.codec.lz4_encode,
        "zstd": kafka.codec.zstd_encode,
    }
    with _snappy():
        return writers[codec](data)


def decompress(codec: Codec, data: bytes) -> bytes:
    """As kafka-python's consumer does."""
    readers: dict[Codec, Callable[[bytes], bytes]] = {
        "none": bytes,
        "gzip": kafka.codec.gzip_decode,
        "snappy": kafka.codec.snappy_decode,
        "lz4": kafka.codec.lz4_decode,
        "zstd": kafka.codec.zstd_decode,
    }
    with _snappy():
        return readers[codec](data)


# -- strategies ----------------------------------------------------------------------------------

fields = st.none() | st.binary(max_size=40)
headers = st.lists(st.tuples(st.text(max_size=8), fields), max_size=3).map(tuple)
timestamps = st.integers(-1, 2**41)
codecs = st.sampled_from(list(CODECS))


@st.composite
def dense(draw: st.DrawFn, count_max: int = 6) -> list[Entry]:
    """Records without gaps between them."""
    first = draw(st.integers(0, 2**40))
    made = st.builds(Entry, st.just(0), timestamps, fields, fields, headers)
    drawn = draw(st.lists(made, min_size=1, max_size=count_max))
    return [record._replace(offset=first + number) for number, record in enumerate(drawn)]


@st.composite
def gapped(draw: st.DrawFn, count_max: int = 6) -> list[Entry]:
    """Records in the order of their offsets, as compaction may leave them."""
    records = draw(dense(count_max))
    skips = draw(st.lists(st.integers(0, 3), min_size=len(records), max_size=len(records)))
    gone, moved = 0, []
    for record, skip in zip(records, skips, strict=True):
        gone += skip
        moved.append(record._replace(offset=record.offset + gone))
    return moved
