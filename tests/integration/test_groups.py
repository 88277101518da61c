"""A consumer group that moves between the sites with nothing but the offsets it has committed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, TopicPartition

from tests.conftest import TopicFactory
from tests.faults.flows import once
from tests.harness.checker import read_partition
from tests.harness.data import json_rows
from tests.harness.kafka import KafkaCluster
from tests.harness.loading import load_interleaved
from tests.harness.process import twinsite

pytestmark = pytest.mark.timeout(120)

PARTITIONS = 3
STARTS_AT = 20
Place = tuple[int, int, bytes | None]
"""Partition, offset and value of a record that a member of the group was given."""


def consume(cluster: KafkaCluster, group: str, topic: str, count: int) -> list[Place]:
    """Join the group, take so many records, commit behind them and leave."""
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": group,
            "auto.offset.reset": "error",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "isolation.level": "read_committed",
        }
    )
    taken: list[Place] = []
    try:
        consumer.subscribe([topic])
        while len(taken) < count:
            message = consumer.poll(30)
            assert message is not None, f"{len(taken)} of {count} records have come"
            assert message.error() is None, message.error()
            taken.append((message.partition(), message.offset(), message.value()))
            consumer.store_offsets(message)
        consumer.commit(asynchronous=False)
    finally:
        consumer.close()
    return taken


def committed(cluster: KafkaCluster, group: str) -> list[TopicPartition]:
    """What the group has committed at a cluster."""
    asked = cluster.admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])
    found = asked[group].result().topic_partitions
    return [TopicPartition(one.topic, one.partition, one.offset) for one in found]


def commit(cluster: KafkaCluster, group: str, offsets: list[TopicPartition]) -> None:
    """Set the group's offsets, as kafka-consumer-groups.sh --reset-offsets does."""
    wanted = ConsumerGroupTopicPartitions(group, offsets)
    cluster.admin.alter_consumer_group_offsets([wanted])[group].result()


async def test_a_group_goes_on_at_the_other_site_with_the_numbers_it_has_committed(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    There and back again, over aborted transactions and a late log start: each record once, none left out.
    """
    name = await topic(source, partitions=PARTITIONS)
    load_interleaved(source.bootstrap, name, json_rows(600, 100))
    source.delete_records(name, dict.fromkeys(range(PARTITIONS), STARTS_AT))
    commit(source, name, [TopicPartition(name, number, STARTS_AT) for number in range(PARTITIONS)])
    done = await twinsite(*once(source, target, re.escape(name), name), work_dir=tmp_path)
    assert done.code == 0, done.stderr
    everything = {
        (number, record.offset, record.value)
        for number in range(PARTITIONS)
        for record in read_partition(source.bootstrap, name, number)
    }
    third = len(everything) // 3

    taken = consume(source, name, name, third)
    commit(target, name, committed(source, name))
    taken += consume(target, name, name, third)
    commit(source, name, committed(target, name))
    taken += consume(source, name, name, len(everything) - 2 * third)

    assert len(taken) == len(everything)
    assert set(taken) == everything
    for number in range(PARTITIONS):
        offsets = [offset for partition, offset, _ in taken if partition == number]
        assert offsets == sorted(offsets)
