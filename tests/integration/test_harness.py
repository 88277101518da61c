"""The clusters of the harness do what the tests on them rely on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.conftest import TopicFactory
from tests.harness.daemon import free_ports
from tests.harness.jvm import JavaFailedError
from tests.harness.kafka import KafkaCluster
from tests.harness.zookeeper import ZooKeeperError, running_zookeeper

pytestmark = pytest.mark.timeout(120)


def write(bootstrap: str, topic: str, value: bytes) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    failed: list[object] = []
    producer.produce(
        topic, value, b"key", on_delivery=lambda error, _: failed.append(error) if error else None
    )
    assert producer.flush(30) == 0
    assert failed == []


async def test_a_created_topic_can_be_written_at_once_on_both_versions(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory
) -> None:
    """
    Whoever creates a topic may produce to it in the next line.
    """
    for cluster in (source, target):
        name = await topic(cluster, partitions=3, cleanup_policy="compact,delete")

        write(cluster.bootstrap, name, b"value")

        assert await cluster.leader(name) == 1
        assert any(file.stat().st_size for file in cluster.log_dir().glob(f"{name}-*/*.log"))


async def test_leaders_move_and_nodes_come_back(tmp_path: Path) -> None:
    """
    A cluster of three loses a node, leads on, gets it back and gives it the lead again.
    """
    async with KafkaCluster.start(version="4.3", nodes=3, name="three", work_dir=tmp_path) as cluster:
        await cluster.create_topic("orders", partitions=1, replication=3)
        await cluster.move_leader("orders", 0, 2)
        await cluster.broker(2).kill()
        write(cluster.bootstrap, "orders", b"while node 2 was away")
        led_by = await cluster.leader("orders")

        await cluster.broker(2).restart()
        await cluster.move_leader("orders", 0, 2)

        assert led_by in (1, 3)
        assert await cluster.leader("orders") == 2


async def test_a_topic_made_again_has_another_id(source: KafkaCluster, topic: TopicFactory) -> None:
    """
    Deleting and creating a topic under the same name is seen by its id.
    """
    name = await topic(source)
    before = await source.topic_id(name)

    await source.delete_topic(name)
    await source.create_topic(name)

    assert await source.topic_id(name) != before


async def test_a_node_that_cannot_start_says_why(tmp_path: Path) -> None:
    """
    The error of a failed start carries the broker's own words.
    """
    nonsense = {"log.retention.hours": "soon"}

    with pytest.raises(JavaFailedError, match=r"log\.retention\.hours"):
        async with KafkaCluster.start(work_dir=tmp_path, properties=nonsense):
            pytest.fail("the broker started")


async def test_a_zookeeper_that_was_killed_comes_back_with_what_it_held(tmp_path: Path) -> None:
    """
    At the same address; and nothing is made twice.
    """
    async with running_zookeeper(tmp_path) as zookeeper:
        zookeeper.create({"/flows/orders": b"7"})
        await zookeeper.kill()
        await zookeeper.restart()

        assert zookeeper.exists("/flows/orders")
        assert not zookeeper.exists("/flows/payments")
        with pytest.raises(ZooKeeperError, match=r"/flows/orders"):
            zookeeper.create({"/flows/orders": b"8"})


def test_a_port_that_was_given_away_is_nobody_elses_before_anybody_listens() -> None:
    """
    Of the same few ports another process gets those that are left, and no more.
    """
    few = range(32_000, 32_020)
    ours = free_ports(15, among=few)

    asked = f"from tests.harness.daemon import free_ports; print(*free_ports(5, among={few!r}))"
    other = subprocess.run([sys.executable, "-c", asked], check=True, capture_output=True, text=True)
    too_many = asked.replace("free_ports(5", "free_ports(6")
    refused = subprocess.run([sys.executable, "-c", too_many], check=False, capture_output=True, text=True)

    assert {*ours, *map(int, other.stdout.split())} == set(few)
    assert "fewer than 6 free ports" in refused.stderr
