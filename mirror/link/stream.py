"""The mirror's end of a stream: a connection to a relay on which frames come as long as both sides live.

Who reads it says what it wants and what it has taken; what has come waits here, no more of it than both sides
have agreed on. Frames are not opened here.

Source: docs/protocol.md.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from mirror.errors import AnswerError, AuthenticationError, ConnectionFailedError, TwinsiteError
from mirror.kafka.dial import Address, ConnectionOptions, dial_relay
from mirror.kafka.fetch import Key
from mirror.kafka.nonblocking import receive, send_all
from mirror.kafka.relayed import upgrade
from mirror.link import messages
from mirror.link.frames import BODY_BYTES_MAX, HEADER_BYTES, KEY_BYTES, Frames, Header, Opener, wire_bound
from mirror.link.loops import first_to_end
from mirror.link.messages import PATH, PROTOCOL, Channel, Down, Messages, Up

TROUBLES_MAX = 1000
RECEIVE_BYTES = 256 << 10
PING_SECONDS = 2.0
WINDOW_LOG_MAX = 27
"""A relay that compresses with a window above 128 MiB is refused."""
Came = tuple[Header, memoryview, float]
"""A frame: its header, its body as it came, and when that was, in monotonic seconds."""
UNSENT_BYTES_MAX = 16 << 20
WANT_AT_ONCE = 50_000
REFUSED_FOR_GOOD = frozenset({"old_epoch"})


@dataclass(frozen=True, slots=True)
class Hello:
    """Who a mirror is, and what it can take.

    Attributes:
        isolation: As in Fetch.
        windows: By channel: bytes of frames on their way, or here and not yet taken.
        frame_bytes: Bytes of records there is room for in one frame, unless one batch is larger.
        level: zstd's for what is behind; 0: as the link needs.
        recode: Whether batches may be inflated for the way.
    """

    flow: str
    producer_id: int
    epoch: int
    isolation: int
    windows: tuple[int, int]
    frame_bytes: int
    level: int
    recode: bool


@dataclass(frozen=True, slots=True)
class Welcome:
    """What the relay has answered: how it sends."""

    relay: str
    congestion: str
    keys: tuple[bytes, bytes]


@dataclass(frozen=True, slots=True)
class Choice:
    """How the relay sends what is behind, and why."""

    level: int
    recode: bool
    why: str


@dataclass(frozen=True, slots=True)
class Trouble:
    """A broker that the relay cannot read just now."""

    node: int
    detail: str


class LinkStream:
    """A stream that was begun.

    Attributes:
        relay: Where it comes from.
        round_trip_seconds: As measured last; None before that.
        clock_offset_ms: By how much the relay's clock is ahead of ours, likewise.
        bytes_received: All of them, headers included.
        bytes_sent: Likewise.
        choice: What the relay has said last; None before that.
    """

    def __init__(self, sock: socket.socket, relay: Address, hello: Hello, silence_seconds_max: float) -> None:
        """Use :meth:`open`."""
        self.relay = relay
        self._welcome: Welcome | None = None
        self.round_trip_seconds: float | None = None
        self.clock_offset_ms: float | None = None
        self.bytes_received = self.bytes_sent = 0
        self.choice: Choice | None = None
        self._sock = sock
        self._hello = hello
        self._silence_seconds_max = silence_seconds_max
        self._messages = Messages()
        self._frames = {channel: Frames() for channel in Channel}
        self._came: dict[Channel, asyncio.Queue[Came]] = {c: asyncio.Queue() for c in Channel}
        self._troubles: dict[int, Trouble] = {}
        self._in_trouble = asyncio.Event()
        self._untaken = dict.fromkeys(Channel, 0)
        self._taken = dict.fromkeys(Channel, 0)
        self._outgoing = bytearray()
        self._to_send = asyncio.Event()
        self._heard_at = time.monotonic()
        self._asked: tuple[int, float] = (0, 0.0)

    @classmethod
    async def open(cls, options: ConnectionOptions, hello: Hello) -> LinkStream:
        """Begin a stream with one of the relays.

        Raises:
            ConnectionFailedError: None of them answers.
            AuthenticationError: One side does not accept the other.
            UnsupportedVersionError: What is named as a relay is none, or of another version.
        """
        sock, relay = await dial_relay(_ask_for_stream, options)
        stream = cls(sock, relay, hello, options.request_timeout_seconds)
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
        try:
            await send_all(self._sock, messages.say(Up.HELLO, asdict(self._hello)))
        except OSError as error:
            raise self._lost(error) from error
        while self._welcome is None:
            await self._receive()

    @property
    def welcome(self) -> Welcome:
        """What the relay said first."""
        assert self._welcome is not None, "open waits for it"
        return self._welcome

    def close(self) -> None:
        """End it."""
        self._sock.close()

    # -- what is said --------------------------------------------------------------------------------

    def want(self, positions: Iterable[messages.Position]) -> None:
        """Send these partitions, from there on."""
        left = iter(positions)
        while some := list(itertools.islice(left, WANT_AT_ONCE)):
            self._say(messages.want(some))

    def forget(self, keys: Iterable[Key]) -> None:
        """Send these partitions no more."""
        self._say(messages.forget(keys))

    def took(self, channel: Channel, header: Header) -> None:
        """A frame is out of the way: as much more may come."""
        size = HEADER_BYTES + header.wire_bytes
        self._untaken[channel] -= size
        self._taken[channel] += size
        self._say(messages.taken(channel, self._taken[channel]))

    def _say(self, said: bytes) -> None:
        self._outgoing += said
        self._to_send.set()

    # -- what comes ----------------------------------------------------------------------------------

    async def next_frame(self, channel: Channel) -> Came:
        """The next frame of a channel."""
        return await self._came[channel].get()

    async def next_trouble(self) -> Trouble:
        """The next broker that cannot be read."""
        while not self._troubles:
            self._in_trouble.clear()
            await self._in_trouble.wait()
        await asyncio.sleep(0)
        return self._troubles.pop(next(iter(self._troubles)))

    def opener(self, channel: Channel) -> Opener:
        """Opens the frames of a channel; one for its whole life."""
        return Opener(self.welcome.keys[channel], WINDOW_LOG_MAX)

    async def run(self) -> None:
        """Keep it going until it ends.

        Raises:
            ConnectionFailedError: It is lost, or nothing has come for too long.
            AnswerError: What came is not what the protocol says.
            AuthenticationError: The relay does not let us go on.
        """
        await first_to_end(self._receive_on(), self._send_on(), self._look_on())

    async def _receive_on(self) -> None:
        while True:
            await self._receive()
            await asyncio.sleep(0)  # others have a turn, however fast it comes

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
            if now - self._heard_at > self._silence_seconds_max:
                raise ConnectionFailedError(f"relay {self.relay}: silent for {now - self._heard_at:.0f} s")
            if len(self._outgoing) > UNSENT_BYTES_MAX:
                raise ConnectionFailedError(f"relay {self.relay}: it does not read what it is told")
            self._asked = (self._asked[0] + 1, now)
            self._say(messages.ping(self._asked[0]))
            await asyncio.sleep(PING_SECONDS)

    async def _receive(self) -> None:
        try:
            data = await receive(self._sock, RECEIVE_BYTES)
        except OSError as error:
            raise self._lost(error) from error
        if not data:
            raise ConnectionFailedError(f"relay {self.relay}: it has ended the stream")
        self._heard_at = time.monotonic()
        self.bytes_received += len(data)
        try:
            for kind, payload in self._messages.received(data):
                self._heard(kind, payload)
        except AnswerError as error:
            raise AnswerError(f"relay {self.relay}: {error}") from error

    def _heard(self, kind: int, payload: memoryview) -> None:
        if kind == Down.BYE:
            raise self._refusal(messages.document(payload))
        if self._welcome is None:
            if kind != Down.WELCOME:
                raise AnswerError(f"a message of kind {kind} came where a welcome was due")
            self._welcome = _welcome(messages.document(payload))
        elif kind == Down.SLICE:
            self._heard_slice(payload)
        elif kind == Down.TROUBLE:
            self._heard_trouble(messages.document(payload))
        elif kind == Down.CHOICE:
            self.choice = _choice(messages.document(payload))
        elif kind == Down.PONG:
            self._heard_pong(*messages.read_pong(payload))
        else:
            raise AnswerError(f"there are no messages of kind {kind}")

    def _heard_slice(self, payload: memoryview) -> None:
        if not payload or payload[0] not in Channel.__members__.values():
            raise AnswerError("a slice of no channel")
        channel = Channel(payload[0])
        self._untaken[channel] += len(payload) - 1
        if self._untaken[channel] > self._hello.windows[channel] + HEADER_BYTES + wire_bound(BODY_BYTES_MAX):
            raise AnswerError("it sends more than it was allowed to")
        for header, wire in self._frames[channel].received(payload[1:]):
            self._came[channel].put_nowait((header, wire, self._heard_at))

    def _heard_trouble(self, document: dict[str, Any]) -> None:
        node, detail = document.get("node"), document.get("detail")
        if not isinstance(node, int) or not isinstance(detail, str):
            raise AnswerError("a trouble without a node, or without words")
        if len(self._troubles) < TROUBLES_MAX:
            self._troubles[node] = Trouble(node, detail)
            self._in_trouble.set()

    def _heard_pong(self, token: int, clock_ms: int) -> None:
        asked, at = self._asked
        if token == asked:
            self.round_trip_seconds = time.monotonic() - at
            ours_ms = (time.time() - self.round_trip_seconds / 2) * 1000
            self.clock_offset_ms = clock_ms - ours_ms

    def _refusal(self, document: dict[str, Any]) -> TwinsiteError:
        words = f"relay {self.relay}: {document.get('detail')}"
        refused = document.get("code") in REFUSED_FOR_GOOD
        return AuthenticationError(words) if refused else ConnectionFailedError(words)

    def _lost(self, error: OSError) -> ConnectionFailedError:
        return ConnectionFailedError(f"relay {self.relay}: connection lost: {error}")


async def _ask_for_stream(sock: socket.socket, relay: str) -> None:
    await upgrade(sock, relay, PATH, PROTOCOL)


def _welcome(document: dict[str, Any]) -> Welcome:
    try:
        live, bulk = (_key(key) for key in document["keys"])
        return Welcome(
            relay=str(document["relay"]),
            congestion=str(document["congestion"]),
            keys=(live, bulk),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise AnswerError(f"its welcome makes no sense: {error!r}") from error


def _choice(document: dict[str, Any]) -> Choice:
    try:
        return Choice(int(document["level"]), bool(document["recode"]), str(document["why"]))
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise AnswerError(f"its choice makes no sense: {error!r}") from error


def _key(text: str) -> bytes:
    key = bytes.fromhex(text)
    if len(key) != KEY_BYTES:
        raise ValueError(f"a key of {len(key)} bytes")
    return key


__all__ = ["Hello", "LinkStream", "Trouble", "Welcome"]
