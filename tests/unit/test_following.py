"""When another pass is made over topics."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from types import SimpleNamespace
from typing import Any, cast

import pytest

import mirror.sync.follow
import mirror.sync.target_topics
from mirror.config import parse
from mirror.flow.partition import PartitionCopy
from mirror.model import State, TopicPartition
from mirror.sync.follow import Follower
from mirror.sync.target_topics import TargetTopics
from tests.harness.node import until
from tests.unit.test_target_topics import SHORT, Cluster, a_topic

ORDERS_0 = TopicPartition("orders", 0)
SETTINGS = parse(
    {
        "source": {"bootstrap_servers": "127.0.0.1:1"},
        "target": {"bootstrap_servers": "127.0.0.1:2"},
        "topics": {"include": [".*"]},
    }
)


class Shown(Cluster):
    """A cluster that counts how often all its topics are asked for.

    Attributes:
        passes: How often.
    """

    passes = 0

    def open_ahead(self, nodes: object) -> None:
        pass

    async def describe_topics(self, topics: Collection[str] | None) -> Any:
        self.passes += topics is None
        return await super().describe_topics(topics)


class Engine:
    """Copies nothing; a partition that is to go on is looked at anew."""

    def __init__(self) -> None:
        self.partitions: dict[TopicPartition, PartitionCopy] = {}

    def add(self, partition: PartitionCopy) -> None:
        self.partitions[partition.tp] = partition

    def changed(self, partition: PartitionCopy) -> None:
        pass

    def resume(self, partition: PartitionCopy) -> None:
        partition.look_anew(0.0)


def follower_of(source: Cluster, target: Cluster, engine: Engine) -> Follower:
    turn = SimpleNamespace(is_ours=lambda: True)
    hooks = SimpleNamespace(changed=engine.changed, stale=lambda cluster: None)
    flow = SimpleNamespace(source=source, target=target, batch_bytes_max={}, hooks=hooks, turn=turn)
    memory = SimpleNamespace(topic_ids={}, known=lambda tp: None)
    right = SimpleNamespace(held=True)
    return Follower(SETTINGS, cast(Any, flow), cast(Any, engine), cast(Any, memory), cast(Any, right))


async def test_a_copy_that_ends_makes_a_topic_as_soon_as_the_target_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    It makes no other pass: what has come to the source since it began is none of it.
    """
    monkeypatch.setattr(mirror.sync.target_topics, "CHANGE_SECONDS", 0.05)
    monkeypatch.setattr(mirror.sync.follow, "TEND_SECONDS", 0.01)
    source, target, engine = Shown("source", orders=SHORT), Shown("target"), Engine()
    rounds: list[bool] = []
    finish = TargetTopics.finish

    async def counted(topics: TargetTopics, *, again: bool) -> frozenset[str]:
        rounds.append(again)
        return await finish(topics, again=again)

    monkeypatch.setattr(TargetTopics, "finish", counted)
    follower = follower_of(source, target, engine)
    target.hangs = True
    await follower.follow()
    partition = engine.partitions[ORDERS_0]
    held_up = partition.state

    following = asyncio.create_task(follower.run(once=True))
    await until(lambda: target.waiting > 1, "it is tried again", 5)
    source.configs["audit"], source.topics["audit"] = {}, a_topic("audit")
    source.topics["orders"] = a_topic("orders", partitions=2)
    target.hangs = False
    await until(lambda: partition.state is State.UNKNOWN, "it is copied", 5)
    passes, tended = source.passes, len(rounds)
    await until(lambda: len(rounds) > tended + 3, "it goes on", 5)
    following.cancel()

    assert held_up is State.BLOCKED
    assert list(target.topics) == ["orders"]
    assert list(engine.partitions) == [ORDERS_0]
    assert source.passes == passes
