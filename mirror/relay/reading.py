"""Read the source's brokers for one mirror: from the positions it has told, and on from there by itself.

Every partition is on one of two channels. What is behind goes by BULK, a lot at a time; what is read up to
its end goes by LIVE, as soon as it is there, and first over the link. A partition changes over when the
mirror has taken the last frame with something of it: so nothing of it overtakes the rest.

Sources: KIP-227 (sessions), docs/protocol.md.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Container, Coroutine, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, Protocol

import structlog

from mirror.errors import AnswerError, ConnectionFailedError, TwinsiteError
from mirror.flow.states import pause_seconds
from mirror.kafka.buffers import Buffer, BufferPool
from mirror.kafka.cluster import STALE_METADATA_CODES, Cluster, ClusterInfo, PartitionInfo, broker_error
from mirror.kafka.connection import Connection
from mirror.kafka.fetch import (
    FETCH,
    FETCH_VERSION,
    FetchAnswer,
    Fetched,
    FetchLimits,
    FetchSession,
    Isolation,
    Key,
    Want,
    decode_answer,
)
from mirror.link.messages import Channel, Position
from mirror.link.parts import Part, Whole, whole_batches
from mirror.logs import Repeats, warn_repeated
from mirror.model import TopicPartition
from mirror.relay.sending import Taken

log = structlog.get_logger(__name__)

LIMITS = {
    Channel.LIVE: (FetchLimits(wait_ms_max=100, bytes_max=1 << 20), 256 << 10),
    Channel.BULK: (FetchLimits(wait_ms_max=50, bytes_max=2 << 20), 1 << 20),
}
"""Of each channel: what one answer of a broker may bring, and one partition in it."""
FRAME_BYTES_FIRST = 64 << 10
"""So large is the first frame of a lane, each next one twice as large: where connections die young something
gets through, too."""
PART_BYTES_CEILING = 128 << 20
HEARTBEAT_SECONDS = 0.5
"""Where a broker has nothing new, this is said so often."""
IDLE_BYTES_MAX = 8 << 20
ROUTE_PAUSE_SECONDS = 0.1
ROUTE_TRIES = 30
"""So often it is looked where a partition is led, before its mirror is told that nobody leads it."""
PLACES_MAX = 200_000
UNKNOWN_TOPIC_ID, LEADER_NOT_AVAILABLE, CORRUPT_MESSAGE = 100, 5, 2


class Outlet(Protocol):
    """Where what was read goes."""

    async def send(
        self, channel: Channel, node: int, parts: Sequence[Part], as_is: Container[Key], taken: Taken
    ) -> None:
        """Send a frame; returns when the parts are not needed any more.

        Args:
            as_is: Partitions whose batches are not recoded.
            taken: Called when the mirror has taken it.
        """

    def trouble(self, node: int, words: str) -> None:
        """A broker cannot be read just now."""


@dataclass(slots=True, eq=False)
class Place:
    """Where a partition is read next.

    Attributes:
        lane: On which it travels; None while it is between two.
        tries: To find out who leads it, without success.
    """

    number: int
    offset: int
    fetched_epoch: int
    channel: Channel = Channel.BULK
    bytes_max: int = 0
    lane: BrokerLane | None = None
    tries: int = 0


class Read(NamedTuple):
    """What one answer has brought, and who changes over when it is taken."""

    parts: list[Part]
    changing: list[tuple[Key, Place]]


class SourceReader:
    """Reads what one mirror wants.

    Args:
        isolation: What the mirror may see.
        outlet: Takes what was read.
        frame_bytes_max: What the mirror has room for, of records in one frame; a batch is never cut.
    """

    def __init__(self, cluster: Cluster, isolation: Isolation, outlet: Outlet, frame_bytes_max: int) -> None:
        self.frame_bytes_max = frame_bytes_max
        self.cluster = cluster
        self.isolation = isolation
        self.outlet = outlet
        self.places: dict[Key, Place] = {}
        self.as_is: set[Key] = set()
        self.pool = BufferPool(IDLE_BYTES_MAX)
        self._lanes: dict[tuple[int, Channel], BrokerLane] = {}
        self._astray: dict[Key, Place] = {}
        self._strayed = asyncio.Event()
        self._topics: tuple[ClusterInfo | None, dict[bytes, str]] = (None, {})
        self._group: asyncio.TaskGroup | None = None

    # -- what the mirror says ------------------------------------------------------------------------

    def want(self, positions: Iterable[Position]) -> None:
        """Read these partitions from there on, whatever was wanted of them before.

        Raises:
            AnswerError: They are more than any mirror copies.
        """
        if len(self.places) > PLACES_MAX:
            raise AnswerError(f"{len(self.places)} partitions are wanted, the most is {PLACES_MAX}")
        for key, number, offset, fetched_epoch, recode in positions:
            self.forget([key])
            if not recode:
                self.as_is.add(key)
            place = self.places[key] = Place(number, offset, fetched_epoch)
            self.place(key, place)

    def forget(self, keys: Iterable[Key]) -> None:
        """Read these partitions no more."""
        for key in keys:
            place = self.places.pop(key, None)
            if place is not None and place.lane is not None:
                place.lane.leave(key, place)
            self._astray.pop(key, None)
            self.as_is.discard(key)

    # -- which way a partition goes ------------------------------------------------------------------

    def place(self, key: Key, place: Place) -> None:
        """Put a partition on the lane from its leader, unless the mirror wants something else by now."""
        if self.places.get(key) is not place or place.lane is not None:
            return
        known = self.partition(key)
        if self._group is None or known is None or known.leader not in self.cluster.info.brokers:
            self.astray(key, place)
            return
        lane = self._lanes.get((known.leader, place.channel))
        if lane is None:
            lane = self._lanes[known.leader, place.channel] = BrokerLane(self, known.leader, place.channel)
            lane.task = self._group.create_task(lane.run())
        lane.join(key, place)

    def partition(self, key: Key) -> PartitionInfo | None:
        """What the cluster said last of a partition."""
        info, topics = self._topics
        if info is not self.cluster.info:
            info = self.cluster.info
            topics = {topic.topic_id.bytes: name for name, topic in info.topics.items()}
            self._topics = info, topics
        name = topics.get(key.topic_id)
        return None if name is None else info.partition(TopicPartition(name, key.partition))

    def astray(self, key: Key, place: Place) -> None:
        """Look again who leads this partition."""
        if self.places.get(key) is place:
            self._astray[key] = place
            self._strayed.set()

    async def run(self) -> None:
        """Read until cancelled."""
        try:
            async with asyncio.TaskGroup() as self._group:
                while True:
                    await self._strayed.wait()
                    self._strayed.clear()
                    await self._look_again()
                    await asyncio.sleep(ROUTE_PAUSE_SECONDS)
        finally:
            for lane in self._lanes.values():
                lane.close()

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Do something beside; it ends with the reader, and a mistake in it ends the reader."""
        assert self._group is not None, "nothing is read before it runs"
        return self._group.create_task(work)

    async def _look_again(self) -> None:
        try:
            await self.cluster.refresh(not_older_than_seconds=ROUTE_PAUSE_SECONDS)
        except TwinsiteError as error:
            self.outlet.trouble(-1, str(error))
            self._strayed.set()
            return
        astray, self._astray = self._astray, {}
        for key, place in astray.items():
            place.tries += 1
            if place.tries <= ROUTE_TRIES:
                self.place(key, place)
                continue
            code = UNKNOWN_TOPIC_ID if self.partition(key) is None else LEADER_NOT_AVAILABLE
            self.spawn(self._refuse(key, place, code))

    async def _refuse(self, key: Key, place: Place, code: int) -> None:
        if self.places.get(key) is place:
            self.forget([key])
            refused = [refusal(key, place, code)]
            await self.outlet.send(place.channel, -1, refused, self.as_is, _nothing)


