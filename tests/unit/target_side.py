"""The target's topics of a flow, over clusters of one broker that have topics and settings."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

from mirror.config import TopicsSettings
from mirror.errors import ConnectionFailedError, NotAuthorizedError, TwinsiteError
from mirror.flow.facts import Known
from mirror.flow.partition import PartitionCopy
from mirror.flow.position import Proceed
from mirror.kafka.cluster_info import ClusterInfo, PartitionInfo, TopicInfo
from mirror.kafka.dial import Address
from mirror.kafka.failures import broker_error
from mirror.model import OffsetMode, TopicPartition
from mirror.sync.names import NamePolicy
from mirror.sync.source_topics import SourceTopics
from mirror.sync.target_topics import TargetTopics

DEFAULTS = {
    "cleanup.policy": "delete",
    "compression.type": "producer",
    "delete.retention.ms": "86400000",
    "max.message.bytes": "1048588",
    "message.timestamp.type": "CreateTime",
    "retention.bytes": "-1",
    "retention.ms": "604800000",
}
SET_ON_TOPIC, BY_DEFAULT = 1, 5
NOT_AUTHORIZED = 29
UNKNOWN_TOPIC = 3
ORDERS_ID = UUID(int=7)
AS_RECORDED = {"message.timestamp.type": "CreateTime"}
KEPT = {"retention.ms": "-1"} | AS_RECORDED
SHORT = {"retention.ms": "3600000"}


class Cluster:
    """A cluster of one broker that has topics, with what is set on them and where their logs end.

    Attributes:
        refuses: Whether it refuses to change settings.
        loses: Connections that break before the next changes are made.
        hangs: Whether it does not answer to changes; ``waiting`` counts those.
        changed: What was changed, in order.
        described: How often its topics were asked for; ``refreshed`` counts looks at those that are copied.
        hidden: Topics that may not be described.
        unknown: Topics whose settings the broker does not know yet, and how often it will say so.
    """

    def __init__(self, name: str, **topics: Mapping[str, str]) -> None:
        self.name = name
        self.configs = {topic: dict(configs) for topic, configs in topics.items()}
        self.topics = {topic: a_topic(topic) for topic in topics}
        self.ends: dict[TopicPartition, int] = {}
        self.refuses, self.loses, self.hangs, self.waiting = False, 0, False, 0
        self.changed: list[str] = []
        self.described = self.refreshed = 0
        self.hidden: set[str] = set()
        self.unknown: dict[str, int] = {}

    @property
    def info(self) -> ClusterInfo:
        shown = {name: topic for name, topic in self.topics.items() if name not in self.hidden}
        return ClusterInfo(self.name, 0, {0: Address("h", 1)}, shown, {}, time.monotonic())

    def follow(self, topics: object) -> None:
        pass

    async def refresh(self) -> None:
        self.refreshed += 1

    async def describe_topics(self, topics: Collection[str] | None) -> ClusterInfo:
        self.described += 1
        if topics is None:
            return self.info
        return replace(self.info, errors={name: e for name in topics if (e := self._error(name)) is not None})

    def _error(self, name: str) -> TwinsiteError | None:
        """A broker does not say whether there is a topic that may not be described."""
        if name in self.hidden:
            return NotAuthorizedError("no")
        return None if name in self.topics else broker_error(UNKNOWN_TOPIC, f"Metadata of topic {name}")

    async def call(self, request: Any, **_: object) -> Any:
        if type(request).__name__ == "ListOffsetsRequest":
            return SimpleNamespace(topics=[self._offsets(topic) for topic in request.topics])
        return SimpleNamespace(results=[self._described(one.resource_name) for one in request.resources])

    def _offsets(self, topic: Any) -> Any:
        numbers = [partition.partition_index for partition in topic.partitions]
        partitions = [
            SimpleNamespace(
                partition_index=n, error_code=0, offset=self.ends.get(TopicPartition(topic.name, n), 0)
            )
            for n in numbers
        ]
        return SimpleNamespace(name=topic.name, partitions=partitions)

    def _described(self, name: str) -> Any:
        if self.unknown.get(name):
            self.unknown[name] -= 1
            return SimpleNamespace(resource_name=name, error_code=UNKNOWN_TOPIC, error_message=None)
        own = self.configs[name]
        values = {key: (value, BY_DEFAULT) for key, value in DEFAULTS.items()}
        values |= {key: (value, SET_ON_TOPIC) for key, value in own.items()}
        configs = [
            SimpleNamespace(name=k, value=v, config_source=origin) for k, (v, origin) in values.items()
        ]
        return SimpleNamespace(resource_name=name, error_code=0, error_message=None, configs=configs)

    async def call_controller(self, request: Any) -> Any:
        if self.hangs:
            self.waiting += 1
            await asyncio.Event().wait()
        if self.loses:
            self.loses -= 1
            raise ConnectionFailedError("the connection is lost")
        kind = type(request).__name__
        if kind == "CreateTopicsRequest":
            return SimpleNamespace(
                topics=[self._create(one, request.validate_only) for one in request.topics]
            )
        if kind == "CreatePartitionsRequest":
            return SimpleNamespace(results=[self._add(one) for one in request.topics])
        return SimpleNamespace(responses=[self._alter(one) for one in request.resources])

    def _create(self, asked: Any, validate_only: bool) -> Any:
        if not validate_only:
            self.topics[asked.name] = a_topic(asked.name, asked.num_partitions)
            self.configs[asked.name] = {one.name: one.value for one in asked.configs}
        configs = [SimpleNamespace(name=key, value=value) for key, value in DEFAULTS.items()]
        return SimpleNamespace(name=asked.name, error_code=0, error_message=None, configs=configs)

    def _add(self, asked: Any) -> Any:
        self.changed.append(f"{asked.name} has {asked.count} partitions")
        self.topics[asked.name] = a_topic(asked.name, asked.count)
        return SimpleNamespace(name=asked.name, error_code=0, error_message=None)

    def _alter(self, asked: Any) -> Any:
        if self.refuses:
            return SimpleNamespace(error_code=NOT_AUTHORIZED, error_message="no")
        own = self.configs[asked.resource_name]
        for one in asked.configs:
            self.changed.append(f"{asked.resource_name} {one.name}={one.value}")
            own[one.name] = one.value
        own_now = {key: value for key, value in own.items() if value is not None}
        self.configs[asked.resource_name] = own_now
        return SimpleNamespace(error_code=0, error_message=None)


def a_topic(name: str, partitions: int = 1, leader: int = 0, topic_id: UUID = ORDERS_ID) -> TopicInfo:
    led = {number: PartitionInfo(leader, 0, (0,), (0,)) for number in range(partitions)}
    return TopicInfo(name, topic_id, False, led)


class Side:
    """The target's topics of a flow that copies ``orders``, whose every partition is known to be ours.

    Attributes:
        partitions: What is copied; one of ``orders``, at first not looked at.
        right: Whether this mirror holds the right to copy.
        noted: Into which target topic everything is copied, as written down.
        looks: Partitions that asked to be looked at.
    """

    def __init__(self, source: Cluster, target: Cluster, **settings: Any) -> None:
        self.source, self.target = source, target
        self.right = SimpleNamespace(held=True)
        self.looks: list[TopicPartition] = []
        hooks = SimpleNamespace(changed=lambda copy: self.looks.append(copy.tp), stale=lambda cluster: None)
        turn = SimpleNamespace(is_ours=lambda: self.right.held)
        self.limits: dict[str, int] = {}
        flow = SimpleNamespace(
            source=source, target=target, batch_bytes_max=self.limits, hooks=hooks, turn=turn
        )
        self.partitions: dict[TopicPartition, PartitionCopy] = {}
        self.prepared, self.noted = True, ORDERS_ID
        asked, memory, policy = (
            TopicsSettings.model_validate({"include": [".*"]} | settings),
            cast(Any, self),
            NamePolicy(""),
        )
        self.source_topics = SourceTopics(asked, cast(Any, source), memory, policy)
        self.topics = TargetTopics(
            asked,
            cast(Any, flow),
            self.source_topics,
            memory,
            self.partitions,
            policy,
            cast(Any, self.right),
        )

    def known(self, tp: TopicPartition) -> Known | None:
        if tp not in self.partitions:
            return None
        return Known(
            str(ORDERS_ID),
            OffsetMode.SAME,
            0,
            self.prepared,
            lambda end: end,
            target_topic=tp.topic,
            target_topic_id=str(self.noted),
        )

    def begin(self, partition: int = 0, topic: str = "orders") -> PartitionCopy:
        """Copy this partition, too; nothing of it was looked at."""
        tp = TopicPartition(topic, partition)
        self.partitions[tp] = copy = PartitionCopy(tp, tp, ORDERS_ID.bytes, in_flight_max=5)
        return copy

    def look(self, copy: PartitionCopy, end: int = 20) -> None:
        """A look has found that our copy ends there."""
        found = Proceed(next_offset=end, target_next_offset=end, sequence=0, coordinator_epoch=0, skip_to=end)
        self.target.ends[copy.target] = end
        copy.proceed(found, OffsetMode.SAME, 0, time.monotonic())

    async def pass_by(self) -> None:
        await self.topics.bring_up(self.source.topics)
