"""Why two sides of a connection do not accept each other, in words that say what to do.

OpenSSL says ``certificate verify failed``; an operator needs to know which
certificate, valid for which names and until when, checked against which file. Where
the error alone does not tell, the other side is connected to again, without trusting it.

Sources: RFC 8446 §6 (alerts), OpenSSL's X509_V_ERR_* codes, the Kafka protocol guide.
"""

from __future__ import annotations

import asyncio
import ssl
import struct
from dataclasses import dataclass
from pathlib import Path

from mirror.errors import AuthenticationError, ConnectionFailedError, TlsRefusedError
from mirror.kafka.certificates import Certificate
from mirror.kafka.tls import TlsOptions

Renamed = AuthenticationError | ConnectionFailedError

EXPIRED, NOT_YET_VALID = 10, 9
UNKNOWN_AUTHORITY = frozenset({2, 18, 19, 20, 21, 24})
OTHER_NAME = frozenset({62, 64})
NOT_TLS = frozenset(
    {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE"}
)
OLD_TLS = ("PROTOCOL_VERSION", "UNSUPPORTED_PROTOCOL")
OUR_CERTIFICATE = ("CERTIFICATE", "UNKNOWN_CA", "ACCESS_DENIED", "HANDSHAKE_FAILURE")

API_VERSIONS = struct.pack(">ihhih", 10, 18, 0, 1, -1)
"""The one request every broker answers before anything else, without a client id."""
ANSWER_BYTES_MAX = 64 * 1024
TLS_ALERT = b"\x15\x03"

TLS_HINT = "set security.protocol to SSL or SASL_SSL, or use the port of a listener without TLS"

ENDED = (ssl.SSLEOFError, ssl.SSLZeroReturnError)
"""The other side hung up; which of the two it is depends on the release of Python (3.11.2, 3.11.7)."""


@dataclass(frozen=True, slots=True)
class OtherSide:
    """What messages call the other side, and their hints: what to do about each kind of error there.

    Attributes:
        called: What it is.
        authority: Its certificate is signed by an authority that is not trusted.
        name: Its certificate is for another name.
        no_tls: It speaks no TLS on this port.
        ended: It has ended the handshake.
        versions: No version of TLS is common to both sides.
        nothing_shown: It refuses us, and we have shown no certificate.
        not_accepted: It does not accept the certificate that we have shown.
    """

    called: str
    authority: str
    name: str
    no_tls: str
    ended: str
    versions: str
    nothing_shown: str
    not_accepted: str


BROKER = OtherSide(
    called="broker",
    authority="set security.ca_file to the authority that signs this cluster's brokers",
    name="connect by a name it lists, check advertised.listeners, or set verify_hostname to false",
    no_tls="use the port of the broker's TLS listener, or set security.protocol to the one without TLS",
    ended="the port may belong to a listener without TLS, or the broker is shutting down",
    versions="the mirror speaks TLS 1.2 and 1.3; check ssl.enabled.protocols of the broker",
    nothing_shown="the broker may require one: set security.certificate_file and key_file",
    not_accepted="check that it is valid and that the broker's truststore holds the authority that signed it",
)
RELAY = OtherSide(
    called="relay",
    authority="set link.security.ca_file to the authority that signs the relay's certificate; if this one is "
    "not the relay's, set link.relays to where it listens",
    name="use a name it lists in link.relays, or give the relay a certificate for this name",
    no_tls="set link.relays to listen.address of the relay (port 9650), not to api.port (9651); if the relay "
    "has no listen.certificate_file, leave out link.security",
    ended="set link.relays to listen.address of the relay; it may have no listen.certificate_file, or be "
    "shutting down",
    versions="a relay speaks TLS 1.3; whatever is in front of it must, too",
    nothing_shown="the relay may require one: set link.security.certificate_file and key_file",
    not_accepted="check that it is valid and that listen.client_ca_file of the relay holds the authority "
    "that signed it",
)


def rename_ssl_error(
    error: OSError, where: str, tls: TlsOptions | None = None, other: OtherSide = BROKER
) -> Renamed:
    """Turn an error of a TLS or plain socket into one of ours that says what to do.

    Args:
        where: The address of the other side, as it is to be shown.
        tls: The options of the connection; the message names their files.
        other: What is at that address.

    Returns:
        AuthenticationError where trying again cannot help, ConnectionFailedError otherwise.
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        return _not_trusted(error, where, tls or TlsOptions(), other)
    reason = getattr(error, "reason", None) or ""
    if isinstance(error, ENDED):
        return ConnectionFailedError(
            f"{where}: the connection ended during the TLS handshake", hint=other.ended
        )
    if not isinstance(error, ssl.SSLError):
        return ConnectionFailedError(f"{where}: connection lost: {error.strerror or error}")
    if reason in NOT_TLS:
        return speaks_plaintext_error(where, other)
    if any(word in reason for word in OLD_TLS):
        return TlsRefusedError(f"{where}: no TLS version in common ({reason})", hint=other.versions)
    if any(word in reason for word in OUR_CERTIFICATE):
        return _we_are_not_trusted(reason, where, tls, other)
    return ConnectionFailedError(f"{where}: TLS failed: {reason or error}")


def speaks_plaintext_error(where: str, other: OtherSide = BROKER) -> AuthenticationError:
    """The error for TLS spoken to a listener without it."""
    words = f"{where}: the {other.called} does not speak TLS on this port"
    return TlsRefusedError(words, hint=other.no_tls)


def speaks_tls_error(where: str) -> AuthenticationError:
    """The error for a request in plain text that reached a TLS listener."""
    return TlsRefusedError(f"{where}: the broker expects TLS on this port", hint=TLS_HINT)


def is_tls_alert(first_bytes: bytes) -> bool:
    """Whether what came instead of a Kafka answer is a TLS alert."""
    return first_bytes[:2] == TLS_ALERT


def _not_trusted(
    error: ssl.SSLCertVerificationError, where: str, tls: TlsOptions, other: OtherSide
) -> AuthenticationError:
    authorities = str(tls.ca_file) if tls.ca_file else "the system's authorities"
    if error.verify_code == EXPIRED:
        return TlsRefusedError(
            f"{where}: its certificate, or one above it in the chain, has expired",
            hint=f"renew the certificate of the {other.called}; check the clock of this machine",
        )
    if error.verify_code == NOT_YET_VALID:
        return TlsRefusedError(
            f"{where}: its certificate is not valid yet", hint="check the clocks of both machines"
        )
    if error.verify_code in UNKNOWN_AUTHORITY:
        return TlsRefusedError(
            f"{where}: its certificate is not signed by any authority in {authorities}", hint=other.authority
        )
    if error.verify_code in OTHER_NAME:
        return TlsRefusedError(f"{where}: its certificate is for another name", hint=other.name)
    return TlsRefusedError(f"{where}: its certificate was refused: {error.verify_message}")


def _we_are_not_trusted(
    reason: str, where: str, tls: TlsOptions | None, other: OtherSide
) -> AuthenticationError:
    alert = reason.rpartition("ALERT_")[2].replace("_", " ").lower()
    if tls is None or tls.certificate_file is None:
        return TlsRefusedError(
            f"{where}: the {other.called} ended the TLS handshake ({alert}); no client certificate is "
            "configured",
            hint=other.nothing_shown,
        )
    ours = describe_file(tls.certificate_file)
    return TlsRefusedError(
        f"{where}: the {other.called} does not accept our certificate ({alert}): {ours}",
        hint=other.not_accepted,
    )


def describe_file(path: Path) -> str:
    """A certificate file in one line: its path, whose it is and how long it is valid."""
    try:
        return f"{path}: {Certificate.from_pem_file(path)}"
    except (OSError, ValueError):
        return f"{path} (cannot be read)"


async def explain_handshake_error(
    error: OSError,
    host: str,
    port: int,
    where: str,
    tls: TlsOptions,
    other: OtherSide = BROKER,
    *,
    timeout_seconds: float = 3.0,
) -> Renamed:
    """Like :func:`rename_ssl_error`, but connect to the other side again where that tells more.

    Args:
        timeout_seconds: How long that may take; after it the error is only renamed.
    """
    renamed = rename_ssl_error(error, where, tls, other)
    try:
        async with asyncio.timeout(timeout_seconds):
            if isinstance(error, ssl.SSLCertVerificationError):
                shown = await _peer_certificate(host, port)
                return TlsRefusedError(f"{renamed}; it shows {shown}", hint=renamed.hint)
            ended = isinstance(error, (*ENDED, ConnectionError))
            if ended and await _answers_in_plaintext(host, port):
                return speaks_plaintext_error(where, other)
    except (OSError, ValueError, EOFError):
        return renamed
    return renamed


async def _peer_certificate(host: str, port: int) -> Certificate:
    """The certificate shown by whatever listens there. Nothing is sent to it, and it is not trusted."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    _, writer = await asyncio.open_connection(host, port, ssl=context, server_hostname=host)
    try:
        der = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    finally:
        writer.transport.abort()
    if der is None:
        raise ValueError("no certificate was shown")
    return Certificate.from_der(der)


async def _answers_in_plaintext(host: str, port: int) -> bool:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(API_VERSIONS)
        size = int.from_bytes(await reader.readexactly(4), "big")
    finally:
        writer.transport.abort()
    return 4 <= size <= ANSWER_BYTES_MAX
