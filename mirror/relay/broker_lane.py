"""Reads one broker for one mirror by one channel: one request after the other, over a connection of its own.

While one answer is being sent the next one is requested, and no more: so the outlet throttles the reading.
Partitions that are behind are requested when it is their turn. After any error the connection is closed, and
the leader of each of its partitions is looked up again.

What an answer means for a partition is decided in :mod:`mirror.relay.place`.

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
from mirror.kafka.connection_pool import speaks
from mirror.kafka.dial import Address
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
from mirror.kafka.opening import Opening
from mirror.link.loops import Pause
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
"""For each channel: the most that one answer of a broker may bring, and one partition in it. By BULK the
longest answer, with what precedes its records, fits into 4 MiB: buffers are whole multiples of 1 MiB.
"""
BYTES_AT_ONCE_MAX = 16 << 20
"""What the answers of all brokers together may bring by one channel: with many brokers each brings less."""
FRAME_BYTES_FIRST = 64 << 10
"""The size of a lane's first frame; it doubles from there. So something gets through even where connections
break early.
"""
ASTRAY_AT_ONCE = 1000
SILENT_SECONDS = 1.0
"""How long others wait for a broker that was asked and does not answer."""
ATTEMPTS_COUNTED = 4
"""More attempts do not lengthen the pause: brokers are near, and are asked every second or two, so that those
that are back are read. One that refuses is not: it would refuse again, and may lock the account.
"""


def soon_seconds(attempts: int) -> float:
    """How long to wait before brokers are asked again, where that costs little."""
    return pause_seconds(min(attempts, ATTEMPTS_COUNTED))


def again_seconds(error: TwinsiteError, attempts: int) -> float:
    """How long to wait before a broker that could not be read is asked again."""
    return soon_seconds(attempts) if error.retriable else pause_seconds(attempts)


class Reader(Protocol):
    """Reads for one mirror: knows what it wants, and on which lane each partition is.

    Attributes:
        isolation: What the mirror may see.
        frame_bytes_max: Bytes of records that the mirror takes in one frame.
        places: What it wants, wherever that is read.
        turns: Which ranks have their turn, over all lanes.
    """

    cluster: Cluster
    isolation: Isolation
    frame_bytes_max: int
    pool: BufferPool
    places: dict[Key, Place]
    turns: Turns

    def partition(self, key: Key) -> PartitionInfo | None:
        """What the cluster last said about a partition; None if it does not know it."""

    def place(self, key: Key, place: Place) -> None:
        """Put a partition on the lane of its leader, unless the mirror wants something else by now."""

    def astray(self, key: Key, place: Place) -> None:
        """Look up the leader of this partition again."""

    def forget(self, keys: Iterable[Key]) -> None:
        """Stop reading these partitions."""

    def turned(self, others: bool) -> None:
        """If others have their turn now, read those."""

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run ``work`` in parallel; it ends with the reader, and an error in it ends the reader."""

    def send(self, channel: Channel, news: News, taken: Taken, gone: Gone) -> Awaitable[None]:
        """Send the mirror a frame, as :class:`mirror.relay.reading.Outlet` says."""

    def trouble(self, node: int, words: str, attempts: int) -> None:
        """Report that a broker could not be read, this often since it was last read."""


class Read(NamedTuple):
    """What one answer brought and when, and the partitions that change over when that is taken."""

    at_us: int
    parts: list[Part]
    changing: list[tuple[Key, Place]]


