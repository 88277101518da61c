"""A copy that is to end ends, though its source goes away in the middle of it and stays away."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from mirror import service
from mirror.config import Settings, parse
from mirror.flow import fetching, goals
from mirror.model import PartitionStatus, Reason, State
from tests.conftest import TopicFactory
from tests.harness.daemon import until
from tests.harness.data import json_rows
from tests.harness.kafka import KafkaCluster
from tests.harness.loading import load
from tests.harness.relay import running_relay

pytestmark = pytest.mark.timeout(120)

RECORDS = 20_000
SMALL = {"fetch_bytes_max": "64 KiB", "partition_fetch_bytes_max": "64 KiB", "fetch_wait_ms_max": 100}
SOON = 30.0
"""Much longer than it takes."""
IMPATIENT = {"request_timeout_seconds": 2, "connect_timeout_seconds": 1}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(goals, "ABSENT_SECONDS", 2.0)


def flow_of(target: KafkaCluster, topic: str, **way_to_source: object) -> Settings:
    """A flow of one topic that reads little at a time, and soon notices that nothing comes."""
    return parse(
        {
            "flow": topic,
            **way_to_source,
            "target": {"bootstrap_servers": target.bootstrap},
            "topics": {"include": [topic]},
            "read": SMALL,
            "limits": {"buffer_bytes_max": "12 MiB"},
            "lagging_after_seconds": 0.5,
            "api": {"port": -1},
        }
    )


async def copied(flow: Settings) -> PartitionStatus:
    """What is said of the only partition when the copy has ended by itself."""
    async with asyncio.timeout(SOON):
        status = await service.run(flow, stop=asyncio.Event(), once=True)
    [partition] = status.partitions
    return partition


def leads(cluster: KafkaCluster, node: int, topic: str) -> bool:
    """Whether a node leads the only partition of a topic."""
    return bool(cluster.admin.list_topics(topic, 10).topics[topic].partitions[0].leader == node)


async def test_a_source_broker_that_stays_away_ends_the_copy(
    breakable: KafkaCluster, target: KafkaCluster, topic: TopicFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    It stands still from its first answer on, and nobody else leads the partition.
    """
    name = await topic(breakable)
    load(breakable.bootstrap, name, json_rows(RECORDS, 500), "none", batch_num_messages=20)
    broker = breakable.broker(await breakable.leader(name))
    monkeypatch.setattr(fetching, "reach", lambda _: os.kill(broker.pid, signal.SIGSTOP))

    try:
        source = {"bootstrap_servers": breakable.bootstrap, **IMPATIENT}
        ended = await copied(flow_of(target, name, source=source))
    finally:
        await broker.thaw()
        await until(lambda: leads(breakable, broker.node, name), "the broker leads again")

    assert (ended.state, ended.reason) == (State.LAGGING, Reason.SOURCE_UNAVAILABLE)
    assert ended.detail
    assert not ended.is_there


@pytest.fixture
def doomed(source: KafkaCluster, tmp_path: Path) -> Iterator[str]:
    """The address of the only relay, which dies in the middle of what it has to send."""
    with running_relay(source, tmp_path, failpoints="frame_sent:2") as relay:
        yield relay.address


async def test_relays_that_stay_away_end_the_copy(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, doomed: str
) -> None:
    """
    There is no other one.
    """
    name = await topic(source)
    load(source.bootstrap, name, json_rows(RECORDS, 500), "none", batch_num_messages=20)

    ended = await copied(flow_of(target, name, link={"relays": [doomed], **IMPATIENT}))

    assert (ended.state, ended.reason) == (State.LAGGING, Reason.SOURCE_UNAVAILABLE)
    assert ended.detail
    assert not ended.is_there
