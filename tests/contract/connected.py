"""The mirror's own way to a cluster of the harness."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from mirror.kafka.cluster import Cluster
from mirror.kafka.dial import Address, ConnectionOptions
from mirror.kafka.log_port import TopicLog, ensure_state_topic
from tests.harness.kafka import KafkaCluster

BROKERS = {"3.9": "source", "4.3": "target"}
"""The fixture that has brokers of a version."""
NUMBERS = itertools.count(1)
"""For topic names that no other test has."""


@asynccontextmanager
async def connected(brokers: KafkaCluster) -> AsyncIterator[Cluster]:
    """A started :class:`Cluster`, closed at the end."""
    addresses = [Address(broker.host, broker.port) for broker in brokers.brokers]
    cluster = Cluster("target", addresses, ConnectionOptions())
    await cluster.start()
    try:
        yield cluster
    finally:
        await cluster.close()


@asynccontextmanager
async def state_log(brokers: KafkaCluster, cluster: Cluster) -> AsyncIterator[TopicLog]:
    """The log of a new state topic; with it goes the topic, as every mirror that reads there looks at it."""
    topic = f"__twinsite_state.contract-{next(NUMBERS)}"
    await ensure_state_topic(cluster, topic, 1)
    try:
        yield TopicLog(cluster, topic)
    finally:
        await brokers.delete_topic(topic)
