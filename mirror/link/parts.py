"""The body of a frame: what a broker answered a relay about some partitions.

A part is one partition's part of a Fetch answer, without the incomplete batch at its end, and with the offset
at which it was read and the one from which it is read next. Records are not copied, and changed only if they
are recoded for the link.

Pure. Sources: docs/protocol.md, KIP-98 (aborted transactions), KIP-595 (divergence).
"""

from __future__ import annotations

import struct
from collections.abc import Container, Sequence
from typing import NamedTuple

from mirror.errors import AnswerError
from mirror.kafka.fetch import Fetched, Key
from mirror.kafka.record_batch import HEADER_BYTES, MAGIC_V2, PREFIX_BYTES, walk
from mirror.link.frames import BODY_BYTES_MAX
from mirror.link.recoding import recoded, restore

_PART = struct.Struct(">16siIhqqqqqiqIII")
_ABORTED = struct.Struct(">qq")
_PLACE = struct.Struct(">qi4xb6xi")
"""Of a v2 batch: base offset, length, magic, last offset delta. The CRC covers only the last of these."""
_NO_DIVERGENCE = (-1, -1)
BASE_OFFSET_BYTES = 8
"""A batch of any format begins with an offset."""
ASTRAY = 6
"""Error code of a partition whose leader the relay is looking for; Kafka's NOT_LEADER_OR_FOLLOWER."""
ENTRIES_MAX = 1 << 18
"""Parts of a frame, and aborted transactions in them: short on the wire, they are not short in memory."""
HEARTBEAT_SECONDS = 0.5
"""How often a relay says so if a broker has nothing new."""
RECODED_BYTES_MAX = 8 << 20
"""How much the batches of one frame may inflate to: lz4 may expand to a hundred times its size."""


class Part(NamedTuple):
    """What was read of one partition between two offsets: ``fetched``, whose records are whole batches.

    ``number`` is the one that the partition was wanted with. ``recoded_bytes`` is the size of the records
    once they are restored; 0 if they are not recoded.
    """

    number: int
    offset: int
    next_offset: int
    fetched: Fetched
    recoded_bytes: int = 0


class Whole(NamedTuple):
    """The whole batches at the beginning of what a broker has sent.

    Attributes:
        bytes: Their size; 0 if there is none.
        largest: The size of the largest, in bytes.
        next_offset: After the last one; -1 without any.
        leader_epoch: The highest; -1 if none is known.
        readable: False if what comes next is no batch at all, or two batches of which the second does not
            follow the first.
    """

    bytes: int
    largest: int
    next_offset: int
    leader_epoch: int
    readable: bool


def whole_batches(records: memoryview) -> Whole:
    """The batches of a broker's answer that can be sent on. One that is cut off at the end is read again.

    Two batches of which the second does not follow the first are left out and read again, too. Once they come
    first there is nothing to send on: the mirror has to see both, as far as the second was sent.
    """
    size, largest, next_offset, epoch = 0, 0, -1, -1
    before = size, largest, next_offset, epoch
    for header, view in walk(records):
        if header.magic < 0:
            return Whole(size, largest, next_offset, epoch, readable=False)
        after = header.next_offset
        if after <= next_offset or (header.base_offset < next_offset and header.magic == MAGIC_V2):
            return Whole(*before, readable=False)
        before = size, largest, next_offset, epoch
        size += len(view)
        largest = max(largest, len(view))
        next_offset = after
        epoch = max(epoch, header.leader_epoch)
    torn = records[size : size + BASE_OFFSET_BYTES]
    if len(torn) == BASE_OFFSET_BYTES and int.from_bytes(torn, "big", signed=True) < next_offset:
        return Whole(*before, readable=False)
    return Whole(size, largest, next_offset, epoch, readable=True)


def encode_parts(parts: Sequence[Part], recode: Container[Key] = ()) -> list[bytes | memoryview]:
    """The body of a frame, in pieces that are not copied.

    Args:
        recode: Partitions whose batches of lz4, gzip and snappy are inflated.
    """
    pieces: list[bytes | memoryview] = []
    left = RECODED_BYTES_MAX
    for number, offset, next_offset, fetched, _ in parts:
        entries = recoded(fetched.records, left) if fetched.key in recode else None
        records = [fetched.records] if entries is None else entries.pieces
        head = _PART.pack(
            *fetched.key,
            number,
            fetched.error_code,
            offset,
            next_offset,
            fetched.high_watermark,
            fetched.last_stable_offset,
            fetched.log_start_offset,
            *(fetched.diverging or _NO_DIVERGENCE),
            len(fetched.aborted),
            0 if entries is None else len(fetched.records),
            sum(map(len, records)),
        )
        pieces.append(head + b"".join(_ABORTED.pack(*entry) for entry in fetched.aborted))
        pieces += records
        left -= 0 if entries is None else entries.inflated_bytes
    return pieces


