"""The place at which a record stands, or should stand: one formula for all records of a line.

A *line* is a range of offsets whose places are ``offset * slope + base``. Slope 1 is for records that follow
each other at both sides. Slope 0 is for a gap: all its offsets have the place of the next record. Lines of a
partition are in order and do not overlap. Pure.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from spark_jobs.shifts import Piece
from spark_jobs.window import ALL, Range


class Line(NamedTuple):
    """Offsets ``[start, end)`` and how their places are computed."""

    start: int
    end: int
    slope: int
    base: int

    def place(self, offset: int) -> int:
        return offset * self.slope + self.base


SAME = (Line(*ALL, slope=1, base=0),)
"""Every offset is its place."""


def clipped(lines: Iterable[Line], ranges: Iterable[Range]) -> list[Line]:
    """The parts of lines that are within ranges; both are in order and do not overlap."""
    found = []
    left, wanted = iter(lines), iter(ranges)
    line, one = next(left, None), next(wanted, None)
    while line is not None and one is not None:
        both = Range(max(line.start, one.start), min(line.end, one.end))
        if both.offsets > 0:
            found.append(line._replace(start=both.start, end=both.end))
        if line.end <= one.end:
            line = next(left, None)
        else:
            one = next(wanted, None)
    return found


def lines_of_runs(runs: Iterable[tuple[int, int]], source: Range) -> list[Line]:
    """Lines of source offsets from the runs of an offset map, as far as a range needs them.

    Args:
        runs: Where each run begins: source offset, target offset; the last one has no end.
        source: The source offsets that are asked for.
    """
    found = []
    start, base, end = None, 0, 0
    for source_start, target_start in runs:
        if start is not None:
            end = target_start - base
            found.append(Line(start, end, 1, base))
        found.append(Line(end if start is not None else source.start, source_start, 0, target_start))
        start, base = source_start, target_start - source_start
    if start is not None:
        found.append(Line(start, max(start, source.end), 1, base))
    return clipped(found, [source])


def lines_past(
    lines: Iterable[Line], inserted_before: Sequence[int], in_log: Callable[[int], int]
) -> list[Line]:
    """Lines adjusted to a log with inserted offsets, which they do not count.

    Args:
        inserted_before: Places, not counting inserted offsets, before which some were inserted; in order.
        in_log: From a place without inserted offsets to the place with them.
    """
    found = []
    for line in lines:
        if not line.slope:
            found.append(line._replace(base=in_log(line.base)))
            continue
        places = Range(line.place(line.start), line.place(line.end))
        first, last = bisect_right(inserted_before, places.start), bisect_left(inserted_before, places.end)
        cuts = [places.start, *inserted_before[first:last], places.end]
        for start, end in pairwise(cuts):
            offset = start - line.base
            found.append(Line(offset, end - line.base, 1, in_log(start) - offset))
    return found


def lines_of_pieces(pieces: Iterable[Piece]) -> list[Line]:
    """Lines of target offsets that undo a shift."""
    return [Line(piece.start, piece.end, 1, -piece.shift) for piece in pieces]
