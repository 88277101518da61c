"""Which stretches of a log are read record by record, and which are known to be equal.

All ranges are of places, see :mod:`spark_jobs.findings`. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from spark_jobs.shifts import Piece, changes
from spark_jobs.window import Range

RANGE_PLACES = 1024
"""Places that one digest covers."""
CONTEXT_RANGES = 1
"""Ranges read on both sides of one that differs: a duplicated or moved record is often there."""
LONG_RANGES = 16
"""More neighbouring ranges than this that differ are checked for a common shift before they are read."""


class Island(NamedTuple):
    """Neighbouring ranges that differ, from the first to the last.

    Attributes:
        width: Places of a range.
    """

    first: int
    last: int
    width: int = RANGE_PLACES

    @property
    def is_long(self) -> bool:
        return self.last - self.first >= LONG_RANGES

    @property
    def places(self) -> Range:
        return Range(self.first * self.width, (self.last + 1) * self.width)


def to_read(
    differing: Iterable[Range],
    pieces: Sequence[Piece],
    whole: Range,
    width: int = RANGE_PLACES,
    context_ranges: int = CONTEXT_RANGES,
) -> list[Range]:
    """What to read: all that differs, where the shift changes, and the ranges next to it.

    Args:
        differing: Places of ranges that differ with the shifts of the pieces undone.
        pieces: Of the whole log.
        whole: From the first to the last place of the log, with and without its shifts.
        width: Places of a range.
        context_ranges: Ranges to read on both sides; 0 where there is too much to read.
    """
    context = context_ranges * width
    wanted = [*differing, *(Range(at, at + 1) for at in changes(pieces))]
    wider = (Range(one.start - context, one.end + context) for one in wanted)
    return joined(one.within(whole) for one in whole_ranges(wider, width))


def whole_ranges(places: Iterable[Range], width: int = RANGE_PLACES) -> list[Range]:
    """The whole ranges that hold these places, in order; ranges that touch are joined."""
    return joined(Range(_down(one.start, width), _up(one.end, width)) for one in places if one.offsets)


def in_ranges(places: Iterable[Range]) -> list[Island]:
    """Whole ranges as islands, by the numbers of the ranges."""
    return [Island(one.start // RANGE_PLACES, one.end // RANGE_PLACES - 1) for one in places]


def without(ranges: Iterable[Range], gone: Iterable[Range]) -> list[Range]:
    """What is left of ranges when others are taken out of them."""
    left = list(ranges)
    for hole in gone:
        left = [
            part for one in left for part in (one.before(hole.start), one.after(hole.end)) if part.offsets
        ]
    return left


def common(ones: Sequence[Range], others: Sequence[Range]) -> list[Range]:
    """What is in both. The ranges of each are in order and do not overlap."""
    found = []
    at, other = 0, 0
    while at < len(ones) and other < len(others):
        both = ones[at].within(others[other])
        if both.offsets > 0:
            found.append(both)
        if ones[at].end <= others[other].end:
            at += 1
        else:
            other += 1
    return found


def joined(ranges: Iterable[Range]) -> list[Range]:
    """The same offsets in order; ranges that overlap or touch are joined."""
    found: list[Range] = []
    for one in sorted(ranges):
        if not one.offsets:
            continue
        if found and one.start <= found[-1].end:
            found[-1] = Range(found[-1].start, max(found[-1].end, one.end))
        else:
            found.append(one)
    return found


def between(ranges: Sequence[Range], whole: Range) -> list[Range]:
    """The gaps of the whole: one before each range and one after the last. A gap may be empty."""
    starts = [whole.start, *(one.end for one in ranges)]
    ends = [*(one.start for one in ranges), whole.end]
    return [Range(start, end) for start, end in zip(starts, ends, strict=True)]


def _down(place: int, width: int) -> int:
    return place // width * width


def _up(place: int, width: int) -> int:
    return -(-place // width) * width
