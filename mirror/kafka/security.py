"""How connections to a cluster are secured: plain text or TLS, and how we authenticate.

A :class:`Security` is a value. Files and environment are read when a connection needs
them, so certificates, passwords and tokens can be rotated while the mirror runs. No
secret is part of a ``repr`` or of an error.

Sources: KIP-43 and KIP-152 (SASL in Kafka), KIP-368 (re-authentication).
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from mirror.config_cluster import SaslSettings, SecuritySettings, TokenEndpointSettings
from mirror.errors import AuthenticationError, ConnectionFailedError, UsageError
from mirror.kafka.oauth import TokenEndpoint, TokenEndpointOptions
from mirror.kafka.sasl import OAuthBearerExchange, PlainExchange, SaslExchange, ScramExchange
from mirror.kafka.secret import SecretSource
from mirror.kafka.tls import ContextCache, TlsOptions
from mirror.kafka.tls_errors import (
    BROKER,
    RELAY,
    describe_file,
    explain_handshake_error,
    is_tls_alert,
    rename_ssl_error,
    speaks_plaintext_error,
    speaks_tls_error,
)

REAUTHENTICATE_AFTER_SHARE = 0.85
"""Of a session's lifetime; Kafka's own client starts from the same value."""
REAUTHENTICATE_SECONDS_MIN = 1.1
"""A broker refuses to authenticate twice within a second, as if the listener did not use SASL."""
ILLEGAL_SASL_STATE = 34


class SecurityProtocol(StrEnum):
    """The names Kafka gives to the four combinations of TLS and SASL."""

    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"


class SaslMechanism(StrEnum):
    """How a client proves who it is."""

    PLAIN = "PLAIN"
    SCRAM_SHA_256 = "SCRAM-SHA-256"
    SCRAM_SHA_512 = "SCRAM-SHA-512"
    OAUTHBEARER = "OAUTHBEARER"


@dataclass(frozen=True, slots=True)
class SaslOptions:
    """What is needed to prove who we are.

    Attributes:
        username: For PLAIN and SCRAM.
        password: For PLAIN and SCRAM.
        token: For OAUTHBEARER: where somebody else puts a current token, or where to request one.
        extensions: For OAUTHBEARER: names and values that some brokers want with the token.

    Raises:
        UsageError: The mechanism needs something that is missing.
    """

    mechanism: SaslMechanism
    username: str = ""
    password: SecretSource | None = None
    token: SecretSource | TokenEndpoint | None = None
    extensions: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.mechanism is SaslMechanism.OAUTHBEARER:
            if self.token is None:
                raise UsageError("OAUTHBEARER needs a token, or a token endpoint to request one from")
        elif not self.username or self.password is None:
            raise UsageError(f"{self.mechanism} needs a user name and a password")


@dataclass(frozen=True, slots=True)
class Security:
    """How connections of one cluster are secured. The default is plain text without authentication.

    Raises:
        UsageError: The protocol needs a SASL mechanism, and none is given.
    """

    protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT
    tls: TlsOptions = field(default_factory=TlsOptions)
    sasl_options: SaslOptions | None = None
    _contexts: ContextCache = field(default_factory=ContextCache, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.uses_sasl and self.sasl_options is None:
            raise UsageError(f"{self.protocol} needs a SASL mechanism")

    @classmethod
    def from_settings(cls, settings: SecuritySettings) -> Security:
        """What the settings of a cluster say about its connections."""
        tls = TlsOptions(
            ca_file=settings.ca_file,
            certificate_file=settings.certificate_file,
            key_file=settings.key_file,
            key_password=settings.key_password,
            check_hostname=settings.verify_hostname,
        )
        sasl = _sasl_options(settings.sasl) if settings.sasl is not None else None
        return cls(SecurityProtocol(settings.protocol), tls, sasl)

    @property
    def uses_tls(self) -> bool:
        return self.protocol in {SecurityProtocol.SSL, SecurityProtocol.SASL_SSL}

    @property
    def uses_sasl(self) -> bool:
        return self.protocol in {SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL}

    def ssl_context(self) -> ssl.SSLContext | None:
        """The TLS context for the next connection; None where TLS is not used.

        Raises:
            AuthenticationError: Certificates or key cannot be used; names the file.
        """
        return self._contexts.get(self.tls) if self.uses_tls else None

    @property
    def certificate_valid_until(self) -> float | None:
        """As :meth:`mirror.kafka.tls.ContextCache.valid_until` says; None where TLS is not used."""
        return self._contexts.valid_until(self.tls) if self.uses_tls else None

    async def prepare(self) -> None:
        """Prepare the next :meth:`sasl`: request a new token if the old one is about to expire.

        Raises:
            AuthenticationError: The token endpoint does not accept us.
            ConnectionFailedError: It cannot be reached.
        """
        if self._token_endpoint is not None:
            await self._token_endpoint.renew()

    def refused(self) -> None:
        """The broker has refused us: the next :meth:`prepare` replaces a token that was kept."""
        if self._token_endpoint is not None:
            self._token_endpoint.refused()

    @property
    def _token_endpoint(self) -> TokenEndpoint | None:
        token = self.sasl_options.token if self.uses_sasl and self.sasl_options is not None else None
        return token if isinstance(token, TokenEndpoint) else None

    def sasl(self) -> SaslExchange | None:
        """A new exchange for one authentication, with the current secrets; None if SASL is not used.

        Raises:
            AuthenticationError: A secret cannot be read, or is not fit for the mechanism.
        """
        if not self.uses_sasl or self.sasl_options is None:
            return None
        return _exchange(self.sasl_options)

    def handshake_refused(
        self, where: str, code: int, offered: Sequence[str], *, again: bool = False
    ) -> AuthenticationError | ConnectionFailedError:
        """The error for a broker that refuses our mechanism on this listener, or refuses it now.

        Args:
            code: Kafka's error code in the answer to SaslHandshake.
            offered: The mechanisms in that answer.
            again: Whether we were authenticated before on this connection.

        Returns:
            ConnectionFailedError if a new connection will do.
        """
        mechanism = self.sasl_options.mechanism if self.sasl_options else "none"
        if code == ILLEGAL_SASL_STATE and again:
            return ConnectionFailedError(
                f"{where}: the session could not be renewed",
                hint="a new connection starts a new session; if this recurs, raise "
                "connections.max.reauth.ms of the broker, or the lifetime of the tokens",
            )
        if code == ILLEGAL_SASL_STATE:
            return AuthenticationError(
                f"{where}: this listener does not use SASL ({mechanism} was tried)",
                hint="set security.protocol to PLAINTEXT or SSL, or use the port of a SASL listener",
            )
        names = ", ".join(offered) or "none"
        return AuthenticationError(
            f"{where}: SASL mechanism {mechanism} is not enabled here; the broker offers: {names}",
            hint=f"set security.sasl.mechanism to one of: {names}",
        )

    def credentials_refused(self, where: str, message: str | None) -> AuthenticationError:
        """The error for a broker that refuses our credentials.

        Args:
            message: What it said about that; a broker never repeats a secret.
        """
        options = self.sasl_options
        if options is None or options.password is None:
            return AuthenticationError(f"{where}: {message or 'the broker refused the token'}")
        return AuthenticationError(
            f"{where}: {options.mechanism} as {options.username!r}: {message or 'the broker refused'}",
            hint=f"check the user name and the password in {options.password.where}",
        )


def _sasl_options(settings: SaslSettings) -> SaslOptions:
    return SaslOptions(
        SaslMechanism(settings.mechanism),
        username=settings.username,
        password=settings.password,
        token=settings.token or _token_endpoint(settings.token_endpoint),
        extensions=dict(settings.extensions),
    )


def _token_endpoint(settings: TokenEndpointSettings | None) -> TokenEndpoint | None:
    if settings is None:
        return None
    options = TokenEndpointOptions(
        url=settings.url,
        client_id=settings.client_id,
        client_secret=settings.client_secret,
        scope=settings.scope,
        ca_file=settings.ca_file,
        timeout_seconds=settings.timeout_seconds,
    )
    return TokenEndpoint(options)


def _exchange(options: SaslOptions) -> SaslExchange:
    if options.token is not None:
        return OAuthBearerExchange(options.token.read().strip(), options.extensions)
    password = options.password.read() if options.password is not None else ""
    if options.mechanism is SaslMechanism.PLAIN:
        return PlainExchange(options.username, password)
    return ScramExchange(options.mechanism, options.username, password)


def reauthenticate_after_seconds(session_lifetime_ms: int) -> float | None:
    """After how long to authenticate again, for a session of this lifetime (KIP-368).

    Returns:
        None where the session is not renewed: it has no end, or ends before the broker may be asked again.
    """
    seconds = session_lifetime_ms / 1000
    after = max(seconds * REAUTHENTICATE_AFTER_SHARE, REAUTHENTICATE_SECONDS_MIN)
    return after if after < seconds else None


__all__ = [
    "BROKER",
    "RELAY",
    "SaslExchange",
    "SaslMechanism",
    "SaslOptions",
    "SecretSource",
    "Security",
    "SecurityProtocol",
    "TlsOptions",
    "TokenEndpoint",
    "TokenEndpointOptions",
    "describe_file",
    "explain_handshake_error",
    "is_tls_alert",
    "reauthenticate_after_seconds",
    "rename_ssl_error",
    "speaks_plaintext_error",
    "speaks_tls_error",
]
