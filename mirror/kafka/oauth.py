"""Bearer tokens from an authorisation server, kept until they are about to expire.

The OAuth 2.0 client credentials grant: client id and secret go to the token
endpoint, a token that is valid for some minutes comes back. Redirects are not
followed, so that the secret goes only where the settings say.

Sources: RFC 6749 §4.4 and §5, KIP-768.
"""

from __future__ import annotations

import asyncio
import base64
import json
import math
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote_plus, urlsplit

import structlog

from mirror.errors import AuthenticationError, ConnectionFailedError
from mirror.kafka.sasl import token_expires_at
from mirror.kafka.secret import SecretSource
from mirror.kafka.tls import TlsOptions, make_context
from mirror.logs import Repeats, warn_repeated

log = structlog.get_logger(__name__)

Failure = AuthenticationError | ConnectionFailedError
"""Why there is no new token."""
ANSWER_BYTES_MAX = 1024 * 1024
RENEW_AFTER_SHARE = 0.8
"""A token is replaced after this share of its lifetime; the rest covers a slow authorisation server."""
LIFETIME_SECONDS_DEFAULT = 300.0
"""Assumed if the answer states no lifetime; an earlier expiry in the token itself counts."""
PATIENCE_SECONDS = 1.0
"""How long a connection waits for a new token while the old one is valid."""
KEPT_SECONDS_MIN = 5.0
"""A younger token is kept even if brokers refuse it."""
RETRY_AFTER_SECONDS = 5.0
"""How long after a failed request the next one is made, while the old token is valid."""
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True, slots=True)
class TokenEndpointOptions:
    """Where tokens come from.

    Attributes:
        url: The token endpoint; ``https``, plain ``http`` on this machine only.
        ca_file: Authorities that may sign its certificate; the system's if not given.
        timeout_seconds: For the whole request.

    Raises:
        ValueError: The url is neither.
    """

    url: str
    client_id: str
    client_secret: SecretSource
    scope: str = ""
    ca_file: Path | None = None
    timeout_seconds: float = 10.0

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in LOOPBACK):
            raise ValueError("the token endpoint must be an https address: a client secret is sent to it")


class Token(NamedTuple):
    """A token, and when it was requested, is to be replaced, and expires, on the monotonic clock."""

    value: str
    asked_at: float
    renew_at: float
    expires_at: float


