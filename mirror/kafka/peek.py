"""Read once what is at given offsets, outside any fetch session.

Sources: KIP-227 (requests outside sessions), KIP-74 (an answer brings one whole batch at least).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mirror.errors import NotInMetadataError, ThrottledError
from mirror.kafka.cluster import Cluster
from mirror.kafka.connection import Connection
from mirror.kafka.failures import AUTHORIZATION_CODES, broker_error
from mirror.kafka.fetch import (
    FETCH,
    FETCH_VERSION,
    Fetched,
    FetchLimits,
    Isolation,
    Key,
    Want,
    decode_answer,
    encode_request,
)
from mirror.kafka.offsets import by_leader
from mirror.kafka.record_batch import walk
from mirror.model import TopicPartition

AT_ONCE = FetchLimits(wait_ms_max=0, bytes_min=0, bytes_max=4 << 20, isolation=Isolation.READ_UNCOMMITTED)
"""Whatever is there, without waiting for more."""
OUTSIDE_SESSIONS = (0, -1)


async def peek(
    connection: Connection, wants: Mapping[Key, Want], limits: FetchLimits = AT_ONCE
) -> Sequence[Fetched]:
    """What one broker has at the given offsets of partitions, named by topic id.

    Returns:
        The partitions that came with an error, a divergence or a whole batch. The others have nothing there,
        or did not fit into this answer: the first one asked for that has something always comes.

    Raises:
        ThrottledError: The answer is empty because of a quota.
        ConnectionFailedError: No answer, or an answer that cannot be read.
        BrokerError: It refuses the whole request; a refusal of one partition is in that partition's entry.
        UnsupportedVersionError: It does not speak the version of Fetch that is used.
    """
    return [fetched for fetched in await _ask(connection, wants, limits) if _says_something(fetched)]


async def _ask(connection: Connection, wants: Mapping[Key, Want], limits: FetchLimits) -> Sequence[Fetched]:
    """All partitions of one answer; errors as for :func:`peek`."""
    connection.version(FETCH, FETCH_VERSION, "Fetch", lowest=FETCH_VERSION)
    request = encode_request(limits, session=OUTSIDE_SESSIONS, changed=wants, forgotten=())
    answer = decode_answer(await connection.send(FETCH, FETCH_VERSION, [request]))
    if answer.error_code:
        raise broker_error(answer.error_code, f"{connection.address}: Fetch")
    if answer.says_nothing:
        raise ThrottledError(f"{connection.address}: throttled by a quota for {answer.throttle_ms} ms")
    return answer.partitions


def _says_something(fetched: Fetched) -> bool:
    """Whether it says anything: the last batch of an answer may be cut off, and alone says nothing."""
    refused = fetched.error_code != 0 or fetched.diverging is not None
    return refused or next(walk(fetched.records), None) is not None


async def peek_at(
    cluster: Cluster, node: int, wants: Mapping[TopicPartition, Want], limits: FetchLimits = AT_ONCE
) -> dict[TopicPartition, Fetched]:
    """As :func:`peek`, for partitions of topics in the cluster's snapshot, from the broker ``node``.

    Raises:
        NotInMetadataError: A topic is not in the snapshot now.
        ConnectionFailedError, BrokerError, UnsupportedVersionError: As for :func:`peek`.
    """
    came = await _ask_at(cluster, node, wants, limits)
    return {tp: fetched for tp, fetched in came.items() if _says_something(fetched)}


async def peek_all_at(
    cluster: Cluster, node: int, wants: Mapping[TopicPartition, Want], limits: FetchLimits = AT_ONCE
) -> dict[TopicPartition, Fetched]:
    """As :func:`peek_at`; but where no partition has anything at its offset, each with what else the broker
    says of it: where its log ends, above all.
    """
    came = await _ask_at(cluster, node, wants, limits)
    return {tp: fetched for tp, fetched in came.items() if _says_something(fetched)} or came


async def _ask_at(
    cluster: Cluster, node: int, wants: Mapping[TopicPartition, Want], limits: FetchLimits
) -> dict[TopicPartition, Fetched]:
    names = {_key(cluster, tp): tp for tp in wants}
    connection = await cluster.connection(node)
    found = await _ask(connection, {key: wants[tp] for key, tp in names.items()}, limits)
    return {names[fetched.key]: fetched for fetched in found}


async def closed_topics(cluster: Cluster, ends: Mapping[TopicPartition, int]) -> set[str]:
    """The topics that may be described but not read, for want of READ.

    One partition of each is read at its end, where there is nothing.

    Args:
        ends: Log ends of partitions that have a leader.

    Raises:
        TwinsiteError: As for :func:`peek_at`.
    """
    one_each = {tp.topic: tp for tp in ends}
    closed: set[str] = set()
    for node, tps in by_leader(cluster, one_each.values()).items():
        found = await peek_at(cluster, node, {tp: Want(ends[tp], -1, -1, 1) for tp in tps})
        closed |= {tp.topic for tp, one in found.items() if one.error_code in AUTHORIZATION_CODES}
    return closed


def _key(cluster: Cluster, tp: TopicPartition) -> Key:
    topic = cluster.info.topics.get(tp.topic)
    if topic is None:
        raise NotInMetadataError(f"{cluster.name}: topic {tp.topic} is currently not in the metadata")
    return Key(topic.topic_id.bytes, tp.partition)
