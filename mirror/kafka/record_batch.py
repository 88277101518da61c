"""Record batches as bytes: walk over them, check them, make them ours.

Format v2 has a header of 61 bytes before the records; the CRC-32C covers
everything from the attributes on, so base offset and leader epoch may change
freely. Formats v0 and v1 are recognised and handed out for the slow path.

The cost is per batch, not per record.

Sources: KIP-98 (format v2), KIP-32 and KIP-31 (formats v0 and v1), KIP-110 (zstd),
KIP-534 (delete horizon), Kafka's ``DefaultRecordBatch`` and ``EndTransactionMarker``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from crc32c import crc32c

from mirror.kafka.codecs import ZSTD, CodecError, deflate, inflate
from mirror.kafka.crc import difference_at_end
from mirror.kafka.varint import encode_varint

HEADER_BYTES = 61
"""Bytes of a v2 header; the records follow."""
PREFIX_BYTES = 12
"""Base offset and length, common to all formats; the length counts what follows."""
MAGIC_AT = 16
MAGIC_V2 = 2
_LENGTH_MIN = HEADER_BYTES - PREFIX_BYTES
_OLD_LENGTH_MIN = 14

CODEC_BITS = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
DELETE_HORIZON = 0x40

CRC_AT = 17
ATTRIBUTES_AT = 21
"""Where the bytes that the CRC covers begin."""
HEADER = struct.Struct(">qiibIhiqqqhii")
_PREFIX = struct.Struct(">qi")
_TO_CRC = struct.Struct(">qiibI")
_CRC_AND_ATTRIBUTES = struct.Struct(">IH")
_ATTRIBUTES = struct.Struct(">H")
_PRODUCER = struct.Struct(">qhi")
_PRODUCER_AT = 43
_PRODUCER_END = 57
"""End of the bytes under the CRC that sealing changes: attributes and the producer's three fields."""
_FIRST_NULL_RECORD = b"\x0c\0\0\0\1\1\0"
_NULL_BYTES_MAX = 16 << 20
"""More than any padding inflates to."""
_KEPT_ATTRIBUTES = 0xFFFF & ~(LOG_APPEND_TIME | TRANSACTIONAL | DELETE_HORIZON)


class BatchHeader(NamedTuple):
    """The header of a v2 batch, field by field. For older formats only the common fields are filled in."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    records: int

    @property
    def next_offset(self) -> int:
        """The offset after the last one that the batch covers."""
        return self.base_offset + self.last_offset_delta + 1


def walk(records: memoryview) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Yields the header and the bytes of each whole batch; a torn one at the end is left out.

    A length that is too small to be true, or an unknown format, ends the walk with a header of magic -1 and
    all that is left, so that nobody mistakes that for the end of the data.
    """
    at, end = 0, len(records)
    unpack = HEADER.unpack_from
    while end - at >= HEADER_BYTES:
        header = BatchHeader._make(unpack(records, at))
        if header.magic != MAGIC_V2 or header.length < _LENGTH_MIN:
            header = _old_header(records, at)
            if header.magic < 0:
                yield header, records[at:]
                return
        after = at + PREFIX_BYTES + header.length
        if after > end:
            return
        yield header, records[at:after]
        at = after
    if end - at > MAGIC_AT and records[at + MAGIC_AT] < MAGIC_V2:
        yield from _short_old_tail(records, at)


def _old_header(records: memoryview, at: int) -> BatchHeader:
    base_offset, length = _PREFIX.unpack_from(records, at)
    magic = records[at + MAGIC_AT]
    known = magic if magic < MAGIC_V2 and length >= _OLD_LENGTH_MIN else -1
    return BatchHeader(base_offset, length, -1, known, 0, 0, 0, -1, -1, -1, -1, -1, 1)


