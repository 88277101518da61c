"""Compare compacted logs: the latest record of each key, whatever else there still is.

Each site keeps a row for every key it has a record of; digests of the keys that are alive, in buckets, are
compared, then the keys of the buckets that differ. Deleted and not there is the same: a tombstone may be gone
on one side already. So is a record at another offset: what counts is what the key says.

A key that has been written to behind the window is in flight: its record in the window may be gone from one
side only, because it was compacted. It is compared next time.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from mirror.model import TopicPartition
from spark_jobs import compare
from spark_jobs.align import parts
from spark_jobs.asking import about_keys
from spark_jobs.digest import digests_of_keys, key_columns
from spark_jobs.findings import Difference, Kind
from spark_jobs.hashes import words
from spark_jobs.logs import Compared, Finding, Log
from spark_jobs.naming import Side
from spark_jobs.questions import Question, What
from spark_jobs.rows import sides
from spark_jobs.sites import Sites, with_totals
from spark_jobs.stretches import joined
from spark_jobs.window import ALL, Range

KEYS_MAX = 500_000
"""Keys that differ and are named, at most."""


@dataclass(frozen=True, slots=True)
class Latest:
    """The latest record of a key at one site.

    Attributes:
        place: Where it stands, or has to.
        alive: It has a value, and is no tombstone.
    """

    offset: int
    place: int
    alive: bool


def kind_of(source: Latest | None, target: Latest | None, source_end: int) -> Kind:
    """In what the sites differ on a key that has a value at one of them, and not the same at both.

    Args:
        source_end: The place of the source's next record: what stands there or behind it was never its own.
    """
    if target is None:
        return Kind.MISSING
    if source is None:
        return Kind.RESURRECTED if target.place < source_end else Kind.EXTRA
    if not source.alive:
        return Kind.NOT_YET_DELETED if target.place < source.place else Kind.RESURRECTED
    if target.place == source.place:
        return Kind.CHANGED
    return Kind.STALE if target.place < source.place else Kind.EXTRA


# -- frames --------------------------------------------------------------------------------------


def differing_keys(source: DataFrame, target: DataFrame, buckets: DataFrame) -> DataFrame:
    """The keys on which the sites differ.

    Args:
        source, target: As :func:`latest` returns them; topics called as at the source.
        buckets: Those that differ, as :func:`spark_jobs.compare.islands` returns them.

    Returns:
        The :func:`key_columns`, and structs ``here`` and ``there`` (``offset``, ``place``, ``alive``), null
        where a site has no record of the key.
    """
    here, there = _of_buckets(source, buckets, "here"), _of_buckets(target, buckets, "there")
    both = here.join(there, key_columns(here), "full_outer")
    content = words(source, "content")
    return both.where(~_value("here", content).eqNullSafe(_value("there", content)))


def _of_buckets(keys: DataFrame, buckets: DataFrame, name: str) -> DataFrame:
    joined = keys.join(F.broadcast(buckets), ["topic", "partition"])
    some = joined.where(F.col("bucket").between(F.col("first"), F.col("last")))
    columns = ("offset", "place", "alive", *words(keys, "content"))
    return some.select(*key_columns(keys), F.struct(*columns).alias(name))


def _value(side: str, content: Sequence[str]) -> Column:
    """What a site says of a key: nothing where it is deleted, or was never there."""
    said = F.struct(*(f"{side}.{word}" for word in content))
    return F.when(F.col(f"{side}.alive"), said)


# -- the job -------------------------------------------------------------------------------------


def compare_compacted(sites: Sites, logs: Sequence[Log]) -> list[Compared]:
    """What differs between the sites, for each log.

    Raises:
        PySparkException: A site could not be read as asked; nothing is concluded.
    """
    if not logs:
        return []
    source, target = sites.ask(*about_keys(logs, sites.hashing))
    here, there = digests_of_keys(source).cache(), digests_of_keys(target).cache()
    found = differing_keys(source, target, compare.islands(here, there)).cache()
    named: dict[TopicPartition, Compared] = {}
    if not found.isEmpty():
        named = _name(sites, logs, found, _in_flight(sites, logs))
    return with_totals([named.get(log.name, Compared(log=log)) for log in logs], here, there)


def _in_flight(sites: Sites, logs: Sequence[Log]) -> DataFrame:
    """The :func:`key_columns` of all keys that were written to behind the window, at either site.

    Behind a log of the target that has lost its end there is nothing.
    """
    behind_here = {log.name: _behind(log) for log in logs}
    whole = [log for log in logs if not log.window.lost.offsets]
    behind_there = {log.name: [Range(log.target_read.end, ALL.end)] for log in whole}
    here, there = sites.ask(
        Question(name="keys-behind", what=What.KEYS_WRITTEN, ranges=behind_here, hashing=sites.hashing),
        Question(name="keys-behind", what=What.KEYS_WRITTEN, ranges=behind_there, hashing=sites.hashing),
    )
    return here.unionByName(there).select(*key_columns(here)).distinct()


def _behind(log: Log) -> list[Range]:
    """All source offsets behind the window: those that are known, which slices can be cut of, and others."""
    start, pending = log.window.source.end, log.window.pending
    known = Range(start, pending.end if pending.offsets else start)
    return [known, Range(known.end, ALL.end)]


def _name(
    sites: Sites, logs: Sequence[Log], found: DataFrame, in_flight: DataFrame
) -> dict[TopicPartition, Compared]:
    """Of each log what differs, and how many keys are in flight."""
    flying = _by_log(found.join(in_flight, key_columns(in_flight), "left_semi"))
    standing = found.join(in_flight, key_columns(in_flight), "left_anti").cache()
    counts = _by_log(standing)
    rows = standing.limit(KEYS_MAX).collect()
    what, hashing = What.RECORDS, sites.hashing
    source, target = sites.ask_closer(
        Question(name="records-of-keys", what=what, ranges=_offsets(rows, "here"), hashing=hashing),
        Question(name="records-of-keys", what=what, ranges=_offsets(rows, "there"), hashing=hashing),
    )
    here, there = sides(source), sides(target)
    findings: defaultdict[TopicPartition, list[Finding]] = defaultdict(list)
    ends = {log.name: log.source_end_place for log in logs}
    for row in rows:
        name = TopicPartition(row.topic, row.partition)
        one = _finding(row, here.get(name, Side()), there.get(name, Side()), ends[name])
        findings[name].append(one)
    return {
        log.name: Compared(
            log=log,
            findings=findings[log.name],
            keys_unnamed=counts[log.name] - len(findings[log.name]),
            in_flight=flying[log.name],
            read_again=sites.again[log.name],
        )
        for log in logs
    }


def _by_log(frame: DataFrame) -> Counter[TopicPartition]:
    rows = frame.groupBy("topic", "partition").count().collect()
    return Counter({TopicPartition(row.topic, row.partition): row["count"] for row in rows})


def _offsets(rows: Iterable[Any], side: str) -> dict[TopicPartition, list[Range]]:
    """Where the records of a side are."""
    found: defaultdict[TopicPartition, list[Range]] = defaultdict(list)
    for row in rows:
        if row[side] is not None:
            at = row[side].offset
            found[TopicPartition(row.topic, row.partition)].append(Range(at, at + 1))
    return {name: joined(some) for name, some in found.items()}


def _finding(row: Any, source: Side, target: Side, source_end: int) -> Finding:
    here, there = _latest(row.here), _latest(row.there)
    kind = kind_of(here, there, source_end)
    original = source.at(here.offset) if here else None
    copy = target.at(there.offset) if there else None
    keys = [side.keys.get(one.offset) for side, one in ((source, here), (target, there)) if one]
    difference = Difference(
        kind=kind,
        source_offset=here.offset if here else None,
        target_offset=there.offset if there else None,
        parts=parts(original, copy) if kind is Kind.CHANGED and original and copy else (),
    )
    return Finding(difference=difference, key=next((key for key in keys if key is not None), None))


def _latest(row: Any) -> Latest | None:
    return None if row is None else Latest(row.offset, row.place, row.alive)
