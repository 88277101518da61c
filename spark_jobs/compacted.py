"""Compare compacted logs: the latest record of each key, whatever older records are still there.

Each site keeps a row for every key it has a record of. It answers with digests of the keys that have a value,
in buckets; then with the keys of buckets that differ; then with the records of keys that differ. A deleted
key and an absent one are the same: the tombstone may already be gone on one side. Offsets do not matter, only
what the latest record of a key holds.

A key that was written to after the window is in flight: compaction may have removed its record in the window
on one side only. It is compared next time.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from mirror.model import TopicPartition
from spark_jobs.align import parts
from spark_jobs.asking import ByBuckets, ByLog, about_buckets, about_keys, about_keys_behind
from spark_jobs.buckets import differing, superseded
from spark_jobs.digest import key_columns
from spark_jobs.findings import Difference, Kind
from spark_jobs.hashes import words
from spark_jobs.logs import Compared, Finding, Log
from spark_jobs.naming import Side
from spark_jobs.questions import Question, Ranges, What
from spark_jobs.rows import sides
from spark_jobs.sites import Sites, with_totals
from spark_jobs.stretches import joined
from spark_jobs.window import Range

KEYS_MAX = 500_000
"""The most keys that differ and are named."""


@dataclass(frozen=True, slots=True)
class Latest:
    """The latest record of a key at one site.

    Attributes:
        place: The target offset at which it stands, or should stand.
        alive: It has a value, and is no tombstone.
    """

    offset: int
    place: int
    alive: bool


def kind_of(source: Latest | None, target: Latest | None, *, is_foreign: bool) -> Kind:
    """How the sites differ on a key that has a value at one of them, and not the same at both.

    Args:
        is_foreign: The target's record cannot be a copy of one that the source once had.
    """
    if target is None:
        return Kind.MISSING
    if source is None:
        return Kind.EXTRA if is_foreign else Kind.RESURRECTED
    if not source.alive:
        return Kind.NOT_YET_DELETED if target.place < source.place else Kind.RESURRECTED
    if target.place == source.place:
        return Kind.CHANGED
    return Kind.STALE if target.place < source.place else Kind.EXTRA


# -- frames --------------------------------------------------------------------------------------


def differing_keys(source: DataFrame, target: DataFrame) -> DataFrame:
    """The keys on which the sites differ.

    Args:
        source, target: As :func:`spark_jobs.digest.latest` returns them; topics called as at the source.

    Returns:
        The :func:`key_columns`, and structs ``here`` and ``there`` (``offset``, ``place``, ``alive``), null
        where a site has no record of the key.
    """
    here, there = _named(source, "here"), _named(target, "there")
    both = here.join(there, key_columns(here), "full_outer")
    content = words(source, "content")
    return both.where(~_value("here", content).eqNullSafe(_value("there", content)))


def _named(keys: DataFrame, name: str) -> DataFrame:
    columns = ("offset", "place", "alive", *words(keys, "content"))
    return keys.select(*key_columns(keys), F.struct(*columns).alias(name))


def _value(side: str, content: Sequence[str]) -> Column:
    """The content of a key's latest record at a site; null where it is deleted, or was never there."""
    said = F.struct(*(f"{side}.{word}" for word in content))
    return F.when(F.col(f"{side}.alive"), said)


def first_keys(keys: DataFrame, count: int) -> DataFrame:
    """The first ``count`` keys on which the sites differ: always the same ones, as a folder that is carried
    holds the answers about them.

    Args:
        keys: As :func:`differing_keys` returns them.
    """
    place = F.coalesce("here.place", "there.place")
    return keys.orderBy("topic", "partition", place, *words(keys, "key")).limit(count)


# -- the job -------------------------------------------------------------------------------------


def compare_compacted(sites: Sites, logs: Sequence[Log]) -> list[Compared]:
    """What differs between the sites, for each log.

    Raises:
        PySparkException, SparkFailedError: A site could not be read as asked; nothing is concluded.
        UnansweredError: A site has not answered yet.
    """
    if not logs:
        return []
    source, target = sites.ask(*about_buckets(logs, sites.hashing))
    buckets = differing(source, target)
    named: dict[TopicPartition, Compared] = {}
    if buckets:
        named = _compare_keys(sites, [log for log in logs if log.name in buckets], buckets)
    found = with_totals([named.get(log.name, Compared(log=log)) for log in logs], source, target)
    here, there = superseded(source), superseded(target)
    return [replace(one, superseded=(here.get(one.log.name, 0), there.get(one.log.name, 0))) for one in found]


