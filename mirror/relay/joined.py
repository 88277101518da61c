"""Further connections of a mirror's stream: one for each kind of frames, or many in parallel.

Source: docs/protocol.md (joining).
"""

from __future__ import annotations

import asyncio
import time
from typing import Protocol

from mirror.link import protocol
from mirror.link.protocol import Channel
from mirror.relay.calming import Calming
from mirror.relay.line import (
    CONGESTION,
    UNSENT_BYTES,
    UNSENT_BYTES_BEHIND,
    UNSENT_BYTES_WITH_BBR,
    Line,
    tune,
)
from mirror.relay.news import steady_us
from mirror.relay.widening import Held, held

IDLE_SECONDS_MAX = 10.0
"""After this long without bytes a PONG is sent: what stands between may end idle connections."""


class HasJoined(Protocol):
    """The stream whose frames go over them."""

    def join(self, other: Joined, /) -> None:
        """One more connection."""

    def left(self, other: Joined, /) -> None:
        """A connection has ended, and what it carried may be lost."""

    def has_room(self) -> None:
        """A connection takes more again."""

    def refuse(self, code: str, detail: str) -> None:
        """The mirror has sent what it must not."""


class Joined(Line):
    """A further connection of a stream: slices go over it, or a PONG now and then, and nothing comes back.

    Attributes:
        carries: As :meth:`mirror.relay.sending.Sender.add` says.
    """

    def __init__(self, stream: HasJoined, carries: Channel) -> None:
        super().__init__(UNSENT_BYTES_BEHIND if carries is Channel.BULK else UNSENT_BYTES)
        self.carries = carries
        self._stream = stream
        self._calming: Calming | None = None
        self._wrote_at = time.monotonic()
        self._speaking: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        sock = transport.get_extra_info("socket")
        if tune(sock, self.slice_bytes) == CONGESTION and self.carries is Channel.BULK:
            tune(sock, UNSENT_BYTES_WITH_BBR)
            self._calming = Calming(sock)
        self._stream.join(self)
        self._speak_where_idle()

    def data_received(self, _: bytes) -> None:
        if not self.ended.done():
            self._stream.refuse("bad_message", "unexpected data on a joined connection")

    def has_room(self) -> None:
        """The stream decides what goes next."""
        self._stream.has_room()

    @property
    def held(self) -> Held:
        """For how long it lacked room."""
        return Held(0.0, 0.0, buffer_full=False) if self.sock is None else held(self.sock)

    def drain(self) -> None:
        """Send nothing more; the connection ends with the stream."""
        self._draining = True

    def _speak_where_idle(self) -> None:
        if time.monotonic() - self._wrote_at >= IDLE_SECONDS_MAX and not self.full:
            self.write(protocol.pong(protocol.NOT_ASKED, time.time_ns() // 1_000_000, steady_us()))
        left = self._wrote_at + IDLE_SECONDS_MAX - time.monotonic()
        later = left if left > 0 else IDLE_SECONDS_MAX
        self._speaking = self._loop.call_later(later, self._speak_where_idle)

    def write(self, data: bytes) -> None:
        """As :class:`mirror.relay.sending.Wire` says."""
        self._wrote_at = time.monotonic()
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def close(self) -> None:
        """End it, and the stream with it; does nothing if it has ended."""
        if self.ended.done():
            return
        self.ended.set_result(None)
        if self._calming is not None:
            self._calming.close()
        if self._speaking is not None:
            self._speaking.cancel()
        self.give_up()
        self._stream.left(self)
