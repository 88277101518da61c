"""One mirror's stream: it says what it wants, and gets frames until one of the two ends it.

Nothing is known here that the mirror has not told on this connection.

Source: docs/protocol.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
import time
from collections.abc import Collection, Container, Iterable
from typing import Annotated, Any, cast

import structlog
from pydantic import Field, ValidationError

from mirror import __version__
from mirror.config_values import Section
from mirror.errors import AnswerError
from mirror.failpoints import reach
from mirror.kafka.cluster import Cluster
from mirror.kafka.fetch import Isolation, Key
from mirror.link import messages
from mirror.link.messages import MESSAGE_BYTES_MAX, TOKEN_BYTES, Channel, Down, Messages, Up
from mirror.link.tcp_info import shortest_round_trip_seconds, tcp_info, unacknowledged_bytes, unsent_bytes
from mirror.relay.access import Visitor
from mirror.relay.audit import Audit
from mirror.relay.calming import Calming
from mirror.relay.pacing import Turnstile
from mirror.relay.reading import SourceReader
from mirror.relay.sending import Gone, News, Sender, Taken, steady_us
from mirror.relay.sharing import Kind, Member, Sharing
from mirror.relay.tuning import is_near, ladder
from mirror.relay.widening import LOOK_SECONDS, Held, Widening, held

log = structlog.get_logger(__name__)

SILENT_SECONDS_MAX = 30.0
"""A mirror says something every few seconds; after so long without a word it is gone."""
UNSENT_BYTES, UNSENT_BYTES_BEHIND, UNSENT_BYTES_WITH_BBR = 64 << 10, 256 << 10, 2 << 20
"""The kernel takes no more while so much waits in it for a place on the wire; more of what is behind, so that
the link does not wait for us. Most where all of that goes over one connection: BBR learns what a link carries
only while it always has something to send, and fills the queues on the way until it has.
"""
FLOWS_MAX = 10_000
"""Of so many the newest epoch is remembered."""
CLOSE_SECONDS_MAX = 10.0
"""What is left to send when a stream ends has so long."""
LIVE_LEVEL = 3
UNREAD_BYTES_MAX = 1 << 20
"""Frames are held back long before; so much is answers to what a mirror asks."""
BUSY_SECONDS, REST_TIMES, REST_SECONDS_MAX = 0.01, 2, 1.0
"""What a mirror says in one go takes no longer than this as a rule. Where it does the mirror is read again
after so many times as long, so that others have most of the time; one that wants very many partitions says so
once.
"""
GOING_AWAY = "going_away"
CONGESTION = "bbr"
"""It does not take a lost packet for a full link, as CUBIC does."""


Window = Annotated[int, Field(ge=1, le=1 << 30)]


class Hello(Section):
    """What a mirror begins with."""

    flow: str = Field(pattern=r"^[a-z0-9-]{1,40}$", description="Its name.")
    producer_id: int = Field(ge=-1, description="The flow's at the target.")
    epoch: int = Field(ge=0, le=32767, description="The flow's, likewise.")
    isolation: int = Field(ge=0, le=1, description="As in Fetch.")
    windows: tuple[Window, Window] = Field(description="Bytes of frames on their way, by channel.")
    frame_bytes: int = Field(ge=1, description="Bytes of records in one frame, unless one batch is larger.")
    level: int = Field(ge=0, le=19, description="zstd's for what is behind; 0: as the link needs.")
    recode: bool = Field(description="Whether batches may be inflated for the way.")


class Refused(Exception):  # noqa: N818 - it says what the mirror did
    """The stream ends; why, in a word and in a sentence."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code


class Epochs:
    """The newest epoch met of each flow: a mirror that was fenced off gets nothing any more.

    Only mirrors of one role can fence each other off: nobody stops another one's flow by its name.
    """

    def __init__(self) -> None:
        self._newest: dict[tuple[str | None, str, int], int] = {}

    def check(self, hello: Hello, role: str | None) -> None:
        """
        Raises:
            Refused: A newer one was here.
        """
        of = (role, hello.flow, hello.producer_id)
        newest = self._newest.get(of, 0)
        if hello.epoch < newest:
            words = f"flow {hello.flow} is at epoch {newest}: a mirror of epoch {hello.epoch} was fenced off"
            raise Refused("old_epoch", words)
        self._newest.pop(of, None)
        self._newest[of] = hello.epoch
        if len(self._newest) > FLOWS_MAX:
            del self._newest[next(iter(self._newest))]


