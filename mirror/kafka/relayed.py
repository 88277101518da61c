"""Connecting through a relay: one HTTP request makes the connection one to a broker, or a stream of frames.

A relay runs next to the brokers and authenticates itself to them. A connection to a broker then carries
Kafka's protocol unchanged; the relay forwards only requests that read.

Sources: RFC 9110, 7.8 (Upgrade); docs/protocol.md.
"""

from __future__ import annotations

import contextlib
import json
import re
import socket
import ssl
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import NamedTuple
from urllib.parse import urlencode

from mirror.errors import AuthenticationError, ConnectionFailedError, TwinsiteError, UnsupportedVersionError
from mirror.kafka.nonblocking import receive, send_all

PROTOCOL = "twinsite-kafka/1"
PATH = "/v1/kafka"
BROKER = "broker"
"""The parameter that names a broker by its address; without it the relay takes any."""
LISTENS = "set link.relays to the addresses on which `twinsite relay` listens"
NO_TLS = f"{LISTENS}; if it requires TLS, set link.security"
SEE = "see tls_refused in its log"
WHOSE = "set link.security.certificate_file to a certificate that listen.client_ca_file of the relay accepts"
OTHER_PORT = "or this is not the port on which it listens for mirrors"
WHICH_PORT = "use listen.address (port 9650), not api.port (9651); if you do, update the relay"
PASSED_ON = (
    "whatever is in front of the relay must forward Upgrade and Connection: Upgrade over HTTP/1.1, or "
    "forward the TCP connection unchanged"
)
HEAD_END = b"\r\n\r\n"
HEAD_BYTES_MAX = 16 << 10
REASON_BYTES_MAX = 64 << 10
DETAIL_SHOWN = 1_000
"""In characters."""
STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})(?: |\r|$)")
LENGTH = re.compile(rb"\r\ncontent-length: *(\d{1,9}) *(?:\r|$)", re.IGNORECASE)
OTHER_PROTOCOL, UNKNOWN_BROKER, UNKNOWN_STREAM = "other_protocol", "unknown_broker", "unknown_stream"
UNKNOWN_PATH, UNKNOWN_IDENTITY, NO_UPGRADE = "not_found", "unknown_identity", "no_upgrade"
TOO_MANY_CONNECTIONS = "too_many_connections"
"""Problem codes in a relay's answers."""


class NoAnswerError(ConnectionFailedError):
    """A relay has ended a connection without an answer."""


class UnansweredError(NoAnswerError):
    """A relay has ended a connection with TLS without an answer.

    With TLS 1.3 the handshake is over for us before the other side has checked our certificate.
    """


class UnknownStreamError(ConnectionFailedError):
    """There is no such stream to join: it has ended, or another relay at this address has it."""


REFUSALS: Mapping[str, tuple[type[TwinsiteError], str]] = {
    UNKNOWN_PATH: (UnsupportedVersionError, WHICH_PORT),
    OTHER_PROTOCOL: (UnsupportedVersionError, "update the older one of mirror and relay"),
    UNKNOWN_IDENTITY: (
        AuthenticationError,
        "add one of these names to listen.identities of the relay and restart it, or use another certificate",
    ),
    TOO_MANY_CONNECTIONS: (
        ConnectionFailedError,
        "raise connections_max or streams_max of the relay, in listen or in the role, or use another relay",
    ),
    NO_UPGRADE: (ConnectionFailedError, PASSED_ON),
    UNKNOWN_STREAM: (
        UnknownStreamError,
        "if this address leads to several relays, name each in link.relays, or set link.connections to 1",
    ),
}
"""What a problem code means for who has asked, and what to do about it."""


class Head(NamedTuple):
    """The head of an HTTP answer: its status, and the length of the content after it."""

    status: int
    content_bytes: int


async def ask_for_broker(sock: socket.socket, relay: str, broker: str | None) -> None:
    """Turn a connection to a relay into one to a broker.

    Args:
        relay: Its address, for the request and for messages.
        broker: The address of the broker; None: any broker.

    Raises:
        TwinsiteError: As for :func:`upgrade`; also when the relay cannot reach the broker.
    """
    path = PATH if broker is None else f"{PATH}?{urlencode({BROKER: broker})}"
    await upgrade(sock, relay, path, PROTOCOL)


