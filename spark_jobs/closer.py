"""What is read again of logs that differ, and how closely.

Ranges that differ are read whole where they are few. Where they are many they are digested once more, in
ranges of a few places, and only those of them that differ are read: what scattered differences cost, and what
the driver has to hold, depends on how many there are and not on how far from each other they are.
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
"""Places of a side in ranges that are read whole, at most."""
CLOSER_PLACES = 8
"""Places of a digest, where there are more."""
CLOSER_MAX = 64_000_000
"""Places of a side that are digested closer, at most: what differs beyond is counted and not named."""
NAMED_MAX = 500_000
"""Places of a side whose records the driver holds, at most: what differs beyond is counted and not named."""
ISLANDS_MAX = NAMED_MAX // CLOSER_PLACES
"""Rows of them that differ."""

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
    """How each log is looked at; and of those that are shifted, the records of the source in each gap.

    Args:
        islands: Ranges that differ under the shifts.
        source: Digests of all that is compared.

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
    """Of what the plans read, on both sides, as if nothing were shifted."""
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
    """The same plans for what differs by closer digests.

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
    """How many records the source has in each gap of the plans of logs that are shifted.

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
    """Of its gaps and its stretches, in turns."""
    return [NOWHERE, *(at for one in plan.stretches for at in one)]


def _together(roughly: DataFrame, closely: DataFrame) -> DataFrame:
    """Ranges as they are known best."""
    start = F.col("place") - F.pmod("place", F.lit(RANGE_PLACES))
    known = closely.select(*compare.PARTITION, start.alias("place")).distinct()
    return roughly.join(known, [*compare.PARTITION, "place"], "left_anti").unionByName(closely)
