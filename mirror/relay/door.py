"""Where connections come in: each says in time what it wants, or is ended.

A server of HTTP waits for a request for as long as it takes. Here TLS has its time, and then the whole head
of the request; and of those that have not asked yet only so many are kept, the newest.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import OrderedDict
from collections.abc import Callable
from typing import cast

from mirror.kafka.dial import Address
from mirror.relay.audit import Audit

BACKLOG = 1024


class Door:
    """Listens.

    Args:
        new_handler: Makes the protocol that takes over as soon as a connection is there.
        greeting_seconds: For TLS, and again for the request.
        guests_max: Connections that have not asked for anything yet; with one more the oldest goes.
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
        self._server: asyncio.Server | None = None

    async def open(self, host: str, port: int, tls: ssl.SSLContext | None) -> int:
        """Let connections in; answers the port.

        Raises:
            OSError: The address cannot be listened on.
        """
        self._server = await asyncio.get_running_loop().create_server(
            lambda: _Guest(self),
            host,
            port,
            ssl=tls,
            ssl_handshake_timeout=self._greeting_seconds if tls is not None else None,
            backlog=BACKLOG,
        )
        found: int = self._server.sockets[0].getsockname()[1]
        return found

    async def close(self) -> None:
        """Let nobody in any more; whoever has not asked yet goes."""
        if self._server is not None:
            self._server.close()
        for transport in list(self._guests):
            self._dismiss(transport)

    def enter(self, transport: asyncio.Transport) -> None:
        """Somebody is at the door."""
        handler = self._new_handler()
        transport.set_protocol(handler)
        handler.connection_made(transport)
        loop = asyncio.get_running_loop()
        self._guests[transport] = loop.call_later(self._greeting_seconds, self._too_slow, transport)
        if len(self._guests) > self._guests_max:
            self._too_slow(next(iter(self._guests)))

    def has_asked(self, transport: asyncio.BaseTransport | None) -> None:
        """Somebody has said what he wants."""
        timer = self._guests.pop(transport, None) if transport is not None else None
        if timer is not None:
            timer.cancel()

    def _too_slow(self, transport: asyncio.BaseTransport) -> None:
        if not transport.is_closing():
            peer = transport.get_extra_info("peername")
            self._audit.too_slow(str(Address(*peer[:2])) if peer else "", "HTTP request")
        self._dismiss(transport)

    def _dismiss(self, transport: asyncio.BaseTransport) -> None:
        self.has_asked(transport)
        cast(asyncio.Transport, transport).abort()


class _Guest(asyncio.Protocol):
    """A connection that has just been made."""

    def __init__(self, door: Door) -> None:
        self._door = door

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._door.enter(cast(asyncio.Transport, transport))
