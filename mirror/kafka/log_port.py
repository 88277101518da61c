"""One partition of one topic as a plain log: append a batch, read batches, ask for its start and end.

For the little state that the mirror keeps at the target; nothing here is hot.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import NamedTuple, TypeVar

import structlog

from mirror.broker_codes import (
    INVALID_CONFIG,
    INVALID_REPLICATION_FACTOR,
    INVALID_TIMESTAMP,
    POLICY_VIOLATION,
)
from mirror.errors import BrokerError, ConnectionFailedError, ExitCode, NotAuthorizedError, TwinsiteError
from mirror.kafka.append import PRODUCE, PRODUCE_VERSION_MAX, decode_answer, encode_request
from mirror.kafka.cluster import Cluster
from mirror.kafka.cluster_info import TopicInfo
from mirror.kafka.codecs import CodecError
from mirror.kafka.connection import Connection
from mirror.kafka.connection_pool import PROMPT, speaks
from mirror.kafka.failures import STALE_METADATA_CODES, broker_error, retrying
from mirror.kafka.fetch import Key, Want
from mirror.kafka.offsets import EARLIEST, LATEST, list_offsets
from mirror.kafka.peek import AT_ONCE, peek
from mirror.kafka.record_batch import MAGIC_V2, BatchHeader, crc_matches, inflated, walk
from mirror.kafka.topics import create_topic, describe_configs
from mirror.model import TopicPartition

log = structlog.get_logger(__name__)

PATIENCE_SECONDS = 30.0
ANSWER_SECONDS = 10.0
"""Longer than a busy disk takes for a batch, or a slow link for a long answer."""
ARRIVING_SECONDS = 1.0
"""How often to check, once that time is over, whether an answer is still arriving."""
LOOK_SECONDS_MAX = 0.25
INFLATED_BYTES_MAX = 32 << 20
"""Far more than is written in one batch."""
CLOCK_HINT = (
    "the clock of this machine is far ahead of the broker's: correct it, or set "
    "message.timestamp.type=LogAppendTime on the topic"
)
"""The topics that this version makes have that setting."""

FLUSHED = {"flush.messages": "1"}
"""With this a broker syncs each batch to its disk; without it the kernel decides when."""

T = TypeVar("T")


class StateTopicError(TwinsiteError):
    """The topic for the flow's state would lose what is written to it."""

    exit_code = ExitCode.USAGE
    hint = "set cleanup.policy=compact on the topic, or give the flow another name"


class StateTopic(NamedTuple):
    """The topic for a flow's state, as it was found or made.

    Attributes:
        made: Whether we made it just now.
        flushed: Whether brokers write each batch to disk before they acknowledge it; None if its settings
            may not be read or do not say, or if somebody else made it at the same moment.
    """

    made: bool
    replicas: int
    flushed: bool | None


