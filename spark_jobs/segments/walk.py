"""Walk over the batches of a log as they lie in its files, and take nothing for granted.

Offsets come without a hole, or an error names the file, the position and the offset: a CRC does not match, or
a file is missing or cut off. A torn batch at the end of the last file was being written: the log ends before
it.

Sources: Kafka's ``FileRecords`` and ``OffsetIndex``; KIP-98 (format v2), KIP-32 (older ones).
"""

from __future__ import annotations

import os
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from mirror.errors import BatchError, CorruptBatchError, UnreadableBatchError
from mirror.flow.encode import DECODED_BYTES_MAX, decode
from mirror.flow.records import Record
from mirror.kafka.record_batch import (
    HEADER,
    HEADER_BYTES,
    MAGIC_V2,
    PREFIX_BYTES,
    BatchHeader,
    crc_matches,
    walk,
)
from spark_jobs.segments.logs import Segment, SegmentLog, SegmentsError, damaged

FIRST_BYTES, CHUNK_BYTES = 64 << 10, 4 << 20
"""Bytes of the first read and of later ones: what is wanted may be little or much."""
_ENTRY = struct.Struct(">ii")


class Found(NamedTuple):
    """A whole batch.

    Attributes:
        base_offset: Of its first record; the header of an old format has that of the last.
        old: Its records, if it is of an old format; else empty.
    """

    path: Path
    position: int
    header: BatchHeader
    view: memoryview
    base_offset: int
    next_offset: int
    old: list[Record]


class Walk:
    """The batches of a log in order, from the one that holds an offset on.

    Attributes:
        covered: From the first offset up to here, not included, nothing is missing.
        log_end: Where the log ends, once the walk has got there.
    """

    def __init__(self, log: SegmentLog, offset: int) -> None:
        self.covered = offset
        self.log_end = 0
        self._log = log

    def __iter__(self) -> Iterator[Found]:
        """Ends where the log does.

        Raises:
            SegmentsError: Something is missing or damaged.
        """
        segments = self._log.segments
        first = max(0, bisect_right(segments, self.covered, key=lambda segment: segment.base_offset) - 1)
        for number in range(first, len(segments)):
            segment, next_base = segments[number], self._log.next_base(number)
            self.log_end = segment.base_offset
            with _opened(self._log, segment) as file:
                position = _position(file, segment, self.covered) if number == first else 0
                end = yield from self._batches(file, segment, position, next_base)
                is_cut_off = end < os.fstat(file).st_size
            if next_base is None:
                return
            if is_cut_off:
                raise SegmentsError(f"{self._log.name}: {segment.path} is cut off at position {end}")
            self._reach(next_base, segment.path, end)

    def _batches(
        self, file: int, segment: Segment, position: int, next_base: int | None
    ) -> Generator[Found, None, int]:
        """Returns the position where the last whole batch ends."""
        path, before = segment.path, segment.base_offset
        for at, header, view in _whole_batches(file, position):
            try:
                found = self._checked(path, at, header, view)
                if found.base_offset < before or (next_base is not None and found.next_offset > next_base):
                    raise CorruptBatchError(
                        header.base_offset, "its offset does not fit between its neighbours'"
                    )
            except BatchError as error:
                raise damaged(self._log, path, at, error) from error
            before = self.log_end = found.next_offset
            position = at + len(view)
            if found.next_offset > self.covered:
                self._reach(found.base_offset, path, at)
                self.covered = found.next_offset
                yield found
        return position

    def _checked(self, path: Path, at: int, header: BatchHeader, view: memoryview) -> Found:
        if header.magic < 0:
            raise UnreadableBatchError(header.base_offset, "its header has an unknown message format")
        if header.magic == MAGIC_V2:
            _check(header, view)
            return Found(path, at, header, view, header.base_offset, header.next_offset, [])
        next_offset = header.base_offset + 1
        if next_offset <= self.covered:
            return Found(path, at, header, view, header.base_offset, next_offset, [])
        records, _ = decode(header, view, DECODED_BYTES_MAX)
        first = records[0].offset if records else header.base_offset
        return Found(path, at, header, view, first, next_offset, records)

    def _reach(self, offset: int, path: Path, position: int) -> None:
        """Note that a batch or a file begins at an offset.

        Raises:
            SegmentsError: Offsets before it are missing, and the log has no gaps.
        """
        if self.covered < offset and not self._log.has_gaps:
            raise SegmentsError(
                f"{self._log.name}: offsets [{self.covered}, {offset}) are missing at {path}, "
                f"position {position}",
                hint="a file is missing; a log that was compacted once can only be read from its brokers",
            )
        self.covered = max(self.covered, offset)


