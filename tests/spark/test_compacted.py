"""Compacted topics: what each key says last, whatever else is still there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from mirror.model import TopicPartition
from mirror.proving.wanted import Wanted
from spark_jobs.algorithms import Algorithm, Hashing
from spark_jobs.findings import Kind, Part
from tests.conftest import TopicFactory
from tests.harness.daemon import until
from tests.harness.data import Row
from tests.harness.kafka import KafkaCluster
from tests.harness.loading import load
from tests.harness.segments import cleaned_up_to, segments
from tests.spark.sites import compared, settings_of

FILLER = Row(key=b"filler", value=b"", timestamp_ms=1_700_000_000_000)


def update(key: int, version: int) -> Row:
    return Row(key=b"k%d" % key, value=b"version %d" % version, timestamp_ms=1_700_000_000_000 + version)


def deletion(key: int, version: int) -> Row:
    return replace(update(key, version), value=None)


HISTORY = [
    *(update(key, 1) for key in range(200)),
    *(update(key, 2) for key in range(0, 200, 2)),
    *(deletion(key, 3) for key in range(0, 200, 10)),
]


async def topic_with(
    topic: TopicFactory, source: KafkaCluster, target: KafkaCluster, here: list[Row], there: list[Row]
) -> str:
    name = await topic(source, prefix="keyed", cleanup_policy="compact")
    await target.create_topic(name, config={"cleanup.policy": "compact"})
    load(source.bootstrap, name, here)
    load(target.bootstrap, name, there)
    return name


async def test_keys_that_say_the_same_match_whatever_is_left_of_their_past(
    spark: SparkSession, source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    The target has compacted already, tombstones and all; the source has not.
    """
    last = {row.key: row for row in HISTORY}
    compact = [row for row in last.values() if row.value is not None]
    here, there = [*HISTORY, FILLER], [*compact, *[FILLER] * (len(HISTORY) - len(compact) + 1)]
    name = await topic_with(topic, source, target, here, there)

    found = await compared(spark, settings_of(source, target, name), tmp_path)

    result = found[TopicPartition(name, 0)]
    assert not result.findings
    assert result.source_records == result.target_records == 181
    assert result.superseded == (len(here) - 181, len(there) - 181)


@pytest.mark.parametrize("algorithm", Algorithm)
async def test_every_way_in_which_a_key_can_differ_is_named(
    algorithm: Algorithm,
    spark: SparkSession,
    source: KafkaCluster,
    target: KafkaCluster,
    topic: TopicFactory,
    tmp_path: Path,
) -> None:
    """
    What differs at a place of its own is written over in place, so that no offset moves.
    """
    there = list(HISTORY)
    at = {(row.key, row.timestamp_ms): index for index, row in enumerate(HISTORY)}

    def instead(key: int, version: int, row: Row) -> int:
        index = at[b"k%d" % key, 1_700_000_000_000 + version]
        there[index] = row
        return index

    changed = instead(1, 1, replace(update(1, 1), value=b"another"))
    late = instead(3, 1, replace(update(3, 1), timestamp_ms=5))
    stale = instead(2, 2, FILLER)
    undeleted = instead(10, 3, FILLER)
    missing = instead(5, 1, FILLER)
    end = len(HISTORY)
    there += [update(20, 7), update(777, 7), update(7, 7)]
    name = await topic_with(topic, source, target, [*HISTORY, FILLER], [*there[:end], FILLER, *there[end:]])
    wanted = Wanted(same_offsets=True, hashing=Hashing(algorithm, "salt"))

    found = await compared(spark, settings_of(source, target, name), tmp_path, wanted)

    named = {
        (finding.key, finding.difference.kind, finding.difference.source_offset, finding.difference.parts)
        for finding in found[TopicPartition(name, 0)].findings
    }
    deleted_20 = at[b"k20", 1_700_000_000_003]
    assert named == {
        (b"k1", Kind.CHANGED, changed, (Part.VALUE,)),
        (b"k3", Kind.CHANGED, late, (Part.TIMESTAMP,)),
        (b"k2", Kind.STALE, stale, ()),
        (b"k10", Kind.NOT_YET_DELETED, undeleted, ()),
        (b"k5", Kind.MISSING, missing, ()),
        (b"k20", Kind.RESURRECTED, deleted_20, ()),
        (b"k777", Kind.EXTRA, None, ()),
        (b"k7", Kind.EXTRA, at[b"k7", 1_700_000_000_001], ()),
    }


