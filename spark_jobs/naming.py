"""Turn the records that differ into the findings of one log.

What is known of a log comes in pieces: stretches whose records were read on both sides, and between them
equal stretches, of which only the record count is known. The findings are about the log as a whole.

Pure.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter

from spark_jobs.align import Content, Record, aligned
from spark_jobs.findings import Difference, Kind
from spark_jobs.logs import Compared, Finding, Log
from spark_jobs.shifts import Piece, places_of, shift_at, target_ranges
from spark_jobs.stretches import RANGE_PLACES, between, common, joined, to_read
from spark_jobs.telling import Edges, Item, Row, comparable, settled, told, with_doubled
from spark_jobs.window import ALL, Range

NOWHERE = -ALL.end
"""Before every possible offset."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is read of one log to name its differences.

    Attributes:
        pieces: Its shifts; they cover all that is read of the target.
        reads: Places that are read on both sides, in order.
        unread: Places that differ and are too many to be read.
    """

    log: Log
    pieces: Sequence[Piece]
    reads: Sequence[Range]
    unread: Sequence[Range] = ()

    @property
    def places(self) -> int:
        """How many places are read."""
        return sum(places.offsets for places in self.reads)

    @property
    def is_shifted(self) -> bool:
        return any(piece.shift for piece in self.pieces)

    @property
    def stretches(self) -> list[Range]:
        """All that is not known to be equal, read or not, in order."""
        return sorted(one for one in (*self.reads, *self.unread) if one.offsets)

    def source_ranges(self) -> list[Range]:
        """Source offsets to read."""
        return joined(self.log.source_offsets(places) for places in self.reads)

    def target_ranges(self) -> list[Range]:
        """Target offsets to read."""
        return joined(one for places in self.reads for one in target_ranges(self.pieces, places))

    def gaps(self) -> list[Range]:
        """Places before, between and after the stretches: one gap more than there are stretches. A gap may be
        empty.
        """
        return between(self.stretches, whole_of(self.log, self.pieces))

    def closer(
        self, differing: Sequence[Range], width: int, context_ranges: int, known: int | None = None
    ) -> Plan:
        """This plan, narrowed to the ranges that were found to differ within what it reads.

        Args:
            differing: Places of these ranges.
            width: Places of each range that was digested to find them.
            context_ranges: Ranges to read on both sides of one that differs.
            known: The place up to which differing ranges are known; what lies after it stays unread. None:
                all are known.
        """
        whole = whole_of(self.log, self.pieces)
        reads = common(to_read(differing, self.pieces, whole, width, context_ranges), self.reads)
        if known is None:
            return replace(self, reads=reads)
        unread = joined([*(one.after(known) for one in self.reads), *self.unread])
        return replace(self, reads=joined(one.before(known) for one in reads), unread=unread)


def whole_of(log: Log, pieces: Sequence[Piece]) -> Range:
    """From the first to the last place of a log, with and without its shifts."""
    known, shifted = log.target_known, places_of(pieces)
    return Range(min(known.start, shifted.start), max(known.end, shifted.end))


def limited(plans: Sequence[Plan], places_max: int, width: int = RANGE_PLACES) -> list[Plan]:
    """The plans, cut so that together they read at most ``places_max`` places.

    Each log keeps the first part of what it reads. The limit is shared evenly, and what a small log does not
    need is left to larger ones. Where a share is less than a range, the smallest logs get a range each.

    Args:
        width: Places of a range.
    """
    left = places_max
    found: dict[int, Plan] = {}
    sizes = [plan.places for plan in plans]
    for done, at in enumerate(sorted(range(len(plans)), key=lambda at: sizes[at])):
        plan = _first(plans[at], min(left, max(width, left // (len(plans) - done))), width)
        left -= plan.places
        found[at] = plan
    return [found[at] for at in range(len(plans))]


def _first(plan: Plan, places_max: int, width: int) -> Plan:
    reads: list[Range] = []
    unread: list[Range] = []
    left = places_max
    for places in plan.reads:
        end = places.end
        if places.offsets > left:
            end = max(places.start, (places.start + left) // width * width)
        left -= end - places.start
        reads.append(Range(places.start, end))
        unread.append(Range(end, places.end))
    return replace(plan, reads=joined(reads), unread=joined([*plan.unread, *unread]))


@dataclass(frozen=True, slots=True)
class Side:
    """What was read of a log at one site.

    Attributes:
        records: In offset order.
        keys: The first bytes of each record's key, by offset; None for a null key.
    """

    records: Sequence[Record] = ()
    keys: Mapping[int, bytes | None] = field(default_factory=dict)

    def within(self, offsets: Range) -> Sequence[Record]:
        start, end = (bisect_left(self.records, at, key=attrgetter("offset")) for at in offsets)
        return self.records[start:end]

    def at(self, offset: int) -> Record | None:
        """The record with this offset; None where none was read: it may have been deleted meanwhile."""
        return next(iter(self.within(Range(offset, offset + 1))), None)


class Naming:
    """Names what differs in a log.

    Args:
        source, target: What was read for the plan.
        counts: How many source records each gap of the plan has; empty unless the log is shifted.
    """

    def __init__(self, plan: Plan, source: Side, target: Side, counts: Sequence[int] = ()) -> None:
        self.plan = plan
        self._source, self._target = source, target
        self._counts = counts or [gap.offsets for gap in plan.gaps()]
        self._cut = {one.start for one in plan.unread}
        self._items = list(self._all())
        self._extra = {at: record.content for at in self._offsets(Kind.EXTRA) if (record := target.at(at))}
        missing = {at: record for at in self._offsets(Kind.MISSING) if (record := source.at(at))}
        contents = {at: record.content for at, record in missing.items()}
        places = {at: record.place for at, record in missing.items()}
        whole = settled(self._items, contents, self._extra)
        self._items = comparable(whole, places, plan.log.edges)
        self._leaves_out = len(self._items) < len(whole)

    def extra(self) -> dict[int, Content]:
        """Extra records by target offset. Each may duplicate a source record that was not read."""
        return {at: self._extra[at] for at in self._offsets(Kind.EXTRA)}

    def compared(self, elsewhere: Mapping[Content, int]) -> Compared:
        """The findings, with the keys of their records.

        With no finding, nothing unread and nothing left out at an edge, the result ``contradicts``: digests
        differed, and records do not.

        Args:
            elsewhere: Contents of extra records that the source holds at another place, with the offset.
        """
        items = with_doubled(self._items, self._extra, elsewhere)
        findings = [Finding(difference=one, key=self._key(one)) for one in told(items)]
        says_something = findings or self.plan.unread or self._leaves_out
        return Compared(
            log=self.plan.log, findings=findings, unread=self.plan.unread, contradicts=not says_something
        )

    def _all(self) -> Iterator[Item]:
        plan = self.plan
        read = {*plan.reads}
        for gap, count, places in zip(plan.gaps(), self._counts, [*plan.stretches, None], strict=True):
            yield from self._equal(gap, count)
            if places in read:
                yield from self._looked_at(places)

    def _looked_at(self, places: Range) -> Sequence[Item]:
        """What was read of a stretch. Where reading was cut off, items whose counterpart may lie beyond are
        left out.
        """
        source, target = self._stretch(places)
        items = aligned(source, target)
        if places.end not in self._cut:
            return items
        there = max((one.end for one in target_ranges(self.plan.pieces, places)), default=places.end)
        edges = Edges(Range(NOWHERE, places.end), Range(NOWHERE, there), begin=NOWHERE, source_end=ALL.end)
        return comparable(items, {record.offset: record.place for record in source}, edges)

    def _equal(self, places: Range, records: int) -> Iterator[Row]:
        """A row for what is equal on both sides. Without a shift its number of records does not matter."""
        if not places.offsets:
            return
        shift = shift_at(self.plan.pieces, places.start)
        yield Row(
            self.plan.log.source_offsets(places).start, places.start + shift, records=records, shift=shift
        )

    def _stretch(self, places: Range) -> tuple[Sequence[Record], Sequence[Record]]:
        here = self._source.within(self.plan.log.source_offsets(places))
        ranges = joined(target_ranges(self.plan.pieces, places))
        return here, [record for one in ranges for record in self._target.within(one)]

    def _offsets(self, kind: Kind) -> list[int]:
        """Offsets of all items of a kind that only one side has."""
        found = []
        for item in self._items:
            if isinstance(item, Difference) and item.kind is kind:
                offset = item.target_offset if kind is Kind.EXTRA else item.source_offset
                assert offset is not None
                found.append(offset)
        return found

    def _key(self, difference: Difference) -> bytes | None:
        if difference.kind is Kind.SHIFTED:
            return None
        if difference.source_offset is not None:
            return self._source.keys[difference.source_offset]
        assert difference.target_offset is not None
        return self._target.keys[difference.target_offset]