class BrokerLane:
    """The way from one broker, by one channel.

    Attributes:
        task: Runs it.
    """

    def __init__(self, reader: SourceReader, node: int, channel: Channel) -> None:
        self.task: asyncio.Task[None] | None = None
        self._reader = reader
        self._node = node
        self._channel = channel
        limits, self._part_bytes_max = LIMITS[channel]
        self._bytes_max = min(limits.bytes_max, reader.frame_bytes_max)
        first = min(FRAME_BYTES_FIRST, self._bytes_max)
        self._limits = replace(limits, bytes_max=first, isolation=reader.isolation)
        self._session = FetchSession()
        self._work = asyncio.Event()
        self._connection: Connection | None = None
        self._sent: asyncio.Task[None] | None = None
        self._said_at = 0.0
        self._repeats = Repeats()

    def join(self, key: Key, place: Place) -> None:
        """Read this partition here."""
        place.lane = self
        place.bytes_max = max(place.bytes_max, self._part_bytes)
        self._want(key, place)
        self._work.set()

    def leave(self, key: Key, place: Place) -> None:
        """Read it here no more."""
        place.lane = None
        self._session.forget(key)

    def close(self) -> None:
        """The connection ends."""
        if self._connection is not None:
            self._connection.close("the mirror is gone")

    @property
    def _part_bytes(self) -> int:
        return min(self._limits.bytes_max, self._part_bytes_max)

    def _want(self, key: Key, place: Place) -> None:
        known = self._reader.partition(key)
        leader_epoch = known.leader_epoch if known else -1
        self._session.want(key, Want(place.offset, leader_epoch, place.fetched_epoch, place.bytes_max))

    # -- the loop --------------------------------------------------------------------------------

    async def run(self) -> None:
        """Read until cancelled. Errors of the connection are waited out."""
        attempts = 0
        while True:
            if not self._session.wanted:
                self._work.clear()
                await self._work.wait()
                continue
            try:
                await self._round()
                attempts = 0
            except TwinsiteError as error:
                attempts += 1
                self._lost(error)
                await asyncio.sleep(pause_seconds(attempts))

    async def _round(self) -> None:
        connection = await self._connected()
        held: list[Buffer] = []

        def allocate(size: int) -> memoryview:
            held.append(self._reader.pool.take(size))
            return held[0].memory[:size]

        try:
            request = self._session.request(self._limits)
            body = await connection.send(FETCH, FETCH_VERSION, [request], allocate=allocate)
            read = self._read(decode_answer(body))
            if self._sent is not None:
                await self._sent
                self._sent = None
            if read.parts or time.monotonic() - self._said_at >= HEARTBEAT_SECONDS:
                self._said_at = time.monotonic()
                held[0].hold()
                self._sent = self._reader.spawn(self._send(read, held[0]))
        finally:
            for buffer in held:
                buffer.release()

    async def _connected(self) -> Connection:
        if self._connection is None or self._connection.closed:
            cluster = self._reader.cluster
            address = cluster.info.brokers.get(self._node)
            if address is None:
                raise ConnectionFailedError(f"broker {self._node} is not in the cluster just now")
            connection = await Connection.open(address, cluster.options)
            connection.version(FETCH, FETCH_VERSION, "Fetch", lowest=FETCH_VERSION)
            self._connection = connection
            self._session.reset()
        return self._connection

    async def _send(self, read: Read, buffer: Buffer) -> None:
        try:
            taken = partial(self._changed_over, read.changing)
            reader = self._reader
            await reader.outlet.send(self._channel, self._node, read.parts, reader.as_is, taken)
        finally:
            buffer.release()

    def _changed_over(self, changing: list[tuple[Key, Place]]) -> None:
        for key, place in changing:
            self._reader.place(key, place)

    def _lost(self, error: TwinsiteError) -> None:
        """Its partitions may be led by another broker by now."""
        warn_repeated(log, self._repeats, "fetch", "broker_not_read", broker=self._node, error=str(error))
        self._reader.outlet.trouble(self._node, str(error))
        self._session.reset()
        for key in list(self._session.wanted):
            place = self._reader.places[key]
            self.leave(key, place)
            place.tries = 0
            self._reader.astray(key, place)

    # -- an answer -------------------------------------------------------------------------------

    def _read(self, answer: FetchAnswer) -> Read:
        if not self._session.answered(answer):
            raise broker_error(answer.error_code, f"Fetch from broker {self._node}")
        spare = self._limits.bytes_max - sum(len(fetched.records) for fetched in answer.partitions)
        if spare < self._limits.bytes_max // 2:
            self._limits = replace(self._limits, bytes_max=min(self._limits.bytes_max * 2, self._bytes_max))
        read = Read([], [])
        for fetched in answer.partitions:
            place, want = self._reader.places.get(fetched.key), self._session.told.get(fetched.key)
            if place is not None and place.lane is self and want is not None and place.offset == want.offset:
                self._read_partition(fetched, place, spare, read)
        return read

    def _read_partition(self, fetched: Fetched, place: Place, spare: int, read: Read) -> None:
        key = fetched.key
        if fetched.error_code in STALE_METADATA_CODES and place.tries < ROUTE_TRIES:
            self.leave(key, place)
            self._reader.astray(key, place)
            return
        if fetched.error_code or fetched.diverging is not None:
            self._reader.forget([key])
            read.parts.append(Part(place.number, place.offset, place.offset, fetched))
            return
        place.tries = 0
        whole = whole_batches(fetched.records)
        committed = self._reader.isolation is Isolation.READ_COMMITTED
        end = fetched.last_stable_offset if committed else fetched.high_watermark
        if whole.bytes > PART_BYTES_CEILING or not (whole.bytes or whole.readable):
            self._unreadable(fetched, place, whole, read)
            return
        if not whole.bytes and place.offset < end and place.bytes_max <= spare + len(fetched.records):
            self._grow(key, place, read)
            return
        offset = place.offset
        place.offset = max(offset, whole.next_offset)
        place.fetched_epoch = max(place.fetched_epoch, whole.leader_epoch)
        place.bytes_max = self._part_bytes
        records = fetched.records[: whole.bytes]
        read.parts.append(Part(place.number, offset, place.offset, fetched._replace(records=records)))
        self._go_on(key, place, end, whole.bytes, read)

    def _unreadable(self, fetched: Fetched, place: Place, whole: Whole, read: Read) -> None:
        """What is no batch goes on for the mirror to see; what is too large for it does not."""
        self._reader.forget([fetched.key])
        if whole.bytes:
            read.parts.append(refusal(fetched.key, place, CORRUPT_MESSAGE))
        else:
            read.parts.append(Part(place.number, place.offset, place.offset, fetched))

    def _go_on(self, key: Key, place: Place, end: int, came: int, read: Read) -> None:
        """Here, or by the other channel once this is taken."""
        behind = place.offset < end
        live = self._channel is Channel.LIVE
        if (live and came < self._part_bytes // 2) or behind is not live:
            self._want(key, place)
            return
        self.leave(key, place)
        place.channel = Channel.LIVE if self._channel is Channel.BULK else Channel.BULK
        read.changing.append((key, place))

    def _grow(self, key: Key, place: Place, read: Read) -> None:
        """The first batch is larger than what was asked for."""
        if place.bytes_max < PART_BYTES_CEILING:
            place.bytes_max = min(place.bytes_max * 2, PART_BYTES_CEILING)
            self._want(key, place)
            return
        self._reader.forget([key])
        read.parts.append(refusal(key, place, CORRUPT_MESSAGE))


def refusal(key: Key, place: Place, code: int) -> Part:
    """A part that says why nothing comes."""
    return Part(
        place.number, place.offset, place.offset, Fetched(key, code, -1, -1, -1, None, [], memoryview(b""))
    )


def _nothing() -> None:
    return