def _compare_keys(sites: Sites, logs: Sequence[Log], buckets: ByBuckets) -> dict[TopicPartition, Compared]:
    """What differs among the keys in some buckets, for each log; keys in flight are left out."""
    (source, target), (behind_source, behind_target) = sites.ask_each(
        about_keys(logs, sites.hashing, buckets), about_keys_behind(logs, sites.hashing, buckets)
    )
    found = differing_keys(source, target).cache()
    in_flight, key = behind_source.unionByName(behind_target), key_columns(behind_source)
    flying = _by_log(found.join(in_flight, key, "left_semi"))
    standing = found.join(in_flight, key, "left_anti").cache()
    counts = _by_log(standing)
    findings = _findings(sites, logs, first_keys(standing, KEYS_MAX).collect())
    return {
        log.name: Compared(
            log=log,
            findings=findings[log.name],
            contradicts=not counts[log.name] and not flying[log.name],
            keys_unnamed=counts[log.name] - len(findings[log.name]),
            ranges_differing=sum(some.offsets for some in buckets[log.name].ranges),
            in_flight=flying[log.name],
            read_again=sites.again[log.name],
        )
        for log in logs
    }


def _findings(
    sites: Sites, logs: Sequence[Log], rows: Sequence[Any]
) -> Mapping[TopicPartition, list[Finding]]:
    """How keys differ, by log."""
    findings: defaultdict[TopicPartition, list[Finding]] = defaultdict(list)
    by_name = {log.name: log for log in logs}
    if not rows:
        return findings
    what, hashing = What.RECORDS, sites.hashing
    source, target = sites.ask_closer(
        Question(name="records-of-keys", what=what, ranges=_source_offsets(rows, by_name), hashing=hashing),
        Question(name="records-of-keys", what=what, ranges=_target_offsets(rows), hashing=hashing),
    )
    here, there = sides(source), sides(target)
    for row in rows:
        log = by_name[TopicPartition(row.topic, row.partition)]
        findings[log.name].append(_finding(row, log, here.get(log.name, Side()), there.get(log.name, Side())))
    return findings


def _by_log(frame: DataFrame) -> Counter[TopicPartition]:
    rows = frame.groupBy("topic", "partition").count().collect()
    return Counter({TopicPartition(row.topic, row.partition): row["count"] for row in rows})


def _source_offsets(rows: Iterable[Any], logs: ByLog) -> Ranges:
    """Where the source's records are, or would be where only the target has one."""
    found: defaultdict[TopicPartition, list[Range]] = defaultdict(list)
    for row in rows:
        log = logs[TopicPartition(row.topic, row.partition)]
        one = log.source_offsets(_one(row.there.place)) if row.here is None else _one(row.here.offset)
        found[log.name].append(one)
    return {name: joined(some) for name, some in found.items()}


def _target_offsets(rows: Iterable[Any]) -> Ranges:
    """Where the target's records are."""
    found: defaultdict[TopicPartition, list[Range]] = defaultdict(list)
    for row in rows:
        if row.there is not None:
            found[TopicPartition(row.topic, row.partition)].append(_one(row.there.offset))
    return {name: joined(some) for name, some in found.items()}


def _one(at: int) -> Range:
    return Range(at, at + 1)


def _finding(row: Any, log: Log, source: Side, target: Side) -> Finding:
    here, there = _latest(row.here), _latest(row.there)
    kind = kind_of(here, there, is_foreign=there is not None and _is_foreign(there, log, source))
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


def _is_foreign(target: Latest, log: Log, source: Side) -> bool:
    """Whether the target's record cannot be a copy: the source ends before its place, or has another record
    there.
    """
    if target.place >= log.source_end_place:
        return True
    return bool(source.within(log.source_offsets(_one(target.place))))


def _latest(row: Any) -> Latest | None:
    return None if row is None else Latest(row.offset, row.place, row.alive)