class BrokerLane:
    """The way from one broker, by one channel.

    Attributes:
        node: The broker's id.
        task: Runs it.
        places: The partitions of this lane; those that are behind are read when it is their turn.
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
        self._pause = Pause()
        self._connection: Connection | None = None
        self._opening: Opening | None = None
        self._address: Address | None = None
        """Where the connection leads to, or is being opened to."""
        self._counted = (0, 0)
        self._sent: asyncio.Task[None] | None = None
        self._said_at = 0.0
        self._due_at, self._free_at = math.inf, 0.0
        """Since when the broker owes an answer, and until when a quota throttles the lane."""
        self._heard_us: int | None = None
        """When the broker last answered; None if it has not since the mirror was last sent ASTRAY."""
        self._repeats = Repeats()

    def join(self, key: Key, place: Place) -> None:
        """Read this partition here."""
        place.lane = self
        place.bytes_max = max(place.bytes_max, self._part_bytes)
        place.left_us = steady_us()
        self.places[key] = place
        self._want(key, place, anew=True)

    def leave(self, key: Key, place: Place) -> None:
        """Stop reading it here."""
        place.lane = None
        del self.places[key]
        self._session.forget(key)
        self._count_behind(place, behind=False)

    def rank(self, key: Key, place: Place, rank: int) -> bool:
        """Give a partition that is behind another rank; True if others have their turn now."""
        turns = self._reader.turns
        left = turns.count(self, place.rank, -1)
        place.rank = rank
        others = turns.count(self, rank, 1)
        self._look_whose_turn(key, place)
        return others or left

    def try_now(self) -> None:
        """Wait no longer if the broker could not be read: brokers answer again."""
        self._pause.end()

    def ranked(self) -> None:
        """Check which partitions have their turn now."""
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
        """In this block the broker is waited for; once that takes long, others have their turn."""
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
        """For how long the broker has owed an answer: it refuses, is gone, or does not answer."""
        return max(time.monotonic() - self._due_at, 0.0)

    def waits_elsewhere(self, address: Address) -> bool:
        """Whether the broker is waited for at another address than this, and no answer is arriving there."""
        speaking = self._connection is not None and speaks(self._connection)
        return self._address is not None and self._address != address and not speaking

    def close(self, why: str = "the mirror has disconnected") -> None:
        """Close the connection to the broker, or give up opening it."""
        if self._opening is not None:
            self._opening.give_up(why)
        if self._connection is not None:
            self._connection.close(why)
        self._count()

    def end(self) -> None:
        """Close the connection, and drop the tasks: the reader and they have ended. The error of a task holds
        all that was in flight; in a reference cycle that would stay until Python collects garbage.
        """
        self.close()
        self.task = self._sent = None

    def _count(self) -> None:
        """Add the bytes since the last count to those of the cluster."""
        if self._connection is not None:
            now = self._connection.bytes_received, self._connection.bytes_sent
            before, self._counted = self._counted, now
            self._reader.cluster.connections.count(now[0] - before[0], now[1] - before[1])

    @property
    def _part_bytes(self) -> int:
        """What one partition may bring: an answer has some of many, and so do the requests to the target."""
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
        """Read until cancelled. After an error of the connection it waits, and tries again."""
        attempts = 0
        while True:
            if not self._session.wanted:
                self._due_at = math.inf
                self._work.clear()
                await self._work.wait()
                continue
            self._pause.forget()
            try:
                await self._round()
                attempts = 0
            except TwinsiteError as error:
                attempts += 1
                await self._lost(error, attempts)
                await self._pause.take(again_seconds(error, attempts))

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
                raise ConnectionFailedError(f"broker {self.node} is currently not in the cluster")
            self._count()
            self._connection, self._address, self._counted = None, address, (0, 0)
            self._opening = Opening(address)
            try:
                self._connection = await self._opening.wait(Connection.open(address, cluster.options))
            finally:
                self._opening = None
            self._session.reset()
        return self._connection

    async def _all_sent(self) -> None:
        """Wait until the frame of the last answer is made, so that the next one follows it."""
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

    async def _lost(self, error: TwinsiteError, attempts: int) -> None:
        """Give up the partitions of this lane: another broker may lead them by now. What the mirror hears of
        this one from now on says nothing about them.
        """
        warn_repeated(log, self._repeats, "fetch", "broker_not_read", broker=self.node, error=str(error))
        self._reader.trouble(self.node, str(error), attempts)
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
        """Send the mirror ASTRAY for these partitions. Unless the broker has answered since that was last
        done, the mirror has heard nothing about them, and nothing is sent.
        """
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
        """What an answer brought; None if it says nothing, which the mirror must not mistake for no news.

        Raises:
            BrokerError: The broker refuses the request.
        """
        if not self._session.answered(answer):
            raise broker_error(answer.error_code, f"Fetch from broker {self.node}")
        if answer.says_nothing:
            return None
        asked_bytes, came_bytes = self._limits.bytes_max, sum(len(one.records) for one in answer.partitions)
        spare = asked_bytes - came_bytes
        wanted_bytes = next_bytes(asked_bytes, came_bytes, seconds, self._bytes_max)
        if wanted_bytes != asked_bytes:
            self._limits = replace(self._limits, bytes_max=wanted_bytes)
        read = Read(steady_us(), [], [])
        asked = Asked(self._channel, self._reader.isolation, self._part_bytes, spare, read.at_us)
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
