"""The mirror's end of a stream: connections to a relay over which frames come as long as both sides live.

What is urgent has a connection of its own, so that it does not wait behind what is not. While it is little,
it also comes over a second one, so that it does not wait for a lost packet. If the relay's kernel mistakes a
lost packet for a full link, there are more connections for the rest, as each of them slows down by itself.

The reader of a stream says what it wants and what it has taken; until then frames wait in :class:`Channels`.

Source: docs/protocol.md.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import asdict
from functools import partial
from typing import Any, TypeVar
from urllib.parse import urlencode

import structlog

from mirror.errors import (
    AnswerError,
    ConnectionFailedError,
    FencedError,
    TwinsiteError,
    UnsupportedVersionError,
)
from mirror.kafka.buffers import BufferPool
from mirror.kafka.dial import Address, ConnectionOptions, dial_one_relay, dial_relay
from mirror.kafka.fetch import Key
from mirror.kafka.nonblocking import receive_into, send_all
from mirror.kafka.relayed import upgrade
from mirror.link import messages, protocol
from mirror.link.channels import Came, Channels
from mirror.link.clocks import Distance
from mirror.link.greeting import Choice, Hello, Trouble, Welcome, read_choice, read_trouble, read_welcome
from mirror.link.joining import JOIN_TRIES, further_connections, join_pause_seconds
from mirror.link.lifeline import end_when_dead
from mirror.link.loops import first_to_end
from mirror.link.messages import Messages
from mirror.link.protocol import CARRIES, JOIN, PATH, PROTOCOL, Channel, Down, Up
from mirror.link.waking import Waking

log = structlog.get_logger(__name__)

TROUBLES_MAX = 1000
RECEIVE_BYTES = 256 << 10
PING_SECONDS, PINGS_MAX = 2.0, 20
BYE_SECONDS = 1.0
"""How long BYE is waited for when a further connection has ended before the first one."""
HELLO_NUMBER = 0
"""Stands for HELLO, which WELCOME answers; PINGs have numbers from 1 on."""
CLOCK_OFFSETS = 15
"""Of this many answers the quickest is believed."""
UNSENT_BYTES_MAX = 16 << 20
ENTRIES_AT_ONCE = 50_000
CONNECTIONS_BEHIND_MAX = 32
"""The most connections for what is behind, whatever a relay asks for."""
OLD_EPOCH = "old_epoch"
"""Code of a BYE to a mirror that was fenced off."""

T = TypeVar("T")


class LinkStream:
    """A stream that has begun.

    Attributes:
        relay: Its address.
        round_trip_seconds: As measured last; None before that.
        bytes_received: In total, headers included.
        bytes_sent: Likewise.
        choice: The relay's last CHOICE; None before the first.
        rate_limit: What the relay may send, in bytes a second; None: no limit.
        channels: Frames that have arrived and are not taken yet.
    """

    def __init__(
        self,
        sock: socket.socket,
        relay: Address,
        hello: Hello,
        options: ConnectionOptions,
        pool: BufferPool,
        connections: int,
    ) -> None:
        """Use :meth:`open`."""
        self.relay = relay
        self._options = options
        self._connections = connections
        self._welcome: Welcome | None = None
        self.round_trip_seconds: float | None = None
        self.bytes_received = self.bytes_sent = 0
        self.choice: Choice | None = None
        self.rate_limit: float | None = None
        self._sock = sock
        self._hello = hello
        self._more: list[socket.socket] = []
        self._asked_for_more = asyncio.Event()
        self._not_joined_said = False
        self._troubles: dict[int, Trouble] = {}
        self._in_trouble = asyncio.Event()
        self._outgoing = bytearray()
        self._to_send = asyncio.Event()
        self._heard_at = time.monotonic()
        self._pings = itertools.count(1)
        self._asked: dict[int, float] = {}
        """When HELLO and each PING without an answer was sent, by its number, in monotonic seconds."""
        self._distance = Distance()
        self.channels = Channels(hello, pool, self._distance)
        self._clock_offsets: deque[tuple[float, float]] = deque(maxlen=CLOCK_OFFSETS)

    @classmethod
    async def open(
        cls, options: ConnectionOptions, hello: Hello, pool: BufferPool, connections: int = 0
    ) -> LinkStream:
        """Begin a stream with one of the relays, the first that answers.

        Args:
            pool: Provides the buffers for frames.
            connections: How many it has once it runs; 0: three if the relay's kernel has BBR, else sixteen.

        Raises:
            ConnectionFailedError: No relay answers, or the one that does ends the stream.
            AuthenticationError: One side does not accept the other.
            UnsupportedVersionError: The relays say that they are of another version.
            FencedError: A mirror of the flow with a newer epoch was there.
            AnswerError: What the relay answers to HELLO is not what the protocol says.
        """
        sock, relay = await dial_relay(_ask_for_stream, options)
        end_when_dead(sock)
        stream = cls(sock, relay, hello, options, pool, connections)
        try:
            async with asyncio.timeout(options.connect_timeout_seconds):
                await stream._begin()
        except BaseException as error:
            stream.close()
            if options.relays is not None:
                options.relays.failed(relay)
            if isinstance(error, TimeoutError):
                raise ConnectionFailedError(f"relay {relay}: it does not answer") from error
            raise
        return stream

    async def _begin(self) -> None:
        self._asked[HELLO_NUMBER] = time.monotonic()
        try:
            await send_all(self._sock, messages.say(Up.HELLO, asdict(self._hello)))
        except OSError as error:
            raise self._lost(error) from error
        came = Messages(on_slice=self.channels.heard_slice)
        room = memoryview(bytearray(RECEIVE_BYTES))
        while self._welcome is None:
            await self._receive(self._sock, came, room)
        self._messages = came

    @property
    def connections(self) -> int:
        """How many it has."""
        return 1 + len(self._more)

    @property
    def welcome(self) -> Welcome:
        """The relay's answer to HELLO."""
        assert self._welcome is not None, "open waits for it"
        return self._welcome

    def close(self) -> None:
        """End the stream. None of its frames may be being opened by then."""
        for sock in (self._sock, *self._more):
            sock.close()
        self.channels.close()

    # -- what is said --------------------------------------------------------------------------------

    def want(self, positions: Iterable[protocol.Position]) -> None:
        """Ask the relay to send these partitions from these offsets on."""
        self._say_in_parts(protocol.want, positions)

    def forget(self, keys: Iterable[Key]) -> None:
        """Ask the relay to stop sending these partitions."""
        self._say_in_parts(protocol.forget, keys)

    def rank(self, ranks: Iterable[tuple[Key, int]]) -> None:
        """Give these partitions another rank from now on."""
        self._say_in_parts(protocol.rank, ranks)

    def limit(self, bytes_per_second: float | None) -> None:
        """Ask the relay to send no more than this; None: no limit."""
        self.rate_limit = bytes_per_second
        self._say(protocol.limit(int(bytes_per_second or 0)))

    def took(self, came: Came) -> None:
        """Report a frame as taken: the relay may send as much again."""
        self._say(protocol.taken(came.channel, self.channels.took(came)))

    def _say_in_parts(self, message: Callable[[Iterable[T]], bytes], entries: Iterable[T]) -> None:
        """Split over several messages what one cannot hold."""
        left = iter(entries)
        while some := list(itertools.islice(left, ENTRIES_AT_ONCE)):
            self._say(message(some))

    def _say(self, said: bytes) -> None:
        self._outgoing += said
        self._to_send.set()

    # -- what comes ----------------------------------------------------------------------------------

    async def next_trouble(self) -> Trouble:
        """Wait for the next broker that the relay cannot read."""
        while not self._troubles:
            self._in_trouble.clear()
            await self._in_trouble.wait()
        await asyncio.sleep(0)
        return self._troubles.pop(next(iter(self._troubles)))

    async def run(self) -> None:
        """Run the stream until it ends.

        Raises:
            ConnectionFailedError: A connection is lost, the relay ends the stream, does not read, or was
                silent for too long.
            AnswerError: What the relay sent is not what the protocol says.
            AuthenticationError: The relay rejects a further connection.
            FencedError: A mirror of the flow with a newer epoch was there.
        """
        further = further_connections(self._connections, self.welcome.congestion)
        await first_to_end(
            self._receive_on(self._sock, self._messages),
            *map(self._join, further),
            self._widen_on(further.count(Channel.BULK)),
            self._send_on(),
            self._look_on(),
        )

    async def _widen_on(self, behind: int) -> None:
        """Open more connections when the relay asks for them, unless :meth:`open` was given a number."""
        wanted = 0
        while wanted <= behind:
            await self._asked_for_more.wait()
            self._asked_for_more.clear()
            if self.choice is not None and not self._connections:
                wanted = min(self.choice.connections, CONNECTIONS_BEHIND_MAX)
        more = (self._join(Channel.BULK) for _ in range(wanted - behind))
        await first_to_end(*more, self._widen_on(wanted))

    async def _join(self, carries: Channel) -> None:
        """Open one more connection and receive on it; until then the stream goes on with those there are."""
        query = urlencode({JOIN: self.welcome.token, CARRIES: carries.name.lower()})
        ask = partial(upgrade, path=f"{PATH}?{query}", protocol=PROTOCOL)
        for tries in itertools.count(1):
            try:
                sock = await dial_one_relay(self.relay, ask, self._options)
            except (ConnectionFailedError, UnsupportedVersionError) as error:
                self._not_joined(tries, error)
                await asyncio.sleep(join_pause_seconds(tries, error))
            else:
                end_when_dead(sock)
                self._more.append(sock)
                await self._receive_joined(sock)

    async def _receive_joined(self, sock: socket.socket) -> None:
        """Receive on a further connection. If it ends, BYE may still be in flight over the first."""
        try:
            await self._receive_on(sock, Messages(on_slice=self.channels.heard_slice))
        except ConnectionFailedError as error:
            if not isinstance(error, AnswerError):
                await asyncio.sleep(BYE_SECONDS)
            raise

    def _not_joined(self, tries: int, error: TwinsiteError) -> None:
        """Warn once for the stream, however many connections it is to have."""
        if tries >= JOIN_TRIES and not self._not_joined_said:
            self._not_joined_said = True
            log.warning("connection_not_joined", relay=str(self.relay), error=str(error))

    async def _receive_on(self, sock: socket.socket, came: Messages) -> None:
        room, waking = memoryview(bytearray(RECEIVE_BYTES)), Waking(sock)
        while True:
            await self._receive(sock, came, room)
            waking.received(came.left, time.monotonic())
            await asyncio.sleep(0)  # lets others run, however fast data arrives

    async def _send_on(self) -> None:
        while True:
            await self._to_send.wait()
            self._to_send.clear()
            said, self._outgoing = bytes(self._outgoing), bytearray()
            try:
                await send_all(self._sock, said)
            except OSError as error:
                raise self._lost(error) from error
            self.bytes_sent += len(said)

    async def _look_on(self) -> None:
        while True:
            now = time.monotonic()
            silent = max(now - at for at in (self._heard_at, *self.channels.held_up()))
            if silent > self._options.request_timeout_seconds:
                raise ConnectionFailedError(f"relay {self.relay}: silent for {silent:.0f} s")
            if len(self._outgoing) > UNSENT_BYTES_MAX:
                raise ConnectionFailedError(f"relay {self.relay}: it does not read what it is sent")
            self._ping(now)
            await asyncio.sleep(PING_SECONDS)

    def _ping(self, now: float) -> None:
        """Send a PING. Its answer may arrive after later ones were sent: the link may be long, or full."""
        number = next(self._pings)
        self._asked[number] = now
        if len(self._asked) > PINGS_MAX:
            del self._asked[next(iter(self._asked))]
        self._say(protocol.ping(number))

    async def _receive(self, sock: socket.socket, came: Messages, room: memoryview) -> None:
        try:
            size = await receive_into(sock, room)
        except OSError as error:
            raise self._lost(error) from error
        if not size:
            raise ConnectionFailedError(f"relay {self.relay}: it has ended the stream")
        self.bytes_received += size
        try:
            for kind, payload in came.received(room[:size]):
                if sock is self._sock or kind != Down.PONG:  # unasked, on joined ones, it does not count
                    self._heard_at = time.monotonic()  # not for mere bytes: a message may never end
                self._heard(kind, payload)
        except AnswerError as error:
            raise AnswerError(f"relay {self.relay}: {error}") from error

    def _heard(self, kind: int, payload: memoryview) -> None:
        if kind == Down.BYE:
            raise self._refusal(messages.document(payload))
        if self._welcome is None:
            if kind != Down.WELCOME:
                raise AnswerError(f"received a message of kind {kind} instead of WELCOME")
            self._welcome = read_welcome(messages.document(payload))
            self._compare_clocks(self._asked.pop(HELLO_NUMBER), self._welcome.steady_us)
            self.channels.begin(self._welcome.keys, self._heard_at)
        elif kind == Down.SLICE:
            pass  # ``channels`` got it as it arrived
        elif kind == Down.TROUBLE:
            self._heard_trouble(read_trouble(messages.document(payload)))
        elif kind == Down.CHOICE:
            self.choice = read_choice(messages.document(payload))
            self._asked_for_more.set()
        elif kind in {Down.SHARED, Down.MOVED, Down.ENDED}:
            self.channels.heard_of_shared(kind, payload, self._heard_at)
        elif kind == Down.PONG:
            self._heard_pong(protocol.read_pong(payload))
        else:
            raise AnswerError(f"unknown message kind {kind}")

    def _heard_trouble(self, trouble: Trouble) -> None:
        if len(self._troubles) < TROUBLES_MAX:
            self._troubles[trouble.node] = trouble
            self._in_trouble.set()

    def _heard_pong(self, pong: protocol.Pong) -> None:
        asked_at = self._asked.pop(pong.token, None)
        if asked_at is not None:
            self.round_trip_seconds = time.monotonic() - asked_at
            ours_ms = (time.time() - self.round_trip_seconds / 2) * 1000
            self._clock_offsets.append((self.round_trip_seconds, pong.clock_ms - ours_ms))
            self._compare_clocks(asked_at, pong.steady_us)

    @property
    def clock_offset_ms(self) -> float | None:
        """How far the relay's clock is ahead of ours in milliseconds, by the quickest of the last answers;
        None before the first. The error is at most half of that round trip.
        """
        return min(self._clock_offsets)[1] if self._clock_offsets else None

    def _compare_clocks(self, asked_at: float, steady_us: int) -> None:
        self._distance.learned(asked_at=asked_at, theirs=steady_us / 1e6, came_at=self._heard_at)

    def _refusal(self, document: dict[str, Any]) -> TwinsiteError:
        words = f"relay {self.relay}: {messages.words(document.get('detail'))}"
        return FencedError(words) if document.get("code") == OLD_EPOCH else ConnectionFailedError(words)

    def _lost(self, error: OSError) -> ConnectionFailedError:
        return ConnectionFailedError(f"relay {self.relay}: connection lost: {error}")


async def _ask_for_stream(sock: socket.socket, relay: str) -> None:
    await upgrade(sock, relay, PATH, PROTOCOL)
