"""Target offsets that hold no record of the source, and offset maps of logs that have such offsets.

A repair appends records that the source does not have, and records that somebody else has written may be left
where they are. Their offsets are *inserted*. The offset map of a partition counts copied records only, so it
uses *dense* offsets: those of the log without what was inserted:

    source     0 1 2         3 4          map (0, 0)
    target     0 1 2 x x x   6 7          inserted [3, 6)
    dense      0 1 2         3 4

Pure.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

from checkpoint.errors import UntranslatableError
from checkpoint.offset_map import OffsetMap, Run

Inserted = tuple[int, int]
"""Target offsets ``[from, to)``."""


def united(ranges: Iterable[Inserted]) -> tuple[Inserted, ...]:
    """The ranges in order, with those that touch or overlap merged; empty ones are left out."""
    found: list[Inserted] = []
    for start, end in sorted(ranges):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        elif start < end:
            found.append((start, end))
    return tuple(found)


class Insertions:
    """Inserted offsets of one target log.

    Args:
        ranges: In order, none touching the next; see :func:`united`.
    """

    def __init__(self, ranges: Sequence[Inserted] = ()) -> None:
        self._ranges = ranges
        self._starts = [start for start, _ in ranges]
        before = [0, *accumulate(end - start for start, end in ranges)]
        self._before = before
        self._dense_starts = [start - offsets for start, offsets in zip(self._starts, before, strict=False)]

    @property
    def dense_starts(self) -> Sequence[int]:
        """For each range, the dense offset of the record after it."""
        return self._dense_starts

    @property
    def end(self) -> int:
        """The target offset after the last of them; 0 if there are none."""
        return self._ranges[-1][1] if self._ranges else 0

    def copied_end(self, log_end: int) -> int:
        """Where the log would end without what was inserted at its very end."""
        index = bisect_right(self._starts, log_end - 1) - 1
        return self._starts[index] if index >= 0 and log_end <= self._ranges[index][1] else log_end

    def behind(self, offset: int) -> Sequence[Inserted]:
        """The ranges, or parts of them, from an offset on."""
        first = bisect_right(self._starts, offset) - 1
        return [(max(start, offset), end) for start, end in self._ranges[max(0, first) :] if end > offset]

    def holds(self, offset: int) -> bool:
        """Whether a target offset is inserted."""
        index = bisect_right(self._starts, offset) - 1
        return index >= 0 and offset < self._ranges[index][1]

    def dense(self, offset: int) -> int:
        """The dense offset of a target offset; for an inserted one, that of the next one not inserted."""
        index = bisect_right(self._starts, offset) - 1
        if index < 0:
            return offset
        start, end = self._ranges[index]
        return offset - self._before[index] - (min(offset, end) - start)

    def in_log(self, dense_offset: int) -> int:
        """The target offset of the record with a dense offset: after what was inserted in front of it."""
        return dense_offset + self._before[bisect_right(self._dense_starts, dense_offset)]


class LogMap:
    """An offset map in the offsets of the target's log; its methods are those of :class:`OffsetMap`."""

    def __init__(self, offsets: OffsetMap, insertions: Insertions) -> None:
        self._offsets = offsets
        self._insertions = insertions

    def __iter__(self) -> Iterator[Run]:
        """The runs, with dense target offsets."""
        return iter(self._offsets)

    def position(self, target_log_end: int) -> int:
        """The source offset to go on with when the target's log ends here.

        Raises:
            UntranslatableError: The log ends before the first run begins.
        """
        return self._offsets.position(self._insertions.dense(target_log_end))

    def runs_after(self, target_offset: int) -> list[Run]:
        """The runs that begin beyond a target offset, the first AHEAD_RUNS of them."""
        runs = self._offsets.runs_after(self._insertions.dense(target_offset))
        return [(source, self._insertions.in_log(target)) for source, target in runs]

    def target_of(self, source_offset: int, target_log_end: int) -> int:
        """The target offset of the record with this source offset.

        Raises:
            UntranslatableError: It is before the map, in a gap, or not copied yet.
        """
        dense_end = self._insertions.dense(target_log_end)
        return self._insertions.in_log(self._offsets.target_of(source_offset, dense_end))

    def source_of(self, target_offset: int, target_log_end: int) -> int:
        """The source offset of the record with this target offset.

        Raises:
            UntranslatableError: It was inserted, is before the map, or at or beyond the log end.
        """
        if self._insertions.holds(target_offset):
            raise UntranslatableError(
                f"target offset {target_offset} is not a copy: a repair inserted the record there"
            )
        if target_offset >= target_log_end:
            raise UntranslatableError(
                f"target offset {target_offset} is not written yet: the log ends at {target_log_end}"
            )
        insertions = self._insertions
        return self._offsets.source_of(insertions.dense(target_offset), insertions.dense(target_log_end))

    def committed_to_target(self, source_offset: int, target_log_end: int) -> int:
        """Where a group that has committed ``source_offset`` at the source goes on at the target.

        Raises:
            UntranslatableError: The offset is before the map, or beyond what is copied.
        """
        dense_end = self._insertions.dense(target_log_end)
        return self._insertions.in_log(self._offsets.committed_to_target(source_offset, dense_end))

    def committed_to_source(self, target_offset: int, target_log_end: int) -> int:
        """Where a group that has committed ``target_offset`` at the target goes on at the source.

        Raises:
            UntranslatableError: The offset is before the map, or beyond the log end.
        """
        if target_offset > target_log_end:
            raise UntranslatableError(
                f"committed target offset {target_offset} is beyond the log end {target_log_end}"
            )
        insertions = self._insertions
        dense_end = insertions.dense(target_log_end)
        return self._offsets.committed_to_source(insertions.dense(target_offset), dense_end)