class TopicLog:
    """Partition 0 of a topic. Retries what may succeed later.

    Every operation raises a TwinsiteError: the last one when its time is up, and at once one that retrying
    does not help.

    Args:
        patience_seconds: How long to retry. One operation may take that long in all, or ten seconds if that
            is longer; more while an answer is still arriving.
        make: Makes the topic again when it existed and is gone; None: that is an error.
    """

    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        *,
        patience_seconds: float = PATIENCE_SECONDS,
        make: Callable[[], Awaitable[StateTopic]] | None = None,
    ) -> None:
        self._cluster = cluster
        self._tp = TopicPartition(topic, 0)
        self._info: TopicInfo | None = None
        self._was_there = False
        self._patience_seconds = patience_seconds
        self._make = make
        self._took_too_long = False
        self._asked: Connection | None = None
        """The connection over which it was last read or written."""

    async def append(self, batch: bytes) -> int:
        """Append one batch, acknowledged by all in-sync replicas; returns its base offset.

        A batch whose answer was lost is sent again: the log may hold it twice.
        """
        return await self._patiently(lambda: self._append(batch))

    async def read(self, offset: int) -> bytes:
        """Whole batches from ``offset`` on, as many as one answer holds; empty at the end of the log.

        Compressed batches are inflated. A batch that is damaged or cannot be inflated is returned as it is.
        """
        return await self._patiently(lambda: self._read(offset))

    async def start(self) -> int:
        """The first offset."""
        return await self._patiently(lambda: self._offset(EARLIEST))

    async def end(self) -> int:
        """The offset after the last acknowledged record."""
        return await self._patiently(lambda: self._offset(LATEST))

    async def _patiently(self, step: Callable[[], Awaitable[T]]) -> T:
        longest = max(self._patience_seconds, ANSWER_SECONDS)
        try:
            async with asyncio.timeout(None) as limit:
                with _reached(limit, longest, unless=self._is_answered):
                    return await self._retrying(step)
        except TimeoutError as late:
            words = f"{self._cluster.name}: the leader of {self._tp} has not answered within {longest:g} s"
            raise ConnectionFailedError(words) from late

    def _is_answered(self) -> bool:
        return self._asked is not None and speaks(self._asked)

    async def _retrying(self, step: Callable[[], Awaitable[T]]) -> T:
        async for attempt in retrying(self._patience_seconds):
            with attempt:
                try:
                    return await step()
                except asyncio.CancelledError:
                    self._took_too_long = True
                    raise
                except TwinsiteError as error:
                    if error.retriable or getattr(error, "code", 0) in STALE_METADATA_CODES:
                        error.retriable = True
                        await self._look_again()
                    raise
        raise AssertionError("retrying ends with an answer or an error")

    async def _look_again(self) -> None:
        found = await self._cluster.describe_topics([self._tp.topic])
        self._info, partition = found.topics.get(self._tp.topic), found.partition(self._tp)
        if partition is not None and partition.leader not in self._cluster.info.brokers:
            await self._cluster.refresh()

    async def _leader(self) -> tuple[int, bytes]:
        if self._info is None:
            await self._look_again()
            if self._info is None and self._was_there and self._make is not None:
                if (await self._make()).made:
                    log.error("state_topic_made_again", topic=self._tp.topic)
                await self._look_again()
        elif self._took_too_long:  # the leader may have moved; the broker asked for that may hang too
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS_MAX):
                    await self._look_again()
        self._took_too_long = False
        if self._info is None:
            raise broker_error(3, f"{self._cluster.name}: {self._tp}")
        self._was_there = True
        return self._info.partitions[0].leader, self._info.topic_id.bytes

    async def _append(self, batch: bytes) -> int:
        leader, _ = await self._leader()
        connection = self._asked = await self._cluster.connection(leader, "state")
        version = connection.version(PRODUCE, PRODUCE_VERSION_MAX, "Produce")
        request = encode_request([(self._tp, memoryview(batch))], 30_000)
        outcome = decode_answer(await connection.send(PRODUCE, version, request))[self._tp]
        if outcome.error_code:
            where = f"{self._cluster.name}: Produce to {self._tp}"
            refused = broker_error(outcome.error_code, where, outcome.message)
            if outcome.error_code == INVALID_TIMESTAMP:
                refused.hint = CLOCK_HINT
            raise refused
        return outcome.base_offset

    async def _read(self, offset: int) -> bytes:
        leader, topic_id = await self._leader()
        connection = self._asked = await self._cluster.connection(leader, "state")
        found = await peek(connection, {Key(topic_id, 0): Want(offset, -1, -1, AT_ONCE.bytes_max)})
        if not found:
            return b""
        if found[0].error_code:
            raise broker_error(found[0].error_code, f"{self._cluster.name}: Fetch of {self._tp}")
        return b"".join(_plain(header, view) for header, view in walk(found[0].records))

    async def _offset(self, timestamp: int) -> int:
        leader, _ = await self._leader()
        answers = await list_offsets(self._cluster, [self._tp], timestamp, leader=leader, lane=PROMPT)
        answer = answers[self._tp]
        if isinstance(answer, TwinsiteError):
            raise answer
        return answer


