"""The way to a broker: a TCP connection, and TLS on top of it where the settings ask for it.

Every address of a name is tried in turn. A handshake that fails is looked into, so that the error says which
side did not trust the other, and why.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from dataclasses import dataclass, field
from typing import NamedTuple

from mirror.errors import ConnectionFailedError
from mirror.kafka.resolving import resolve
from mirror.kafka.security import Security, explain_handshake_error


class Address(NamedTuple):
    """Where a broker listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """How connections of one cluster are made.

    Attributes:
        request_timeout_seconds: After this long without the oldest answer the connection is closed.
    """

    security: Security = field(default_factory=Security)
    client_id: str = "twinsite"
    connect_timeout_seconds: float = 10.0
    request_timeout_seconds: float = 30.0


async def dial(address: Address, options: ConnectionOptions) -> socket.socket:
    """A connected, non-blocking socket; TLS is established where the settings ask for it.

    Raises:
        ConnectionFailedError: The name has no address, or nobody answers at any of them.
        AuthenticationError: One side does not accept the other's certificate.
    """
    loop = asyncio.get_running_loop()
    try:
        found = await resolve(address.host, address.port)
    except OSError as error:
        raise ConnectionFailedError(f"{address}: the host name cannot be resolved: {error}") from error
    failure: OSError | None = None
    for family, kind, protocol, _, where in found:
        sock = socket.socket(family, kind, protocol)
        sock.setblocking(False)
        try:
            await loop.sock_connect(sock, where)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            return await _secure(sock, address, options)
        except OSError as error:
            failure = error
            sock.close()
        except BaseException:
            sock.close()
            raise
    raise ConnectionFailedError(f"{address}: cannot connect: {failure}") from failure


async def _secure(sock: socket.socket, address: Address, options: ConnectionOptions) -> socket.socket:
    context = options.security.ssl_context()
    if context is None:
        return sock
    tls: ssl.SSLSocket = context.wrap_socket(
        sock, server_hostname=address.host, do_handshake_on_connect=False
    )
    try:
        await _handshake(tls)
    except OSError as error:
        tls.close()
        tls_options = options.security.tls
        raise await explain_handshake_error(
            error, address.host, address.port, str(address), tls_options
        ) from error
    except BaseException:
        tls.close()
        raise
    return tls


async def _handshake(tls: ssl.SSLSocket) -> None:
    while True:
        try:
            tls.do_handshake()
        except ssl.SSLWantReadError:
            await _ready(tls, for_reading=True)
        except ssl.SSLWantWriteError:
            await _ready(tls, for_reading=False)
        else:
            return


async def _ready(sock: socket.socket, *, for_reading: bool) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    add, remove = (
        (loop.add_reader, loop.remove_reader) if for_reading else (loop.add_writer, loop.remove_writer)
    )
    add(sock.fileno(), _resolve, ready)
    try:
        await ready
    finally:
        remove(sock.fileno())


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
