"""A model of what a target broker checks and remembers, and a mirror process of one partition beside it.

The broker follows KIP-98: sequences, exact repeats of the last five batches, a memory
that may be lost. It reads requests and writes answers with kafka-python. The mirror's
lane and partition are the real ones; whoever uses them says what happens next.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

from kafka.protocol.producer import ProduceRequest, ProduceResponse

from mirror.errors import BatchError, ConnectionFailedError
from mirror.flow.appending import AppendLane
from mirror.flow.context import Flow, Limits
from mirror.flow.facts import TargetLook
from mirror.flow.partition import PartitionCopy
from mirror.flow.position import SEQUENCES
from mirror.kafka.answers import OnAnswer
from mirror.kafka.append import PRODUCE_VERSION_MAX
from mirror.kafka.buffers import BufferPool
from mirror.kafka.fetch import FetchLimits
from mirror.model import Batch, TopicPartition
from tests.unit.batches import HEADER, Entry, read_v2, v2

ORDERS_0 = TopicPartition("orders", 0)
IDLE_LOOK_SECONDS = 3_600.0
OURS, FOREIGN = 4711, 99
TOPIC_ID = "t"
MARKER, STRANGE = -1, -2
"""What stands at an offset of the target that holds no record of the source."""
BROKERS_MEMORY = 5
VERSION = PRODUCE_VERSION_MAX

REFUSALS = [
    (6, False),  # NOT_LEADER_OR_FOLLOWER
    (7, True),  # REQUEST_TIMED_OUT: appended, not yet replicated
    (10, False),  # MESSAGE_TOO_LARGE
    (19, False),  # NOT_ENOUGH_REPLICAS
    (20, True),  # NOT_ENOUGH_REPLICAS_AFTER_APPEND
    (56, False),  # KAFKA_STORAGE_ERROR
    (87, False),  # INVALID_RECORD
    (-1, False),  # UNKNOWN_SERVER_ERROR
]
"""What a broker may answer instead, and whether the batch was appended all the same."""


class Appended(NamedTuple):
    """A batch the broker remembers."""

    first_sequence: int
    last_sequence: int
    base_offset: int


@dataclass
class TargetLog:
    """One partition of the target.

    Attributes:
        start: Where it starts; what lay before is no business of ours.
        log: The source offset at each target offset, or what else is there.
        writers: Who wrote each.
        memory: The last batches of our producer id; None when the broker has forgotten it.
    """

    start: int
    log: list[int] = field(default_factory=list)
    writers: list[int] = field(default_factory=list)
    memory: list[Appended] | None = None

    @property
    def end(self) -> int:
        return self.start + len(self.log)

    def write(self, offsets: list[int], writer: int) -> None:
        self.log += offsets
        self.writers += [writer] * len(offsets)

    def mark(self, count: int) -> None:
        """Control markers of our producer id. Where it was forgotten it is known again, with no sequence."""
        self.write([MARKER] * count, OURS)
        self.memory = self.memory or [Appended(-1, -1, self.end - 1)]

    def append(self, sequence: int, offsets: list[int]) -> tuple[int, int, bool]:
        """A batch of our producer id: (error code, base offset, whether it was there already)."""
        last = (sequence + len(offsets) - 1) % SEQUENCES
        for known in self.memory or ():
            if known[:2] == (sequence, last):
                return 0, known.base_offset, True
        if self.memory and sequence != (self.memory[-1].last_sequence + 1) % SEQUENCES:
            return 45, -1, False
        base = self.end
        self.write(offsets, OURS)
        self.memory = [*(self.memory or []), Appended(sequence, last, base)][-BROKERS_MEMORY:]
        return 0, base, False

    def look(self) -> TargetLook:
        return TargetLook(
            target_log_start_offset=self.start,
            target_log_end_offset=self.end,
            last_sequence=self.memory[-1].last_sequence if self.memory else None,
            producer_epoch=0 if self.memory else None,
            coordinator_epoch=0,
            last_producer_id=self.writers[-1] if self.writers else None,
        )


class Connection:
    """A connection to the target: requests in order, each not yet heard by the broker or not yet answered."""

    def __init__(self) -> None:
        self.closed = False
        self._loop = asyncio.get_running_loop()
        self.unheard: deque[tuple[bytes, OnAnswer]] = deque()
        self.unread: deque[tuple[bytes, OnAnswer]] = deque()

    @property
    def unanswered(self) -> int:
        return len(self.unheard) + len(self.unread)

    def version(self, *_: object, **__: object) -> int:
        return VERSION

    def send_while(self, may_send: Callable[[], bool], why_not: str, hint: str) -> None:
        """Whatever is submitted has left at once."""

    def withdraw(self) -> None:
        """Nothing is left."""

    def submit(self, _key: int, _version: int, parts: list[bytes | memoryview], on_answer: OnAnswer) -> None:
        self.unheard.append((b"".join(parts), on_answer))

    def lose(self) -> list[bytes]:
        """It breaks: nobody is answered any more. What the broker has not heard yet may still reach it."""
        self.closed = True
        lost = ConnectionFailedError("the connection was lost")
        for _, on_answer in (*self.unheard, *self.unread):
            self._loop.call_soon(on_answer, lost)
        unheard = [body for body, _ in self.unheard]
        self.unheard.clear()
        self.unread.clear()
        return unheard


@dataclass
class Target:
    """The target cluster as a lane knows it; it answers every call for a connection."""

    options: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(request_timeout_seconds=30.0))
    last_answer_at: float | None = None
    connections: list[Connection] = field(default_factory=list)

    async def connection(self, *_: object) -> Connection:
        if not self.connections or self.connections[-1].closed:
            self.connections.append(Connection())
        return self.connections[-1]


@dataclass
class Hooks:
    """Notes what a lane tells the engine, which does nothing about it.

    Attributes:
        changes: Of whom it was told that they may want something, in order.
    """

    crashed: BaseException | None = None
    changes: list[PartitionCopy] = field(default_factory=list)

    def changed(self, partition: PartitionCopy) -> None:
        self.changes.append(partition)

    def reread(self, partition: PartitionCopy, bad: BatchError, node: int | None) -> None:
        raise AssertionError(bad)

    def stale(self, cluster: object) -> None:
        """There is one broker only."""

    def crash(self, error: BaseException) -> None:
        self.crashed = error


class Meters:
    """Takes what a lane measures."""

    def observe_copy_latency(self, seconds: float, tp: TopicPartition, offset: int) -> None: ...
    def observe_request(self, api: str, seconds: float) -> None: ...
    def count_throttled(self, api: str, seconds: float) -> None: ...
    def count_crc_failure(self, where: str) -> None: ...


class Mirror:
    """One process: a partition, its lane, and what they share."""

    def __init__(self, queue_bytes_max: float = math.inf) -> None:
        self.copy = PartitionCopy(ORDERS_0, ORDERS_0, b"t" * 16, in_flight_max=BROKERS_MEMORY)
        self.target = Target()
        self.hooks = Hooks()
        self.pool = BufferPool(idle_bytes_max=0)
        limits = Limits(
            fetch=FetchLimits(),
            partition_fetch_bytes_max=1 << 20,
            request_bytes_max=1 << 20,
            fetch_connections=1,
            append_connections=1,
            requests_in_flight_max=3,
            batches_in_flight_max=BROKERS_MEMORY,
            buffer_bytes_max=1 << 30,
            partition_buffer_bytes_max=1 << 30,
            gap_limit=1_000,
            padding_limit=0,
            idle_look_seconds=IDLE_LOOK_SECONDS,
        )
        self.flow = Flow(
            name="f",
            source=cast(Any, None),
            target=cast(Any, self.target),
            limits=limits,
            pool=self.pool,
            instruments=Meters(),
            hooks=self.hooks,
            producer_id=OURS,
            room=asyncio.Event(),
        )
        self.flow.turn.proven(math.inf)
        self.lane = AppendLane(self.flow, 1, queue_bytes_max=queue_bytes_max)

    @property
    def connection(self) -> Connection | None:
        """The one in use, if any."""
        last = self.target.connections[-1:]
        return last[0] if last and not last[0].closed else None


def source_batch(first: int, count: int) -> Batch:
    records = [Entry(first + number, 1, None, b"%d" % (first + number)) for number in range(count)]
    return Batch(first, first + count, 0, 1, v2(records))


def heard(body: bytes) -> tuple[int, list[int]]:
    """What the broker reads out of a request: the sequence, and the source offsets of the records."""
    ((part,),) = [topic.partition_data for topic in ProduceRequest.decode(body, version=VERSION).topic_data]
    header = HEADER.unpack_from(part.records)
    assert (header[0], header[5], header[9], header[10]) == (0, 0, OURS, 0)
    return header[11], [int(record.value or b"") for record in read_v2(part.records)]


def said(code: int, base_offset: int, repeated: bool = False, *, stamped_ms: int = -1) -> memoryview:
    """An answer about the one partition; of what was there already it has the time.

    Args:
        stamped_ms: The time of the append, from a topic that replaces record times with it.
    """
    topic = ProduceResponse.TopicProduceResponse
    part = topic.PartitionProduceResponse(
        version=VERSION,
        index=0,
        error_code=code,
        base_offset=base_offset,
        log_append_time_ms=1 if repeated else stamped_ms,
        record_errors=[],
    )
    responses = [topic(version=VERSION, name="orders", partition_responses=[part])]
    return memoryview(bytes(ProduceResponse(version=VERSION, responses=responses).encode()))
