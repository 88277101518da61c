"""Read the source's brokers for one mirror: from the positions it has told, and on from there by itself.

Every partition is on one of two channels. What is behind goes by BULK, a lot at a time; what is read up to
its end goes by LIVE, as soon as it is there, and first over the link. A partition changes over when the
mirror has taken the last frame with something of it: so nothing of it overtakes the rest.

Sources: KIP-227 (sessions), docs/protocol.md.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Collection, Container, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, Protocol

import structlog

from mirror.errors import AnswerError, ConnectionFailedError, TwinsiteError
from mirror.failpoints import reach
from mirror.flow.states import pause_seconds
from mirror.kafka.buffers import SMALL_BYTES, Buffer, BufferPool
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
from mirror.link.parts import ASTRAY, Part, Whole, whole_batches
from mirror.logs import Repeats, warn_repeated
from mirror.model import TopicPartition
from mirror.relay.sending import Gone, News, Taken, steady_us
from mirror.relay.turns import Turns

log = structlog.get_logger(__name__)

LIMITS = {
    Channel.LIVE: (FetchLimits(wait_ms_max=100, bytes_max=1 << 20), 256 << 10),
    Channel.BULK: (FetchLimits(wait_ms_max=50, bytes_max=(4 << 20) - SMALL_BYTES), 1 << 20),
}
"""Of each channel: what one answer of a broker may bring, and one partition in it. With what stands before
the records the longest answer is not longer than a whole number of megabytes, as buffers are.
"""
BYTES_AT_ONCE_MAX = 16 << 20
"""Of what answers bring by one channel, all brokers together: of many brokers each brings less."""
FRAME_BYTES_FIRST = 64 << 10
"""So large is the first frame of a lane, each next one twice as large: where connections die young something
gets through, too."""
PART_BYTES_CEILING = 128 << 20
HEARTBEAT_SECONDS = 0.5
"""Where a broker has nothing new, this is said so often."""
SILENT_SECONDS = 1.0
"""So long others wait for a broker that is asked and does not answer."""
IDLE_BYTES_MAX = 16 << 20
ROUTE_PAUSE_SECONDS, ROUTE_PAUSE_TIMES = 0.1, 4
"""After each look, or so many times as long as that took: others have time beside many that nobody knows."""
ROUTE_TRIES = 30
"""So often it is looked where a partition is led, before its mirror is told that nobody leads it."""
PLACES_MAX = 200_000
REFUSALS_AT_ONCE = 1000
UNKNOWN_TOPIC_ID, LEADER_NOT_AVAILABLE, CORRUPT_MESSAGE, TOPIC_AUTHORIZATION_FAILED = 100, 5, 2, 29


class Outlet(Protocol):
    """Where what was read goes."""

    async def send(
        self, channel: Channel, news: News, as_is: Container[Key], taken: Taken, gone: Gone
    ) -> None:
        """Send a frame; returns when it is made.

        Args:
            as_is: Partitions whose batches are not recoded.
            taken: Called when the mirror has taken it.
            gone: Called when the parts are not needed any more.
        """

    def trouble(self, node: int, words: str) -> None:
        """A broker cannot be read just now."""

    def closed(self, topics: Collection[str]) -> None:
        """Topics were wanted that the mirror may not read; it is told so of each partition."""


@dataclass(slots=True, eq=False)
class Place:
    """Where a partition is read next.

    Attributes:
        rank: Of those that are behind the lowest is read first.
        behind: It is known to be: an answer has said so on the lane on which it is.
        lane: On which it travels; None while it is between two.
        tries: To find out who leads it, without success.
    """

    number: int
    offset: int
    fetched_epoch: int
    rank: int = 0
    channel: Channel = Channel.BULK
    bytes_max: int = 0
    behind: bool = False
    lane: BrokerLane | None = None
    tries: int = 0


class Read(NamedTuple):
    """What one answer has brought and when that was, and who changes over when it is taken."""

    at_us: int
    parts: list[Part]
    changing: list[tuple[Key, Place]]


class SourceReader:
    """Reads what one mirror wants.

    Args:
        isolation: What the mirror may see.
        outlet: Takes what was read.
        frame_bytes_max: What the mirror has room for, of records in one frame; a batch is never cut.
        allows: Whether the mirror may read a topic of this name; None: all there are.
    """

    def __init__(
        self,
        cluster: Cluster,
        isolation: Isolation,
        outlet: Outlet,
        frame_bytes_max: int,
        allows: Callable[[str], bool] | None = None,
    ) -> None:
        self._allows = allows
        self.frame_bytes_max = frame_bytes_max
        self.cluster = cluster
        self.isolation = isolation
        self.outlet = outlet
        self.places: dict[Key, Place] = {}
        self.as_is: set[Key] = set()
        self.pool = BufferPool(IDLE_BYTES_MAX)
        self._lanes: dict[tuple[int, Channel], BrokerLane] = {}
        self.turns = Turns()
        self._astray: dict[Key, Place] = {}
        self._strayed = asyncio.Event()
        self._topics: tuple[ClusterInfo | None, dict[bytes, str]] = (None, {})
        self._closed: set[bytes] = set()
        self._refused: dict[Key, tuple[Place, int]] = {}
        self._refusing: asyncio.Task[None] | None = None
        self._group: asyncio.TaskGroup | None = None

    # -- what the mirror says ------------------------------------------------------------------------

    def want(self, positions: Iterable[Position]) -> None:
        """Read these partitions from there on, whatever was wanted of them before.

        Raises:
            AnswerError: They are more than any mirror copies.
        """
        if len(self.places) > PLACES_MAX:
            raise AnswerError(f"{len(self.places)} partitions are wanted, the most is {PLACES_MAX}")
        for key, number, offset, fetched_epoch, recode, rank in positions:
            self.forget([key])
            if not recode:
                self.as_is.add(key)
            place = self.places[key] = Place(number, offset, fetched_epoch, rank)
            self.place(key, place)

    def forget(self, keys: Iterable[Key]) -> None:
        """Read these partitions no more."""
        for key in keys:
            place = self.places.pop(key, None)
            if place is not None and place.lane is not None:
                place.lane.leave(key, place)
            self._astray.pop(key, None)
            self._refused.pop(key, None)
            self.as_is.discard(key)

    # -- what others read as well ------------------------------------------------------------------

    def at_end(self) -> list[Key]:
        """Partitions that are read up to their end."""
        lanes = (lane for (_, channel), lane in self._lanes.items() if channel is Channel.LIVE)
        return [key for lane in lanes for key in lane.places]

    def hand_over(self, key: Key) -> tuple[Place, bool]:
        """Somebody else reads a partition from now on; answers where, and whether it may be recoded."""
        place, recode = self.places[key], key not in self.as_is
        self.forget([key])
        return place, recode

    def take_back(self, key: Key, place: Place, recode: bool) -> None:
        """Read it here again, from where the place says by now; nothing where something else is wanted."""
        if key in self.places:
            return
        if not recode:
            self.as_is.add(key)
        self.places[key] = place
        self.place(key, place)

    # -- which of those that are behind ------------------------------------------------------------

    def rank(self, ranks: Iterable[tuple[Key, int]]) -> None:
        """These partitions have another rank, the one that is said last; those that are not wanted are left
        out. Who has his turn is looked at once, however many they are.
        """
        others = False
        for key, rank in dict(ranks).items():
            place = self.places.get(key)
            if place is None or place.rank == rank:
                continue
            lane = place.lane
            if lane is None or not place.behind:
                place.rank = rank
                continue
            left = self.turns.count(lane, place.rank, -1)
            place.rank = rank
            others |= self.turns.count(lane, rank, 1) | left
            lane.ranked([(key, place)])
        self.turned(others)

    def turned(self, others: bool) -> None:
        """Where others have their turn now, they are read."""
        if others:
            for lane in self._lanes.values():
                lane.ranked()

    # -- which way a partition goes ------------------------------------------------------------------

    def place(self, key: Key, place: Place) -> None:
        """Put a partition on the lane from its leader, unless the mirror wants something else by now."""
        if self.places.get(key) is not place or place.lane is not None:
            return
        known = self.partition(key)
        if self._group is not None and key.topic_id in self._closed:
            self._refuse(key, place, TOPIC_AUTHORIZATION_FAILED)
            return
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
            allows = self._allows
            self._closed = {one for one, name in topics.items() if allows is not None and not allows(name)}
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
                    spent = await self._look_again()
                    await asyncio.sleep(max(ROUTE_PAUSE_SECONDS, spent * ROUTE_PAUSE_TIMES))
        finally:
            for lane in self._lanes.values():
                lane.close()

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Do something beside; it ends with the reader, and a mistake in it ends the reader."""
        assert self._group is not None, "nothing is read before it runs"
        return self._group.create_task(work)

    async def _look_again(self) -> float:
        """Answers for how long it kept others from their work."""
        try:
            await self.cluster.refresh(not_older_than_seconds=ROUTE_PAUSE_SECONDS)
        except TwinsiteError as error:
            self.outlet.trouble(-1, str(error))
            self._strayed.set()
            return 0.0
        began = time.monotonic()
        astray, self._astray = self._astray, {}
        for key, place in astray.items():
            place.tries += 1
            if place.tries <= ROUTE_TRIES:
                self.place(key, place)
                continue
            code = UNKNOWN_TOPIC_ID if self.partition(key) is None else LEADER_NOT_AVAILABLE
            self._refuse(key, place, code)
        return time.monotonic() - began

    def _refuse(self, key: Key, place: Place, code: int) -> None:
        """Tell the mirror why nothing comes of a partition."""
        if self.places.get(key) is not place:
            return
        self._refused[key] = place, code
        if self._refusing is None or self._refusing.done():
            self._refusing = self.spawn(self._send_refusals())

    async def _send_refusals(self) -> None:
        while self._refused:
            parts: dict[Channel, list[Part]] = {}
            closed: set[str] = set()
            for key, (place, code) in list(itertools.islice(self._refused.items(), REFUSALS_AT_ONCE)):
                self.forget([key])
                parts.setdefault(place.channel, []).append(refusal(key, place, code))
                if code == TOPIC_AUTHORIZATION_FAILED:
                    closed.add(self._topics[1].get(key.topic_id, key.topic_id.hex()))
            if closed:
                self.outlet.closed(closed)
            for channel, refused in parts.items():
                news = News(-1, steady_us(), refused)
                await self.outlet.send(channel, news, self.as_is, _nothing, _nothing)


