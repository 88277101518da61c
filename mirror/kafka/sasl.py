"""The client's side of the SASL mechanisms, as step machines without I/O.

An exchange serves one authentication: send :meth:`~SaslExchange.first`, pass every
answer to :meth:`~SaslExchange.next`, and send what it returns, until that is None.

These are our own: kafka-python's SCRAM does not escape user names, mishandles the
server's ``e=``, compares signatures in data-dependent time and accepts one iteration,
or a million, from anybody. As in Kafka, names and passwords are plain UTF-8: SASLprep
would reject passwords that the broker was given.

Sources: RFC 4616 (PLAIN), RFC 5802 and 7677 (SCRAM), RFC 7628 and KIP-255 (OAUTHBEARER),
docs/decisions/0015-the-greeting-is-our-own.md.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import re
import secrets
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Protocol

from mirror.errors import AuthenticationError
from mirror.moments import moment

SCRAM_HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
SCRAM_ITERATIONS_MIN = 4096
"""With fewer an eavesdropper could guess the password cheaply; Kafka's own minimum."""
SCRAM_ITERATIONS_MAX = 200_000
"""More would block the event loop for a good part of a second; Kafka stores at most 16 384."""
NO_CHANNEL_BINDING = b"n,,"

BEARER_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")
EXTENSION_NAME = re.compile(r"[A-Za-z]+")
EXTENSION_VALUE = re.compile(r"[\x21-\x7e \t\r\n]+")


class SaslExchange(Protocol):
    """One authentication from the first message to the last."""

    mechanism: str

    def first(self) -> bytes:
        """The message that begins it."""

    def next(self, server_bytes: bytes) -> bytes | None:
        """What to send after this message of the server; None when the authentication is complete.

        Raises:
            AuthenticationError: The server refused us, or could not prove that it knows us.
        """


class PlainExchange:
    """User name and password in plain text: for connections under TLS only."""

    mechanism = "PLAIN"

    def __init__(self, username: str, password: str) -> None:
        if "\0" in username or "\0" in password:
            raise AuthenticationError("PLAIN cannot carry a user name or password with a NUL character")
        self._message = f"\0{username}\0{password}".encode()

    def first(self) -> bytes:
        return self._message

    def next(self, server_bytes: bytes) -> bytes | None:
        """The server has nothing to say beyond success: a refusal comes as an error code."""
        if server_bytes:
            raise AuthenticationError(f"PLAIN: the broker answered {server_bytes[:100]!a} instead of success")
        return None


class ScramExchange:
    """Both sides prove that they know the password; it never crosses the wire.

    Args:
        mechanism: ``SCRAM-SHA-256`` or ``SCRAM-SHA-512``.
        nonce: The client's random part, printable and without commas; fresh unless a test says otherwise.
    """

    def __init__(self, mechanism: str, username: str, password: str, *, nonce: str | None = None) -> None:
        self.mechanism = mechanism
        self._hash = SCRAM_HASHES[mechanism]
        self._password = password.encode()
        self._nonce = (nonce or secrets.token_urlsafe(24)).encode()
        self._first_bare = b"n=" + escape_username(username).encode() + b",r=" + self._nonce
        self._server_signature: bytes | None = None

    def first(self) -> bytes:
        return NO_CHANNEL_BINDING + self._first_bare

    def next(self, server_bytes: bytes) -> bytes | None:
        if self._server_signature is None:
            return self._prove(server_bytes)
        self._check(server_bytes, self._server_signature)
        return None

    def _prove(self, server_first: bytes) -> bytes:
        nonce, salt, iterations = self._challenge(_attributes(server_first))
        final_without_proof = b"c=" + base64.b64encode(NO_CHANNEL_BINDING) + b",r=" + nonce
        signed = b",".join((self._first_bare, server_first, final_without_proof))
        salted = hashlib.pbkdf2_hmac(self._hash, self._password, salt, iterations)
        client_key = hmac.digest(salted, b"Client Key", self._hash)
        stored_key = hashlib.new(self._hash, client_key).digest()
        client_signature = hmac.digest(stored_key, signed, self._hash)
        proof = bytes(a ^ b for a, b in zip(client_key, client_signature, strict=True))
        self._server_signature = hmac.digest(
            hmac.digest(salted, b"Server Key", self._hash), signed, self._hash
        )
        return final_without_proof + b",p=" + base64.b64encode(proof)

    def _challenge(self, attributes: Mapping[str, str]) -> tuple[bytes, bytes, int]:
        """Nonce, salt and iteration count of the server's first message, checked."""
        if "e" in attributes:
            raise AuthenticationError(f"{self.mechanism}: the broker refused: {attributes['e']!a}")
        if "m" in attributes:
            raise AuthenticationError(f"{self.mechanism}: the broker requires an unknown extension")
        nonce = attributes.get("r", "").encode()
        if not nonce.startswith(self._nonce) or nonce == self._nonce:
            raise AuthenticationError(f"{self.mechanism}: the broker's nonce does not extend ours")
        salt = _base64(attributes.get("s", ""), f"{self.mechanism}: the broker's salt")
        count = attributes.get("i", "")
        iterations = int(count) if count.isascii() and count.isdigit() and len(count) < 10 else 0
        if not SCRAM_ITERATIONS_MIN <= iterations <= SCRAM_ITERATIONS_MAX:
            raise AuthenticationError(
                f"{self.mechanism}: the broker asks for {iterations} iterations, "
                f"{SCRAM_ITERATIONS_MIN} to {SCRAM_ITERATIONS_MAX} are accepted"
            )
        return nonce, salt, iterations

    def _check(self, server_final: bytes, expected: bytes) -> None:
        attributes = _attributes(server_final)
        if "e" in attributes:
            raise AuthenticationError(f"{self.mechanism}: the broker refused: {attributes['e']!a}")
        signature = _base64(attributes.get("v", ""), f"{self.mechanism}: the broker's signature")
        if not hmac.compare_digest(signature, expected):
            raise AuthenticationError(
                f"{self.mechanism}: the broker could not prove that it knows the password",
                hint="another server may answer in its place: check the address and use SASL_SSL",
            )


