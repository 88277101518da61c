"""Batches that were compressed with lz4, inflated for the way: zstd makes half of them again.

Next to the target they are deflated as Kafka's clients do it, with the very same bytes as a result: the CRC
that their producer or broker gave them says so. One that does not come out the same travels as it is; most of
those show it by how they begin.

Pure. Sources: the lz4 frame format, Kafka's ``Lz4BlockOutputStream``, librdkafka's ``rdkafka_lz4.c``.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from mirror.errors import AnswerError
from mirror.kafka.codecs import LZ4, CodecError, deflate, inflate
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


class Restored(NamedTuple):
    """What became of recoded records.

    Attributes:
        bytes: So many were written.
        odd_end: The offset after the batch behind those, where it did not come out as it had been; else None.
    """

    bytes: int
    odd_end: int | None


def recoded(records: memoryview, bytes_max: int) -> list[bytes | memoryview] | None:
    """The whole batches of a part with those of lz4 inflated, in pieces; None where there are none of those.

    A batch that would certainly not come out as it was stays as it is.

    Args:
        bytes_max: To how much they may inflate together; the others travel as they are.
    """
    pieces: list[bytes | memoryview] = []
    any_inflated = False
    for header, view in walk(records):
        payload = _payload(header, view, bytes_max)
        if payload is None:
            pieces += (_ENTRY.pack(_AS_IT_IS, len(view)), view)
        else:
            any_inflated = True
            bytes_max -= len(payload)
            pieces += (_ENTRY.pack(_INFLATED, HEADER_BYTES + len(payload)), view[:HEADER_BYTES], payload)
    return pieces if any_inflated else None


def _payload(header: BatchHeader, view: memoryview, bytes_max: int) -> bytes | None:
    if header.magic != MAGIC_V2 or header.attributes & CODEC_BITS != LZ4:
        return None
    if view[HEADER_BYTES : HEADER_BYTES + _FRAME_HEAD_BYTES] != _FRAME_HEAD:
        return None
    try:
        return inflate(LZ4, view[HEADER_BYTES:], bytes_max)
    except CodecError:
        return None  # too much; or broken, which the mirror sees and says


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
            head, payload = head[:HEADER_BYTES], deflate(LZ4, bytes(head[HEADER_BYTES:]))
        after = filled + len(head) + len(payload)
        if kind == _INFLATED and (after > len(records) or not _is_whole(head, payload)):
            return Restored(filled, BatchHeader._make(HEADER.unpack_from(head)).next_offset)
        if after > len(records):
            raise AnswerError(f"{len(records)} bytes of records become {after}")
        records[filled : filled + len(head)] = head
        records[filled + len(head) : after] = payload
        filled = after
    return Restored(filled, odd_end=None)


def _is_whole(head: memoryview, payload: bytes) -> bool:
    batch = memoryview(bytes(head) + payload)
    found = next(walk(batch), None)
    return found is not None and len(found[1]) == len(batch) and crc_matches(*found)
