"""Creating topics and setting them up: the administrative requests the mirror needs.

Sources: KIP-4 (CreateTopics), KIP-195 (CreatePartitions), KIP-226 (DescribeConfigs
sources), KIP-339 (IncrementalAlterConfigs).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from kafka.protocol.admin import (
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DescribeConfigsRequest,
    IncrementalAlterConfigsRequest,
)

from mirror.errors import ConnectionFailedError, TwinsiteError
from mirror.kafka.cluster import Cluster
from mirror.kafka.failures import broker_error

TOPIC = 2
"""ConfigResource.Type.TOPIC."""
DYNAMIC_TOPIC_CONFIG = 1
SET = 0
TOPICS_AT_ONCE, PARTITIONS_AT_ONCE = 200, 2_000
"""A controller refuses a request for more than 10 000 partitions, with all of its topics."""
TOPIC_ALREADY_EXISTS = 36
INVALID_PARTITIONS = 37


class Setting(NamedTuple):
    """One setting of a topic; ``explicit`` when it was set on the topic itself."""

    value: str | None
    explicit: bool


Settings = dict[str, Setting]


async def describe_configs(cluster: Cluster, topics: Sequence[str]) -> dict[str, Settings | TwinsiteError]:
    """All settings of each topic, with the defaults that apply to it; or why they cannot be had."""
    out: dict[str, Settings | TwinsiteError] = {}
    for at in range(0, len(topics), TOPICS_AT_ONCE):
        some = topics[at : at + TOPICS_AT_ONCE]
        resource = DescribeConfigsRequest.DescribeConfigsResource
        request = DescribeConfigsRequest(
            resources=[
                resource(resource_type=TOPIC, resource_name=name, configuration_keys=None) for name in some
            ],
            include_synonyms=False,
            include_documentation=False,
        )
        answer = await cluster.call(request)
        for result in answer.results:
            out[result.resource_name] = (
                broker_error(
                    result.error_code,
                    f"{cluster.name}: DescribeConfigs of {result.resource_name}",
                    result.error_message,
                )
                if result.error_code
                else _settings(result)
            )
    return out


def _settings(result: Any) -> Settings:
    return {
        entry.name: Setting(entry.value, entry.config_source == DYNAMIC_TOPIC_CONFIG)
        for entry in result.configs
    }


async def topic_defaults(cluster: Cluster, name: str) -> dict[str, str] | None:
    """The settings that a new topic would get by default; None if that may not be asked.

    The creation of a topic called ``name`` is only validated, not carried out.
    """
    topic = CreateTopicsRequest.CreatableTopic(
        name=name, num_partitions=1, replication_factor=1, assignments=[], configs=[]
    )
    request = CreateTopicsRequest(topics=[topic], timeout_ms=30_000, validate_only=True)
    answer = (await cluster.call_controller(request)).topics[0]
    if answer.error_code or not answer.configs:
        return None
    return {entry.name: entry.value for entry in answer.configs if entry.value is not None}


class NewTopic(NamedTuple):
    """A topic to be made."""

    name: str
    partitions: int
    replication_factor: int
    configs: Mapping[str, str]


async def create_topics(
    cluster: Cluster, topics: Sequence[NewTopic], *, timeout_ms: int = 30_000
) -> dict[str, bool | TwinsiteError]:
    """Make topics, many in one request. After a request without an answer no other is sent.

    Args:
        timeout_ms: How long each request may take, for the cluster and for its answer to come.

    Returns:
        For each: True when it was made, False when there is one of that name already, or why it was refused.
        A ConnectionFailedError leaves open whether it was made.
    """
    out: dict[str, bool | TwinsiteError] = {}
    for some in _at_once(topics):
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                out |= await _create(cluster, some, timeout_ms)
        except TimeoutError:
            words = f"{cluster.name}: creating topics: no answer within {timeout_ms / 1000:g} s"
            return dict.fromkeys((topic.name for topic in topics), ConnectionFailedError(words)) | out
        except ConnectionFailedError as error:
            return dict.fromkeys((topic.name for topic in topics), error) | out
    return out


async def _create(
    cluster: Cluster, topics: Sequence[NewTopic], timeout_ms: int
) -> dict[str, bool | TwinsiteError]:
    creatable = [_creatable(topic) for topic in topics]
    request = CreateTopicsRequest(topics=creatable, timeout_ms=timeout_ms, validate_only=False)
    out: dict[str, bool | TwinsiteError] = {}
    for answer in (await cluster.call_controller(request)).topics:
        what = f"{cluster.name}: creating topic {answer.name}"
        if answer.error_code in {0, TOPIC_ALREADY_EXISTS}:
            out[answer.name] = not answer.error_code
        else:
            out[answer.name] = broker_error(answer.error_code, what, answer.error_message)
    return out


def _at_once(topics: Sequence[NewTopic]) -> Iterator[Sequence[NewTopic]]:
    """Yields the topics of each request; a topic with more partitions than fit goes alone."""
    some: list[NewTopic] = []
    for topic in topics:
        partitions = sum(one.partitions for one in some) + topic.partitions
        if some and (len(some) == TOPICS_AT_ONCE or partitions > PARTITIONS_AT_ONCE):
            yield some
            some = []
        some.append(topic)
    if some:
        yield some


def _creatable(topic: NewTopic) -> Any:
    creatable = CreateTopicsRequest.CreatableTopic
    return creatable(
        name=topic.name,
        num_partitions=topic.partitions,
        replication_factor=topic.replication_factor,
        assignments=[],
        configs=[
            creatable.CreatableTopicConfig(name=key, value=value) for key, value in topic.configs.items()
        ],
    )


async def create_topic(
    cluster: Cluster,
    name: str,
    *,
    partitions: int,
    replication_factor: int,
    configs: Mapping[str, str],
    timeout_ms: int = 30_000,
) -> bool:
    """Make a topic; False when there is one of that name already.

    Raises:
        NotAuthorizedError: No CREATE on the topic or the cluster.
        BrokerError: The brokers refuse, for example because there are too few for the replicas.
        ConnectionFailedError: They do not answer; it may have been made.
    """
    topic = NewTopic(name, partitions, replication_factor, configs)
    made = (await create_topics(cluster, [topic], timeout_ms=timeout_ms))[name]
    if isinstance(made, TwinsiteError):
        raise made
    return made


async def create_partitions(cluster: Cluster, name: str, total: int, *, timeout_ms: int = 30_000) -> None:
    """Raise the number of a topic's partitions to ``total``; nothing happens if it has as many or more.

    Raises:
        NotAuthorizedError: No ALTER on the topic.
        BrokerError: The brokers refuse.
    """
    topic = CreatePartitionsRequest.CreatePartitionsTopic(name=name, count=total, assignments=None)
    request = CreatePartitionsRequest(topics=[topic], timeout_ms=timeout_ms, validate_only=False)
    answer = (await cluster.call_controller(request)).results[0]
    if answer.error_code not in {0, INVALID_PARTITIONS}:
        raise broker_error(
            answer.error_code, f"{cluster.name}: adding partitions to {name}", answer.error_message
        )


async def set_configs(cluster: Cluster, name: str, values: Mapping[str, str | None]) -> None:
    """Set topic settings; None resets a setting to its default.

    Raises:
        NotAuthorizedError: No ALTER_CONFIGS on the topic.
        BrokerError: A value is refused; nothing was changed.
    """
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource
    request = IncrementalAlterConfigsRequest(
        resources=[
            resource(
                resource_type=TOPIC,
                resource_name=name,
                configs=[
                    resource.AlterableConfig(
                        name=key, config_operation=SET if value is not None else 1, value=value
                    )
                    for key, value in values.items()
                ],
            )
        ],
        validate_only=False,
    )
    answer = (await cluster.call_controller(request)).responses[0]
    if answer.error_code:
        raise broker_error(answer.error_code, f"{cluster.name}: settings of {name}", answer.error_message)
