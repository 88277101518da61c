"""A snapshot of a cluster as one broker describes it: its brokers, its topics, the leaders of partitions.

Pure. Brokers may disagree: for each partition the newer leader epoch wins.

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
    """The brokers that hold one partition. ``leader`` is -1 while there is none."""

    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    in_sync_replicas: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """One topic; its id distinguishes it from a topic made later under the same name."""

    name: str
    topic_id: UUID
    internal: bool
    partitions: Mapping[int, PartitionInfo]


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    """A snapshot of a cluster.

    Attributes:
        topics: The requested topics that may be described.
        errors: Why a requested topic is missing, by its name.
        seen_at: When the snapshot was requested, in monotonic seconds: nothing in it is older.
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
    """The snapshot in a Metadata answer that kafka-python has decoded.

    A topic without a leader (LEADER_NOT_AVAILABLE) is kept; one with any other error is only in ``errors``.
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
    """``told``, but for each partition the newer leader epoch: a broker that is cut off gives stale answers.

    Only where the topic id is the same: the leader epochs of a topic that was made again start over.
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
