"""Brokers serve what the harness puts on their disks."""

from __future__ import annotations

import gzip
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path

import lz4.frame
import pytest
import pytest_asyncio
from confluent_kafka import Consumer, KafkaException, TopicPartition

from tests.conftest import TopicFactory
from tests.harness.checker import read_partition, watermarks
from tests.harness.data import Row, json_rows
from tests.harness.kafka import KafkaCluster
from tests.harness.loading import load
from tests.harness.segments import (
    Files,
    OldCodec,
    StoredBatch,
    batches_in,
    damage,
    old_message_set,
    serve_segments,
    stored_batches,
)

pytestmark = pytest.mark.timeout(240)

GZIP, LZ4, LOG_APPEND_TIME = 1, 3, 8
START_MS = 1_400_000_000_000
ROWS = [
    replace(row, timestamp_ms=START_MS + number, key=None if number % 4 == 0 else row.key)
    for number, row in enumerate(json_rows(12, 120))
]


@pytest_asyncio.fixture
async def old(tmp_path: Path) -> AsyncIterator[KafkaCluster]:
    """A broker of one's own, that may be stopped."""
    async with KafkaCluster.start(version="3.9", name="old", work_dir=tmp_path) as cluster:
        yield cluster


async def test_old_formats_are_served_with_their_offsets_and_times(old: KafkaCluster) -> None:
    """
    Message sets of both old formats and every codec, in two files that start at offset 100.
    """
    await old.create_topic("orders")
    codecs: tuple[OldCodec, ...] = ("none", "gzip", "snappy", "lz4")
    files = {
        100: b"".join(old_message_set(0, 100 + 12 * i, ROWS, codec) for i, codec in enumerate(codecs)),
        148: b"".join(old_message_set(1, 148 + 12 * i, ROWS, codec) for i, codec in enumerate(codecs)),
        196: old_message_set(1, 196, ROWS, "gzip", log_append_ms=START_MS + 99),
    }

    await serve_segments(old, "orders", files)

    records = list(read_partition(old.bootstrap, "orders", 0))
    assert watermarks(old.bootstrap, "orders") == {0: (100, 208)}
    assert [record.offset for record in records] == list(range(100, 208))
    assert [(record.key, record.value) for record in records] == [(row.key, row.value) for row in ROWS] * 9
    assert {record.timestamp_ms for record in records[:48]} == {-1}
    assert [record.timestamp_ms for record in records[48:96]] == [row.timestamp_ms for row in ROWS] * 4
    assert {record.timestamp_ms for record in records[96:]} == {START_MS + 99}
    assert {batch.magic for batch in stored_batches(old, "orders")} == {0, 1}


def test_logs_of_old_brokers_hold_what_the_harness_does_not_write(old_logs: Mapping[str, Files]) -> None:
    """
    LZ4 with the checksum of its time, gaps in compressed sets, and sets of one format within the other.
    """
    sets = {
        (name, batch.magic, batch.data[17]): batch
        for name, log in old_logs.items()
        for batch in batches_in(log)
    }

    for name in ("codecs", "cleaned-v0", "broker-lz4"):
        with pytest.raises(RuntimeError, match="headerChecksum_invalid"):
            lz4.frame.decompress(_value(sets[name, 0, LZ4]))
    for name in ("codecs", "cleaned-v1", "broker-lz4"):
        assert lz4.frame.decompress(_value(sets[name, 1, LZ4]))
    for magic, inner in (0, range(16, 31, 2)), (1, range(0, 15, 2)):
        left = batches_in({0: gzip.decompress(_value(sets[f"cleaned-v{magic}", magic, GZIP]))})
        assert [(batch.magic, batch.offset) for batch in left] == [(magic, offset) for offset in inner]
    across = sets["cleaned-across", 1, GZIP | LOG_APPEND_TIME]
    assert across.data[18:26] == (-1).to_bytes(8, "big", signed=True)
    left = batches_in({0: gzip.decompress(_value(across))})
    assert [(batch.magic, batch.offset) for batch in left] == [(0, offset) for offset in range(0, 15, 2)]


def _value(batch: StoredBatch) -> bytes:
    """The compressed messages of a set: it has no key."""
    return batch.data[26 if batch.magic == 0 else 34 :]


async def test_a_damaged_batch_is_handed_out_and_found_by_its_crc(
    source: KafkaCluster, topic: TopicFactory
) -> None:
    """
    The broker does not notice; a consumer that checks does.
    """
    name = await topic(source)
    load(source.bootstrap, name, [Row(key=b"k", value=b"v" * 100)])
    (batch,) = stored_batches(source, name)

    damage(batch)

    settings = {"bootstrap.servers": source.bootstrap, "group.id": "g", "check.crcs": True, "log_level": 0}
    consumer = Consumer(settings)
    try:
        consumer.assign([TopicPartition(name, 0, 0)])
        message = consumer.poll(30)
        assert message is not None
        with pytest.raises(KafkaException, match="CRC"):
            raise KafkaException(message.error())
    finally:
        consumer.close()
