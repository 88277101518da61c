"""Describe topics of a cluster in the form that the plans of this package take."""

from __future__ import annotations

from collections.abc import Iterable

from mirror.errors import TwinsiteError
from mirror.kafka.cluster import Cluster
from mirror.kafka.cluster_info import TopicInfo
from mirror.kafka.topics import Settings, describe_configs
from mirror.sync.topic_configs import TopicConfigs
from mirror.sync.topics import TopicFacts


async def describe(cluster: Cluster, topics: Iterable[TopicInfo]) -> dict[str, TopicFacts]:
    """Each topic with its settings, or without them if they cannot or may not be read.

    Raises:
        ConnectionFailedError: The cluster did not answer.
    """
    infos = {topic.name: topic for topic in topics}
    settings = await describe_configs(cluster, sorted(infos)) if infos else {}
    return {name: facts(info, settings.get(name)) for name, info in infos.items()}


def facts(info: TopicInfo, settings: Settings | TwinsiteError | None) -> TopicFacts:
    """One topic; the replication factor is that of its first partition."""
    replicas = info.partitions[min(info.partitions)].replicas if info.partitions else ()
    return TopicFacts(
        info.name,
        len(info.partitions),
        len(replicas),
        configs(settings) if isinstance(settings, dict) else TopicConfigs(),
        unread=str(settings) if isinstance(settings, TwinsiteError) and settings.retriable else "",
    )


def configs(settings: Settings) -> TopicConfigs:
    """The settings that have a value, and which of them are set on the topic itself."""
    values: dict[str, str] = {}
    explicit: set[str] = set()
    for name, (value, is_explicit) in settings.items():
        if value is not None:
            values[name] = value
            if is_explicit:
                explicit.add(name)
    return TopicConfigs(values, frozenset(explicit))