class TokenEndpoint:
    """Gives the current token; requests a new one when that is about to expire, or a broker refused it.

    Args:
        clock: Monotonic, in seconds.
        wall_clock: In seconds since 1970, in which tokens state their expiry.
    """

    def __init__(
        self,
        options: TokenEndpointOptions,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._options = options
        self._clock = clock
        self._wall_clock = wall_clock
        self._token: Token | None = None
        self._request: asyncio.Task[Failure | None] | None = None
        self._not_before = -math.inf
        self._repeats = Repeats()

    def read(self) -> str:
        """The token that :meth:`renew` got.

        Raises:
            AuthenticationError: None was requested yet.
        """
        if self._token is None:
            raise AuthenticationError(f"{self._options.url}: no token has been requested yet")
        return self._token.value

    def refused(self) -> None:
        """A broker has refused the token: the next :meth:`renew` replaces it.

        The issuer's keys may have changed, or the machine was suspended. A token that is a few seconds old is
        kept: where another one would not help, every connection would ask the authorisation server.
        """
        token, now = self._token, self._clock()
        if token is not None and now >= token.asked_at + KEPT_SECONDS_MIN:
            self._token = token._replace(renew_at=now)

    async def renew(self) -> None:
        """Make sure that there is a valid token.

        While the authorisation server is unreachable or slow, the last token serves until it expires. Callers
        share one request; one that stops waiting does not cancel it for the others.

        Raises:
            AuthenticationError: The authorisation server does not accept us, or the client secret or the CA
                file cannot be used.
            ConnectionFailedError: It cannot be reached, or its answer makes no sense.
        """
        now, token = self._clock(), self._token
        lives = token is not None and now < token.expires_at
        if token is not None and lives and now < max(token.renew_at, self._not_before):
            return
        if self._request is None or self._request.done():
            self._request = asyncio.create_task(self._replaced())
        request = self._request
        await asyncio.wait({request}, timeout=PATIENCE_SECONDS if lives else None)
        failure = None if lives else request.result()
        if failure is not None:
            raise failure

    async def _replaced(self) -> Failure | None:
        """Request a new token; returns why there is none."""
        try:
            self._token = await self._ask(self._clock())
        except (AuthenticationError, ConnectionFailedError) as error:
            self._not_before = self._clock() + RETRY_AFTER_SECONDS
            self._warn(error)
            return error
        return None

    def _warn(self, error: Failure) -> None:
        """Log it while the old token still serves: no caller gets the error then."""
        left = self._token.expires_at - self._clock() if self._token is not None else 0.0
        if left > 0:
            key, reason = type(error).__name__, str(error)
            warn_repeated(
                log, self._repeats, key, "token_not_renewed", reason=reason, serves_for_seconds=round(left)
            )

    async def _ask(self, now: float) -> Token:
        import aiohttp  # takes a tenth of a second: only when it is needed

        options = self._options
        try:
            status, body = await asyncio.wait_for(self._post(), options.timeout_seconds)
        except TimeoutError as error:
            raise ConnectionFailedError(
                f"{options.url}: no token within {options.timeout_seconds:g} s"
            ) from error
        except (aiohttp.ClientError, OSError) as error:
            raise ConnectionFailedError(f"{options.url}: no token: {error}") from error
        return _token(options.url, status, body, now, self._wall_clock())

    async def _post(self) -> tuple[int, bytes]:
        import aiohttp

        options = self._options
        grant = {"grant_type": "client_credentials"} | ({"scope": options.scope} if options.scope else {})
        headers = {"Accept": "application/json", "Authorization": self._login()}
        async with (
            aiohttp.ClientSession(headers=headers) as session,
            session.post(options.url, data=grant, ssl=self._context(), allow_redirects=False) as answer,
        ):
            body = bytearray()
            async for piece in answer.content.iter_any():
                body += piece
                if len(body) > ANSWER_BYTES_MAX:
                    raise ConnectionFailedError(
                        f"{options.url}: no token: the answer is longer than {ANSWER_BYTES_MAX} bytes"
                    )
            return answer.status, bytes(body)

    def _login(self) -> str:
        """Id and secret as RFC 6749 §2.3.1 wants them: each form-encoded, then joined."""
        pair = f"{quote_plus(self._options.client_id)}:{quote_plus(self._options.client_secret.read())}"
        return f"Basic {base64.b64encode(pair.encode()).decode()}"

    def _context(self) -> ssl.SSLContext | bool:
        if not self._options.url.startswith("https"):
            return True
        return make_context(TlsOptions(ca_file=self._options.ca_file))


def _token(url: str, status: int, body: bytes, now: float, wall_now: float) -> Token:
    document = _document(body)
    if status >= 500 or status == 429:
        raise ConnectionFailedError(f"{url}: no token: status {status}")
    if status != 200:
        error = ascii(document.get("error", "no reason given"))
        raise AuthenticationError(
            f"{url}: no token: status {status}, {error}",
            hint="check client id, client secret, scope and address of the token endpoint",
        )
    value, lifetime = document.get("access_token"), _seconds(document.get("expires_in"))
    if not isinstance(value, str) or lifetime is None:
        raise ConnectionFailedError(f"{url}: the answer holds no token")
    own = (token_expires_at(value) or 0.0) - wall_now
    if own > 0:  # else it states no end, or our clock is wrong: a token just issued has not expired
        lifetime = min(lifetime, own)
    return Token(value, now, now + RENEW_AFTER_SHARE * lifetime, now + lifetime)


def _seconds(stated: object) -> float | None:
    """A stated lifetime in seconds; the default if none is stated, None if it is not a number.

    The RFC asks for a number; some servers put it in quotes.
    """
    if stated is None:
        return LIFETIME_SECONDS_DEFAULT
    if not isinstance(stated, int | float | str):
        return None
    try:
        seconds = float(stated)
    except (ValueError, OverflowError):
        return None
    return seconds if math.isfinite(seconds) else None


def _document(body: bytes) -> dict[str, Any]:
    try:
        document = json.loads(body)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}
