"""A snapshot of a cluster: its brokers, its topics, who leads what, as one broker has told.

Pure. Brokers need not tell the same: of each partition the newer leader epoch is believed.

Sources: KIP-516 (topic ids), KIP-320 (leader epochs), the Kafka protocol guide (Metadata).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from mirror.errors import TwinsiteError
from mirror.kafka.dial import Address
from mirror.kafka.failures import broker_error
from mirror.model import TopicPartition


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """Who holds one partition. ``leader`` is -1 while there is none."""

    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    in_sync_replicas: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """One topic; its id tells a topic from another one made later under the same name."""

    name: str
    topic_id: UUID
    internal: bool
    partitions: Mapping[int, PartitionInfo]


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    """A snapshot of a cluster.

    Attributes:
        topics: What was asked for, and may be described.
        errors: Why not, of what was asked for by name.
        seen_at: Monotonic: nothing in it is older.
    """

    cluster_id: str
    controller: int
    brokers: Mapping[int, Address]
    topics: Mapping[str, TopicInfo]
    errors: Mapping[str, TwinsiteError] = field(default_factory=dict)
    seen_at: float = 0.0

    def partition(self, tp: TopicPartition) -> PartitionInfo | None:
        topic = self.topics.get(tp.topic)
        return topic.partitions.get(tp.partition) if topic else None

    def leader(self, tp: TopicPartition) -> int:
        """The broker that leads a partition; -1 while there is none, or none is known."""
        info = self.partition(tp)
        return info.leader if info else -1


def cluster_info(answer: Any, *, seen_at: float) -> ClusterInfo:
    """What a broker has answered to a Metadata request, of kafka-python's making.

    A topic without a leader is one; a topic with any other error is left out, and its error kept.
    """
    topics: dict[str, TopicInfo] = {}
    errors: dict[str, TwinsiteError] = {}
    for topic in answer.topics:
        if topic.error_code and topic.error_code != 5:
            errors[topic.name] = broker_error(topic.error_code, f"Metadata of topic {topic.name}")
            continue
        partitions = {
            p.partition_index: PartitionInfo(
                p.leader_id, p.leader_epoch, tuple(p.replica_nodes), tuple(p.isr_nodes)
            )
            for p in topic.partitions
        }
        topics[topic.name] = TopicInfo(topic.name, topic.topic_id, bool(topic.is_internal), partitions)
    brokers = {b.node_id: Address(b.host, b.port) for b in answer.brokers}
    return ClusterInfo(answer.cluster_id, answer.controller_id, brokers, topics, errors, seen_at=seen_at)


def newer_leaders(known: ClusterInfo, told: ClusterInfo) -> ClusterInfo:
    """What was told, but of each partition the newer leader epoch: a broker that is cut off tells old things.

    Only of the same topic; leader epochs of another one of its name begin anew.
    """
    return replace(told, topics={name: _newer(known.topics.get(name), t) for name, t in told.topics.items()})


def _newer(known: TopicInfo | None, told: TopicInfo) -> TopicInfo:
    if known is None or known.topic_id != told.topic_id:
        return told
    newer = {
        number: known.partitions[number]
        for number, partition in told.partitions.items()
        if number in known.partitions and known.partitions[number].leader_epoch > partition.leader_epoch
    }
    return replace(told, partitions={**told.partitions, **newer}) if newer else told