@contextmanager
def _reached(limit: asyncio.Timeout, seconds: float, *, unless: Callable[[], bool]) -> Iterator[None]:
    """Let ``limit`` expire when the block has taken ``seconds``, but not while ``unless`` is true."""
    loop = asyncio.get_running_loop()
    timer: asyncio.TimerHandle

    def look() -> None:
        nonlocal timer
        if unless():
            timer = loop.call_later(ARRIVING_SECONDS, look)
        else:
            limit.reschedule(loop.time())

    timer = loop.call_later(seconds, look)
    try:
        yield
    finally:
        timer.cancel()


def _plain(header: BatchHeader, view: memoryview) -> memoryview:
    if header.magic != MAGIC_V2 or not crc_matches(header, view):
        return view
    with suppress(CodecError):
        return inflated(header, view, INFLATED_BYTES_MAX)
    return view


async def ensure_state_topic(cluster: Cluster, topic: str, replication_factor: int) -> StateTopic:
    """Make the topic, compacted and with one partition, if it does not exist; wait until it has a leader.

    With three or more replicas, all but one must have a record, on disk, before it counts as written: state
    is written ahead of what it describes, and a power cut must not take the state alone. An existing topic
    keeps its settings; whether it is compacted is checked if its settings may be read.

    Args:
        replication_factor: No more than brokers were up when the cluster last told.

    Raises:
        NotAuthorizedError: No CREATE, or no DESCRIBE, on the topic.
        StateTopicError: The topic exists and would lose what is written to it.
        BrokerError, ConnectionFailedError: It could not be made, or had no leader for half a minute. It is
            retriable if fewer brokers are up now.
    """
    if topic in (await cluster.describe_topics([topic])).topics:
        made, flushed = False, await _check_settings(cluster, topic)
    else:
        try:
            made, flushed = await _make(cluster, topic, replication_factor)
        except BrokerError as error:
            error.retriable |= error.code == INVALID_REPLICATION_FACTOR
            raise
    async for attempt in retrying(PATIENCE_SECONDS, longest_pause_seconds=0.2):
        with attempt:
            info = (await cluster.describe_topics([topic])).partition(TopicPartition(topic, 0))
            if info is None or info.leader < 0:
                raise ConnectionFailedError(f"{cluster.name}: topic {topic} has no leader yet")
            return StateTopic(made, len(info.replicas), flushed)
    raise AssertionError("retrying ends with an answer or an error")


async def _make(cluster: Cluster, topic: str, replication_factor: int) -> tuple[bool, bool | None]:
    """Make the topic, flushed if the brokers allow it; returns ``made`` and ``flushed`` of StateTopic."""
    configs = {
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": "0.1",
        "min.insync.replicas": str(max(1, replication_factor - 1)),
        "compression.type": "producer",
        "message.timestamp.type": "LogAppendTime",  # Kafka 4.0 refuses timestamps an hour ahead
    }
    make = partial(create_topic, cluster, topic, partitions=1, replication_factor=replication_factor)
    flushed = True
    try:
        made = await make(configs=configs | FLUSHED)
    except BrokerError as error:
        if error.code not in {INVALID_CONFIG, POLICY_VIOLATION}:
            raise
        made, flushed = await make(configs=configs), False
    return made, flushed if made else None


async def _check_settings(cluster: Cluster, topic: str) -> bool | None:
    """Check that an existing topic is compacted; returns :attr:`StateTopic.flushed`.

    Raises:
        StateTopicError: It is not.
    """
    settings = (await describe_configs(cluster, [topic]))[topic]
    if isinstance(settings, NotAuthorizedError):
        return None
    if isinstance(settings, TwinsiteError):
        raise settings
    policy = settings["cleanup.policy"].value
    if policy != "compact":
        raise StateTopicError(
            f"{cluster.name}: topic {topic} has cleanup.policy={policy}: the flow's state would expire"
        )
    if not FLUSHED.keys() <= settings.keys():
        return None
    return all(settings[name].value == value for name, value in FLUSHED.items())
