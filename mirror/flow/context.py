"""What the parts of a running flow share."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from mirror.errors import BatchError
from mirror.flow.partition import PartitionCopy
from mirror.flow.silence import Silence
from mirror.flow.turn import Turn
from mirror.kafka.buffers import BufferPool
from mirror.kafka.cluster import Cluster
from mirror.kafka.connection import Connection
from mirror.kafka.fetch import FetchLimits
from mirror.link.stream import LinkStream
from mirror.model import TopicPartition
from mirror.timetable import Period


class Instruments(Protocol):
    """Where the pipeline reports what its counters do not show; called at most once per request."""

    def observe_copy_latency(self, seconds: float, tp: TopicPartition, offset: int) -> None:
        """From a record's timestamp to its acknowledgement by the target; ``offset`` is the source's."""

    def observe_request(self, api: str, seconds: float) -> None:
        """From sending a request to its answer."""

    def count_throttled(self, api: Literal["fetch", "produce"], seconds: float) -> None:
        """For how long a broker's quota throttles us, as its answer says; mostly 0."""

    def count_crc_failure(self, where: Literal["source", "target"]) -> None:
        """A batch does not match its CRC; ``where`` tells whose bytes they were."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of the pipeline, in bytes, counts or seconds; see docs/settings.md for those that can be set."""

    fetch: FetchLimits
    fetch_connections: int
    append_connections: int
    partition_fetch_bytes_max: int
    request_bytes_max: int
    requests_in_flight_max: int
    batches_in_flight_max: int
    buffer_bytes_max: int
    partition_buffer_bytes_max: int
    gap_limit: int
    padding_limit: int
    idle_look_seconds: float = 60.0
    """After this long a silence the target is asked where a log ends, even if there is nothing to send."""


@dataclass(frozen=True, slots=True)
class LinkLimits:
    """How a relay is to send what it reads; see docs/settings.md.

    Attributes:
        level: zstd's; 0: chosen to suit the link.
        connections: How many carry the stream; 0: as many as the relay's kernel needs.
        rates: The highest rates, and when they apply.
    """

    window_bytes: int
    level: int
    recode: bool
    connections: int = 0
    rates: Sequence[Period] = ()


class Hooks(Protocol):
    """What the parts report to the engine. None of them blocks."""

    def changed(self, partition: PartitionCopy) -> None:
        """The partition may want something else now: data, a send, the owner, a look."""

    def reread(self, partition: PartitionCopy, bad: BatchError, node: int | None) -> None:
        """A batch cannot be read from ``node`` (None for the leader): try the other replicas."""

    def stale(self, cluster: Cluster) -> None:
        """A broker's answer shows that our metadata of its cluster is stale."""

    def crash(self, error: BaseException) -> None:
        """A bug; it ends the mirror."""


@dataclass(slots=True)
class Flow:
    """A running flow: both clusters, who we are to the target, and the memory we may use."""

    name: str
    source: Cluster
    target: Cluster
    limits: Limits
    pool: BufferPool
    instruments: Instruments
    hooks: Hooks
    producer_id: int = -1
    producer_epoch: int = 0
    batch_bytes_max: dict[str, int] = field(default_factory=dict)
    """``max.message.bytes`` of each target topic, by source topic."""
    link: LinkLimits | None = None
    """Set where a relay sends what it reads; None: the brokers are asked."""
    stream: LinkStream | None = None
    """The stream it is sent over, while there is one."""
    draining: bool = False
    """Nothing more is sent."""
    turn: Turn = field(default_factory=Turn)
    """Whether we may append just now."""
    silence: Silence = field(default_factory=Silence)
    closer_look: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while fetched batches are re-encoded: what they inflate to is in memory once at a time."""
    comparing: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Likewise, while the last record copied is compared with the source's; a lock of its own, so that looks
    do not wait for re-encoding."""
    room: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when buffers may have been released; a waiter checks whether there is room."""

    @property
    def may_send(self) -> bool:
        """Whether batches may be sent: it is our turn, and the flow is not draining."""
        return not self.draining and self.turn.is_ours()

    async def writer(self, node: int, purpose: str) -> Connection:
        """The connection to a target broker over which records are appended for one purpose.

        Nothing leaves over it except in our turn.

        Raises:
            ConnectionFailedError: The broker is unknown or cannot be reached.
            AuthenticationError: It does not accept us, or we do not accept it.
        """
        connection = await self.target.connection(node, purpose)
        self.turn.guard(connection)
        return connection
