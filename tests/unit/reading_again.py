"""The way from digests of a long log to what is named of it, with Spark's part done in plain Python.

What is decided is the program's; only frames that are joined, summed and collected are dictionaries here.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from zlib import crc32

from mirror.model import TopicPartition
from spark_jobs import append_only, closer
from spark_jobs.align import Record
from spark_jobs.logs import Compared, Log
from spark_jobs.naming import Naming, Plan, Side, limited, whole_of
from spark_jobs.shifts import Anchors, Piece, target_ranges
from spark_jobs.stretches import CONTEXT_RANGES, RANGE_PLACES, Island, in_ranges, joined, to_read
from spark_jobs.window import Range, SameOffsets, window

Contents = Mapping[int, int]
"""What records hold, by offset."""
Digests = dict[int, list[tuple[int, int]]]
ONE_IN = 16


def log_of(source: Range, target: Range) -> Log:
    return Log(
        name=TopicPartition("t", 0),
        target_topic="t",
        topic_id="id",
        target_topic_id="id-there",
        is_compacted=False,
        window=window(source, target, SameOffsets()),
        begin_place=0,
        source_end_place=source.end,
    )


def compared(source: Contents, target: Contents, log: Log, *, closely: bool) -> Compared:
    """What is said of a log.

    Args:
        closely: What differs is digested once more in smaller ranges, however little it is.
    """
    pieces, islands = _undone(source, target, log)
    plan = _plan(log, pieces, islands, CONTEXT_RANGES)
    ranges = _sizes(_digests(source.items(), RANGE_PLACES), RANGE_PLACES)
    if closely:
        plan, known = _closer(source, target, _plan(log, pieces, islands, 0))
        near = {place - place % RANGE_PLACES for place in known}
        ranges = {place: count for place, count in ranges.items() if place not in near} | known
    naming = Naming(
        plan,
        _side(_some(source, plan.source_ranges())),
        _side(_some(target, plan.target_ranges())),
        _counts(plan, ranges) if plan.is_shifted else (),
    )
    return naming.compared({})


def _undone(source: Contents, target: Contents, log: Log) -> tuple[Sequence[Piece], list[Island]]:
    """Shifts, and what differs without them."""
    here, there = (_digests(side.items(), RANGE_PLACES) for side in (source, target))
    islands = _islands(here, there, RANGE_PLACES)
    long = [island for island in islands if island.is_long]
    unshifted = [Piece(*log.target_known, shift=0)]
    if not long:
        return unshifted, islands
    there_long = [one.within(log.target_known) for one in joined(island.places for island in long)]
    here_long = [log.source_offsets(one) for one in there_long]
    pieces = append_only._pieces(log, there_long, list(_anchors(source, target, here_long, there_long)))
    if not any(piece.shift for piece in pieces):
        return unshifted, islands
    touched = append_only._touched([island.places for island in long], pieces)
    offsets = joined(one for places in touched for one in target_ranges(pieces, places))
    again = _digests(_shifted(_some(target, offsets), pieces), RANGE_PLACES)

    def inside(digests: Digests) -> Digests:
        numbers = {at for island in in_ranges(touched) for at in range(island.first, island.last + 1)}
        return {at: one for at, one in digests.items() if at in numbers}

    left = _islands(inside(here), inside(again), RANGE_PLACES)
    return pieces, sorted([*append_only._apart(islands, touched), *left])


def _plan(log: Log, pieces: Sequence[Piece], islands: Iterable[Island], context_ranges: int) -> Plan:
    differing = [island.places for island in islands]
    reads = to_read(differing, pieces, whole_of(log, pieces), context_ranges=context_ranges)
    return Plan(log, pieces, reads)


def _closer(source: Contents, target: Contents, asked: Plan) -> tuple[Plan, dict[int, int]]:
    width = closer.CLOSER_PLACES
    (asked,) = limited([asked], closer.CLOSER_MAX)
    here = _digests(_some(source, asked.source_ranges()), width)
    there = _digests(_shifted(_some(target, asked.target_ranges()), asked.pieces), width)
    differing = [island.places for island in _islands(here, there, width)]
    return asked.closer(differing, width, CONTEXT_RANGES), _sizes(here, width)


def _anchors(
    source: Contents, target: Contents, here: Iterable[Range], there: Iterable[Range]
) -> Iterator[Anchors]:
    """Of a sample of records that occur once at each side, rows of the same shift."""
    places, offsets = (
        {held: at for at, held in _some(side, some) if crc32(held.to_bytes(8)) % ONE_IN == 0}
        for side, some in ((source, here), (target, there))
    )
    pairs = sorted((place, offsets[held] - place) for held, place in places.items() if held in offsets)
    for shift, row in groupby(pairs, key=lambda pair: pair[1]):
        some = [place for place, _ in row]
        yield Anchors(some[0], some[-1], shift, len(some))


def _some(side: Contents, ranges: Iterable[Range]) -> Iterator[tuple[int, int]]:
    return ((at, side[at]) for one in ranges for at in range(*one) if at in side)


def _shifted(records: Iterable[tuple[int, int]], pieces: Sequence[Piece]) -> Iterator[tuple[int, int]]:
    """With the places at which they stand under the shifts."""
    starts = [piece.start for piece in pieces]
    return ((at - pieces[bisect_right(starts, at) - 1].shift, held) for at, held in records)


def _digests(records: Iterable[tuple[int, int]], width: int) -> Digests:
    found: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    for place, held in records:
        found[place // width].append((place, held))
    return {at: sorted(some) for at, some in found.items()}


def _sizes(digests: Digests, width: int) -> dict[int, int]:
    return {at * width: len(some) for at, some in digests.items()}


def _islands(here: Digests, there: Digests, width: int) -> list[Island]:
    differing = sorted(at for at in here.keys() | there.keys() if here.get(at) != there.get(at))
    rows = (list(row) for _, row in groupby(enumerate(differing), key=lambda pair: pair[1] - pair[0]))
    return [Island(row[0][1], row[-1][1], width) for row in rows]


def _counts(plan: Plan, ranges: Mapping[int, int]) -> list[int]:
    starts = closer._starts(plan)
    found: Counter[int] = Counter()
    for place, count in ranges.items():
        found[bisect_right(starts, place) - 1] += count
    return [found[2 * at] for at in range(len(plan.stretches) + 1)]


def _side(records: Iterable[tuple[int, int]]) -> Side:
    some = [Record(at, at, held, held, held, 0, 0) for at, held in records]
    return Side(some, dict.fromkeys(record.offset for record in some))
