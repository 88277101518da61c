"""Turn what was found stretch by stretch into the differences of a whole log.

A log is compared in stretches: those that are read record by record, and what is equal between them. What is
missing in one and extra in another has moved. Rows of records that are shifted by the same distance are one
row, however many stretches they run through.

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
    """Consecutive records that both sides have, all shifted by the same distance.

    Attributes:
        source_offset, target_offset: Of the first one.
        shift: By how many offsets they are too high at the target; negative: too low; 0: where they should
            be.
    """

    source_offset: int
    target_offset: int
    records: int
    shift: int


Item = Difference | Row


def told(items: Iterable[Item]) -> list[Difference]:
    """All differences; a shifted row is one, and neighbouring rows with the same shift are joined."""
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
"""What records hold, by offset."""


def explained(distance: int, moved: int, before: int) -> int:
    """The shift of a record, without what is explained by records that have moved.

    A moved record either leaves its place to the next record, and so pushes those after it, or leaves a hole
    and pushes none. A record at the same distance as the shift of the one before was not pushed.

    Args:
        distance: How far the record stands from its place, in offsets.
        moved: By how much the moved records would push it.
        before: The shift of the record before.
    """
    return distance if distance == before else distance - moved


def settled(items: Sequence[Item], missing: Contents, extra: Contents) -> list[Item]:
    """The items as seen over the whole log: a record that is missing here and extra there has moved, and
    shifts no others.

    Args:
        missing, extra: What only one side has, by its offset there.
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
    """The items, where an extra record that the source holds at another place becomes a duplicated one.

    Args:
        extra: Contents of extra records, by target offset.
        elsewhere: Those of them that the source holds, with the offset.
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
        source_end: The place of the source's next record.
    """

    source: Range
    target: Range
    begin: int
    source_end: int


def comparable(items: Sequence[Item], places: Mapping[int, int], edges: Edges) -> list[Item]:
    """The items without those whose counterpart may lie where nothing was read.

    Where the records at an edge are shifted, the first or last ones of one side belong to what the other has
    deleted, has not copied yet, or was not asked for. Items between records that both sides have stay: their
    counterpart cannot lie beyond those.

    Args:
        places: The places of the missing records, by source offset.
    """
    rows = [at for at, item in enumerate(items) if isinstance(item, Row)]
    inside = range(rows[0], rows[-1] + 1) if rows else range(0)
    return [
        item
        for at, (item, shift) in enumerate(_beside_rows(items))
        if at in inside or _is_comparable(item, shift, places, edges)
    ]


def _beside_rows(items: Sequence[Item]) -> Iterator[tuple[Item, int]]:
    """Each item with the shift of the last row up to it; items before the first row have that row's."""
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
