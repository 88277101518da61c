"""Connections over a long way: what their kernel takes, and what has not left it.

Nothing is written while a transport says that it has room again: where that fails asyncio ends it twice, and
complains. (Over TLS it writes itself then, and may complain all the same.)
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from abc import ABC, abstractmethod
from typing import cast

from mirror.kafka.tcp_info import unacknowledged_bytes, unsent_bytes
from mirror.link.lifeline import end_when_dead

UNSENT_BYTES, UNSENT_BYTES_BEHIND, UNSENT_BYTES_WITH_BBR = 64 << 10, 256 << 10, 2 << 20
"""The kernel takes no more while so much waits in it for a place on the wire; more of what is behind, so that
the link does not wait for us. Most where all of that goes over one connection: BBR learns what a link carries
only while it always has something to send, and fills the queues on the way until it has.
"""
CLOSE_SECONDS_MAX = 10.0
"""What is left to send when a stream ends has so long."""
UNREAD_BYTES_MAX = 1 << 20
"""Frames are held back long before; so much is answers to what a mirror asks."""
BUSY_SECONDS, REST_TIMES, REST_SECONDS_MAX = 0.01, 2, 1.0
"""What a mirror says in one go takes no longer than this as a rule. Where it does the mirror is read again
after so many times as long, so that others have most of the time; one that wants very many partitions says so
once.
"""
CONGESTION = "bbr"
"""It does not take a lost packet for a full link, as CUBIC does."""


class Line(asyncio.Protocol, ABC):
    """A connection to a mirror over which frames go.

    Attributes:
        ended: Done when either side has ended it.
        sock: Of the connection; None before and after it.

    Args:
        slice_bytes: As :class:`mirror.relay.sending.Wire` says.
    """

    def __init__(self, slice_bytes: int) -> None:
        self.slice_bytes = slice_bytes
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self.sock: socket.socket | None = None
        self._transport: asyncio.Transport | None = None
        self._giving_up: asyncio.TimerHandle | None = None
        self._full = self._draining = False

    @abstractmethod
    def has_room(self) -> None:
        """It takes more again."""

    @abstractmethod
    def close(self) -> None:
        """End it; nothing where it has ended."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.sock = transport.get_extra_info("socket")
        self._transport.set_write_buffer_limits(high=self.slice_bytes)

    def connection_lost(self, _: Exception | None) -> None:
        self._transport = self.sock = None
        if self._giving_up is not None:
            self._giving_up.cancel()
        self.close()

    def pause_writing(self) -> None:
        self._full = True

    def resume_writing(self) -> None:
        self._full = False
        self._loop.call_soon(self.has_room)

    def end(self) -> None:
        """What is left still goes out, for seconds; nothing where it has ended.

        A transport of TLS that is closed a second time cannot be used any more, nor aborted.
        """
        if self._transport is not None and not self._transport.is_closing():
            self._transport.close()
        if self._transport is not None and self._giving_up is None:
            self._giving_up = self._loop.call_later(CLOSE_SECONDS_MAX, self.give_up)
        if not self.ended.done():
            self.ended.set_result(None)

    def give_up(self) -> None:
        """Nobody reads what is left; nothing where nothing is left."""
        if self._transport is not None:
            self._transport.abort()

    @property
    def full(self) -> bool:
        """As :class:`mirror.relay.sending.Wire` says."""
        return self._full or self._draining or self._transport is None

    @property
    def unsent(self) -> bool:
        """Likewise."""
        if self._transport is None or self.sock is None:
            return False
        return bool(self._transport.get_write_buffer_size()) or unsent_bytes(self.sock) != 0

    @property
    def on_way_bytes(self) -> int:
        """Likewise."""
        if self._transport is None or self.sock is None:
            return 0
        return self._transport.get_write_buffer_size() + (unacknowledged_bytes(self.sock) or 0)


class Asked(Line):
    """One over which the mirror asks, and is answered."""

    @abstractmethod
    def unread(self) -> None:
        """The mirror asks and does not read, so it is ended."""

    def write(self, data: bytes) -> None:
        """A mirror that asks and does not read is not waited for; one that is gone is told nothing more."""
        if self._transport is None or self._transport.is_closing():
            return
        self._transport.write(data)
        if self._transport.get_write_buffer_size() > UNREAD_BYTES_MAX:
            self.unread()
            self._transport.abort()


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
    end_when_dead(sock)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, unsent_bytes)
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, CONGESTION.encode())
    has = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
    return has.partition(b"\0")[0].decode()
