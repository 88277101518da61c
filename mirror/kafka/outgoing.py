"""The bytes of requests that are to be sent to a broker, in pieces that are never joined.

A request is a few short headers and, between them, record batches of up to megabytes. A plain socket gets
them as a list, a TLS socket one after the other; so only the kernel copies batches, or TLS encrypts them.
"""

from __future__ import annotations

import socket
import ssl
import struct
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice

from mirror.kafka.tcp_info import unacknowledged_bytes

SEND_BUFFERS_MAX = 256
"""Buffers handed to one ``sendmsg`` call; the kernel's IOV_MAX is 1024."""

Buffers = Sequence[memoryview | bytes]


class WithheldError(OSError):
    """The rest must not be sent any more."""


class Outgoing:
    """What one connection still has to send.

    Attributes:
        buffers: In sending order. They must not change before they are sent.
        bytes_sent: How many bytes the socket has taken so far.
        may_send: Asked right before each write to the socket, also for the rest of a request; None: always.
    """

    __slots__ = ("_sock", "_tls", "buffers", "bytes_sent", "may_send")

    def __init__(self, sock: socket.socket) -> None:
        self.buffers: deque[memoryview | bytes] = deque()
        self.bytes_sent = 0
        self.may_send: Callable[[], bool] | None = None
        self._sock = sock
        self._tls = isinstance(sock, ssl.SSLSocket)

    @property
    def undelivered(self) -> bool:
        """Whether the broker's kernel lacks, or may lack, some of what was to be sent."""
        return bool(self.buffers) or unacknowledged_bytes(self._sock) != 0

    def take_back(self) -> None:
        """Make closing the socket discard what the kernel has not delivered.

        Otherwise the kernel goes on delivering, for minutes, what counts as lost.
        """
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def send(self) -> None:
        """Send all of it.

        Raises:
            WithheldError: It may not be sent any more; a part may have been sent before.
            BlockingIOError, SSLWantReadError, SSLWantWriteError: The socket takes no more now; the rest
                waits here.
            OSError: The connection is lost.
        """
        if self._tls:
            self._send_tls()
            return
        buffers, sock = self.buffers, self._sock
        while buffers:
            self._ask()
            sent = sock.sendmsg(islice(buffers, SEND_BUFFERS_MAX))
            self.bytes_sent += sent
            while sent > 0:
                buffer = buffers.popleft()
                sent -= len(buffer)
            if sent < 0:
                buffers.appendleft(memoryview(buffer)[sent:])

    def _send_tls(self) -> None:
        buffers = self.buffers
        while buffers:
            self._ask()
            sent = self._sock.send(buffers[0])
            self.bytes_sent += sent
            if sent < len(buffers[0]):
                buffers[0] = memoryview(buffers[0])[sent:]
            else:
                buffers.popleft()

    def _ask(self) -> None:
        if self.may_send is not None and not self.may_send():
            raise WithheldError
