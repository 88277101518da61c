"""What is said on a connection before anything else: which versions a broker speaks, and who we are.

Questions and answers only. When they are asked, again and again where a session ends, and what becomes of
other requests meanwhile, is decided in ``session``.

Sources: KIP-511 (client name and version), KIP-43 and KIP-152 (SASL in Kafka).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from kafka.protocol.metadata import ApiVersionsRequest
from kafka.protocol.sasl import SaslAuthenticateRequest, SaslHandshakeRequest

from mirror import __version__
from mirror.errors import AuthenticationError, UnsupportedVersionError
from mirror.kafka.security import SaslExchange, Security

UNSUPPORTED_VERSION = 35

Versions = dict[int, tuple[int, int]]
"""Of each API, by its key, the lowest and the highest version that is spoken."""


async def ask_versions(ask: Callable[[Any, int], Awaitable[Any]], where: str) -> Versions:
    """Learn which versions of each API the broker speaks.

    Args:
        ask: Sends a request in a version, and gives its answer.

    Raises:
        UnsupportedVersionError: It does not say.
    """
    request = ApiVersionsRequest(client_software_name="twinsite", client_software_version=__version__)
    answer = await ask(request, 3)
    if answer.error_code == UNSUPPORTED_VERSION:
        answer = await ask(ApiVersionsRequest(), 0)
    if answer.error_code:
        raise UnsupportedVersionError(f"{where}: ApiVersions answered code {answer.error_code}")
    return {key.api_key: (key.min_version, key.max_version) for key in answer.api_keys}


async def authenticate(
    ask: Callable[[Any], Awaitable[Any]], security: Security, where: str, *, again: bool = False
) -> int:
    """Prove who we are, where the settings ask for it.

    Args:
        ask: Sends a request in the highest version both sides speak, and gives its answer.
        security: Prepared for it (:meth:`~Security.prepare`): nobody but the broker is waited for here.
        again: Whether the broker has believed us before on this connection.

    Returns:
        How long the broker believes it, in milliseconds; 0 when that has no end.

    Raises:
        AuthenticationError: The broker does not believe us, we do not believe it, or a secret is not there.
        ConnectionFailedError: It does not take part in this again, and will on a new connection.
    """
    try:
        exchange = security.sasl()
        return 0 if exchange is None else await _exchange(ask, security, exchange, where, again)
    except AuthenticationError as error:
        if str(error).startswith(where):
            raise
        raise AuthenticationError(f"{where}: {error}", hint=error.hint) from error


async def _exchange(
    ask: Callable[[Any], Awaitable[Any]], security: Security, exchange: SaslExchange, where: str, again: bool
) -> int:
    answer = await ask(SaslHandshakeRequest(mechanism=exchange.mechanism))
    if answer.error_code:
        raise security.handshake_refused(where, answer.error_code, answer.mechanisms, again=again)
    try:
        return await _prove(ask, security, exchange, where)
    except AuthenticationError:
        security.refused()
        raise


async def _prove(
    ask: Callable[[Any], Awaitable[Any]], security: Security, exchange: SaslExchange, where: str
) -> int:
    token: bytes | None = exchange.first()
    lifetime_ms = 0
    while token is not None:
        reply = await ask(SaslAuthenticateRequest(auth_bytes=token))
        if reply.error_code:
            raise security.credentials_refused(where, reply.error_message)
        lifetime_ms = reply.session_lifetime_ms or 0
        token = exchange.next(bytes(reply.auth_bytes))
    return lifetime_ms
