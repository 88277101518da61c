"""By how much the records of the target are shifted from where they should be, along a log.

One record lost in the middle moves all that follow, and every range after it differs. The records that
samples of both sides have in common show by how much, and where that changes. Then the target is digested
again with the shift undone, and only what really differs is left.

A *piece* is a range of target offsets with one shift; the pieces of a log cover it. Pure.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import NamedTuple

from spark_jobs.window import Range

ANCHORS_MIN = 3
"""Fewer consecutive records with a shift of their own have most likely moved."""


class Anchors(NamedTuple):
    """Consecutive sampled records that both sides have once, all with the same shift.

    Attributes:
        first, last: Places at the source.
        shift: Target offset minus place.
    """

    first: int
    last: int
    shift: int
    records: int

    def within(self, target: Range) -> Anchors:
        """The part of the row in a range of target offsets; ``records`` is 0 where there is none, and else
        stays that of the whole row.
        """
        first = max(self.first, target.start - self.shift)
        last = min(self.last, target.end - 1 - self.shift)
        return Anchors(first, last, self.shift, self.records if first <= last else 0)


class Piece(NamedTuple):
    """Target offsets ``[start, end)`` that are too high for their records by ``shift``."""

    start: int
    end: int
    shift: int


def pieces(anchors: Iterable[Anchors], target: Range) -> list[Piece]:
    """The shifts along a range of target offsets.

    Where the shift changes between two rows of anchors, it is taken to change at the second: what lies
    between is found different, and read.

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
    """The rows that ascend at both sides; of two that do not, the one with more records."""
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
    """The target offsets of the records that should stand at these places."""
    for piece in pieces:
        start, end = max(piece.start, places.start + piece.shift), min(piece.end, places.end + piece.shift)
        if start < end:
            yield Range(start, end)


def places_of(pieces: Sequence[Piece]) -> Range:
    """From the first to the last place at which records of the pieces should stand."""
    return Range(
        min(piece.start - piece.shift for piece in pieces), max(piece.end - piece.shift for piece in pieces)
    )


def shift_at(pieces: Sequence[Piece], place: int) -> int:
    """The shift of the records from a place on, if they do not differ there.

    Where the places of two pieces overlap, the later piece has the records that are the same: what the first
    has there is extra.
    """
    at = bisect_right(pieces, place, key=lambda piece: piece.start - piece.shift)
    return pieces[max(at - 1, 0)].shift


def changes(pieces: Sequence[Piece]) -> list[int]:
    """The places at which the shift changes; before the log and after it there is none."""
    shift, found = 0, []
    for piece in pieces:
        if piece.shift != shift:
            found.append(piece.start - piece.shift)
        shift = piece.shift
    if shift:
        found.append(pieces[-1].end - shift)
    return found
