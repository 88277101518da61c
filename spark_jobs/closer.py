"""What is read again of logs that differ, and how closely.

A few ranges that differ are read whole. Many are first digested again, in ranges of a few places, and only
those of them that differ are read. So what scattered differences cost, and what the driver has to hold,
depends on how many there are, not on how far apart they are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812

from mirror.model import TopicPartition
from spark_jobs import compare
from spark_jobs.asking import at_source
from spark_jobs.logs import Log
from spark_jobs.naming import NOWHERE, Plan, limited, whole_of
from spark_jobs.places import lines_of_pieces
from spark_jobs.questions import Question, What
from spark_jobs.shifts import Piece
from spark_jobs.sites import Sites
from spark_jobs.stretches import CONTEXT_RANGES, RANGE_PLACES, Island, to_read

WHOLE_MAX = 250_000
"""The most places of a side in ranges that are read whole."""
CLOSER_PLACES = 8
"""Places that a digest covers, where there are more."""
CLOSER_MAX = 64_000_000
"""The most places of a side that are digested closer: what differs beyond is counted and not named."""
NAMED_MAX = 500_000
"""The most places of a side whose records the driver holds: what differs beyond is counted and not named."""
ISLANDS_MAX = NAMED_MAX // CLOSER_PLACES
"""The most rows of differing ranges that closer digests bring to the driver."""

Islands = Mapping[TopicPartition, Sequence[Island]]
Shifts = Mapping[TopicPartition, Sequence[Piece]]
Counts = Mapping[TopicPartition, Sequence[int]]


def islands_of(rows: Iterable[Row], width: int = RANGE_PLACES) -> dict[TopicPartition, list[Island]]:
    """What :func:`spark_jobs.compare.islands` has found, in order.

    Args:
        width: Places of the ranges.
    """
    found: defaultdict[TopicPartition, list[Island]] = defaultdict(list)
    for row in rows:
        found[TopicPartition(row.topic, row.partition)].append(Island(row.first, row.last, width))
    return {name: sorted(some) for name, some in found.items()}


def plans(
    sites: Sites, logs: Sequence[Log], shifts: Shifts, islands: Islands, source: DataFrame
) -> tuple[list[Plan], Counts]:
    """What is read of each log; and for shifted logs, how many records the source has in each gap.

    Args:
        islands: Ranges that differ with the shifts undone.
        source: Its digests of all that is compared.

    Raises:
        UnansweredError: A site has to be asked for closer digests.
    """
    whole = _plans(logs, shifts, islands, CONTEXT_RANGES)
    roughly = source.select(*compare.PARTITION, (F.col("range") * RANGE_PLACES).alias("place"), "records")
    if _places(whole) <= WHOLE_MAX:
        return whole, _counts(whole, roughly)
    asked = limited(_plans(logs, shifts, islands, 0), CLOSER_MAX)
    here, there = _closer_digests(sites, asked)
    found = _closer(asked, compare.first(compare.islands(here, there), ISLANDS_MAX))
    closely = here.select(*compare.PARTITION, (F.col("range") * CLOSER_PLACES).alias("place"), "records")
    return found, _counts(found, _together(roughly, closely))


def _plans(logs: Sequence[Log], shifts: Shifts, islands: Islands, context_ranges: int) -> list[Plan]:
    found = []
    for log in logs:
        known = shifts.get(log.name) or [Piece(*log.target_known, shift=0)]
        differing = [island.places for island in islands.get(log.name, ())]
        reads = to_read(differing, known, whole_of(log, known), context_ranges=context_ranges)
        found.append(Plan(log, known, reads))
    return found


def _places(some: Iterable[Plan]) -> int:
    return sum(plan.places for plan in some)


def _closer_digests(sites: Sites, asked: Sequence[Plan]) -> tuple[DataFrame, DataFrame]:
    """Closer digests of what the plans read, on both sides, with the shifts undone."""
    some = {plan.log.name: plan for plan in asked if plan.reads}
    here = {name: plan.source_ranges() for name, plan in some.items()}
    there = {name: plan.target_ranges() for name, plan in some.items()}
    name, what, hashing = "closer-digests", What.DIGESTS, sites.hashing
    logs = {name: plan.log for name, plan in some.items()}
    return sites.ask_closer(
        at_source(name, what, here, logs, hashing, width=CLOSER_PLACES),
        Question(
            name=name,
            what=what,
            ranges=there,
            hashing=hashing,
            lines={tp: lines_of_pieces(plan.pieces) for tp, plan in some.items() if plan.is_shifted},
            width=CLOSER_PLACES,
        ),
    )


def _closer(asked: Sequence[Plan], differing: DataFrame) -> list[Plan]:
    """The plans, narrowed to what differs by closer digests.

    Args:
        differing: As :func:`spark_jobs.compare.first` returns it.
    """
    rows = differing.collect()
    islands = islands_of(rows, CLOSER_PLACES)
    islands_of_log = {TopicPartition(row.topic, row.partition): row.rows for row in rows}

    def closer(context_ranges: int) -> list[Plan]:
        found = []
        for plan in asked:
            some = [island.places for island in islands.get(plan.log.name, ())]
            if not some:
                known = NOWHERE if len(rows) == ISLANDS_MAX else None
            else:
                known = some[-1].end if islands_of_log[plan.log.name] > len(some) else None
            found.append(plan.closer(some, CLOSER_PLACES, context_ranges, known))
        return found

    found = closer(CONTEXT_RANGES)
    return found if _places(found) <= NAMED_MAX else limited(closer(0), NAMED_MAX, CLOSER_PLACES)


def _counts(plans: Iterable[Plan], ranges: DataFrame) -> Counts:
    """How many records the source has in each gap, for the plans of shifted logs.

    Args:
        ranges: As :func:`spark_jobs.compare.counted` takes them.
    """
    shifted = {plan.log.name: plan for plan in plans if plan.is_shifted}
    if not shifted:
        return {}
    starts = [(*name, at, start) for name, plan in shifted.items() for at, start in enumerate(_starts(plan))]
    schema = "topic string, partition int, section int, place long"
    rows = compare.counted(ranges, ranges.sparkSession.createDataFrame(starts, schema)).collect()
    known = {(row.topic, row.partition, row.section): row.records for row in rows}
    return {
        name: [known[(*name, 2 * at)] for at in range(len(plan.stretches) + 1)]
        for name, plan in shifted.items()
    }


def _starts(plan: Plan) -> list[int]:
    """Where its gaps and its stretches start, in turns."""
    return [NOWHERE, *(at for one in plan.stretches for at in one)]


def _together(roughly: DataFrame, closely: DataFrame) -> DataFrame:
    """Ranges with their records: closely where they are known so, else roughly."""
    start = F.col("place") - F.pmod("place", F.lit(RANGE_PLACES))
    known = closely.select(*compare.PARTITION, start.alias("place")).distinct()
    return roughly.join(known, [*compare.PARTITION, "place"], "left_anti").unionByName(closely)
