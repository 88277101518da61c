"""The records of a log as a ``read_committed`` consumer sees them: all that are wanted, or an error.

Control batches, aborted transactions and batches that the cleaner has emptied hold nothing for it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

import pyarrow as pa

from mirror.errors import BatchError, UnreadableBatchError
from mirror.flow.encode import DECODED_BYTES_MAX
from mirror.kafka.codecs import CodecError, inflate
from mirror.kafka.record_batch import CODEC_BITS, HEADER_BYTES, LOG_APPEND_TIME
from spark_jobs.segments.columns import PIECE_BYTES, Encoded, columns, encoded
from spark_jobs.segments.logs import SegmentLog, damaged, not_held
from spark_jobs.segments.transactions import Decisions, is_control
from spark_jobs.segments.walk import Found, Walk, end_of
from spark_jobs.window import Range


def read_records(log: SegmentLog, wanted: Sequence[Range]) -> Iterator[pa.RecordBatch]:
    """The records whose offsets are wanted, as :mod:`spark_jobs.segments.columns` makes columns of them.

    Args:
        wanted: In order, none touching the next, none empty.

    Raises:
        SegmentsError: The log does not hold them, or is damaged.
    """
    held: list[tuple[Found, Encoded]] = []
    size = 0
    for found in _visible(log, wanted):
        batch = _encoded(log, found)
        held.append((found, batch))
        size += len(batch.payload)
        if size >= PIECE_BYTES:
            yield from _columns(log, held, wanted)
            held, size = [], 0
    if held:
        yield from _columns(log, held, wanted)


def _visible(log: SegmentLog, wanted: Sequence[Range]) -> Iterator[Found]:
    """The batches with wanted offsets that hold records for a consumer."""
    whole = Range(wanted[0].start, wanted[-1].end)
    if whole.start < log.start:
        raise not_held(log, whole, end_of(log))
    walk, decisions = Walk(log, whole.start), Decisions(log)
    for found in walk:
        if found.base_offset >= whole.end:
            return
        if _has_records(found) and _meets(wanted, found) and not decisions.is_aborted(found):
            yield found
        if found.next_offset >= whole.end:
            return
    if walk.log_end < whole.end:
        raise not_held(log, whole, walk.log_end)


def _has_records(found: Found) -> bool:
    return bool(found.old) or (found.header.records > 0 and not is_control(found.header))


def _meets(wanted: Sequence[Range], found: Found) -> bool:
    at = bisect_right(wanted, found.base_offset, key=lambda one: one.end)
    return at < len(wanted) and wanted[at].start < found.next_offset


def _encoded(log: SegmentLog, found: Found) -> Encoded:
    if found.old:
        return encoded(found.old)
    header = found.header
    try:
        payload = inflate(header.attributes & CODEC_BITS, found.view[HEADER_BYTES:], DECODED_BYTES_MAX)
    except CodecError as error:
        unreadable = UnreadableBatchError(found.base_offset, str(error))
        raise damaged(log, found.path, found.position, unreadable) from error
    own_times = not header.attributes & LOG_APPEND_TIME
    timestamp_ms = header.base_timestamp if own_times else header.max_timestamp
    return Encoded(payload, header.records, found.base_offset, found.next_offset, timestamp_ms, own_times)


def _columns(
    log: SegmentLog, held: Sequence[tuple[Found, Encoded]], wanted: Sequence[Range]
) -> Iterator[pa.RecordBatch]:
    try:
        yield from columns(log.name, [batch for _, batch in held], wanted)
    except BatchError as error:
        found = next(found for found, batch in held if batch.base_offset == error.offset)
        raise damaged(log, found.path, found.position, error) from error