class Stream(asyncio.Protocol):
    """One mirror's connection, once it has become a stream of frames.

    Attributes:
        slice_bytes: As :class:`mirror.relay.sending.Wire` says.
        ended: Done when either side has ended it.
        token: By which further connections join it.
        hello: What the mirror has said of itself; None before that.
        sender: What goes down, likewise.
        reader: What is read for it, likewise.
        congestion: What the kernel uses on this connection.

    Args:
        turnstile: Through which go the slices of all streams.
        sharing: What they have in common.
        visitor: Who asks.
        greeting_seconds: So soon he has said who he is.
        level_max: What is behind is not compressed at a higher level of zstd.
    """

    def __init__(
        self,
        cluster: Cluster,
        epochs: Epochs,
        turnstile: Turnstile,
        sharing: Sharing,
        visitor: Visitor,
        audit: Audit,
        *,
        greeting_seconds: float,
        level_max: int,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.slice_bytes = UNSENT_BYTES
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self.token = secrets.token_hex(TOKEN_BYTES)
        self.visitor = visitor
        self.began_at_ms = int(time.time() * 1000)
        self.hello: Hello | None = None
        self._cluster = cluster
        self._epochs = epochs
        self._turnstile = turnstile
        self._sharing = sharing
        self._member: Member | None = None
        self._audit = audit
        self._level_max = level_max
        self._full = False
        self._joined: set[Joined] = set()
        self._widening = Widening()
        self._looking: asyncio.TimerHandle | None = None
        self._messages = Messages(MESSAGE_BYTES_MAX)
        self._transport: asyncio.Transport | None = None
        self.congestion = ""
        self.sender: Sender | None = None
        self.reader: SourceReader | None = None
        self._reading: asyncio.Task[None] | None = None
        self._draining = False
        self._heard_at = time.monotonic()
        self._silence = self._loop.call_later(SILENT_SECONDS_MAX, self._look_for_silence)
        self._patience = self._loop.call_later(greeting_seconds, self._too_slow)

    # -- the connection ------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=UNSENT_BYTES)
        self.congestion = tune(transport.get_extra_info("socket"), UNSENT_BYTES)

    def data_received(self, data: bytes) -> None:
        if self._draining:
            return
        began = time.monotonic()
        try:
            for kind, payload in self._messages.received(data):
                self._heard_at = time.monotonic()  # bytes alone may be of a message that never ends
                self._heard(kind, payload)
        except AnswerError as error:
            self.refuse("bad_message", str(error))
        except Refused as refused:
            self.refuse(refused.code, str(refused))
        rest(self._transport, time.monotonic() - began)

    def pause_writing(self) -> None:
        self._full = True

    def resume_writing(self) -> None:
        self._full = False
        self._loop.call_soon(self.has_room)  # what is written in here and fails ends a transport twice

    def connection_lost(self, _: Exception | None) -> None:
        self._transport = None
        self.close()

    def close(self) -> None:
        """End it, and what has joined it; nothing where it has ended."""
        self._silence.cancel()
        self._patience.cancel()
        if self._looking is not None:
            self._looking.cancel()
        self._share_no_more()
        if self._reading is not None:
            self._reading.cancel()
        if self.sender is not None:
            self.sender.close()
        for one in list(self._joined):
            one.close()
        if self._transport is not None:
            self._transport.close()
            self._loop.call_later(CLOSE_SECONDS_MAX, self._give_up)
        if not self.ended.done():
            self.ended.set_result(None)

    def _give_up(self) -> None:
        """Nobody reads what is left; nothing where nothing is left."""
        if self._transport is not None:
            self._transport.abort()

    def _share_no_more(self) -> None:
        if self._member is not None:
            member, self._member = self._member, None
            self._sharing.leave(member)

    def refuse(self, code: str, detail: str) -> None:
        """The mirror has said what it should not: it is told so, and the stream ends."""
        self._audit.stream(self.visitor, code, detail)
        self._say_bye(code, detail)

    def _say_bye(self, code: str, detail: str) -> None:
        self.write(messages.say(Down.BYE, {"code": code, "detail": detail}))
        self.close()

    def drain(self) -> None:
        """Send nothing more, and tell the mirror to go to another relay; it ends the connection then."""
        self._draining = True
        for one in self._joined:
            one.drain()
        self._share_no_more()
        words = "this relay is being stopped: go on with another"
        self.write(messages.say(Down.BYE, {"code": GOING_AWAY, "detail": words}))

    def _too_slow(self) -> None:
        self._audit.too_slow(self.visitor.peer, "HELLO")
        self.close()

    def _look_for_silence(self) -> None:
        silent = time.monotonic() - self._heard_at
        if silent < SILENT_SECONDS_MAX:
            self._silence = self._loop.call_later(SILENT_SECONDS_MAX - silent, self._look_for_silence)
            return
        self._audit.refused["silent"] += 1
        log.info("mirror_silent", seconds=round(silent), **self.visitor.fields)
        self.close()
        self._give_up()

    # -- more connections ----------------------------------------------------------------------------

    def join(self, other: Joined) -> None:
        """One more connection."""
        self._joined.add(other)
        if self.sender is not None:
            self.sender.add(other, other.carries)
        if self._looking is None:
            self._looking = self._loop.call_later(LOOK_SECONDS, self._look_for_room)

    def _look_for_room(self) -> None:
        """Ask for more connections where each has too little room for what the link would carry."""
        assert self.sender is not None
        self._looking = self._loop.call_later(LOOK_SECONDS, self._look_for_room)
        behind = {one: one.held for one in self._joined if one.carries is Channel.BULK}
        late = self.sender.mirror_is_late
        if self._widening.look(behind, time.monotonic(), mirror_is_late=late):
            wanted = self._widening.connections
            log.info("more_connections_wanted", now=len(behind), wanted=wanted, **self.visitor.fields)
            self._chosen(Channel.BULK)

    def left(self, other: Joined) -> None:
        """It has ended; what it carried may be lost, so all ends."""
        self._joined.discard(other)
        self.close()

    def has_room(self) -> None:
        """One of the joined connections takes more again."""
        if self.sender is not None:
            self.sender.go_on()

    # -- what the mirror says ------------------------------------------------------------------------

    def _heard(self, kind: int, payload: memoryview) -> None:
        if self.reader is None or self.sender is None:
            if kind != Up.HELLO:
                raise AnswerError(f"a message of kind {kind} came where a mirror says who it is")
            self._begin(messages.document(payload))
        elif kind == Up.WANT:
            wanted = messages.read_want(payload)
            self._release(position.key for position in wanted)
            self.reader.want(wanted)
            reach("wanted")
        elif kind == Up.FORGET:
            forgotten = messages.read_forget(payload)
            self._release(forgotten)
            self.reader.forget(forgotten)
        elif kind == Up.TAKEN:
            if not self.sender.taken(*messages.read_taken(payload)):
                raise AnswerError("more was taken than was sent")
        elif kind == Up.PING:
            pong = messages.pong(messages.read_number(payload), int(time.time() * 1000), steady_us())
            self.write(pong)
        elif kind == Up.RANK:
            self.reader.rank(messages.read_rank(payload))
        elif kind == Up.LIMIT:
            self.sender.limit(messages.read_number(payload) or None)
        else:
            raise AnswerError(f"there are no messages of kind {kind}")

    def _release(self, keys: Iterable[Key]) -> None:
        if self._member is not None:
            self._sharing.released(self._member, list(keys))

    def _begin(self, document: dict[str, Any]) -> None:
        try:
            hello = Hello.model_validate(document)
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False, include_input=False)[0]
            where = messages.words(".".join(map(str, first["loc"])))
            raise AnswerError(f"hello: {where}: {first['msg']}") from error
        self._epochs.check(hello, self.visitor.role.name if self.visitor.role else None)
        reach("hello_taken")
        windows = dict(zip(Channel, hello.windows, strict=True))
        steps = {
            Channel.LIVE: ladder(LIVE_LEVEL, recode=hello.recode),
            Channel.BULK: ladder(hello.level, recode=hello.recode, level_max=self._level_max),
        }
        near = is_near(self._way_seconds, self._turnstile.pace.rate)
        self.sender = sender = Sender(self, windows, steps, self._chosen, self._turnstile, near=near)
        self._patience.cancel()
        self.hello = hello
        allows = self.visitor.allows if self.visitor.limited else None
        isolation = Isolation(hello.isolation)
        self.reader = SourceReader(self._cluster, isolation, self, hello.frame_bytes, allows)
        self._reading = self._loop.create_task(self._read(self.reader))
        kind = Kind(isolation, hello.recode)
        self._member = Member(
            kind, hello.frame_bytes, self.reader, sender, self.write, self._room, self.trouble
        )
        self._sharing.join(self._member)
        log.info("stream_begun", flow=hello.flow, congestion=self.congestion, **self.visitor.fields)
        welcome = {
            "relay": __version__,
            "congestion": self.congestion,
            "steady_us": steady_us(),
            "token": self.token,
            "keys": [maker.sealer.key.hex() for maker in sender.makers.values()],
        }
        self.write(messages.say(Down.WELCOME, welcome))
        reach("welcome_sent")
        self._chosen(Channel.BULK)

    async def _read(self, reader: SourceReader) -> None:
        try:
            await reader.run()
        except Exception as error:  # a mistake of ours: the mirror begins again
            log.exception("stream_broken", error=repr(error), **self.visitor.fields)
            self.refuse("internal_error", repr(error))

    # -- what it is told -----------------------------------------------------------------------------

    async def send(
        self, channel: Channel, news: News, as_is: Container[Key], taken: Taken, gone: Gone
    ) -> None:
        """As :class:`mirror.relay.reading.Outlet` says."""
        assert self.sender is not None
        await self.sender.send(channel, news, as_is, taken, gone)

    def _chosen(self, channel: Channel) -> None:
        assert self.sender is not None
        tuner = self.sender.makers[channel].tuner
        step = tuner.step
        choice = {
            "level": step.compression.level,
            "window_bytes": step.compression.window_bytes,
            "recode": step.recode,
            "why": tuner.why,
            "connections": self._widening.connections,
        }
        self.write(messages.say(Down.CHOICE, choice))

    def closed(self, topics: Collection[str]) -> None:
        """As :class:`mirror.relay.reading.Outlet` says."""
        self._audit.topics(self.visitor, "stream", topics)

    @property
    def round_trip_seconds(self) -> float | None:
        """To the mirror and back, as its kernel and ours have measured it; None where they have not."""
        sock = self._transport.get_extra_info("socket") if self._transport is not None else None
        return None if sock is None else tcp_info(sock).round_trip_seconds

    @property
    def _way_seconds(self) -> float | None:
        sock = self._transport.get_extra_info("socket") if self._transport is not None else None
        return None if sock is None else shortest_round_trip_seconds(sock)

    @property
    def waits(self) -> bool:
        """Whether frames are ready that the link, or the mirror, does not take yet."""
        return self.sender is not None and self.sender.waits

    def trouble(self, node: int, words: str) -> None:
        """As :class:`mirror.relay.reading.Outlet` says."""
        self.write(messages.say(Down.TROUBLE, {"node": node, "detail": messages.words(words)}))

    @property
    def full(self) -> bool:
        """As :class:`mirror.relay.sending.Wire` says."""
        return self._full or self._draining or self._transport is None

    @property
    def unsent(self) -> bool:
        """Likewise."""
        return _unsent(self._transport)

    @property
    def on_way_bytes(self) -> int:
        """Likewise."""
        return _on_way(self._transport)

    def _room(self) -> int:
        """So many bytes of messages may be written now, far from what nobody would read."""
        waits = self._transport.get_write_buffer_size() if self._transport is not None else UNREAD_BYTES_MAX
        return UNREAD_BYTES_MAX // 2 - waits

    def write(self, data: bytes) -> None:
        """A mirror that asks and does not read is not waited for; one that is gone is told nothing more."""
        if self._transport is None or self._transport.is_closing():
            return
        self._transport.write(data)
        if self._transport.get_write_buffer_size() > UNREAD_BYTES_MAX:
            self._audit.stream(self.visitor, "unread", "it asks and does not read")
            self._transport.abort()