def end_of(log: SegmentLog) -> int:
    """Where a log ends.

    Raises:
        SegmentsError: Its last file is damaged.
    """
    walk = Walk(log, log.segments[-1].base_offset)
    for _ in walk:
        pass
    return walk.log_end


def _check(header: BatchHeader, view: memoryview) -> None:
    if not crc_matches(header, view):
        raise CorruptBatchError(header.base_offset, f"its CRC-32C is not the {header.crc:08x} in its header")
    if not 0 <= header.records <= header.last_offset_delta + 1:
        raise CorruptBatchError(header.base_offset, "its header counts more records than offsets")


# -- files ---------------------------------------------------------------------------------------


@contextmanager
def _opened(log: SegmentLog, segment: Segment) -> Iterator[int]:
    try:
        file = os.open(segment.path, os.O_RDONLY)
    except OSError as error:
        raise SegmentsError(f"{log.name}: {segment.path} cannot be read: {error.strerror}") from error
    try:
        yield file
    except OSError as error:
        raise SegmentsError(f"{log.name}: {segment.path} cannot be read: {error.strerror}") from error
    finally:
        os.close(file)


def _whole_batches(file: int, position: int) -> Iterator[tuple[int, BatchHeader, memoryview]]:
    """Each with its position, up to the end of the file; it may end in a torn batch or in zeros."""
    size = FIRST_BYTES
    while data := os.pread(file, size, position):
        start = position
        for header, view in walk(memoryview(data)):
            if header.magic < 0 and not any(view[:HEADER_BYTES]):
                return
            yield position, header, view
            position += len(view)
        size = CHUNK_BYTES
        if position == start:
            size = PREFIX_BYTES + int.from_bytes(data[8:PREFIX_BYTES], "big", signed=True)
            if size <= len(data) or position + size > os.fstat(file).st_size:
                return


def _position(file: int, segment: Segment, offset: int) -> int:
    """The position of a batch at which to begin for an offset: all batches before it have lower ones.

    An index entry counts only if the batch it points to confirms it; else the result is 0.
    """
    position = _indexed(segment, offset)
    header = os.pread(file, HEADER_BYTES, position)
    if len(header) < HEADER_BYTES:
        return 0
    found = BatchHeader._make(HEADER.unpack(header))
    return position if segment.base_offset <= found.base_offset <= offset else 0


def _indexed(segment: Segment, offset: int) -> int:
    """The position in the last index entry with this offset or a lower one; 0 where there is none."""
    try:
        file = os.open(segment.path.with_suffix(".index"), os.O_RDONLY)
    except FileNotFoundError:
        return 0
    try:

        def entry(number: int) -> tuple[int, int]:
            relative, position = _ENTRY.unpack(os.pread(file, _ENTRY.size, number * _ENTRY.size))
            return relative, position

        entries = range(os.fstat(file).st_size // _ENTRY.size)
        used = bisect_left(entries, True, key=lambda number: entry(number)[1] <= 0)  # zeros follow
        at = bisect_right(entries[:used], offset - segment.base_offset, key=lambda number: entry(number)[0])
        return max(0, entry(at - 1)[1]) if at else 0
    finally:
        os.close(file)
