"""Compare append-only logs: digests of ranges first, then the records of what differs.

1. Both sides are digested, range by range; ranges with equal digests are equal.
2. Where many neighbouring ranges differ, a sample shows by how much the target is shifted there, and the
   target is digested again with the shift undone.
3. What still differs is read record by record on both sides and aligned (:mod:`spark_jobs.align`). Where that
   is much, closer digests (:mod:`spark_jobs.closer`) first narrow it down.
4. Extra records are looked for among the source's records before them: they may be duplicates.

Each step runs once for all logs. The driver holds what differs, and a few numbers a log of everything else.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from pyspark.sql import DataFrame

from mirror.model import TopicPartition
from spark_jobs import closer, compare
from spark_jobs.asking import ByLog, about_blocks, about_ranges, at_source
from spark_jobs.closer import islands_of
from spark_jobs.logs import Compared, Log
from spark_jobs.naming import Naming, Plan, Side
from spark_jobs.places import lines_of_pieces
from spark_jobs.questions import Question, What, offsets_of
from spark_jobs.rows import Contents, seen_of, sides
from spark_jobs.sampling import Sample
from spark_jobs.shifts import Anchors, Piece, pieces, target_ranges
from spark_jobs.sites import Sites, with_totals
from spark_jobs.stretches import RANGE_PLACES, Island, between, in_ranges, joined, whole_ranges, without
from spark_jobs.window import Range

ANCHORS_MAX = 1_000_000
"""Records that are sampled to find shifts, about."""
SAMPLE_ONE_IN = 16
LOOK_BACK_PLACES = 64 * RANGE_PLACES
"""How far before an extra record the source is searched for the record that it duplicates."""
LOOKED_AT_MAX = 16_000_000
"""The most source offsets that are searched for them; where there are more, extra records stay extra."""


def compare_logs(sites: Sites, logs: Sequence[Log]) -> list[Compared]:
    """What differs between the sites, for each log.

    Raises:
        PySparkException, SparkFailedError: A site could not be read as asked; nothing is concluded.
        UnansweredError: A site has not answered yet.
    """
    if not logs:
        return []
    by_name = {log.name: log for log in logs}
    source, target = sites.ask(*about_ranges(logs, sites.hashing))
    islands = islands_of(compare.islands(source, target).collect())
    long = {name: [one for one in some if one.is_long] for name, some in islands.items()}
    long = {name: some for name, some in long.items() if some}
    shifts = _find_shifts(sites, by_name, long) if long else {}
    if shifts:
        islands = _without_shifts(sites, islands, long, shifts, source)
    plans, counts = closer.plans(sites, logs, shifts, islands, source)
    found = _look_closer(sites, plans, counts)
    found = with_totals(found, source, target)
    return [
        replace(
            one,
            contradicts=one.contradicts and bool(islands.get(one.log.name)),
            ranges_differing=_ranges(islands.get(one.log.name, ())),
            read_again=sites.again[one.log.name],
        )
        for one in found
    ]


def compare_sample(sites: Sites, logs: Sequence[Log], sample: Sample) -> list[Compared]:
    """What differs between the sites, for each log. Logs whose sample differs, or whose target has lost its
    end, are compared whole; of the others only the sample is compared.

    Raises:
        PySparkException, SparkFailedError: A site could not be read as asked; nothing is concluded.
        UnansweredError: A site has not answered yet.
    """
    if not logs:
        return []
    source, target = sites.ask(*about_blocks(logs, sample, sites.hashing))
    differing = islands_of(compare.islands(source, target).collect())
    suspect = differing.keys() | {log.name for log in logs if log.window.lost.offsets}
    clear = with_totals([Compared(log=log) for log in logs if log.name not in suspect], source, target)
    whole = compare_logs(sites, [log for log in logs if log.name in suspect])
    same = {one.log.name for one in whole if not one.ranges_differing}
    return [
        *clear,
        *(
            replace(one, contradicts=one.contradicts or one.log.name in same & differing.keys())
            for one in whole
        ),
    ]


def _ranges(islands: Iterable[Island]) -> int:
    return sum(island.last - island.first + 1 for island in islands)


# -- shifts --------------------------------------------------------------------------------------


def _find_shifts(
    sites: Sites, logs: ByLog, long: Mapping[TopicPartition, Sequence[Island]]
) -> dict[TopicPartition, list[Piece]]:
    """The pieces of each log that has shifted ones."""
    places = {name: joined(island.places for island in some) for name, some in long.items()}
    here = {name: [logs[name].source_offsets(one) for one in some] for name, some in places.items()}
    there = {name: [one.within(logs[name].target_known) for one in some] for name, some in places.items()}
    total = sum(one.offsets for some in there.values() for one in some)
    one_in = max(SAMPLE_ONE_IN, total // ANCHORS_MAX)
    source, target = sites.ask_closer(
        at_source("sample", What.CONTENTS, here, logs, sites.hashing, one_in=one_in),
        Question(name="sample", what=What.CONTENTS, ranges=there, hashing=sites.hashing, one_in=one_in),
    )
    rows: defaultdict[TopicPartition, list[Anchors]] = defaultdict(list)
    for row in compare.anchors(source, target).collect():
        name = TopicPartition(row.topic, row.partition)
        rows[name].append(Anchors(row["first"], row["last"], row["shift"], row["records"]))
    found = {name: _pieces(logs[name], there[name], rows[name]) for name in long}
    return {name: some for name, some in found.items() if any(piece.shift for piece in some)}


def _pieces(log: Log, islands: Sequence[Range], anchors: Sequence[Anchors]) -> list[Piece]:
    """The pieces of a whole log; what is between the islands is not shifted."""
    found: list[Piece] = []
    for gap, island in zip(between(islands, log.target_known), [*islands, None], strict=True):
        found.append(Piece(*gap, shift=0))
        if island is not None:
            found += pieces((row.within(island) for row in anchors), island)
    return [piece for piece in found if piece.start < piece.end]


def _without_shifts(
    sites: Sites,
    islands: Mapping[TopicPartition, Sequence[Island]],
    long: Mapping[TopicPartition, Sequence[Island]],
    shifts: Mapping[TopicPartition, Sequence[Piece]],
    source: DataFrame,
) -> dict[TopicPartition, list[Island]]:
    """What differs once shifts are undone."""
    sites.say("asking the target: digests without shifts")
    wanted = {name: _touched([island.places for island in long[name]], shifts[name]) for name in shifts}
    ranges = {
        name: joined(one for places in some for one in target_ranges(shifts[name], places))
        for name, some in wanted.items()
    }
    lines = {name: lines_of_pieces(some) for name, some in shifts.items()}
    question = Question(
        name="digests-without-shifts",
        what=What.DIGESTS,
        ranges=ranges,
        lines=lines,
        hashing=sites.hashing,
    )
    target = sites.ask_target_closer(question)
    rows = [(*name, *island[:2]) for name, some in wanted.items() for island in in_ranges(some)]
    only = sites.spark.createDataFrame(rows, "topic string, partition int, first long, last long")
    again = islands_of(compare.islands(compare.within(source, only), compare.within(target, only)).collect())
    return {
        name: sorted([*_apart(some, wanted[name]), *again.get(name, ())]) if name in shifts else list(some)
        for name, some in islands.items()
    }


def _touched(islands: Iterable[Range], pieces: Sequence[Piece]) -> list[Range]:
    """Whole ranges that hold the islands, or their places with the shifts undone."""
    some = list(islands)
    moved = (
        Range(one.start - piece.shift, one.end - piece.shift)
        for piece in pieces
        for one in (island.within(Range(piece.start, piece.end)) for island in some)
    )
    return whole_ranges([*some, *moved])


def _apart(islands: Iterable[Island], places: Iterable[Range]) -> list[Island]:
    """The parts of islands outside of these places; both are whole ranges."""
    return in_ranges(without((island.places for island in islands), places))


# -- records -------------------------------------------------------------------------------------


def _look_closer(
    sites: Sites, plans: Sequence[Plan], counts: Mapping[TopicPartition, Sequence[int]]
) -> list[Compared]:
    looked_at = [plan for plan in plans if plan.reads]
    if not looked_at:
        return [Compared(log=plan.log, unread=plan.unread, contradicts=not plan.unread) for plan in plans]
    logs = {plan.log.name: plan.log for plan in looked_at}
    here_ranges = {plan.log.name: plan.source_ranges() for plan in looked_at}
    there_ranges = {plan.log.name: plan.target_ranges() for plan in looked_at}
    source, target = sites.ask_closer(
        at_source("records", What.RECORDS, here_ranges, logs, sites.hashing),
        Question(name="records", what=What.RECORDS, ranges=there_ranges, hashing=sites.hashing),
    )
    here, there = sides(source), sides(target)
    naming = [
        Naming(
            plan,
            here.get(plan.log.name, Side()),
            there.get(plan.log.name, Side()),
            counts.get(plan.log.name, ()),
        )
        for plan in plans
    ]
    elsewhere = _elsewhere(sites, naming)
    return [one.compared(elsewhere.get(one.plan.log.name, {})) for one in naming]


def _elsewhere(sites: Sites, naming: Sequence[Naming]) -> Contents:
    """The contents of extra records that the source holds shortly before their places, with the offset."""
    extra = {one.plan.log.name: one.extra() for one in naming}
    extra = {name: some for name, some in extra.items() if some}
    if not extra:
        return {}
    sites.say("asking the source: what may have been doubled")
    logs = {one.plan.log.name: one.plan.log for one in naming}
    ranges = {
        name: joined(logs[name].source_offsets(Range(at - LOOK_BACK_PLACES, at + 1)) for at in some)
        for name, some in extra.items()
    }
    if offsets_of(ranges) > LOOKED_AT_MAX:
        return {}
    question = at_source("doubled", What.RECORDS, ranges, logs, sites.hashing)
    wanted = {name: frozenset(some.values()) for name, some in extra.items()}
    return seen_of(sites.ask_source_closer(question), wanted)
