"""By how much the records of the target stand apart from where they should, along a log.

One record lost in the middle moves all that follow, and every range behind it differs. What a sample of both
sides has in common says by how much, and where that changes; with that known, the target is digested once
more as if nothing had moved, and only what really differs is left.

A *piece* is a range of target offsets with one shift; the pieces of a log cover it. Pure.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import NamedTuple

from spark_jobs.window import Range

ANCHORS_MIN = 3
"""Fewer records in a row with a shift of their own have moved, most likely."""


class Anchors(NamedTuple):
    """Sampled records in a row that both sides have once, equally far apart.

    Attributes:
        first, last: Places at the source.
        shift: Target offset less place.
    """

    first: int
    last: int
    shift: int
    records: int

    def within(self, target: Range) -> Anchors:
        """What of the row stands in a range of target offsets; without records where that is nothing."""
        first = max(self.first, target.start - self.shift)
        last = min(self.last, target.end - 1 - self.shift)
        return Anchors(first, last, self.shift, self.records if first <= last else 0)


class Piece(NamedTuple):
    """Target offsets ``[start, end)`` whose records stand too far behind by ``shift``."""

    start: int
    end: int
    shift: int


def pieces(anchors: Iterable[Anchors], target: Range) -> list[Piece]:
    """How the shift runs along a range of target offsets.

    Where it changes between two anchors it is taken to change at the second: what stands between is found
    different, and read.

    Args:
        anchors: In any order; rows that contradict longer ones are left out.
    """
    kept = _consistent(row for row in anchors if row.records >= ANCHORS_MIN)
    starts = [target.start, *(row.first + row.shift for row in kept[1:])]
    ends = [*starts[1:], target.end]
    found: list[Piece] = []
    for row, start, end in zip(kept, starts, ends, strict=False):
        if found and found[-1].shift == row.shift:
            found[-1] = found[-1]._replace(end=end)
        else:
            found.append(Piece(start, end, row.shift))
    return found or [Piece(*target, shift=0)]


def _consistent(anchors: Iterable[Anchors]) -> list[Anchors]:
    """Those that go forward at both sides; of two that do not, the one with more records."""
    kept: list[Anchors] = []
    for row in sorted(anchors, key=lambda row: (-row.records, row)):
        at = bisect_left(kept, row.first, key=attrgetter("first"))
        before = kept[at - 1] if at else None
        after = kept[at] if at < len(kept) else None
        if before is not None and not _follows(before, row):
            continue
        if after is not None and not _follows(row, after):
            continue
        kept.insert(at, row)
    return kept


def _follows(one: Anchors, other: Anchors) -> bool:
    return one.last < other.first and one.last + one.shift < other.first + other.shift


def target_ranges(pieces: Sequence[Piece], places: Range) -> Iterator[Range]:
    """The target offsets whose records have to stand at these places."""
    for piece in pieces:
        start, end = max(piece.start, places.start + piece.shift), min(piece.end, places.end + piece.shift)
        if start < end:
            yield Range(start, end)


def places_of(pieces: Sequence[Piece]) -> Range:
    """Between which places the records of all pieces have to stand."""
    return Range(
        min(piece.start - piece.shift for piece in pieces), max(piece.end - piece.shift for piece in pieces)
    )


def shift_at(pieces: Sequence[Piece], place: int) -> int:
    """By how much records are shifted that stand behind a place, if they do not differ there.

    Of two pieces whose places overlap the later one has those that are the same: what the first has there
    is in the way.
    """
    at = bisect_right(pieces, place, key=lambda piece: piece.start - piece.shift)
    return pieces[max(at - 1, 0)].shift


def changes(pieces: Sequence[Piece]) -> list[int]:
    """The places at which rows of another shift begin; before the log and behind it there is none."""
    shift, found = 0, []
    for piece in pieces:
        if piece.shift != shift:
            found.append(piece.start - piece.shift)
        shift = piece.shift
    if shift:
        found.append(pieces[-1].end - shift)
    return found
