"""Read one broker for one mirror by one channel: one request after the other, over a connection of its own.

While what came with the last answer is on its way out the next one is asked for, and no more: the outlet
holds up the reading. What is behind is asked for when it has its turn. After any error the connection is
given up, and of every partition on it is looked again who leads it.

What an answer makes of a partition is decided in :mod:`mirror.relay.place`.

Sources: KIP-227 (sessions), docs/protocol.md.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, Protocol

import structlog

from mirror.errors import ConnectionFailedError, TwinsiteError
from mirror.failpoints import reach
from mirror.flow.portion import next_bytes, share
from mirror.flow.states import pause_seconds
from mirror.kafka.buffers import SMALL_BYTES, Buffer, BufferPool
from mirror.kafka.cluster import Cluster
from mirror.kafka.cluster_info import PartitionInfo
from mirror.kafka.connection import Connection
from mirror.kafka.failures import broker_error
from mirror.kafka.fetch import (
    FETCH,
    FETCH_VERSION,
    FetchAnswer,
    FetchLimits,
    FetchSession,
    Isolation,
    Key,
    Want,
    decode_answer,
)
from mirror.link.parts import ASTRAY, HEARTBEAT_SECONDS, Part
from mirror.link.protocol import Channel
from mirror.logs import Repeats, warn_repeated
from mirror.relay.news import Gone, News, Taken, nothing, steady_us
from mirror.relay.place import Asked, Place, Step, Then, refusal, taken_in
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
ASTRAY_AT_ONCE = 1000
SILENT_SECONDS = 1.0
"""So long others wait for a broker that is asked and does not answer."""


class Reader(Protocol):
    """Whoever reads for a mirror: knows what it wants, and which way that goes.

    Attributes:
        isolation: What the mirror may see.
        frame_bytes_max: What it has room for, of records in one frame.
        places: What it wants, wherever that is read.
        turns: Whose turn it is, of all lanes.
    """

    cluster: Cluster
    isolation: Isolation
    frame_bytes_max: int
    pool: BufferPool
    places: dict[Key, Place]
    turns: Turns

    def partition(self, key: Key) -> PartitionInfo | None:
        """What the cluster said last of a partition."""

    def place(self, key: Key, place: Place) -> None:
        """Put a partition on the lane from its leader, unless the mirror wants something else by now."""

    def astray(self, key: Key, place: Place) -> None:
        """Look again who leads this partition."""

    def forget(self, keys: Iterable[Key]) -> None:
        """Read these partitions no more."""

    def turned(self, others: bool) -> None:
        """Where others have their turn now, they are read."""

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Do something beside; it ends with the reader, and a mistake in it ends the reader."""

    def send(self, channel: Channel, news: News, taken: Taken, gone: Gone) -> Awaitable[None]:
        """Send the mirror a frame, as :class:`mirror.relay.reading.Outlet` says."""

    def trouble(self, node: int, words: str) -> None:
        """A broker cannot be read just now."""


class Read(NamedTuple):
    """What one answer has brought and when that was, and who changes over when it is taken."""

    at_us: int
    parts: list[Part]
    changing: list[tuple[Key, Place]]