def restored(parts: Sequence[Part], room: memoryview) -> tuple[list[Part], dict[Key, int]]:
    """The parts with all records as they were before recoding.

    Args:
        room: For the records of recoded parts; as long as their ``recoded_bytes`` together.

    Returns:
        The parts; and the partitions with a batch that did not come out as it was, with the offset after it.
        What precedes this batch is in the part. The rest has to be requested again, this batch not recoded.

    Raises:
        AnswerError: The recoded bytes are invalid.
    """
    found: list[Part] = []
    others: dict[Key, int] = {}
    at = 0
    for part in parts:
        size = part.recoded_bytes
        if not size:
            found.append(part)
            continue
        records = room[at : at + size]
        at += size
        filled, odd_end = restore(part.fetched.records, records)
        if odd_end is not None:
            others[part.fetched.key] = odd_end
        found.append(part._replace(fetched=part.fetched._replace(records=records[:filled]), recoded_bytes=0))
    return found, others


def goes_on(part: Part, *, cut: bool = False) -> bool:
    """Whether the batches of a part end at its ``next_offset``.

    If a batch were missing at the end, it would otherwise look as if compaction had removed it. Batches that
    do not follow one another, or are of an old format, pass: the code that takes them checks those.

    Args:
        cut: The last batches are left out.
    """
    records, at, end, first = part.fetched.records, 0, part.offset, True
    size = len(records)
    while size - at >= HEADER_BYTES:
        base_offset, length, magic, delta = _PLACE.unpack_from(records, at)
        if magic != MAGIC_V2 or length < HEADER_BYTES - PREFIX_BYTES:
            return True
        after = base_offset + delta + 1
        if after <= end or not (first or base_offset >= end):
            return True
        at, end, first = at + PREFIX_BYTES + length, after, False
    return at == size and (end <= part.next_offset if cut else end == part.next_offset)


def ends_here(part: Part) -> bool:
    """Whether the relay stops reading the partition until it is wanted again."""
    no_batch = part.offset == part.next_offset and bool(len(part.fetched.records))
    return part.fetched.error_code not in {0, ASTRAY} or part.fetched.diverging is not None or no_batch


def decode_parts(body: memoryview) -> list[Part]:
    """The parts of a body. The records are views into it.

    Raises:
        AnswerError: The bytes are no parts, or there are more of them than allowed.
    """
    parts: list[Part] = []
    at, end, to_restore, entries = 0, len(body), 0, 0
    while at < end:
        try:
            fields = _PART.unpack_from(body, at)
        except struct.error as failure:
            raise AnswerError(f"a part is truncated at byte {at} of {end}") from failure
        topic_id, partition, number, error, *offsets, aborted_count, whole, size = fields
        offset, next_offset, high_watermark, stable, log_start, epoch, epoch_end = offsets
        begins = at + _PART.size + aborted_count * _ABORTED.size
        at, head_end = begins + size, at + _PART.size
        if at > end:
            raise AnswerError(f"a part ends at byte {at} of {end}")
        entries += 1 + aborted_count
        if entries > ENTRIES_MAX:
            raise AnswerError(f"more than {ENTRIES_MAX} parts and aborted transactions in one frame")
        to_restore += whole
        if to_restore > BODY_BYTES_MAX:
            raise AnswerError(f"parts of {end} bytes would become {to_restore}")
        if partition < 0 or not 0 <= offset <= next_offset:
            raise AnswerError(f"a part of partition {partition} goes from {offset} to {next_offset}")
        aborted = [(one, first) for one, first in _ABORTED.iter_unpack(body[head_end:begins])]
        diverging = None if (epoch, epoch_end) == _NO_DIVERGENCE else (epoch, epoch_end)
        key, records = Key(topic_id, partition), body[begins:at]
        fetched = Fetched(key, error, high_watermark, stable, log_start, diverging, aborted, records)
        parts.append(Part(number, offset, next_offset, fetched, whole))
    return parts
