"""The way to a broker: a TCP connection, and TLS on top of it where the settings ask for it.

Every address of a name is tried in turn, one that is silent for its share of the time. Where one side does
not trust the other that is said at once: a handshake that fails is looked into, so that the error says which
side it was, and why. Where relays stand between, the connection is one to a relay, which has made it one to
the broker.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from mirror.errors import (
    AuthenticationError,
    ConnectionFailedError,
    OthersTooOldError,
    UnsupportedVersionError,
)
from mirror.kafka.nonblocking import handshake
from mirror.kafka.relayed import ask_for_broker
from mirror.kafka.resolving import resolve
from mirror.kafka.security import Security, explain_handshake_error

REACH_SECONDS_MIN = 2.0
"""An address, or a relay, has so long, or half of what there is for all: a good one over a long way takes
its time.
"""
Ask = Callable[[socket.socket, str], Awaitable[None]]
"""Asks a relay, by its address, for something over a connection to it."""


class Address(NamedTuple):
    """Where a broker listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Relays:
    """Relays of which any one will do; the one that did last is asked first."""

    def __init__(self, addresses: Sequence[Address]) -> None:
        self._addresses = list(addresses)

    def __contains__(self, address: Address) -> bool:
        return address in self._addresses

    def in_turn(self) -> list[Address]:
        """All of them, in the order in which they are to be tried."""
        return list(self._addresses)

    def failed(self, relay: Address) -> None:
        """Ask the others first from now on."""
        self._addresses.remove(relay)
        self._addresses.append(relay)


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """How connections of one cluster are made.

    Attributes:
        request_timeout_seconds: After this long without a byte, while an answer is due, the connection is
            closed; also when an answer takes ten times as long, though its bytes keep coming.
        relays: Through which its brokers are reached; None where they are reached themselves.
    """

    security: Security = field(default_factory=Security)
    client_id: str = "twinsite"
    connect_timeout_seconds: float = 10.0
    request_timeout_seconds: float = 30.0
    relays: Relays | None = None


async def dial(address: Address, options: ConnectionOptions) -> socket.socket:
    """A connected, non-blocking socket; TLS is established where the settings ask for it.

    Args:
        address: Of a broker; or of a relay, which then chooses one.

    Raises:
        ConnectionFailedError: The name has no address, or nobody answers at any of them.
        AuthenticationError: One side does not accept the other's certificate.
        UnsupportedVersionError: The relay says that it is of another version.
    """
    if options.relays is None:
        return await _reach(address, options, options.connect_timeout_seconds)
    if address in options.relays:
        return await _through(address, partial(ask_for_broker, broker=None), options, _share(options))
    try:
        return (await dial_relay(partial(ask_for_broker, broker=str(address)), options))[0]
    except ConnectionFailedError as error:
        raise ConnectionFailedError(f"{address}: {error}") from error


async def dial_relay(ask: Ask, options: ConnectionOptions) -> tuple[socket.socket, Address]:
    """A connection to the first of the relays that does what it is asked for, and which that is.

    Raises:
        ConnectionFailedError: None of them does, and one at least cannot be reached just now.
        OthersTooOldError: Likewise, and those that can be are of another version.
        AuthenticationError: One side does not accept the other's certificate, at all of them.
        UnsupportedVersionError: They say that they are of another version.
    """
    assert options.relays is not None
    failures: list[ConnectionFailedError | AuthenticationError | UnsupportedVersionError] = []
    for relay in options.relays.in_turn():
        try:
            return await _through(relay, ask, options, _share(options)), relay
        except (ConnectionFailedError, AuthenticationError) as error:
            failures.append(error)
            options.relays.failed(relay)
        except UnsupportedVersionError as error:
            failures.append(error)
    words = "; ".join(map(str, failures))
    worst = max(failures, key=lambda failure: failure.retriable)
    if worst.retriable and any(isinstance(failure, UnsupportedVersionError) for failure in failures):
        raise OthersTooOldError(words) from worst
    raise type(worst)(words, hint=worst.hint) from worst


async def dial_one_relay(relay: Address, ask: Ask, options: ConnectionOptions) -> socket.socket:
    """A connection to this relay, which does what it is asked for.

    Raises:
        TwinsiteError: As for :func:`dial_relay`.
    """
    return await _through(relay, ask, options, options.connect_timeout_seconds)


def _share(options: ConnectionOptions) -> float:
    """The seconds that a relay has, of those there are for all: one that is silent leaves time for others."""
    seconds = options.connect_timeout_seconds
    relays = len(options.relays.in_turn()) if options.relays else 1
    return max(seconds / relays, min(REACH_SECONDS_MIN, seconds / 2))


async def _through(relay: Address, ask: Ask, options: ConnectionOptions, seconds: float) -> socket.socket:
    """A connection to a relay that does what it is asked for, within so many seconds."""
    try:
        async with asyncio.timeout(seconds):
            sock = await _reach(relay, options, seconds)
            try:
                await ask(sock, str(relay))
            except BaseException:
                sock.close()
                raise
            return sock
    except TimeoutError as error:
        raise ConnectionFailedError(f"relay {relay}: no answer in time") from error


async def _reach(address: Address, options: ConnectionOptions, seconds: float) -> socket.socket:
    """A socket to the first of its addresses where there is an answer.

    Args:
        seconds: What there is for all of them: one that is silent leaves time for those behind it. With the
            last one it is the caller's to give up.
    """
    loop = asyncio.get_running_loop()
    ends_at = loop.time() + seconds
    try:
        found = await resolve(address.host, address.port)
    except OSError as error:
        raise ConnectionFailedError(f"{address}: the host name cannot be resolved: {error}") from error
    failure: ConnectionFailedError | None = None
    for left, way in zip(range(len(found), 0, -1), found, strict=True):
        try:
            share = max((ends_at - loop.time()) / left, min(REACH_SECONDS_MIN, seconds / 2))
            async with asyncio.timeout(share if left > 1 else None):
                return await _connect(way, address, options)
        except ConnectionFailedError as error:
            failure = error
        except TimeoutError:
            failure = ConnectionFailedError(f"{address}: cannot connect: no answer from {way[-1][0]} in time")
    assert failure is not None
    raise failure


async def _connect(way: tuple[Any, ...], address: Address, options: ConnectionOptions) -> socket.socket:
    """A socket to one of its addresses.

    Args:
        way: One of those that :func:`mirror.kafka.resolving.resolve` has found.
    """
    family, kind, protocol, _, where = way
    with ExitStack() as undone:
        try:
            sock = undone.enter_context(socket.socket(family, kind, protocol))
            sock.setblocking(False)
            await asyncio.get_running_loop().sock_connect(sock, where)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            secured = await _secure(sock, address, options)
        except OSError as error:
            raise ConnectionFailedError(f"{address}: cannot connect: {error}") from error
        undone.pop_all()
        return secured


async def _secure(sock: socket.socket, address: Address, options: ConnectionOptions) -> socket.socket:
    context = options.security.ssl_context()
    if context is None:
        return sock
    tls: ssl.SSLSocket = context.wrap_socket(
        sock, server_hostname=address.host, do_handshake_on_connect=False
    )
    try:
        await handshake(tls)
    except OSError as error:
        tls.close()
        where = f"relay {address}" if options.relays is not None else str(address)
        raise await explain_handshake_error(
            error, address.host, address.port, where, options.security.tls
        ) from error
    except BaseException:
        tls.close()
        raise
    return tls