class BrokerLane:
    """The way from one broker, by one channel.

    Attributes:
        node: The broker's id.
        task: Runs it.
        places: Partitions that are read here, when they have their turn.
    """

    def __init__(self, reader: Reader, node: int, channel: Channel) -> None:
        self.task: asyncio.Task[None] | None = None
        self._reader = reader
        self.node = node
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
        self._due_at, self._free_at = math.inf, 0.0
        """Since when its broker is asked in vain, and until when a quota holds it back."""
        self._heard_us: int | None = None
        """When it has answered last, since it was said that its partitions are astray."""
        self._repeats = Repeats()

    def join(self, key: Key, place: Place) -> None:
        """Read this partition here."""
        place.lane = self
        place.bytes_max = max(place.bytes_max, self._part_bytes)
        self.places[key] = place
        self._want(key, place, anew=True)

    def leave(self, key: Key, place: Place) -> None:
        """Read it here no more."""
        place.lane = None
        del self.places[key]
        self._session.forget(key)
        self._count_behind(place, behind=False)

    def rank(self, key: Key, place: Place, rank: int) -> bool:
        """What is behind gets another rank; True where others have their turn now."""
        turns = self._reader.turns
        left = turns.count(self, place.rank, -1)
        place.rank = rank
        others = turns.count(self, rank, 1)
        self._look_whose_turn(key, place)
        return others or left

    def ranked(self) -> None:
        """It may be others that have their turn now."""
        for key, place in self.places.items():
            self._look_whose_turn(key, place)

    def _look_whose_turn(self, key: Key, place: Place) -> None:
        if key not in self._session.wanted or not self._has_turn(place):
            self._want(key, place)

    def _has_turn(self, place: Place) -> bool:
        return not place.behind or place.rank <= self._reader.turns.served

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

    @property
    def unread_seconds(self) -> float:
        """For so long its broker has been asked in vain: it refuses, is gone, or does not answer."""
        return max(time.monotonic() - self._due_at, 0.0)

    def close(self, why: str = "the mirror is gone") -> None:
        """The connection ends."""
        if self._connection is not None:
            self._connection.close(why)
        self._count()

    def end(self) -> None:
        """The reader has ended, and so have its tasks. They know by what, and with that all that was on its
        way: in a circle with them here it would stay until Python looks for such.
        """
        self.close()
        self.task = self._sent = None

    def _count(self) -> None:
        """What has come since it was counted last goes to the cluster's account."""
        if self._connection is not None:
            now = self._connection.bytes_received, self._connection.bytes_sent
            before, self._counted = self._counted, now
            self._reader.cluster.connections.count(now[0] - before[0], now[1] - before[1])

    @property
    def _part_bytes(self) -> int:
        """What one partition may bring: an answer holds some of many, and so do requests to the target."""
        bytes_max = self._limits.bytes_max
        return min(bytes_max, self._part_bytes_max, share(bytes_max, len(self._session.wanted), near=False))

    def _want(self, key: Key, place: Place, *, anew: bool = False) -> None:
        if not self._has_turn(place):
            self._session.forget(key)
            return
        known = self._reader.partition(key)
        leader_epoch = known.leader_epoch if known else -1
        want = Want(place.offset, leader_epoch, place.fetched_epoch, place.bytes_max)
        self._session.want(key, want, anew=anew)
        self._work.set()

    # -- the loop --------------------------------------------------------------------------------

    async def run(self) -> None:
        """Read until cancelled. Errors of the connection are waited out."""
        attempts = 0
        while True:
            if not self._session.wanted:
                self._due_at = math.inf
                self._work.clear()
                await self._work.wait()
                continue
            try:
                await self._round()
                attempts = 0
            except TwinsiteError as error:
                attempts += 1
                await self._lost(error)
                await asyncio.sleep(pause_seconds(attempts))

    async def _round(self) -> None:
        held: list[Buffer] = []
        self._due_at = min(self._due_at, max(time.monotonic(), self._free_at))

        began_at = math.inf

        def allocate(size: int) -> memoryview:
            nonlocal began_at
            began_at = time.monotonic()
            held.append(self._reader.pool.take(size))
            return held[0].memory[:size]

        try:
            with self._listening():
                connection = await self._connected()
                connection.version(FETCH, FETCH_VERSION, "Fetch", lowest=FETCH_VERSION)
                request = self._session.request(self._limits)
                held_back_seconds = max(self._free_at - time.monotonic(), 0.0)
                body = await connection.send(FETCH, FETCH_VERSION, [request], allocate=allocate)
                seconds = time.monotonic() - began_at + held_back_seconds
            self._count()
            answer = decode_answer(body)
            self._due_at, self._free_at = math.inf, time.monotonic() + answer.throttle_ms / 1000
            read = self._read(answer, seconds)
            reach("source_read")
            await self._all_sent()
            if read is None:
                return
            self._heard_us = read.at_us
            if read.parts or time.monotonic() - self._said_at >= HEARTBEAT_SECONDS:
                self._said_at = time.monotonic()
                held[0].hold()
                self._sent = self._reader.spawn(self._send(read, held[0].release))
        finally:
            for buffer in held:
                buffer.release()

    async def _connected(self) -> Connection:
        if self._connection is None or self._connection.closed:
            cluster = self._reader.cluster
            address = cluster.info.brokers.get(self.node)
            if address is None:
                raise ConnectionFailedError(f"broker {self.node} is not in the cluster just now")
            connection = await Connection.open(address, cluster.options)
            self._count()
            self._connection, self._counted = connection, (0, 0)
            self._session.reset()
        return self._connection

    async def _all_sent(self) -> None:
        """What comes next comes behind what is being sent."""
        if self._sent is not None:
            await self._sent
            self._sent = None

    async def _send(self, read: Read, gone: Gone) -> None:
        taken = partial(self._changed_over, read.changing)
        news = News(self.node, read.at_us, read.parts)
        await self._reader.send(self._channel, news, taken, gone)

    def _changed_over(self, changing: list[tuple[Key, Place]]) -> None:
        for key, place in changing:
            self._reader.place(key, place)
            reach("changed_over")

    async def _lost(self, error: TwinsiteError) -> None:
        """Its partitions may be led by another broker by now: what the mirror hears of this one from now on
        says nothing of them.
        """
        warn_repeated(log, self._repeats, "fetch", "broker_not_read", broker=self.node, error=str(error))
        self._reader.trouble(self.node, str(error))
        self._session.reset()
        self._due_at, self._free_at = min(self._due_at, time.monotonic()), 0.0
        lost = list(self.places.items())
        for key, place in lost:
            self.leave(key, place)
            place.tries = 0
        await self._say_astray(lost)
        for key, place in lost:
            self._reader.astray(key, place)

    async def _say_astray(self, lost: Sequence[tuple[Key, Place]]) -> None:
        """Nothing was said of them where nothing was heard since this was said last."""
        heard_us, self._heard_us = self._heard_us, None
        if heard_us is None:
            return
        await self._all_sent()
        for start in range(0, len(lost), ASTRAY_AT_ONCE):
            some = lost[start : start + ASTRAY_AT_ONCE]
            parts = [refusal(key, place, ASTRAY) for key, place in some]
            await self._send(Read(heard_us, parts, []), nothing)

    # -- an answer -------------------------------------------------------------------------------

    def _read(self, answer: FetchAnswer, seconds: float) -> Read | None:
        """None where nothing was said: the mirror must not take that for no news."""
        if not self._session.answered(answer):
            raise broker_error(answer.error_code, f"Fetch from broker {self.node}")
        if answer.says_nothing:
            return None
        asked_bytes, came_bytes = self._limits.bytes_max, sum(len(one.records) for one in answer.partitions)
        spare = asked_bytes - came_bytes
        wanted_bytes = next_bytes(asked_bytes, came_bytes, seconds, self._bytes_max)
        if wanted_bytes != asked_bytes:
            self._limits = replace(self._limits, bytes_max=wanted_bytes)
        asked = Asked(self._channel, self._reader.isolation, self._part_bytes, spare)
        read = Read(steady_us(), [], [])
        for fetched in answer.partitions:
            key = fetched.key
            place, want = self._reader.places.get(key), self._session.told.get(key)
            if place is not None and place.lane is self and want is not None and place.offset == want.offset:
                self._take(key, place, taken_in(fetched, place, asked), read)
        return read

    def _take(self, key: Key, place: Place, step: Step, read: Read) -> None:
        if step.part is not None:
            read.parts.append(step.part)
        if step.then is Then.FORGET:
            self._reader.forget([key])
            return
        if step.then is Then.LOOK_AGAIN:
            self.leave(key, place)
            self._reader.astray(key, place)
            return
        self._count_behind(place, behind=step.behind)
        if step.then is Then.READ_ON:
            self._want(key, place)
            return
        self.leave(key, place)
        place.channel = Channel.LIVE if self._channel is Channel.BULK else Channel.BULK
        read.changing.append((key, place))
