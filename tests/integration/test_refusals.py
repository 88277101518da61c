"""What target brokers refuse of sound records, by the reason that a partition shows for it."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import pytest
from kafka.record.default_records import DefaultRecordBatchBuilder

from mirror.kafka.log_port import TopicLog
from mirror.kafka.transactions import Token, init_producer_id
from tests.conftest import TopicFactory
from tests.contract.connected import connected
from tests.faults import flows
from tests.harness.checker import assert_exact, watermarks
from tests.harness.data import Row, json_rows
from tests.harness.kafka import KafkaCluster
from tests.harness.loading import load
from tests.harness.process import Twinsite

pytestmark = pytest.mark.timeout(120)


def mirror_of(source: KafkaCluster, target: KafkaCluster, topic: str, folder: Path) -> tuple[str, ...]:
    """A mirror of one topic, whose settings at the target are left alone."""
    topics = {"include": [re.escape(topic)], "sync_configs": False}
    return flows.configured(folder, source, target, topic, topics=topics)


async def test_records_without_a_key_that_a_compacted_topic_refuses(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    The reason says which of many things INVALID_RECORD may mean; without compaction it goes on.
    """
    name = await topic(source)
    load(source.bootstrap, name, (Row(key=None, value=row.value) for row in json_rows(20, 100)))
    await target.create_topic(name, config={"cleanup.policy": "compact"})

    with Twinsite.run(*mirror_of(source, target, name, tmp_path), work_dir=tmp_path) as mirror:
        refused = await flows.says(mirror, name, "BLOCKED", "null_key_refused")
        await target.alter_topic(name, {"cleanup.policy": "delete"})
        await mirror.wait_for(partial(flows.complete, mirror, source, [name]), "all is copied")

    assert "compact" in refused["hint"]
    assert_exact(source.bootstrap, target.bootstrap, [name])


async def test_records_that_are_too_old_for_a_topic_that_minds(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    The hint names the setting of the target topic; with a larger one it goes on.
    """
    name = await topic(source)
    old = (Row(key=row.key, value=row.value, timestamp_ms=1_700_000_000_000) for row in json_rows(20, 100))
    load(source.bootstrap, name, old)
    await target.create_topic(name, config={"message.timestamp.before.max.ms": 1000})

    with Twinsite.run(*mirror_of(source, target, name, tmp_path), work_dir=tmp_path) as mirror:
        refused = await flows.says(mirror, name, "BLOCKED", "timestamp_refused")
        untouched = watermarks(target.bootstrap, name)
        await target.alter_topic(name, {"message.timestamp.before.max.ms": None})
        await mirror.wait_for(partial(flows.complete, mirror, source, [name]), "all is copied")

    assert "message.timestamp.before.max.ms" in refused["hint"]
    assert untouched == {0: (0, 0)}
    assert_exact(source.bootstrap, target.bootstrap, [name])


async def test_a_mirror_writes_no_more_where_a_newer_epoch_has_written(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    Somebody raises the epoch of the flow's producer id and writes with it: the broker refuses ours, for good.
    """
    name = await topic(source)
    load(source.bootstrap, name, json_rows(20, 100))
    command = flows.mirror_of(source, target, re.escape(name), name)
    with Twinsite.run(*command, work_dir=tmp_path) as mirror:
        await mirror.wait_for(lambda: flows.reached(mirror, name) == 20, "all is copied")
        async with connected(target) as cluster:
            newer = await init_producer_id(cluster, f"twinsite.{name}")
            await TopicLog(cluster, name).append(one_record_of(newer))
        load(source.bootstrap, name, json_rows(20, 100, seed=2))

        deposed = await flows.says(mirror, name, "FENCED", "newer_epoch")

    assert "Stop this mirror" in deposed["hint"]
    assert watermarks(target.bootstrap, name) == {0: (0, 21)}
    assert deposed["next_offset"] in {20, 21}  # 21 where it stood by first, as another one writes


def one_record_of(writer: Token) -> bytes:
    """A batch that begins the sequence of an epoch."""
    builder = DefaultRecordBatchBuilder(2, 0, False, *writer, 0, 1024)
    builder.append(0, 1_700_000_000_000, b"key", b"value", [])
    return bytes(builder.build())
