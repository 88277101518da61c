"""Inflates batches of lz4, gzip and snappy for the link: zstd makes them half as large as they were.

Next to the target they are compressed again as Kafka's clients do it, to the very same bytes: the CRC that
their producer or broker gave them proves it. A batch that does not come out the same travels as it is; most
of those can be told by how they begin.

Pure. Sources: the lz4 frame format, Kafka's ``Lz4BlockOutputStream``, librdkafka's ``rdkafka_lz4.c``; RFC
1952, Java's ``GZIPOutputStream`` (zlib's level 6, its own header), snappy-java's ``SnappyOutputStream``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import NamedTuple

from mirror.errors import AnswerError
from mirror.kafka.codecs import (
    GZIP,
    GZIP_HEAD_BYTES,
    LZ4,
    SNAPPY,
    BytesLike,
    CodecError,
    deflate,
    gzip_behind,
    inflate,
    is_plain_gzip,
    is_xerial,
)
from mirror.kafka.record_batch import (
    CODEC_BITS,
    HEADER,
    HEADER_BYTES,
    MAGIC_V2,
    BatchHeader,
    crc_matches,
    walk,
)

_ENTRY = struct.Struct(">BI")
_AS_IT_IS, _INFLATED = 0, 1
_FRAME_HEAD_BYTES = 7
_FRAME_HEAD = deflate(LZ4, b"")[:_FRAME_HEAD_BYTES]
"""How every lz4 frame made here begins: other encoders name other blocks, or a checksum."""


class _Recoding(NamedTuple):
    """How one codec is recoded.

    Attributes:
        begins_so: Whether a payload, by how it begins, may come out the same.
        head_bytes: Bytes of the payload that travel as they are, before the inflated rest.
        restore: Makes a payload of both.
        is_tried: Whether that is tried before a batch travels. If one batch of a hundred comes out different,
            what is in flight must not be sent in vain each time.
    """

    begins_so: Callable[[memoryview], bool]
    head_bytes: int
    restore: Callable[[bytes, BytesLike], bytes]
    is_tried: bool = False


_RECODINGS: Mapping[int, _Recoding] = {
    LZ4: _Recoding(
        lambda payload: payload[:_FRAME_HEAD_BYTES] == _FRAME_HEAD, 0, lambda _, data: deflate(LZ4, data)
    ),
    GZIP: _Recoding(is_plain_gzip, GZIP_HEAD_BYTES, gzip_behind),
    SNAPPY: _Recoding(is_xerial, 0, lambda _, data: deflate(SNAPPY, data), is_tried=True),
}


class Recoded(NamedTuple):
    """Batches as they cross the link.

    Attributes:
        pieces: Their bytes.
        inflated_bytes: Of those, how many came out of inflating.
    """

    pieces: list[bytes | memoryview]
    inflated_bytes: int


class Restored(NamedTuple):
    """What became of recoded records.

    Attributes:
        bytes: How many were written.
        odd_end: The offset after the batch that follows them, if that did not come out as it was; else None.
    """

    bytes: int
    odd_end: int | None


def recoded(records: memoryview, bytes_max: int) -> Recoded | None:
    """The whole batches of a part, inflated where possible; None if none can be inflated.

    A batch that would certainly not come out as it was stays as it is.

    Args:
        bytes_max: How much they may inflate to together; the others travel as they are.
    """
    pieces: list[bytes | memoryview] = []
    any_inflated, left = False, bytes_max
    for header, view in walk(records):
        inflated = _inflated(header, view, left)
        if inflated is None:
            pieces += (_ENTRY.pack(_AS_IT_IS, len(view)), view)
        else:
            any_inflated = True
            head, data = inflated
            left -= len(data)
            pieces += (_ENTRY.pack(_INFLATED, len(head) + len(data)), head, data)
    return Recoded(pieces, bytes_max - left) if any_inflated else None


def _inflated(header: BatchHeader, view: memoryview, bytes_max: int) -> tuple[memoryview, bytes] | None:
    """A batch as it travels: its beginning as it is, and the rest inflated. None: it is not recoded."""
    codec = header.attributes & CODEC_BITS
    recoding = _RECODINGS.get(codec)
    payload = view[HEADER_BYTES:]
    if header.magic != MAGIC_V2 or recoding is None or not recoding.begins_so(payload):
        return None
    try:
        data = inflate(codec, payload, bytes_max)
    except CodecError:
        return None  # too large; or broken, which the mirror detects and reports
    if recoding.is_tried and recoding.restore(b"", data) != payload:
        return None
    return view[: HEADER_BYTES + recoding.head_bytes], data


def _restored(entry: memoryview) -> tuple[memoryview, bytes]:
    """The header of a batch that was inflated, and its payload as it was.

    Raises:
        AnswerError: Its codec is not one that is recoded, or it is too short.
    """
    header = BatchHeader._make(HEADER.unpack_from(entry))
    recoding = _RECODINGS.get(header.attributes & CODEC_BITS)
    if recoding is None or len(entry) < HEADER_BYTES + recoding.head_bytes:
        raise AnswerError(
            f"an entry of {len(entry)} bytes, attributes {header.attributes}, cannot be restored"
        )
    begins = HEADER_BYTES + recoding.head_bytes
    return entry[:HEADER_BYTES], recoding.restore(bytes(entry[HEADER_BYTES:begins]), entry[begins:])


def restore(entries: memoryview, records: memoryview) -> Restored:
    """Restore the batches into ``records``, which has room for all of them; stop at one that comes out
    different.

    Raises:
        AnswerError: The entries are cut or invalid, or one that was not inflated does not fit.
    """
    at, end, filled = 0, len(entries), 0
    while at < end:
        if end - at < _ENTRY.size:
            raise AnswerError(f"an entry is truncated at byte {at} of {end}")
        kind, size = _ENTRY.unpack_from(entries, at)
        begins, at = at + _ENTRY.size, at + _ENTRY.size + size
        if at > end or kind not in {_AS_IT_IS, _INFLATED} or (kind == _INFLATED and size < HEADER_BYTES):
            raise AnswerError(f"an entry of kind {kind} goes from byte {begins} to {at} of {end}")
        head, payload = entries[begins:at], b""
        if kind == _INFLATED:
            head, payload = _restored(head)
        after = filled + len(head) + len(payload)
        fits = after <= len(records)
        if fits:
            records[filled : filled + len(head)] = head
            records[filled + len(head) : after] = payload
        if kind == _INFLATED and not (fits and _is_whole(records[filled:after])):
            return Restored(filled, BatchHeader._make(HEADER.unpack_from(head)).next_offset)
        if not fits:
            raise AnswerError(f"{len(records)} bytes of records would become {after}")
        filled = after
    return Restored(filled, odd_end=None)


def _is_whole(batch: memoryview) -> bool:
    found = next(walk(batch), None)
    return found is not None and len(found[1]) == len(batch) and crc_matches(*found)
