"""Batches that were compressed with lz4, gzip or snappy, inflated for the way: zstd makes half of them again.

Next to the target they are deflated as Kafka's clients do it, with the very same bytes as a result: the CRC
that their producer or broker gave them says so. One that does not come out the same travels as it is; most of
those show it by how they begin.

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
"""So begins every frame that comes out of here: other encoders name other blocks, or a checksum."""


class _Recoding(NamedTuple):
    """How one codec is recoded.

    Attributes:
        begins_so: Whether a payload may come out the same, by how it begins.
        head_bytes: So many bytes of it travel as they are, in front of what is inflated.
        restore: Makes a payload of both.
        is_tried: Whether that is tried before it travels: where one batch of a hundred comes out otherwise,
            what is on its way must not be sent in vain for each.
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


class Restored(NamedTuple):
    """What became of recoded records.

    Attributes:
        bytes: So many were written.
        odd_end: The offset after the batch behind those, where it did not come out as it had been; else None.
    """

    bytes: int
    odd_end: int | None


def recoded(records: memoryview, bytes_max: int) -> list[bytes | memoryview] | None:
    """The whole batches of a part with those inflated that can be, in pieces; None where there are none.

    A batch that would certainly not come out as it was stays as it is.

    Args:
        bytes_max: To how much they may inflate together; the others travel as they are.
    """
    pieces: list[bytes | memoryview] = []
    any_inflated = False
    for header, view in walk(records):
        inflated = _inflated(header, view, bytes_max)
        if inflated is None:
            pieces += (_ENTRY.pack(_AS_IT_IS, len(view)), view)
        else:
            any_inflated = True
            head, data = inflated
            bytes_max -= len(data)
            pieces += (_ENTRY.pack(_INFLATED, len(head) + len(data)), head, data)
    return pieces if any_inflated else None


def _inflated(header: BatchHeader, view: memoryview, bytes_max: int) -> tuple[memoryview, bytes] | None:
    """What travels of a batch: its beginning as it is, and the rest inflated."""
    codec = header.attributes & CODEC_BITS
    recoding = _RECODINGS.get(codec)
    payload = view[HEADER_BYTES:]
    if header.magic != MAGIC_V2 or recoding is None or not recoding.begins_so(payload):
        return None
    try:
        data = inflate(codec, payload, bytes_max)
    except CodecError:
        return None  # too much; or broken, which the mirror sees and says
    if recoding.is_tried and recoding.restore(b"", data) != payload:
        return None
    return view[: HEADER_BYTES + recoding.head_bytes], data


def _restored(entry: memoryview) -> tuple[memoryview, bytes]:
    """The header of a batch that was inflated, and its payload as it was.

    Raises:
        AnswerError: There is no such batch.
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
    """Make the batches what they were, into ``records``, which has room for all of them.

    Raises:
        AnswerError: The entries are cut, or more comes out of them than there is room for.
    """
    at, end, filled = 0, len(entries), 0
    while at < end:
        if end - at < _ENTRY.size:
            raise AnswerError(f"an entry is cut off at byte {at} of {end}")
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
            raise AnswerError(f"{len(records)} bytes of records become {after}")
        filled = after
    return Restored(filled, odd_end=None)


def _is_whole(batch: memoryview) -> bool:
    found = next(walk(batch), None)
    return found is not None and len(found[1]) == len(batch) and crc_matches(*found)
