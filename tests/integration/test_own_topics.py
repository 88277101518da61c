"""Whose topics a running mirror changes: settings and partitions of its own, and of nobody else."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewPartitions

from mirror import service
from mirror.config import Settings, parse
from mirror.model import FlowStatus, OffsetMode, PartitionStatus, Reason, State
from tests.conftest import TopicFactory
from tests.harness.checker import assert_exact, watermarks
from tests.harness.data import json_rows, load
from tests.harness.kafka import KafkaCluster

pytestmark = pytest.mark.timeout(60)

SHORT = {"retention.ms": "3600000", "cleanup.policy": "delete"}
KEPT = {"retention.ms": "-1", "cleanup.policy": "compact"}


def settings(
    source: KafkaCluster, target: KafkaCluster, topic: str, topics: dict[str, Any] | None = None, **more: Any
) -> Settings:
    """A flow of its own for one topic, which looks for changes every second."""
    return parse(
        {
            "flow": topic,
            "source": {"bootstrap_servers": source.bootstrap},
            "target": {"bootstrap_servers": target.bootstrap},
            "topics": {"include": [re.escape(topic)], "refresh_seconds": 1} | (topics or {}),
            "api": {"port": -1},
        }
        | more
    )


async def mirror_once(wanted: Settings) -> dict[int, PartitionStatus]:
    status = await service.run(wanted, stop=asyncio.Event(), once=True, timeout_seconds=20)
    return {partition.partition: partition for partition in status.partitions}


Condition = Callable[[dict[int, PartitionStatus]], bool]


@asynccontextmanager
async def running(wanted: Settings) -> AsyncIterator[Callable[[Condition], Awaitable[None]]]:
    """A mirror that runs; what is given waits until its partitions are as wanted."""
    stop, heard = asyncio.Event(), asyncio.Event()
    seen: dict[int, PartitionStatus] = {}

    def hear(status: FlowStatus) -> None:
        seen.update({partition.partition: partition for partition in status.partitions})
        heard.set()

    async def until(condition: Condition) -> None:
        async with asyncio.timeout(20):
            while not (seen and condition(seen)):
                heard.clear()
                await heard.wait()

    mirror = asyncio.create_task(service.run(wanted, stop=stop, on_status=hear))
    try:
        yield until
    finally:
        stop.set()
        await mirror


def states(partitions: dict[int, PartitionStatus]) -> list[tuple[State, Reason | None]]:
    return [(partitions[number].state, partitions[number].reason) for number in sorted(partitions)]


def some_of(cluster: KafkaCluster, topic: str, wanted: dict[str, str]) -> dict[str, str]:
    """The settings of a topic that are compared."""
    found = cluster.topic_config(topic)
    return {key: found[key] for key in wanted}


def write_to(cluster: KafkaCluster, topic: str, partition: int, count: int) -> None:
    """Records in one partition."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    for number in range(count):
        producer.produce(topic, key=f"k{number}", value=f"{number}", partition=partition)
    assert producer.flush(20) == 0


# -- topics that are somebody else's -------------------------------------------------------------------


async def test_a_topic_of_which_one_partition_is_not_ours_keeps_its_settings(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory
) -> None:
    """
    An empty partition beside it is copied, also by a second run, which finds it in the flow's memory.
    """
    name = await topic(source, partitions=2, retention_ms=3_600_000)
    await target.create_topic(name, 2, config=KEPT)
    for partition in (0, 1):
        write_to(source, name, partition, 5)
    write_to(target, name, 1, 3)
    wanted = settings(source, target, name)
    expected = [(State.ACTIVE, None), (State.BLOCKED, Reason.TARGET_NOT_EMPTY)]

    for _ in range(2):
        async with running(wanted) as until:
            await until(lambda seen: states(seen) == expected)

    assert some_of(target, name, KEPT) == KEPT
    assert watermarks(target.bootstrap, name) == {0: (0, 5), 1: (0, 3)}


async def test_the_old_copy_of_a_topic_made_again_keeps_its_settings(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory
) -> None:
    """
    It may be all that is left of the old topic; the new one's settings are not its own.
    """
    name = await topic(source)
    load(source.bootstrap, name, json_rows(20, 50))
    wanted = settings(source, target, name)
    await mirror_once(wanted)
    await target.alter_topic(name, KEPT)
    await source.delete_topic(name)
    await source.create_topic(name, 3, config=SHORT)

    after = await mirror_once(wanted)

    assert after[0].state is State.TOPIC_RECREATED
    assert some_of(target, name, KEPT) == KEPT
    assert watermarks(target.bootstrap, name) == {0: (0, 20)}


async def test_records_that_were_there_before_a_mapped_copy_keep_their_settings(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory
) -> None:
    """
    With mapped offsets the copy stands behind them; both runs leave the topic's settings alone.
    """
    name = await topic(source, retention_ms=3_600_000)
    await target.create_topic(name, 1, config=KEPT)
    write_to(target, name, 0, 3)
    load(source.bootstrap, name, json_rows(20, 50))
    wanted = settings(source, target, name, offsets="mapped")

    for _ in range(2):
        async with running(wanted) as until:
            await until(lambda seen: len(seen) == 1 and seen[0].offset_mode is OffsetMode.MAPPED)

    assert some_of(target, name, KEPT) == KEPT
    assert watermarks(target.bootstrap, name) == {0: (0, 23)}


# -- topics of the flow --------------------------------------------------------------------------------


async def test_an_empty_topic_made_by_somebody_gets_its_settings_once_it_is_ours(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory
) -> None:
    """
    Also in a copy that ends: all that a topic needs is there when it has ended.
    """
    name = await topic(source, retention_ms=3_600_000)
    await target.create_topic(name, 1, config=KEPT)
    load(source.bootstrap, name, json_rows(20, 50))

    done = await mirror_once(settings(source, target, name))

    assert done[0].state is State.ACTIVE
    assert some_of(target, name, SHORT) == SHORT
    assert_exact(source.bootstrap, target.bootstrap, [name])


async def test_a_setting_changed_at_the_source_reaches_the_target_of_a_running_mirror(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory
) -> None:
    """
    What this run made is followed, and what an earlier run made too; added partitions are added.
    """
    name = await topic(source, retention_ms=3_600_000)
    wanted = settings(source, target, name)

    def has_become(partitions: int, retention_ms: str) -> Condition:
        return lambda seen: (
            (len(seen), target.topic_config(name)["retention.ms"]) == (partitions, retention_ms)
        )

    for number, value in enumerate(["7200000", "7300000"], 2):
        async with running(wanted) as until:
            await until(lambda seen: {state for state, _ in states(seen)} == {State.ACTIVE})
            await source.alter_topic(name, {"retention.ms": value})
            source.admin.create_partitions([NewPartitions(name, number)])[name].result()
            await until(has_become(number, value))

    assert target.topic_config(name)["retention.ms"] == "7300000"
    assert len(watermarks(target.bootstrap, name)) == 3
