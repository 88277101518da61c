"""One mirror's stream: it says what it wants, and gets frames until one of the two ends it.

Nothing is known here that the mirror has not told on this connection.

Source: docs/protocol.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Container, Sequence
from typing import Annotated, Any, cast

import structlog
from pydantic import Field, ValidationError

from mirror import __version__
from mirror.config_values import Section
from mirror.errors import AnswerError
from mirror.kafka.cluster import Cluster
from mirror.kafka.fetch import Isolation, Key
from mirror.link import messages
from mirror.link.messages import MESSAGE_BYTES_MAX, Channel, Down, Messages, Up
from mirror.link.parts import Part
from mirror.relay.reading import SourceReader
from mirror.relay.sending import Sender, Taken
from mirror.relay.tuning import ladder

log = structlog.get_logger(__name__)

SILENT_SECONDS_MAX = 30.0
"""A mirror says something every few seconds; after so long without a word it is gone."""
UNSENT_BYTES = 64 << 10
"""The kernel takes no more while so much waits in it for a place on the wire."""
FLOWS_MAX = 10_000
"""Of so many the newest epoch is remembered."""
CLOSE_SECONDS_MAX = 10.0
"""What is left to send when a stream ends has so long."""
LIVE_LEVEL = 3
UNREAD_BYTES_MAX = 1 << 20
"""Frames are held back long before; so much is answers to what a mirror asks."""
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
    """The newest epoch met of each flow: a mirror that was fenced off gets nothing any more."""

    def __init__(self) -> None:
        self._newest: dict[tuple[str, int], int] = {}

    def check(self, hello: Hello) -> None:
        """
        Raises:
            Refused: A newer one was here.
        """
        of = (hello.flow, hello.producer_id)
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
        ended: Done when either side has ended it.

    Args:
        peer: Who asks, for people.
    """

    def __init__(self, cluster: Cluster, epochs: Epochs, peer: str) -> None:
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self._cluster = cluster
        self._epochs = epochs
        self._peer = peer
        self._messages = Messages(MESSAGE_BYTES_MAX)
        self._transport: asyncio.Transport | None = None
        self._congestion = ""
        self._sender: Sender | None = None
        self._reader: SourceReader | None = None
        self._reading: asyncio.Task[None] | None = None
        self._heard_at = time.monotonic()
        self._silence = self._loop.call_later(SILENT_SECONDS_MAX, self._look_for_silence)

    # -- the connection ------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=UNSENT_BYTES)
        self._congestion = tune(transport.get_extra_info("socket"))

    def data_received(self, data: bytes) -> None:
        self._heard_at = time.monotonic()
        try:
            for kind, payload in self._messages.received(data):
                self._heard(kind, payload)
        except AnswerError as error:
            self._refuse("bad_message", str(error))
        except Refused as refused:
            self._refuse(refused.code, str(refused))

    def pause_writing(self) -> None:
        if self._sender is not None:
            self._sender.pause()

    def resume_writing(self) -> None:
        if self._sender is not None:
            self._sender.resume()

    def connection_lost(self, _: Exception | None) -> None:
        self._transport = None
        self.close()

    def close(self) -> None:
        """End it; nothing where it has ended."""
        self._silence.cancel()
        if self._reading is not None:
            self._reading.cancel()
        if self._transport is not None:
            self._transport.close()
            self._loop.call_later(CLOSE_SECONDS_MAX, self._transport.abort)
        if not self.ended.done():
            self.ended.set_result(None)

    def _refuse(self, code: str, detail: str) -> None:
        log.warning("stream_refused", peer=self._peer, code=code, why=detail)
        self._write(messages.say(Down.BYE, {"code": code, "detail": detail}))
        self.close()

    def _look_for_silence(self) -> None:
        silent = time.monotonic() - self._heard_at
        if silent < SILENT_SECONDS_MAX:
            self._silence = self._loop.call_later(SILENT_SECONDS_MAX - silent, self._look_for_silence)
            return
        log.info("mirror_silent", peer=self._peer, seconds=round(silent))
        self.close()
        if self._transport is not None:
            self._transport.abort()  # nobody reads what is left

    # -- what the mirror says ------------------------------------------------------------------------

    def _heard(self, kind: int, payload: memoryview) -> None:
        if self._reader is None or self._sender is None:
            if kind != Up.HELLO:
                raise AnswerError(f"a message of kind {kind} came where a mirror says who it is")
            self._begin(messages.document(payload))
        elif kind == Up.WANT:
            self._reader.want(messages.read_want(payload))
        elif kind == Up.FORGET:
            self._reader.forget(messages.read_forget(payload))
        elif kind == Up.TAKEN:
            if not self._sender.taken(*messages.read_taken(payload)):
                raise AnswerError("more was taken than was sent")
        elif kind == Up.PING:
            self._write(messages.pong(messages.read_ping(payload), int(time.time() * 1000)))
        else:
            raise AnswerError(f"there are no messages of kind {kind}")

    def _begin(self, document: dict[str, Any]) -> None:
        try:
            hello = Hello.model_validate(document)
        except ValidationError as error:
            first = error.errors()[0]
            raise AnswerError(f"hello: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error
        self._epochs.check(hello)
        windows = dict(zip(Channel, hello.windows, strict=True))
        steps = {
            Channel.LIVE: ladder(LIVE_LEVEL, recode=hello.recode),
            Channel.BULK: ladder(hello.level, recode=hello.recode),
        }
        self._sender = sender = Sender(self._write, windows, steps, self._chosen)
        self._reader = SourceReader(self._cluster, Isolation(hello.isolation), self, hello.frame_bytes)
        self._reading = self._loop.create_task(self._read(self._reader))
        log.info("stream_begun", peer=self._peer, flow=hello.flow, congestion=self._congestion)
        welcome = {
            "relay": __version__,
            "congestion": self._congestion,
            "keys": [lane.sealer.key.hex() for lane in sender.lanes.values()],
        }
        self._write(messages.say(Down.WELCOME, welcome))
        self._chosen(Channel.BULK)

    async def _read(self, reader: SourceReader) -> None:
        try:
            await reader.run()
        except Exception as error:  # a mistake of ours: the mirror begins again
            log.exception("stream_broken", peer=self._peer, error=repr(error))
            self._refuse("internal_error", repr(error))

    # -- what it is told -----------------------------------------------------------------------------

    async def send(
        self, channel: Channel, node: int, parts: Sequence[Part], as_is: Container[Key], taken: Taken
    ) -> None:
        """As :class:`mirror.relay.reading.Outlet` says."""
        assert self._sender is not None
        await self._sender.send(channel, node, parts, as_is, taken)

    def _chosen(self, channel: Channel) -> None:
        assert self._sender is not None
        tuner = self._sender.lanes[channel].tuner
        step = tuner.step
        choice = {"level": step.compression.level, "recode": step.recode, "why": tuner.why}
        self._write(messages.say(Down.CHOICE, choice))

    def trouble(self, node: int, words: str) -> None:
        """As :class:`mirror.relay.reading.Outlet` says."""
        self._write(messages.say(Down.TROUBLE, {"node": node, "detail": words}))

    def _write(self, data: bytes) -> None:
        """A mirror that asks and does not read is not waited for."""
        if self._transport is None:
            return
        self._transport.write(data)
        if self._transport.get_write_buffer_size() > UNREAD_BYTES_MAX:
            log.warning("stream_refused", peer=self._peer, code="unread", why="it asks and does not read")
            self._transport.abort()


def tune(sock: socket.socket) -> str:
    """Make a connection one for a long way; answers the congestion control it has."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, CONGESTION.encode())
    has = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
    return has.partition(b"\0")[0].decode()
