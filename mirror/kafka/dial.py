"""Connects to a broker: TCP, and TLS on top of it where the settings ask for it.

The addresses of a host name are tried in turn; a silent one gets its share of the time. When one side does
not trust the other, no further address is tried: the failed handshake is examined, so that the error says
which side it was, and why. With relays the connection goes to a relay, which connects it to the broker.
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
    TwinsiteError,
    UnsupportedVersionError,
)
from mirror.kafka.nonblocking import handshake
from mirror.kafka.refused import Refused
from mirror.kafka.relayed import SEE, NoAnswerError, UnansweredError, ask_for_broker
from mirror.kafka.resolving import resolve
from mirror.kafka.security import BROKER, RELAY, Security, describe_file, explain_handshake_error

IN_TIME = 0.95
"""The share of the seconds for a connection that relays get: they are to end before whoever asks gives up."""
REACH_SECONDS_MIN = 2.0
"""An address, or a relay, gets at least this long, or half of the time for all: a good one that is far away
needs it.
"""
Ask = Callable[[socket.socket, str], Awaitable[None]]
"""Asks a relay for something over a connection to it; called with the socket and the relay's address."""


class Address(NamedTuple):
    """Where a broker listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Relays:
    """Relays of which any one will do; the one that worked last is asked first.

    Attributes:
        refused: Those that did not answer; each is left alone for a while, whatever it is wanted for.
    """

    def __init__(self, addresses: Sequence[Address]) -> None:
        self._addresses = list(addresses)
        self.refused = Refused()

    def __contains__(self, address: Address) -> bool:
        return address in self._addresses

    def in_turn(self) -> list[Address]:
        """All of them, in the order in which to try them."""
        return list(self._addresses)

    def failed(self, relay: Address) -> None:
        """Ask the others first from now on."""
        self._addresses.remove(relay)
        self._addresses.append(relay)

    @property
    def left_alone_seconds(self) -> float:
        """For how much longer all of them are left alone; 0: one may be tried."""
        return min(map(self.refused.seconds, self._addresses))


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """How connections of one cluster are made.

    Attributes:
        request_timeout_seconds: The connection is closed after this long without a byte while an answer is
            due; also when an answer takes ten times as long although its bytes keep coming.
        relays: Those through which the brokers are reached; None: directly.
    """

    security: Security = field(default_factory=Security)
    client_id: str = "twinsite"
    connect_timeout_seconds: float = 10.0
    request_timeout_seconds: float = 30.0
    relays: Relays | None = None


async def dial(address: Address, options: ConnectionOptions) -> socket.socket:
    """A connected, non-blocking socket; TLS is established where the settings ask for it.

    The caller limits the time: the last address of a broker is tried without a limit.

    Args:
        address: Of a broker; or of a relay, which then chooses a broker.

    Raises:
        ConnectionFailedError: The name has no address, or nobody answers at any of them.
        AuthenticationError: One side does not accept the other's certificate.
        UnsupportedVersionError: A relay says that it is of another version.
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
    """A connection to the first relay that does what ``ask`` asks for, and the address of that relay.

    Raises:
        ConnectionFailedError: None does, and at least one cannot be reached just now.
        OthersTooOldError: Likewise, and at least one other is of another version.
        AuthenticationError: One side does not accept the other's certificate, at the first relay tried.
        UnsupportedVersionError: The first relay tried says that it is of another version.
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
    """A connection to this relay, which does what ``ask`` asks for.

    Raises:
        TwinsiteError: As for :func:`dial_relay`.
    """
    return await _through(relay, ask, options, options.connect_timeout_seconds)


def _share(options: ConnectionOptions) -> float:
    """The seconds that one relay gets of those for all: a silent one leaves time for the others, and the last
    one is known to be silent before all seconds are over.
    """
    seconds = IN_TIME * options.connect_timeout_seconds
    relays = len(options.relays.in_turn()) if options.relays else 1
    return max(seconds / relays, min(REACH_SECONDS_MIN, seconds / 2))


async def _through(relay: Address, ask: Ask, options: ConnectionOptions, seconds: float) -> socket.socket:
    """A connection to a relay that does what ``ask`` asks for, within ``seconds``. A relay that cannot be
    reached, or ends the connection without an answer, is left alone for a while.
    """
    assert options.relays is not None
    found = await options.relays.refused.attempt(relay, partial(_asked, relay, ask, options, seconds))
    if isinstance(found, TwinsiteError):
        raise found
    return found


async def _asked(
    relay: Address, ask: Ask, options: ConnectionOptions, seconds: float
) -> socket.socket | TwinsiteError:
    """A connection to a relay that does what ``ask`` asks for; or why not, if that is no fault of the relay:
    it may wait for a broker, or its answer is a refusal.

    Raises:
        ConnectionFailedError: The relay cannot be reached, or ends the connection without an answer.
        AuthenticationError: One side does not accept the other's certificate.
    """
    late = ConnectionFailedError(f"relay {relay}: no answer in time")
    try:
        async with asyncio.timeout(seconds) as limit:
            sock = await _reach(relay, options, seconds)
    except TimeoutError as error:
        raise late from error
    with ExitStack() as undone:
        undone.callback(sock.close)
        try:
            async with asyncio.timeout_at(limit.when()):
                await ask(sock, str(relay))
        except UnansweredError as error:
            words = f"{error}; {_what_it_may_reject(options)}"
            raise ConnectionFailedError(words, hint=error.hint) from error
        except NoAnswerError:
            raise
        except TwinsiteError as refusal:
            return refusal
        except TimeoutError:
            return late
        undone.pop_all()
    return sock


def _what_it_may_reject(options: ConnectionOptions) -> str:
    ours = options.security.tls.certificate_file
    if ours is None:
        return f"it may require a client certificate, and none is configured: {SEE}"
    return f"{SEE} whether it rejects the mirror's certificate, {describe_file(ours)}"


async def _reach(address: Address, options: ConnectionOptions, seconds: float) -> socket.socket:
    """A socket to the first address of the host that answers.

    Args:
        seconds: For all addresses together: a silent one leaves time for those after it. The last one has no
            limit here; the caller gives up.
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
    """A socket to one address of the host.

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
        other, where = (RELAY, f"relay {address}") if options.relays is not None else (BROKER, str(address))
        raise await explain_handshake_error(
            error, address.host, address.port, where, options.security.tls, other
        ) from error
    except BaseException:
        tls.close()
        raise
    return tls
