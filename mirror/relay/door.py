"""Where connections come in: each says in time what it wants, or is ended.

An HTTP server waits for a request for as long as it takes. Here TLS has a deadline, and so has the whole head
of the request after it. Of the connections without a request only a limited number is kept, the newest.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import cast

from mirror.kafka.dial import Address
from mirror.relay.audit import Audit

BACKLOG = 1024
TLS_TIMES = 2
"""asyncio's timeout for TLS, in multiples of ours: a slow connection is to be ended, and counted, here."""


class Door:
    """Listens for connections.

    Args:
        new_handler: Makes the protocol that takes over once a connection is established.
        greeting_seconds: For TLS, and again for the request.
        guests_max: Connections without a request; one more ends the oldest.
    """

    def __init__(
        self,
        new_handler: Callable[[], asyncio.Protocol],
        audit: Audit,
        *,
        greeting_seconds: float,
        guests_max: int,
    ) -> None:
        self._new_handler = new_handler
        self._audit = audit
        self._greeting_seconds = greeting_seconds
        self._guests_max = guests_max
        self._guests: OrderedDict[asyncio.BaseTransport, asyncio.TimerHandle] = OrderedDict()
        self._handshakes: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def take(self, host: str, port: int, tls: ssl.SSLContext | None) -> int:
        """Bind the address, and let nobody in yet; returns the port.

        Raises:
            OSError: The address cannot be listened on.
        """
        enter = self._enter if tls is None else partial(self._greet, tls)
        self._server = await asyncio.get_running_loop().create_server(
            lambda: _Guest(enter), host, port, backlog=BACKLOG, start_serving=False
        )
        found: int = self._server.sockets[0].getsockname()[1]
        return found

    async def open(self) -> None:
        """Let connections in.

        Raises:
            OSError: The address cannot be listened on: another process has bound it, too, and was faster.
        """
        assert self._server is not None, "there is no door without an address"
        await self._server.start_serving()

    async def close(self) -> None:
        """Let nobody in any more, and end connections without a request."""
        if self._server is not None:
            self._server.close()
        for transport in list(self._guests):
            self._dismiss(transport)

    def has_asked(self, guest: asyncio.BaseTransport | None) -> None:
        """A connection has sent its request: its deadline no longer applies."""
        timer = self._guests.pop(guest, None) if guest is not None else None
        if timer is not None:
            timer.cancel()

    def _enter(self, transport: asyncio.Transport) -> None:
        """A connection is established: give it to a new handler, and wait for its request."""
        handler = self._new_handler()
        transport.set_protocol(handler)
        handler.connection_made(transport)
        self._wait_for(transport)

    def _greet(self, tls: ssl.SSLContext, transport: asyncio.Transport) -> None:
        """Agree on TLS first. An asyncio server with TLS would report a connection only after that, and those
        that get no further would not be counted.
        """
        try:
            handshake = _Handshake(transport)
        except OSError:  # no file descriptor is left
            return
        finally:
            transport.abort()
        self._wait_for(handshake)
        task = asyncio.create_task(self._agree(tls, handshake))
        self._handshakes.add(task)
        task.add_done_callback(self._handshakes.discard)

    async def _agree(self, tls: ssl.SSLContext, handshake: _Handshake) -> None:
        def agreed(transport: asyncio.Transport) -> None:
            self.has_asked(handshake)
            self._enter(transport)

        with contextlib.suppress(OSError):  # the client is gone
            try:
                await asyncio.get_running_loop().connect_accepted_socket(
                    lambda: _Guest(agreed),
                    handshake.sock,
                    ssl=tls,
                    ssl_handshake_timeout=self._greeting_seconds * TLS_TIMES,
                )
            except ssl.SSLError as error:
                why = getattr(error, "verify_message", None) or error.reason
                self._audit.tls_refused(_peer(handshake), why)
        self.has_asked(handshake)

    def _wait_for(self, guest: asyncio.BaseTransport) -> None:
        loop = asyncio.get_running_loop()
        self._guests[guest] = loop.call_later(self._greeting_seconds, self._too_slow, guest)
        if len(self._guests) > self._guests_max:
            self._too_slow(next(iter(self._guests)))

    def _too_slow(self, guest: asyncio.BaseTransport) -> None:
        if not guest.is_closing():
            waited_for = "TLS" if isinstance(guest, _Handshake) else "HTTP request"
            self._audit.too_slow(_peer(guest), waited_for)
        self._dismiss(guest)

    def _dismiss(self, guest: asyncio.BaseTransport) -> None:
        self.has_asked(guest)
        cast(asyncio.Transport, guest).abort()


def _peer(guest: asyncio.BaseTransport) -> str:
    """The client's address, for people."""
    found = guest.get_extra_info("peername")
    return str(Address(*found[:2])) if found else ""


class _Guest(asyncio.Protocol):
    """A connection that was just made."""

    def __init__(self, enter: Callable[[asyncio.Transport], None]) -> None:
        self._enter = enter

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._enter(cast(asyncio.Transport, transport))


class _Handshake(asyncio.BaseTransport):
    """A TLS handshake in progress, as a guest of the door.

    Attributes:
        sock: A duplicate of the connection's socket, which stays open when its first transport is aborted.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__({"peername": transport.get_extra_info("peername")})
        self.sock: socket.socket = transport.get_extra_info("socket").dup()

    def is_closing(self) -> bool:
        """Never: once it has ended it is no guest any more."""
        return False

    def abort(self) -> None:
        """End it at any stage."""
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)