class BrokerLane:
    """The way from one broker, by one channel.

    Attributes:
        task: Runs it.
        places: Partitions that are read here, when they have their turn.
    """

    def __init__(self, reader: SourceReader, node: int, channel: Channel) -> None:
        self.task: asyncio.Task[None] | None = None
        self._reader = reader
        self._node = node
        self._channel = channel
        limits, self._part_bytes_max = LIMITS[channel]
        each = max(BYTES_AT_ONCE_MAX // max(len(reader.cluster.info.brokers), 1), self._part_bytes_max)
        self._bytes_max = min(limits.bytes_max, reader.frame_bytes_max, each)
        first = min(FRAME_BYTES_FIRST, self._bytes_max)
        self._limits = replace(limits, bytes_max=first, isolation=reader.isolation)
        self._session = FetchSession()
        self.places: dict[Key, Place] = {}
        self._work = asyncio.Event()
        self._connection: Connection | None = None
        self._counted = (0, 0)
        self._sent: asyncio.Task[None] | None = None
        self._said_at = 0.0
        self._repeats = Repeats()

    def join(self, key: Key, place: Place) -> None:
        """Read this partition here."""
        place.lane = self
        place.bytes_max = max(place.bytes_max, self._part_bytes)
        self.places[key] = place
        self._want(key, place)

    def leave(self, key: Key, place: Place) -> None:
        """Read it here no more."""
        place.lane = None
        del self.places[key]
        self._session.forget(key)
        self._count_behind(place, behind=False)

    def ranked(self, places: Iterable[tuple[Key, Place]] | None = None) -> None:
        """It may be others that have their turn now, of these or of all."""
        for key, place in self.places.items() if places is None else places:
            if key not in self._session.wanted or not self._has_turn(place):
                self._want(key, place)

    def _has_turn(self, place: Place) -> bool:
        return not place.behind or place.rank <= self._reader.turns.served

    def _found(self, place: Place, *, behind: bool) -> None:
        """An answer has said whether it is behind; on LIVE nothing waits for its turn."""
        self._count_behind(place, behind=behind and self._channel is Channel.BULK)

    def _count_behind(self, place: Place, *, behind: bool) -> None:
        if behind != place.behind:
            place.behind = behind
            self._reader.turned(self._reader.turns.count(self, place.rank, 1 if behind else -1))

    @contextmanager
    def _listening(self) -> Iterator[None]:
        """In this block its broker is waited for; while that takes long, others have their turn."""
        turns, turned = self._reader.turns, self._reader.turned
        fallen_silent = asyncio.get_running_loop().call_later(
            SILENT_SECONDS, lambda: turned(turns.silent(self))
        )
        try:
            yield
        finally:
            fallen_silent.cancel()
        turned(turns.heard(self))

    def close(self) -> None:
        """The connection ends."""
        if self._connection is not None:
            self._connection.close("the mirror is gone")
        self._count()

    def _count(self) -> None:
        """What has come since it was counted last goes to the cluster's account."""
        if self._connection is not None:
            now = self._connection.bytes_received, self._connection.bytes_sent
            before, self._counted = self._counted, now
            self._reader.cluster.count(now[0] - before[0], now[1] - before[1])

    @property
    def _part_bytes(self) -> int:
        return min(self._limits.bytes_max, self._part_bytes_max)

    def _want(self, key: Key, place: Place) -> None:
        if not self._has_turn(place):
            self._session.forget(key)
            return
        known = self._reader.partition(key)
        leader_epoch = known.leader_epoch if known else -1
        self._session.want(key, Want(place.offset, leader_epoch, place.fetched_epoch, place.bytes_max))
        self._work.set()

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
        held: list[Buffer] = []

        def allocate(size: int) -> memoryview:
            held.append(self._reader.pool.take(size))
            return held[0].memory[:size]

        try:
            with self._listening():
                connection = await self._connected()
                request = self._session.request(self._limits)
                body = await connection.send(FETCH, FETCH_VERSION, [request], allocate=allocate)
            self._count()
            read = self._read(decode_answer(body))
            reach("source_read")
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
            self._count()
            self._counted = (0, 0)
            connection.version(FETCH, FETCH_VERSION, "Fetch", lowest=FETCH_VERSION)
            self._connection = connection
            self._session.reset()
        return self._connection

    async def _send(self, read: Read, buffer: Buffer) -> None:
        taken = partial(self._changed_over, read.changing)
        reader = self._reader
        news = News(self._node, read.at_us, read.parts)
        await reader.outlet.send(self._channel, news, reader.as_is, taken, buffer.release)

    def _changed_over(self, changing: list[tuple[Key, Place]]) -> None:
        for key, place in changing:
            self._reader.place(key, place)
            reach("changed_over")

    def _lost(self, error: TwinsiteError) -> None:
        """Its partitions may be led by another broker by now."""
        warn_repeated(log, self._repeats, "fetch", "broker_not_read", broker=self._node, error=str(error))
        self._reader.outlet.trouble(self._node, str(error))
        self._session.reset()
        for key, place in list(self.places.items()):
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
        read = Read(steady_us(), [], [])
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
            if not place.tries:
                read.parts.append(refusal(key, place, ASTRAY))
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
        self._found(place, behind=behind)
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