class OAuthBearerExchange:
    """A bearer token, and extensions if the broker's callback wants some.

    The token is sent in plain text: for connections under TLS only.
    """

    mechanism = "OAUTHBEARER"

    def __init__(self, token: str, extensions: Mapping[str, str] | None = None) -> None:
        if not BEARER_TOKEN.fullmatch(token):
            raise AuthenticationError("OAUTHBEARER: the given token is not a bearer token (RFC 6750)")
        self._expires_at = token_expires_at(token)
        pairs = "".join(f"\1{_extension(name, value)}" for name, value in (extensions or {}).items())
        self._message = f"n,,\1auth=Bearer {token}{pairs}\1\1".encode()

    def first(self) -> bytes:
        return self._message

    def next(self, server_bytes: bytes) -> bytes | None:
        """An empty answer is success, anything else says why not.

        Raises:
            AuthenticationError: The token was refused.
        """
        if not server_bytes:
            return None
        raise AuthenticationError(
            f"OAUTHBEARER: the broker refused the token: {_refusal(server_bytes)}{self._expired()}",
            hint="check issuer, audience, scope and expiry of the token against the broker's settings",
        )

    def _expired(self) -> str:
        if self._expires_at is None or self._expires_at > datetime.now(UTC).timestamp():
            return ""
        return f" (it expired at {moment(self._expires_at * 1000)})"


def escape_username(username: str) -> str:
    """A user name as SCRAM writes it: ``,`` and ``=`` would end the attribute."""
    return username.replace("=", "=3D").replace(",", "=2C")


def token_expires_at(token: str) -> float | None:
    """When a JSON Web Token expires, in seconds since 1970; None for tokens that do not say."""
    parts = token.split(".")
    if len(parts) != 3:
        return None
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        expires_at = claims.get("exp") if isinstance(claims, dict) else None
        return float(expires_at) if isinstance(expires_at, int | float) else None
    except (ValueError, OverflowError):
        return None


def _extension(name: str, value: str) -> str:
    if name == "auth" or not EXTENSION_NAME.fullmatch(name) or not EXTENSION_VALUE.fullmatch(value):
        raise AuthenticationError(f"OAUTHBEARER: the extension {name!r} is not allowed by RFC 7628")
    return f"{name}={value}"


def _refusal(server_bytes: bytes) -> str:
    """The status of RFC 7628's JSON answer, or the answer itself, made safe to print."""
    text = server_bytes.decode(errors="replace")[:500]
    try:
        document = json.loads(text)
    except ValueError:
        return ascii(text)
    return ascii(document.get("status", text)) if isinstance(document, dict) else ascii(text)


def _attributes(message: bytes) -> dict[str, str]:
    """The attributes of a SCRAM message, ``a=x,b=y``, by name.

    Raises:
        AuthenticationError: It is not of that form.
    """
    try:
        pairs = [pair.partition("=") for pair in message.decode().split(",")]
    except UnicodeDecodeError:
        pairs = [("", "", "")]
    names = [name for name, _, _ in pairs]
    if any(len(name) != 1 or not equals for name, equals, _ in pairs) or len(set(names)) != len(names):
        raise AuthenticationError("SCRAM: the broker's answer is not a SCRAM message")
    return {name: value for name, _, value in pairs}


def _base64(text: str, what: str) -> bytes:
    try:
        decoded = base64.b64decode(text, validate=True)
    except binascii.Error:
        decoded = b""
    if not decoded:
        raise AuthenticationError(f"{what} is not base64")
    return decoded
