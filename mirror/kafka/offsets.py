"""Requests about partitions, sent to their leaders, many partitions per request.

Each function returns an entry for every partition: a value, or the error that
prevented it. None is left out silently.

Sources: KIP-79 and KIP-207 (ListOffsets), KIP-664 (DescribeProducers), KIP-107
(DeleteRecords), KIP-98 (WriteTxnMarkers).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any, TypeVar

from kafka.protocol.admin import DeleteRecordsRequest, DescribeProducersRequest
from kafka.protocol.consumer import ListOffsetsRequest
from kafka.protocol.producer import WriteTxnMarkersRequest

from mirror.errors import BrokerError, ConnectionFailedError, TwinsiteError
from mirror.kafka.cluster import Cluster
from mirror.kafka.connection import Connection
from mirror.kafka.connection_pool import CONTROL, DELETIONS
from mirror.kafka.failures import broker_error, retrying
from mirror.kafka.fetch import Isolation
from mirror.model import TopicPartition

EARLIEST = -2
LATEST = -1
CONSUMER = -1
DEBUGGER = -2
"""The replica id that gets the log end offset instead of the high watermark."""

SETTLE_SECONDS = 30.0
"""How long to wait for leaders that are moving or starting."""

T = TypeVar("T")
Answers = dict[TopicPartition, T | TwinsiteError]


@dataclass(frozen=True, slots=True)
class ProducerState:
    """What a broker remembers of one producer in one partition."""

    producer_epoch: int
    last_sequence: int
    coordinator_epoch: int


async def list_offsets(
    cluster: Cluster,
    partitions: Collection[TopicPartition],
    timestamp: int,
    *,
    isolation: Isolation = Isolation.READ_UNCOMMITTED,
    replica_id: int = CONSUMER,
    leader: int | None = None,
    lane: str = CONTROL,
) -> Answers[int]:
    """The earliest or latest offset of each partition.

    Args:
        timestamp: EARLIEST or LATEST.
        isolation: With READ_COMMITTED, LATEST is the last stable offset.
        replica_id: With DEBUGGER, LATEST is the log end offset, acknowledged or not.
        leader: The id of the broker to ask; by default the leaders in the cluster's snapshot.
        lane: As for :meth:`mirror.kafka.cluster.Cluster.call`.
    """
    topic_of = ListOffsetsRequest.ListOffsetsTopic

    def partition(tp: TopicPartition) -> Any:
        return topic_of.ListOffsetsPartition(
            partition_index=tp.partition,
            current_leader_epoch=_leader_epoch(cluster, tp),
            timestamp=timestamp,
        )

    def request(tps: Sequence[TopicPartition]) -> Any:
        return ListOffsetsRequest(
            replica_id=replica_id,
            isolation_level=int(isolation),
            topics=_grouped(tps, topic_of, partition),
        )

    def read(answer: Any, out: Answers[int]) -> None:
        _read(answer, out, f"{cluster.name}: ListOffsets", lambda p: int(p.offset))

    leaders = None if leader is None else {leader: list(partitions)}
    return await _ask_leaders(cluster, partitions, request, read, highest=7, leaders=leaders, lane=lane)


async def offsets_of_all(
    cluster: Cluster,
    partitions: Collection[TopicPartition],
    timestamp: int,
    *,
    isolation: Isolation = Isolation.READ_UNCOMMITTED,
) -> dict[TopicPartition, int]:
    """The offsets of all partitions, for callers that can conclude nothing while one is missing.

    Missing ones are asked for again, of the current leaders, while that can help, for at most
    ``SETTLE_SECONDS``: after a topic was made or a leader moved, a broker may not know yet what it leads.

    Raises:
        TwinsiteError: An offset cannot be had. Errors that waiting does not help come first.
    """
    found: dict[TopicPartition, int] = {}
    async for attempt in retrying(SETTLE_SECONDS):
        with attempt:
            if attempt.retry_state.attempt_number > 1:
                await cluster.refresh()
            left = [tp for tp in partitions if tp not in found]
            answers = await list_offsets(cluster, left, timestamp, isolation=isolation)
            errors = [answer for answer in answers.values() if isinstance(answer, TwinsiteError)]
            found |= {tp: answer for tp, answer in answers.items() if not isinstance(answer, TwinsiteError)}
            if errors:
                raise min(errors, key=lambda error: error.retriable)
    return found


async def describe_producer(
    cluster: Cluster, partitions: Collection[TopicPartition], producer_id: int
) -> Answers[ProducerState | None]:
    """What each leader remembers of a producer; None where it remembers nothing."""

    def request(tps: Sequence[TopicPartition]) -> Any:
        return DescribeProducersRequest(
            topics=[
                DescribeProducersRequest.TopicRequest(
                    name=topic, partition_indexes=[tp.partition for tp in of_topic]
                )
                for topic, of_topic in _topics(tps)
            ]
        )

    def state(p: Any) -> ProducerState | None:
        ours = [s for s in p.active_producers if s.producer_id == producer_id]
        if not ours:
            return None
        one = ours[0]
        return ProducerState(one.producer_epoch, one.last_sequence, one.coordinator_epoch)

    def read(answer: Any, out: Answers[ProducerState | None]) -> None:
        _read(answer, out, f"{cluster.name}: DescribeProducers", state)

    return await _ask_leaders(cluster, partitions, request, read)


async def delete_records(
    cluster: Cluster, before: Mapping[TopicPartition, int], *, timeout_ms: int = 30_000
) -> Answers[int]:
    """Move the start of each log to the offset given; returns where it starts now."""
    topic_of = DeleteRecordsRequest.DeleteRecordsTopic

    def partition(tp: TopicPartition) -> Any:
        return topic_of.DeleteRecordsPartition(partition_index=tp.partition, offset=before[tp])

    def request(tps: Sequence[TopicPartition]) -> Any:
        return DeleteRecordsRequest(timeout_ms=timeout_ms, topics=_grouped(tps, topic_of, partition))

    def read(answer: Any, out: Answers[int]) -> None:
        _read(answer, out, f"{cluster.name}: DeleteRecords", lambda p: int(p.low_watermark))

    return await _ask_leaders(cluster, before, request, read, lane=DELETIONS)


@dataclass(frozen=True, slots=True)
class Marking:
    """Control markers to append to one partition: ``count`` of them, one offset each."""

    count: int
    coordinator_epoch: int


async def write_markers(
    connection: Connection,
    markings: Mapping[TopicPartition, Marking],
    *,
    producer_id: int,
    producer_epoch: int,
) -> Answers[None]:
    """Append control markers that no consumer sees. They are fenced, but not conditional.

    All go to one broker, in one request. A lower coordinator epoch than one seen before is refused with
    TRANSACTION_COORDINATOR_FENCED, a lower producer epoch with INVALID_PRODUCER_EPOCH. The answer has one
    entry per producer id, with the outcome of each partition's last marker: neither an error nor success
    says how many of several were appended.

    Args:
        connection: To the leader of all these partitions; one for this purpose.
    """
    marker = WriteTxnMarkersRequest.WritableTxnMarker

    def entry(coordinator_epoch: int, tps: Sequence[TopicPartition]) -> Any:
        return marker(
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            transaction_result=True,
            coordinator_epoch=coordinator_epoch,
            topics=[
                marker.WritableTxnMarkerTopic(name=topic, partition_indexes=[tp.partition for tp in of_topic])
                for topic, of_topic in _topics(tps)
            ],
        )

    def request(tps: Sequence[TopicPartition]) -> Any:
        entries: list[Any] = []
        for epoch in {markings[tp].coordinator_epoch for tp in tps}:
            of_epoch = [tp for tp in tps if markings[tp].coordinator_epoch == epoch]
            for turn in range(max(markings[tp].count for tp in of_epoch)):
                entries.append(entry(epoch, [tp for tp in of_epoch if markings[tp].count > turn]))
        return WriteTxnMarkersRequest(markers=entries)

    def read(answer: Any, out: Answers[None]) -> None:
        for m in answer.markers:
            for topic in m.topics:
                for p in topic.partitions:
                    tp = TopicPartition(topic.name, p.partition_index)
                    if p.error_code:
                        out[tp] = broker_error(p.error_code, f"{connection.address}: WriteTxnMarkers to {tp}")
                    else:
                        out.setdefault(tp, None)

    out: Answers[None] = {}
    if markings:
        await _ask(
            str(connection.address), partial(connection.call, highest=1), list(markings), request, read, out
        )
    return out


# -- one request a leader ------------------------------------------------------------------------


def _leader_epoch(cluster: Cluster, tp: TopicPartition) -> int:
    info = cluster.info.partition(tp)
    return info.leader_epoch if info else -1


def _topics(tps: Sequence[TopicPartition]) -> Iterable[tuple[str, list[TopicPartition]]]:
    for topic, group in groupby(sorted(tps), key=lambda tp: tp.topic):
        yield topic, list(group)


def _grouped(
    tps: Sequence[TopicPartition], topic_of: Callable[..., Any], partition: Callable[[TopicPartition], Any]
) -> list[Any]:
    """Partitions grouped by topic, as requests name them."""
    return [
        topic_of(name=topic, partitions=[partition(tp) for tp in of_topic])
        for topic, of_topic in _topics(tps)
    ]


def _read(answer: Any, out: Answers[T], what: str, value: Callable[[Any], T]) -> None:
    """Note in ``out`` what an answer says of each partition: a value, or why there is none."""
    for topic in answer.topics:
        for p in topic.partitions:
            tp = TopicPartition(topic.name, p.partition_index)
            if p.error_code:
                words = getattr(p, "error_message", None)
                out[tp] = broker_error(p.error_code, f"{what} of {tp}", words)
            else:
                out[tp] = value(p)


def by_leader(cluster: Cluster, tps: Iterable[TopicPartition]) -> dict[int, list[TopicPartition]]:
    """Partitions by the broker that leads them, -1 where none is known."""
    leaders: dict[int, list[TopicPartition]] = {}
    for tp in tps:
        leaders.setdefault(cluster.info.leader(tp), []).append(tp)
    return leaders


async def _ask_leaders(
    cluster: Cluster,
    partitions: Collection[TopicPartition],
    request: Callable[[Sequence[TopicPartition]], Any],
    read: Callable[[Any, Answers[T]], None],
    *,
    highest: int | None = None,
    leaders: dict[int, list[TopicPartition]] | None = None,
    lane: str = CONTROL,
) -> Answers[T]:
    out: Answers[T] = {}
    async with asyncio.TaskGroup() as group:
        for node, tps in (by_leader(cluster, partitions) if leaders is None else leaders).items():
            if node < 0:
                out.update({tp: _leaderless(cluster, tp) for tp in tps})
            else:
                call = partial(cluster.call, node=node, highest=highest, lane=lane)
                group.create_task(_ask(cluster.name, call, tps, request, read, out))
    return out


def _leaderless(cluster: Cluster, tp: TopicPartition) -> TwinsiteError:
    """Why no broker can be asked: the topic cannot be described, or the partition has no known leader."""
    known = cluster.info.errors.get(tp.topic)
    if known is not None:
        return known.with_traceback(None)  # it is kept, and may have been raised before
    if tp.topic in cluster.info.topics:
        return ConnectionFailedError(f"{cluster.name}: no leader is known for {tp}")
    why = "it does not exist, or the mirror may not describe it"
    return ConnectionFailedError(f"{cluster.name}: topic {tp.topic} was not listed when last asked: {why}")


async def _ask(
    name: str,
    call: Callable[[Any], Awaitable[Any]],
    tps: Sequence[TopicPartition],
    request: Callable[[Sequence[TopicPartition]], Any],
    read: Callable[[Any, Answers[T]], None],
    out: Answers[T],
) -> None:
    """Ask one broker, and note for each partition what it says, or why it says nothing."""
    try:
        read(await call(request(tps)), out)
    except TwinsiteError as error:
        out.update({tp: error for tp in tps if tp not in out})
    for tp in tps:
        if tp not in out:
            out[tp] = BrokerError("NO_ANSWER", -1, f"{name}: the answer does not contain {tp}")