class Joined(asyncio.Protocol):
    """A further connection of a stream: slices go over it, and nothing comes back.

    Attributes:
        carries: As :meth:`mirror.relay.sending.Sender.add` says.
        slice_bytes: As :class:`mirror.relay.sending.Wire` says.
        ended: Done when either side has ended it.
    """

    def __init__(self, stream: Stream, carries: Channel) -> None:
        self.carries = carries
        self.slice_bytes = UNSENT_BYTES_BEHIND if carries is Channel.BULK else UNSENT_BYTES
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._stream = stream
        self._transport: asyncio.Transport | None = None
        self._calming: Calming | None = None
        self._full = self._draining = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=self.slice_bytes)
        sock = transport.get_extra_info("socket")
        if tune(sock, self.slice_bytes) == CONGESTION and self.carries is Channel.BULK:
            tune(sock, UNSENT_BYTES_WITH_BBR)
            self._calming = Calming(sock)
        self._stream.join(self)

    def data_received(self, _: bytes) -> None:
        if not self.ended.done():
            self._stream.refuse("bad_message", "something came on a connection that was joined")

    def pause_writing(self) -> None:
        self._full = True

    def resume_writing(self) -> None:
        self._full = False
        asyncio.get_running_loop().call_soon(self._stream.has_room)  # as for the stream's own

    def connection_lost(self, _: Exception | None) -> None:
        self._transport = None
        self.close()

    @property
    def full(self) -> bool:
        """As :class:`mirror.relay.sending.Wire` says."""
        return self._full or self._draining or self._transport is None

    @property
    def unsent(self) -> bool:
        """Likewise."""
        return _unsent(self._transport)

    @property
    def on_way_bytes(self) -> int:
        """Likewise."""
        return _on_way(self._transport)

    @property
    def held(self) -> Held:
        """For how long it had no room."""
        if self._transport is None:
            return Held(0.0, 0.0, buffer_full=False)
        return held(self._transport.get_extra_info("socket"))

    def drain(self) -> None:
        """Send nothing more; it ends with the stream."""
        self._draining = True

    def write(self, data: bytes) -> None:
        """Likewise."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def close(self) -> None:
        """End it, and the stream; nothing where it has ended."""
        if self.ended.done():
            return
        self.ended.set_result(None)
        if self._calming is not None:
            self._calming.close()
        if self._transport is not None:
            self._transport.abort()
        self._stream.left(self)


def _unsent(transport: asyncio.Transport | None) -> bool:
    if transport is None:
        return False
    return bool(transport.get_write_buffer_size()) or unsent_bytes(transport.get_extra_info("socket")) != 0


def _on_way(transport: asyncio.Transport | None) -> int:
    if transport is None:
        return 0
    sock = transport.get_extra_info("socket")
    return transport.get_write_buffer_size() + (unacknowledged_bytes(sock) or 0)


def rest(transport: asyncio.Transport | None, seconds: float) -> None:
    """What a mirror has said took so long: where that was much others have their turn before more is read."""
    if transport is not None and seconds > BUSY_SECONDS:
        transport.pause_reading()
        later = min(seconds * REST_TIMES, REST_SECONDS_MAX)
        asyncio.get_running_loop().call_later(later, transport.resume_reading)


def tune(sock: socket.socket, unsent_bytes: int) -> str:
    """Make a connection one for a long way; answers the congestion control it has.

    Args:
        unsent_bytes: So much may wait in the kernel for a place on the wire.
    """
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, unsent_bytes)
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, CONGESTION.encode())
    has = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
    return has.partition(b"\0")[0].decode()
