"""The first requests on a connection: which versions a broker speaks, and who we are.

Requests and answers only. When to authenticate again before a session ends, and what becomes of other
requests meanwhile, is decided in ``session``.

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
"""The lowest and the highest version that the broker speaks of each API, by API key."""


async def ask_versions(ask: Callable[[Any, int], Awaitable[Any]], where: str) -> Versions:
    """Learn which versions of each API the broker speaks.

    Args:
        ask: Sends a request in the given version, and returns its answer.

    Raises:
        UnsupportedVersionError: It answers with an error.
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
        ask: Sends a request in the highest version both sides speak, and returns its answer.
        security: Prepared already (:meth:`~Security.prepare`): only the broker is waited for here.
        again: Whether we were authenticated before on this connection.

    Returns:
        How long the session lasts, in milliseconds; 0 when it has no end.

    Raises:
        AuthenticationError: The broker does not accept us, we do not accept it, or a secret cannot be read.
        ConnectionFailedError: It does not authenticate us again here; on a new connection it will.
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