def _short_old_tail(records: memoryview, at: int) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Old messages can be shorter than a v2 header."""
    while len(records) - at > MAGIC_AT:
        header = _old_header(records, at)
        after = at + PREFIX_BYTES + header.length
        if header.magic < 0:
            yield header, records[at:]
            return
        if after > len(records):
            return
        yield header, records[at:after]
        at = after


def crc_matches(header: BatchHeader, view: memoryview) -> bool:
    """True when a v2 batch holds what its producer or broker wrote."""
    return bool(crc32c(view[ATTRIBUTES_AT:]) == header.crc)


def seal(view: memoryview, producer_id: int, producer_epoch: int, base_sequence: int) -> None:
    """Rewrite a v2 batch in place for an idempotent produce request; the payload stays untouched.

    Base offset becomes 0, leader epoch -1, the producer's fields ours. The bits for log append time,
    transaction and delete horizon are cleared. With the delete horizon's bit the base timestamp holds the
    horizon and the records' deltas are relative to it, so clearing the bit leaves their times right.

    The CRC is adjusted, not computed again: damage to the payload since its producer or broker wrote it,
    also in our memory, is still detected by the next one to check it.

    Raises:
        ValueError: One of the producer's fields is negative: the broker would check nothing at all.
    """
    if producer_id < 0 or producer_epoch < 0 or base_sequence < 0:
        ours = f"producer id {producer_id}, epoch {producer_epoch}, sequence {base_sequence}"
        raise ValueError(f"{ours} would disable the broker's checks")
    size = len(view)
    crc, attributes = _CRC_AND_ATTRIBUTES.unpack_from(view, CRC_AT)
    changing = view[ATTRIBUTES_AT:_PRODUCER_END]
    before = crc32c(changing)
    if attributes & ~_KEPT_ATTRIBUTES:
        _ATTRIBUTES.pack_into(changing, 0, attributes & _KEPT_ATTRIBUTES)
    _PRODUCER.pack_into(view, _PRODUCER_AT, producer_id, producer_epoch, base_sequence)
    crc ^= difference_at_end(before ^ crc32c(changing), size - _PRODUCER_END)
    _TO_CRC.pack_into(view, 0, 0, size - PREFIX_BYTES, -1, MAGIC_V2, crc)


def build(
    payload: bytes,
    *,
    count: int,
    codec: int,
    base_timestamp: int,
    max_timestamp: int,
    base_offset: int = 0,
    leader_epoch: int = -1,
) -> memoryview:
    """A v2 batch of ``count`` records without gaps around an encoded (and compressed) payload."""
    view = memoryview(bytearray(HEADER_BYTES + len(payload)))
    view[HEADER_BYTES:] = payload
    length = len(view) - PREFIX_BYTES
    fields = (codec, count - 1, base_timestamp, max_timestamp, -1, -1, -1, count)
    HEADER.pack_into(view, 0, base_offset, length, leader_epoch, MAGIC_V2, 0, *fields)
    struct.pack_into(">I", view, CRC_AT, crc32c(view[ATTRIBUTES_AT:]))
    return view


def inflated(header: BatchHeader, view: memoryview, bytes_max: int) -> memoryview:
    """A v2 batch without its compression, with a new CRC: check the old one first.

    A batch without compression is returned as it is.

    Args:
        bytes_max: The most its records may inflate to.

    Raises:
        CodecError: The records cannot be inflated, or become more than that.
    """
    codec = header.attributes & CODEC_BITS
    if not codec:
        return view
    plain = bytearray(view[:HEADER_BYTES]) + inflate(codec, view[HEADER_BYTES:], bytes_max)
    _PREFIX.pack_into(plain, 0, header.base_offset, len(plain) - PREFIX_BYTES)
    struct.pack_into(">h", plain, ATTRIBUTES_AT, header.attributes & ~CODEC_BITS)
    struct.pack_into(">I", plain, CRC_AT, crc32c(memoryview(plain)[ATTRIBUTES_AT:]))
    return memoryview(plain)


def aborts(view: memoryview) -> bool:
    """True when a control batch marks the end of an aborted transaction, False for any other marker.

    Only the marker's key is read: version and type, two bytes each, after a few varints.

    Raises:
        IndexError: There is no marker in it.
    """
    at = HEADER_BYTES
    for field in range(4):
        if field == 1:
            at += 1
        while view[at] & 0x80:
            at += 1
        at += 1
    return view[at + 2] == view[at + 3] == 0


def null_batch(count: int, *, timestamp_ms: int) -> memoryview:
    """A batch of ``count`` records with null key and null value, compressed with zstd.

    It is padding: it makes a log longer by ``count`` offsets at a tenth of a byte each.
    """
    return build(
        _null_payload(count), count=count, codec=ZSTD, base_timestamp=timestamp_ms, max_timestamp=timestamp_ms
    )


def is_null_batch(header: BatchHeader, view: memoryview) -> bool:
    """True for a batch that begins like one of :func:`null_batch`, even if it was compressed again since."""
    if header.magic != MAGIC_V2 or header.attributes & CONTROL:
        return False
    try:
        records = inflated(header, view, _NULL_BYTES_MAX)[HEADER_BYTES:]
    except CodecError:
        return False
    return records[: len(_FIRST_NULL_RECORD)] == _FIRST_NULL_RECORD


@lru_cache(maxsize=2)
def _null_payload(count: int) -> bytes:
    """The compressed records: they differ only in their offset delta."""
    raw = bytearray()
    for delta in range(count):
        offset_delta = encode_varint(delta)
        # length, attributes, timestamp delta, offset delta, key -1, value -1, no headers
        raw += encode_varint(len(offset_delta) + 5) + b"\0\0" + offset_delta + b"\1\1\0"
    return deflate(ZSTD, bytes(raw))
