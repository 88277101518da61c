"""The loaders write what they say, and the checker reads it back from real brokers."""

from __future__ import annotations

import pytest

from tests.conftest import TopicFactory
from tests.harness.checker import assert_exact, read_partition
from tests.harness.data import NotLoadedError, Row, debian_packages, edge_rows, json_rows
from tests.harness.judging import NotExactError
from tests.harness.kafka import KafkaCluster
from tests.harness.loading import (
    CODECS,
    load,
    load_compacted,
    load_every_codec,
    load_interleaved,
    load_transactions,
)

pytestmark = pytest.mark.timeout(120)


def copied(bootstrap: str, topic: str, partition: int) -> list[Row]:
    """What a partition holds, to be written to the same partition elsewhere."""
    return [
        Row(
            key=record.key,
            value=record.value,
            headers=record.headers,
            timestamp_ms=record.timestamp_ms,
            partition=partition,
        )
        for record in read_partition(bootstrap, topic, partition)
    ]


async def test_the_package_index_arrives_stanza_by_stanza(source: KafkaCluster, topic: TopicFactory) -> None:
    """
    Name as key, stanza as value, in order.
    """
    name = await topic(source)

    written = load(source.bootstrap, name, debian_packages(500), "zstd")

    records = list(read_partition(source.bootstrap, name, 0))
    assert written == len(records) == 500
    assert all(record.value.startswith(b"Package: %s\n" % record.key) for record in records if record.value)


async def test_edge_records_of_every_codec_come_back_as_written(
    source: KafkaCluster, topic: TopicFactory
) -> None:
    """
    Null and empty keys and values, repeated and empty headers, timestamps that go back.
    """
    name = await topic(source)

    load_every_codec(source.bootstrap, name, edge_rows())

    rows = [
        Row(key=record.key, value=record.value, headers=record.headers, timestamp_ms=record.timestamp_ms)
        for record in read_partition(source.bootstrap, name, 0)
    ]
    assert rows == edge_rows() * len(CODECS)


async def test_aborted_records_are_in_the_log_and_not_read(source: KafkaCluster, topic: TopicFactory) -> None:
    """
    A reader of committed records sees each once, at offsets with gaps.
    """
    name = await topic(source)

    committed = load_transactions(source.bootstrap, name, json_rows(100), 10, 2)

    offsets = [record.offset for record in read_partition(source.bootstrap, name, 0)]
    assert committed == len(offsets) == 100
    assert offsets[-1] == 100 + 5 * 10 + 10 + 5 - 2


async def test_interleaved_producers_commit_two_of_three(source: KafkaCluster, topic: TopicFactory) -> None:
    """
    The third producer's records lie between the others' and are never read.
    """
    name = await topic(source)

    committed = load_interleaved(source.bootstrap, name, json_rows(90))

    keys = [record.key for record in read_partition(source.bootstrap, name, 0)]
    assert committed == len(keys) == 60
    assert keys[19:21] == [b"%012d" % 19, b"%012d" % 30]


async def test_a_refused_record_is_an_error(source: KafkaCluster, topic: TopicFactory) -> None:
    """
    A compacted topic takes no record without a key, and the loader says so.
    """
    name = await topic(source, cleanup_policy="compact")

    with pytest.raises(NotLoadedError):
        load(source.bootstrap, name, [Row(key=None, value=b"v")])


async def test_the_checker_passes_equal_topics_and_finds_a_lost_tombstone(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory
) -> None:
    """
    Two clusters written alike are exact; one record less on one partition is found.
    """
    name = await topic(source, partitions=2)
    await target.create_topic(name, partitions=2)
    rows = [Row(key=row.key, value=row.value, timestamp_ms=1_700_000_000_000) for row in json_rows(300)]
    rows_with_tombstones = load_compacted(source.bootstrap, name, rows[:100], 10)
    for partition in (0, 1):
        load(target.bootstrap, name, copied(source.bootstrap, name, partition))

    assert assert_exact(source.bootstrap, target.bootstrap, [name]) == rows_with_tombstones == 110

    load(source.bootstrap, name, [Row(key=b"last", value=None, partition=1)])
    with pytest.raises(NotExactError, match=f"{name}-1: lost source"):
        assert_exact(source.bootstrap, target.bootstrap, [name])