async def upgrade(sock: socket.socket, relay: str, path: str, protocol: str) -> None:
    """Switch a connection to a relay to another protocol.

    Raises:
        UnansweredError: The relay closes or resets a connection with TLS.
        NoAnswerError: It closes or resets another one.
        ConnectionFailedError: The relay cannot do it just now; or what stands before it did not pass the
            request on as we sent it; or something else has answered: a proxy before a relay that is
            restarting, or a bit was flipped.
        UnknownStreamError: There is no such stream to join.
        AuthenticationError: The relay itself says that it does not admit us.
        UnsupportedVersionError: The relay itself says that it is of another version, or has no such path.
    """
    try:
        with _unanswered(sock, relay):
            await send_all(sock, _request(relay, path, protocol))
        head = await _answer(sock, relay)
        if head.status != HTTPStatus.SWITCHING_PROTOCOLS:
            raise _refusal(relay, head.status, await _content(sock, head))
    except OSError as error:
        raise NoAnswerError(f"relay {relay}: connection lost: {error}") from error


def _request(relay: str, path: str, protocol: str) -> bytes:
    lines = (f"GET {path} HTTP/1.1", f"Host: {relay}", "Connection: Upgrade", f"Upgrade: {protocol}", "", "")
    return "\r\n".join(lines).encode()


async def _answer(sock: socket.socket, relay: str) -> Head:
    """Receive the head of the answer, and nothing after it.

    Over a further connection of a stream the relay sends at once, and that belongs to the caller.
    """
    came = b""
    while missing := _missing_bytes(came):
        with contextlib.nullcontext() if came else _unanswered(sock, relay):
            more = await receive(sock, missing)
        if not more:
            words = f"relay {relay}: the connection was closed before an answer came"
            if isinstance(sock, ssl.SSLSocket):
                raise UnansweredError(words, hint=WHOSE)
            raise NoAnswerError(words, hint=NO_TLS)
        came += more
        if len(came) >= HEAD_BYTES_MAX:
            raise _no_relay(relay, "an answer whose headers do not end")
    found = STATUS.match(came)
    if found is None:
        raise _no_relay(relay, "an answer that is not HTTP")
    length = LENGTH.search(came)
    return Head(int(found[1]), int(length[1]) if length else 0)


@contextlib.contextmanager
def _unanswered(sock: socket.socket, relay: str) -> Iterator[None]:
    """A connection with TLS that is lost in the block may have been ended because of our certificate: that
    resets it if our request arrives later, or the alert arrives first.
    """
    try:
        yield
    except (ConnectionError, ssl.SSLError) as error:
        if not isinstance(sock, ssl.SSLSocket):
            raise
        raise UnansweredError(f"relay {relay}: connection lost: {error}", hint=WHOSE) from error


def _missing_bytes(head: bytes) -> int:
    """How many bytes at least are missing until a head is complete; 0 when it is."""
    return next(
        missing for missing in range(len(HEAD_END) + 1) if head.endswith(HEAD_END[: len(HEAD_END) - missing])
    )


async def _content(sock: socket.socket, head: Head) -> bytes:
    content, wanted = b"", min(head.content_bytes, REASON_BYTES_MAX)
    while len(content) < wanted:
        more = await receive(sock, wanted - len(content))
        if not more:
            break
        content += more
    return content


def _refusal(relay: str, status: int, content: bytes) -> TwinsiteError:
    try:
        problem = json.loads(content)
        code, words = str(problem["code"]), f"relay {relay}: {str(problem['detail'])[:DETAIL_SHOWN]}"
    except (ValueError, TypeError, KeyError):
        code, words = "", f"relay {relay}: it answers with HTTP status {status}"
    if code == UNKNOWN_PATH:
        words = f"relay {relay} does not know this request: it is of an older version, {OTHER_PORT}"
    if code in REFUSALS:
        kind, way_out = REFUSALS[code]
        return kind(words, hint=way_out)
    if code or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return ConnectionFailedError(words)
    return _no_relay(relay, f"HTTP status {status}")


def _no_relay(relay: str, why: str) -> ConnectionFailedError:
    """A retriable error: nobody knows for how long something else answers there."""
    return ConnectionFailedError(
        f"{relay} is not a relay, or something else answers there at the moment: {why}", hint=LISTENS
    )
