"""One mirror's stream: the mirror says what it wants, and gets frames until either side ends the stream.

Nothing is known here but what the mirror has said on this connection.

Source: docs/protocol.md.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Collection, Container, Iterable
from typing import Any

import structlog
from pydantic import ValidationError

from mirror import __version__
from mirror.errors import AnswerError
from mirror.failpoints import reach
from mirror.kafka.cluster import Cluster
from mirror.kafka.fetch import Isolation, Key
from mirror.kafka.tcp_info import shortest_round_trip_seconds, tcp_info
from mirror.link import messages, protocol
from mirror.link.messages import MESSAGE_BYTES_MAX, Messages
from mirror.link.protocol import TOKEN_BYTES, Channel, Down, Up
from mirror.relay.access import Visitor
from mirror.relay.audit import Audit
from mirror.relay.group import Kind, Member, Who
from mirror.relay.hello import Epochs, Hello, Refused
from mirror.relay.joined import Joined
from mirror.relay.line import UNREAD_BYTES_MAX, UNSENT_BYTES, Asked, rest, tune
from mirror.relay.news import Gone, News, Taken, steady_us
from mirror.relay.pacing import Turnstile
from mirror.relay.reading import SourceReader
from mirror.relay.sending import Sender
from mirror.relay.sharing import Sharing
from mirror.relay.tuning import LONG, Step, is_near, ladder
from mirror.relay.widening import LOOK_SECONDS, Widening

log = structlog.get_logger(__name__)

SILENT_SECONDS_MAX = 30.0
"""A mirror says something every few seconds; after this long without a message it is taken to be gone."""
GOING_AWAY = "going_away"


class Stream(Asked):
    """One mirror's connection, once it has become a stream of frames.

    Attributes:
        token: By which further connections join it.
        hello: The mirror's HELLO; None before that.
        sender: Sends to the mirror; likewise.
        reader: Reads for the mirror; likewise.
        congestion: The congestion control of this connection.

    Args:
        turnstile: The slices of all streams go through it.
        sharing: Finds what streams have in common.
        visitor: The mirror.
        greeting_seconds: HELLO has to arrive within this time.
        level_max: The highest level of zstd for what is behind.
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
        super().__init__(UNSENT_BYTES)
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
        self._joined: set[Joined] = set()
        self._widening = Widening()
        self._looking: asyncio.TimerHandle | None = None
        self._messages = Messages(MESSAGE_BYTES_MAX)
        self.congestion = ""
        self.sender: Sender | None = None
        self.reader: SourceReader | None = None
        self._reading: asyncio.Task[None] | None = None
        self._heard_at = time.monotonic()
        self._silence = self._loop.call_later(SILENT_SECONDS_MAX, self._look_for_silence)
        self._patience = self._loop.call_later(greeting_seconds, self._too_slow)

    # -- the connection ------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.congestion = tune(transport.get_extra_info("socket"), UNSENT_BYTES)

    def data_received(self, data: bytes) -> None:
        if self._draining:
            return
        began = time.monotonic()
        try:
            for kind, payload in self._messages.received(data):
                self._heard_at = time.monotonic()  # not for mere bytes: a message may never end
                self._heard(kind, payload)
        except AnswerError as error:
            self.refuse("bad_message", str(error))
        except Refused as refused:
            self.refuse(refused.code, str(refused))
        rest(self._transport, time.monotonic() - began)

    def close(self) -> None:
        """End it, and what has joined it; does nothing if it has ended."""
        self._epochs.end(self)
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
        self.end()

    def _share_no_more(self) -> None:
        if self._member is not None:
            member, self._member = self._member, None
            self._sharing.leave(member)

    def refuse(self, code: str, detail: str) -> None:
        """Tell the mirror why the stream ends, and end it; the audit is told, too."""
        self._audit.stream(self.visitor, code, detail)
        self._say_bye(code, detail)

    def _say_bye(self, code: str, detail: str) -> None:
        self.write(messages.say(Down.BYE, {"code": code, "detail": detail}))
        self.close()

    def drain(self) -> None:
        """Send nothing more, and tell the mirror to go to another relay; it then ends the connection."""
        self._draining = True
        for one in self._joined:
            one.drain()
        self._share_no_more()
        words = "this relay is being stopped: use another"
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
        self.give_up()

    # -- more connections ----------------------------------------------------------------------------

    def join(self, other: Joined) -> None:
        """One more connection."""
        self._joined.add(other)
        if self.sender is not None:
            self.sender.add(other, other.carries)
        if self._looking is None:
            self._looking = self._loop.call_later(LOOK_SECONDS, self._look_for_room)

    def _look_for_room(self) -> None:
        """Ask for more connections if those there are have too little room for what the link would carry."""
        assert self.sender is not None
        self._looking = self._loop.call_later(LOOK_SECONDS, self._look_for_room)
        behind = {one: one.held for one in self._joined if one.carries is Channel.BULK}
        late = self.sender.mirror_is_late
        if self._widening.look(behind, time.monotonic(), mirror_is_late=late):
            wanted = self._widening.connections
            log.info("more_connections_wanted", now=len(behind), wanted=wanted, **self.visitor.fields)
            self._chosen(Channel.BULK)

    def left(self, other: Joined) -> None:
        """A joined connection has ended. What it carried may be lost, so the stream ends."""
        self._joined.discard(other)
        self.close()

    def has_room(self) -> None:
        """This connection, or one that has joined it, takes more again."""
        if self.sender is not None:
            self.sender.go_on()

    # -- what the mirror says ------------------------------------------------------------------------

    def _heard(self, kind: int, payload: memoryview) -> None:
        if self.reader is None or self.sender is None:
            if kind != Up.HELLO:
                raise AnswerError(f"received a message of kind {kind} instead of HELLO")
            self._begin(messages.document(payload))
        elif kind == Up.WANT:
            wanted = protocol.read_want(payload)
            self._release(position.key for position in wanted)
            self.reader.want(wanted)
            reach("wanted")
        elif kind == Up.FORGET:
            forgotten = protocol.read_forget(payload)
            self._release(forgotten)
            self.reader.forget(forgotten)
        elif kind == Up.TAKEN:
            if not self.sender.taken(*protocol.read_taken(payload)):
                raise AnswerError("TAKEN for more than was sent")
        elif kind == Up.PING:
            pong = protocol.pong(protocol.read_number(payload), int(time.time() * 1000), steady_us())
            self.write(pong)
            self.sender.look_whether_idle(time.monotonic())
        elif kind == Up.RANK:
            ranks = protocol.read_rank(payload)
            self.reader.rank(ranks)
            if self._member is not None:
                self._sharing.rank(self._member, ranks)
        elif kind == Up.LIMIT:
            self.sender.limit(protocol.read_number(payload) or None)
        elif kind == Up.HELLO:
            raise AnswerError("received a second HELLO")
        else:
            raise AnswerError(f"unknown message kind {kind}")

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
        self._epochs.begin(self, hello, self.visitor.role.name if self.visitor.role else None)
        reach("hello_taken")
        windows = dict(zip(Channel, hello.windows, strict=True))
        steps = {
            Channel.LIVE: [Step(LONG, hello.recode)],
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
        who = Who(self.visitor.known_as, hello.flow, hello.producer_id)
        kind = Kind(isolation, hello.recode)
        self._member = Member(
            who, kind, hello.frame_bytes, self.reader, sender, self.write, self._room, self.trouble
        )
        self._sharing.join(self._member)
        log.info("stream_begun", flow=hello.flow, congestion=self.congestion, **self.visitor.fields)
        welcome = {
            "relay": __version__,
            "congestion": self.congestion,
            "steady_us": steady_us(),
            "token": self.token,
            "source_cluster_id": self._cluster.info.cluster_id or None,
            "keys": [maker.sealer.key.hex() for maker in sender.makers.values()],
        }
        self.write(messages.say(Down.WELCOME, welcome))
        reach("welcome_sent")
        self._chosen(Channel.BULK)

    async def _read(self, reader: SourceReader) -> None:
        try:
            await reader.run()
        except Exception as error:  # a bug: the mirror begins a new stream
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
        """Tell the mirror how BULK is sent from now on; LIVE is always sent the same way."""
        if channel is not Channel.BULK:
            return
        assert self.sender is not None
        tuner = self.sender.makers[channel].tuner
        step = tuner.step
        choice = {
            "level": step.compression.level,
            "window_bytes": step.compression.long_bytes,
            "recode": step.recode,
            "why": tuner.reasons,
            "connections": self._widening.connections,
        }
        self.write(messages.say(Down.CHOICE, choice))

    def closed(self, topics: Collection[str]) -> None:
        """As :class:`mirror.relay.reading.Outlet` says."""
        self._audit.topics(self.visitor, "stream", topics)

    @property
    def round_trip_seconds(self) -> float | None:
        """To the mirror and back, as our kernel has measured it; None if it has not."""
        return None if self.sock is None else tcp_info(self.sock).round_trip_seconds

    @property
    def _way_seconds(self) -> float | None:
        return None if self.sock is None else shortest_round_trip_seconds(self.sock)

    @property
    def waits(self) -> bool:
        """Whether frames are ready that the link, or the mirror, does not take yet."""
        return self.sender is not None and self.sender.waits

    def trouble(self, node: int, words: str) -> None:
        """As :class:`mirror.relay.reading.Outlet` says."""
        self.write(messages.say(Down.TROUBLE, {"node": node, "detail": messages.words(words)}))

    def _room(self) -> int:
        """How many bytes of messages may be written now, well below what counts as unread."""
        waits = self._transport.get_write_buffer_size() if self._transport is not None else UNREAD_BYTES_MAX
        return UNREAD_BYTES_MAX // 2 - waits

    def unread(self) -> None:
        """Tell the audit."""
        self._audit.stream(self.visitor, "unread", "it sends requests but does not read")