async def test_what_one_side_has_deleted_or_compacted_is_no_difference_and_counted_apart(
    spark: SparkSession, source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    The cleaner has been over the source alone, and the start of the log is gone there, or at the target.
    """
    prefix = "one-sided"
    cleaned = await topic(
        source,
        prefix=prefix,
        cleanup_policy="compact",
        min_cleanable_dirty_ratio=0,
        segment_bytes=4_000,
        max_message_bytes=3_000,
        delete_retention_ms=0,
    )
    keyed = [await topic(source, prefix=prefix, cleanup_policy="compact,delete") for _ in range(2)]
    plain = [await topic(source, prefix=prefix) for _ in range(2)]
    behind = [update(key, 1) for key in range(1_000, 1_300)]  # the last segment is never compacted
    rows = [replace(row, partition=0) for row in [*HISTORY, *behind]]
    for name in (cleaned, *keyed, *plain):
        await target.create_topic(name, config={"cleanup.policy": "compact"} if name == cleaned else None)
        for cluster in (source, target):
            load(cluster.bootstrap, name, rows, batch_size=1_000)
    for at, cluster in enumerate((source, target)):
        for name in (keyed[at], plain[at]):
            cluster.delete_records(name, {0: 50})
    active = int(segments(source, cleaned)[-1].stem)
    await until(lambda: cleaned_up_to(source, cleaned) == active > 0, "the source has compacted")

    found = await compared(spark, settings_of(source, target, f"{prefix}-.*"), tmp_path)

    assert all(one.is_match and not one.in_flight for one in found.values()), found
    for at, expected in enumerate([(50, 0), (0, 50)]):
        for name in (keyed[at], plain[at]):
            window = found[TopicPartition(name, 0)].log.window
            assert (window.expired_at_source.offsets, window.expired_at_target.offsets) == expected
    here, there = found[TopicPartition(cleaned, 0)].superseded
    assert here < there == len(rows) - found[TopicPartition(cleaned, 0)].target_records


async def test_records_without_a_key_are_not_compacted_yet(
    spark: SparkSession, source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    From before the topic was compacted: each site's cleaner takes them away when it comes there. An empty key
    is a key.
    """
    keyless, empty = Row(key=None, value=b"of none", timestamp_ms=1), Row(key=b"", value=b"1", timestamp_ms=1)
    name = await topic(source, prefix="keyless")
    await target.create_topic(name)
    load(source.bootstrap, name, [keyless, empty, FILLER, FILLER])
    load(target.bootstrap, name, [FILLER, empty, keyless, keyless, FILLER])
    for cluster in (source, target):
        await cluster.alter_topic(name, {"cleanup.policy": "compact"})

    found = await compared(spark, settings_of(source, target, name), tmp_path)

    result = found[TopicPartition(name, 0)]
    assert [(one.difference.kind, one.key) for one in result.findings] == []
    assert (result.source_records, result.target_records) == (2, 2)
    assert result.superseded == (2, 3)


async def test_a_key_that_is_written_to_meanwhile_is_compared_next_time(
    spark: SparkSession, source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    Its record in the window is gone from one side only: the newer one has taken its place there.
    """
    here = [update(1, 1), update(2, 1), update(1, 2), update(2, 2)]
    name = await topic_with(topic, source, target, here, [update(1, 1), update(1, 1), update(1, 2)])

    found = await compared(spark, settings_of(source, target, name), tmp_path)

    result = found[TopicPartition(name, 0)]
    assert not result.findings
    assert result.in_flight == 1
