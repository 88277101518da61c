"""Read message sets of formats v0 and v1, which brokers still return from old segments.

A compressed set is one message whose value holds the others; its own offset is
that of the last one inside. Inner offsets are absolute in v0 and relative in v1.
An uncompressed set is a row of messages with nothing around them: :func:`sets`
gathers them, as otherwise each would become a batch of its own.

Sources: KIP-31 (relative offsets), KIP-32 (timestamps), Kafka's ``LegacyRecord``.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator

from mirror.errors import CorruptBatchError, UnreadableBatchError
from mirror.flow.records import Record
from mirror.kafka.codecs import ZSTD, CodecError, inflate
from mirror.kafka.record_batch import CODEC_BITS, LOG_APPEND_TIME, MAGIC_AT, MAGIC_V2, BatchHeader
from mirror.kafka.varint import encode_varint

SET_BYTES_MAX = 256 << 10
"""Plain messages are gathered until they reach this size, and written as one batch."""
_Set = tuple[BatchHeader, memoryview]
_V0 = struct.Struct(">qiIbb")
_CRC_AT = 12
_ATTRIBUTES_AT = 17
_NO_TIMESTAMP = -1


def is_packed(header: BatchHeader, view: memoryview) -> bool:
    """Whether a message of an old format is a compressed set."""
    return header.magic >= 0 and bool(view[_ATTRIBUTES_AT] & CODEC_BITS)


def old_crc_matches(view: memoryview) -> bool:
    """True when a message of format v0 or v1 holds what was written."""
    return zlib.crc32(view[MAGIC_AT:]) == int.from_bytes(view[_CRC_AT:MAGIC_AT], "big")


def sets(batches: Iterable[tuple[BatchHeader, memoryview]], records: memoryview) -> Iterator[_Set]:
    """The batches found in ``records``, with adjacent plain messages of the same old format as one.

    Such a set has the header of its last message, as a compressed one does.

    Args:
        batches: All of them, in order, from the first byte on.
    """
    last: BatchHeader | None = None
    start = end = 0
    for header, view in batches:
        plain = 0 <= header.magic < MAGIC_V2 and not is_packed(header, view)
        if last is not None and not (plain and header.magic == last.magic and end - start < SET_BYTES_MAX):
            yield last, records[start:end]
            last = None
        if not plain:
            yield header, view
        else:
            start = end if last is None else start
            last = header
        end += len(view)
    if last is not None:
        yield last, records[start:end]


def decode_legacy(view: memoryview, decoded_bytes_max: int) -> tuple[list[Record], int]:
    """The records of one compressed message of format v0 or v1, or of plain ones in a row, and the codec.

    Raises:
        CorruptBatchError: A CRC does not match, a length is impossible, or compressed sets are nested.
        UnreadableBatchError: The codec is unknown or not of that format, or the set inflates to more than
            ``decoded_bytes_max``.
    """
    data = bytes(view)
    try:
        outer = next(_messages(data))
    except StopIteration:
        raise CorruptBatchError(int.from_bytes(data[:8], "big"), "the message is truncated") from None
    offset, magic, attributes, timestamp, _, value = outer
    codec = attributes & CODEC_BITS
    if not codec:
        return [_record(message, None) for message in _messages(data)], codec
    if codec == ZSTD:
        raise UnreadableBatchError(offset, f"message format v{magic} does not allow zstd")
    try:
        inner = list(
            _messages(inflate(codec, memoryview(value or b""), decoded_bytes_max, old_lz4=magic == 0))
        )
    except CodecError as error:
        raise UnreadableBatchError(offset, str(error)) from error
    if not inner:
        return [], codec
    if any(message[2] & CODEC_BITS for message in inner):
        raise CorruptBatchError(offset, "it is compressed and holds compressed messages")
    shift = offset - inner[-1][0] if magic == 1 else 0
    append_time = timestamp if magic == 1 and attributes & LOG_APPEND_TIME else None
    return [_record((message[0] + shift, *message[1:]), append_time) for message in inner], codec


_Message = tuple[int, int, int, int, bytes | None, bytes | None]


def _messages(data: bytes) -> Iterator[_Message]:
    """(offset, magic, attributes, timestamp, key, value) of each whole message."""
    at = 0
    while len(data) - at >= _V0.size:
        offset, size, crc, magic, attributes = _V0.unpack_from(data, at)
        end = at + 12 + size
        if size < 14 or end > len(data) or magic not in (0, 1):
            raise CorruptBatchError(offset, f"a message of {size} bytes and format {magic} does not fit")
        if zlib.crc32(data[at + 16 : end]) != crc:
            raise CorruptBatchError(offset, f"its CRC-32 is not the {crc:08x} in its header")
        timestamp, body = _NO_TIMESTAMP, at + _V0.size
        if magic == 1:
            timestamp, body = int.from_bytes(data[body : body + 8], "big", signed=True), body + 8
        key, body = _bytes(data, body, end, offset)
        value, body = _bytes(data, body, end, offset)
        yield offset, magic, attributes, timestamp, key, value
        at = end


def _bytes(data: bytes, at: int, end: int, offset: int) -> tuple[bytes | None, int]:
    size = int.from_bytes(data[at : at + 4], "big", signed=True)
    if size < 0:
        return None, at + 4
    if at + 4 + size > end:
        raise CorruptBatchError(offset, f"a field of {size} bytes does not fit")
    return data[at + 4 : at + 4 + size], at + 4 + size


def _record(message: _Message, append_time: int | None) -> Record:
    offset, _, _, timestamp, key, value = message
    tail = _field(key) + _field(value) + b"\0"
    return Record(offset, timestamp if append_time is None else append_time, tail)


def _field(data: bytes | None) -> bytes:
    return encode_varint(-1) if data is None else encode_varint(len(data)) + data
