"""Connections over a long link: how much the kernel takes, and what has not left it.

Nothing is written within the callback by which a transport says that it has room again: if that write failed,
asyncio would end the transport twice, and log an error. (Over TLS asyncio itself writes then, and may do so
all the same.)
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
"""The kernel takes no more while this many bytes wait in it unsent. For what is behind there may be more, so
that the link does not wait for the relay; most with BBR, where all of that goes over one connection: BBR
learns what a link carries only while it always has something to send, and fills the queues on the path until
then.
"""
CLOSE_SECONDS_MAX = 10.0
"""How long what is left may take to be sent when a connection ends."""
UNREAD_BYTES_MAX = 1 << 20
"""Frames are held back long before this; this much can only be answers to what a mirror asks."""
BUSY_SECONDS, REST_TIMES, REST_SECONDS_MAX = 0.01, 2, 1.0
"""Handling what a mirror says in one go rarely takes longer than ``BUSY_SECONDS``. If it does, the mirror is
not read for ``REST_TIMES`` as long, so that others have most of the time. One that wants very many partitions
says so once.
"""
CONGESTION = "bbr"
"""Unlike CUBIC, it does not mistake a lost packet for a full link."""


class Line(asyncio.Protocol, ABC):
    """A connection to a mirror, over which more is sent than received.

    Attributes:
        ended: Done when either side has ended it.
        sock: Its socket; None before it is made and after it has ended.

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
        """Called when it takes more again."""

    @abstractmethod
    def close(self) -> None:
        """End it; does nothing if it has ended."""

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
        """End it. What is left is still sent, for ``CLOSE_SECONDS_MAX``. Does nothing if it has ended.

        A transport of TLS that is closed a second time can no longer be used, nor aborted.
        """
        if self._transport is not None and not self._transport.is_closing():
            self._transport.close()
        if self._transport is not None and self._giving_up is None:
            self._giving_up = self._loop.call_later(CLOSE_SECONDS_MAX, self.give_up)
        if not self.ended.done():
            self.ended.set_result(None)

    def give_up(self) -> None:
        """Drop what is left, which nobody reads; does nothing if the connection is gone."""
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
    """A connection over which the mirror asks, and is answered."""

    @abstractmethod
    def unread(self) -> None:
        """Called when the connection is cut, as the mirror asks and does not read."""

    def write(self, data: bytes) -> None:
        """Send ``data`` without waiting. If more than ``UNREAD_BYTES_MAX`` is unsent then, the connection is
        cut; if it has ended, nothing is sent.
        """
        if self._transport is None or self._transport.is_closing():
            return
        self._transport.write(data)
        if self._transport.get_write_buffer_size() > UNREAD_BYTES_MAX:
            self.unread()
            self._transport.abort()


def rest(transport: asyncio.Transport | None, seconds: float) -> None:
    """Pause reading a mirror after handling what it said took ``seconds``, if that was long: others first."""
    if transport is not None and seconds > BUSY_SECONDS:
        transport.pause_reading()
        later = min(seconds * REST_TIMES, REST_SECONDS_MAX)
        asyncio.get_running_loop().call_later(later, transport.resume_reading)


def tune(sock: socket.socket, unsent_bytes: int) -> str:
    """Set up a connection for a long link; returns the congestion control that it has.

    Args:
        unsent_bytes: How much may wait in the kernel unsent.
    """
    end_when_dead(sock)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, unsent_bytes)
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, CONGESTION.encode())
    has = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
    return has.partition(b"\0")[0].decode()
