"""From what was found stretch by stretch to what is told of a whole log.

A log is compared in stretches: those that are read record by record, and what is equal between them. What is
missing in one and extra in another has moved; rows of records that stand apart by the same distance are one,
however many stretches they run through.

Pure. A log's items stand in the order of its records.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from spark_jobs.findings import Difference, Kind
from spark_jobs.window import Range


class Row(NamedTuple):
    """Records in a row that both sides have, equally far apart.

    Attributes:
        source_offset, target_offset: Of the first one.
        shift: By how much they stand too far behind (or, below zero, ahead) at the target; zero for records
            that stand where they should.
    """

    source_offset: int
    target_offset: int
    records: int
    shift: int


Item = Difference | Row


def told(items: Iterable[Item]) -> list[Difference]:
    """Differences, and rows that are shifted as differences; neighbours with the same shift are one."""
    found: list[Difference] = []
    row: Row | None = None
    at = 0
    for item in items:
        if isinstance(item, Difference):
            found.append(item)
        elif row is not None and item.shift == row.shift:
            row = row._replace(records=row.records + item.records)
            found[at] = _shifted(row)
        elif item.shift:
            row, at = item, len(found)
            found.append(_shifted(row))
        else:
            row = None
    return found


def _shifted(row: Row) -> Difference:
    return Difference(
        kind=Kind.SHIFTED,
        source_offset=row.source_offset,
        target_offset=row.target_offset,
        records=row.records,
        shift=row.shift,
    )


Contents = Mapping[int, Hashable]
"""What records hold, by their offset."""


def explained(distance: int, moved: int, before: int) -> int:
    """By how much a record is shifted, once it is known how far those that have moved push it.

    A record that moves leaves its place to the next one, or leaves a hole: then it pushes nobody. What is as
    it was with the record before is taken to be so.

    Args:
        distance: As it stands.
        moved: By how much those that have moved would push it.
        before: The shift of the record before.
    """
    return distance if distance == before else distance - moved


def settled(items: Sequence[Item], missing: Contents, extra: Contents) -> list[Item]:
    """The items with what is known of the log as a whole: a record that is missing here and extra there has
    moved, and moves no others.

    Args:
        missing, extra: What is at one side only, by its offset there.
    """
    moves = _moves(items, missing, extra)
    gone = sorted(moves)
    come = sorted(moves.values())
    arrived = set(come)
    settled: list[Item] = []
    before = 0
    for item in items:
        if isinstance(item, Row):
            moved = bisect_left(come, item.target_offset) - bisect_left(gone, item.source_offset)
            before = explained(item.shift, moved, before)
            settled.append(item._replace(shift=before))
        elif item.kind is Kind.MISSING and item.source_offset in moves:
            there = moves[item.source_offset]
            settled.append(replace(item, kind=Kind.REORDERED, target_offset=there))
        elif item.kind is not Kind.EXTRA or item.target_offset not in arrived:
            settled.append(item)
    return settled


def with_doubled(items: Iterable[Item], extra: Contents, elsewhere: Mapping[Any, int]) -> list[Item]:
    """The items, where what is extra and what the source holds at another place too is duplicated.

    Args:
        extra: What is extra, by target offset.
        elsewhere: What of it the source holds, and at which offset.
    """
    doubled = {at: elsewhere[content] for at, content in extra.items() if content in elsewhere}
    return [
        replace(item, kind=Kind.DUPLICATED, original=doubled[item.target_offset])
        if isinstance(item, Difference) and item.kind is Kind.EXTRA and item.target_offset in doubled
        else item
        for item in items
    ]


def _moves(items: Sequence[Item], missing: Contents, extra: Contents) -> dict[int, int]:
    """Source to target offset of each record that is missing here and extra there."""
    waiting: defaultdict[Hashable, list[int]] = defaultdict(list)
    for item in reversed(items):
        if isinstance(item, Difference) and item.kind is Kind.EXTRA and item.target_offset is not None:
            waiting[extra[item.target_offset]].append(item.target_offset)
    moves: dict[int, int] = {}
    for item in items:
        if isinstance(item, Difference) and item.kind is Kind.MISSING and item.source_offset is not None:
            there = waiting[missing[item.source_offset]]
            if there:
                moves[item.source_offset] = there.pop()
    return moves


# -- the edges of what was read ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Edges:
    """Between which places both sides were read, and where the source's log ends.

    Attributes:
        source: Places of the source's records that were read.
        target: Target offsets that were read.
        begin: The place of the first record that was ever copied; before it there was nothing on either side.
        source_end: The place at which the source's next record will have to stand.
    """

    source: Range
    target: Range
    begin: int
    source_end: int


def comparable(items: Sequence[Item], places: Mapping[int, int], edges: Edges) -> list[Item]:
    """The items without those whose counterpart may stand where nothing was read.

    Where the records at an edge are shifted, the first or last ones of one side belong to what the other has
    deleted, has not copied yet, or was not asked for. What stands between records that both sides have has no
    counterpart beyond them.

    Args:
        places: Where the missing records have to stand, by source offset.
    """
    rows = [at for at, item in enumerate(items) if isinstance(item, Row)]
    inside = range(rows[0], rows[-1] + 1) if rows else range(0)
    return [
        item
        for at, (item, shift) in enumerate(_beside_rows(items))
        if at in inside or _is_comparable(item, shift, places, edges)
    ]


def _beside_rows(items: Sequence[Item]) -> Iterator[tuple[Item, int]]:
    """Each item with the shift of the row before it; those before the first row, with that one's."""
    shift = next((item.shift for item in items if isinstance(item, Row)), 0)
    for item in items:
        if isinstance(item, Row):
            shift = item.shift
        yield item, shift


def _is_comparable(item: Item, shift: int, places: Mapping[int, int], edges: Edges) -> bool:
    if isinstance(item, Row):
        return True
    if item.kind is Kind.MISSING and item.source_offset is not None:
        offset = places[item.source_offset] + shift
        return edges.target.holds(offset) or offset < edges.begin
    if item.kind is Kind.EXTRA and item.target_offset is not None:
        place = item.target_offset - shift
        return edges.source.holds(place) or place < edges.begin or place >= edges.source_end
    return True
