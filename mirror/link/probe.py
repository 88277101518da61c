"""The messages with which mirror and relay measure the link between them, and what the mirror observed.

Messages are framed as in a stream (:mod:`mirror.link.messages`); PING and PONG are the same as there
(:mod:`mirror.link.protocol`).

Pure. Source: docs/protocol.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from mirror.errors import AnswerError
from mirror.kafka.tcp_info import TcpInfo
from mirror.link import messages

PROTOCOL = "twinsite-probe/1"
PATH = "/v1/probe"
SECONDS_MAX = 60
BYTES_MAX = 4 << 30
RATE_MIN, RATE_CEILING = 10_000, 1 << 40
SHOWN_CHARACTERS_MAX = 60
NUMBER_MAX = 1 << 63
"""No count of a kernel is larger."""
RUNNING = "probe_running"
"""Problem code: somebody else is probing with this relay."""


class Up(IntEnum):
    """What a mirror says."""

    LOAD = 1
    PING = 5


class Down(IntEnum):
    """What a relay says."""

    FILL = 1
    REPORT = 2
    BYE = 4
    PONG = 5


@dataclass(frozen=True, slots=True)
class Load:
    """What the relay is to send.

    Attributes:
        seconds: For how long.
        settle_seconds: The kernel's counts begin after this long: TCP finds its pace first.
        bytes_max: The load also ends after this many bytes.
        rate_max: The most bytes a second; None: what the link carries.
    """

    seconds: float
    settle_seconds: float
    bytes_max: int = BYTES_MAX
    rate_max: int | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """What the relay reports at the end.

    Attributes:
        relay: Its version.
        bytes: Sent in total.
        congestion: The congestion control of this connection.
        congestion_available: Those that the kernel has loaded; None if it does not say.
        send_buffer_bytes_max: How large the kernel lets the send buffer of a connection grow; likewise.
        send_buffer_full: Of the times the kernel took no more for now, the share in which that buffer had no
            room; None if not known.
        kernel: What it counted after ``settle_seconds``; None if the load had ended by then.
        rate_limit: Bytes a second that the relay's own limits allow; None if it has none, or if its version
            does not apply them here.
    """

    relay: str
    bytes: int
    congestion: str
    congestion_available: tuple[str, ...] | None
    send_buffer_bytes_max: int | None
    send_buffer_full: float | None
    kernel: TcpInfo | None
    rate_limit: float | None = None


@dataclass(frozen=True, slots=True)
class Echo:
    """One round trip.

    Attributes:
        seconds: There and back.
        clock_offset_seconds: How far the relay's clock was ahead of ours, if both ways took equally long.
    """

    seconds: float
    clock_offset_seconds: float


@dataclass(frozen=True, slots=True)
class Arrival:
    """The bytes that had arrived in total by the moment ``at``, in monotonic seconds."""

    at: float
    bytes: int


@dataclass(frozen=True, slots=True)
class Observed:
    """What a mirror has observed of a link.

    Attributes:
        tls: Its version, and the cipher; None without TLS.
        idle, loaded: Round trips before and during the load.
        arrivals: Of the load; the first one is its beginning.
    """

    relay: str
    tls: tuple[str, str] | None
    load: Load
    idle: tuple[Echo, ...]
    loaded: tuple[Echo, ...]
    arrivals: tuple[Arrival, ...]
    report: Report


def read_report(document: Mapping[str, Any]) -> Report:
    """
    Raises:
        AnswerError: A field is missing, or of another type or range.
    """
    kernel = document.get("kernel")
    if not (kernel is None or isinstance(kernel, dict)):
        raise AnswerError(f"kernel is {_shown(kernel)}, not an object")
    sent = _whole(document, "bytes")
    if sent is None:
        raise AnswerError("a report without the number of bytes sent")
    return Report(
        relay=_text(document, "relay"),
        bytes=sent,
        congestion=_text(document, "congestion"),
        congestion_available=_names(document, "congestion_available"),
        send_buffer_bytes_max=_whole(document, "send_buffer_bytes_max"),
        send_buffer_full=_number(document, "send_buffer_full"),
        kernel=None if kernel is None else _read_kernel(kernel),
        rate_limit=_number(document, "rate_limit"),
    )


def _read_kernel(kernel: Mapping[str, Any]) -> TcpInfo:
    return TcpInfo(
        segments_sent=_whole(kernel, "segments_sent"),
        segments_resent=_whole(kernel, "segments_resent"),
        round_trip_seconds=_number(kernel, "round_trip_seconds"),
        busy_seconds=_number(kernel, "busy_seconds"),
        receive_window_limited_seconds=_number(kernel, "receive_window_limited_seconds"),
        send_buffer_limited_seconds=_number(kernel, "send_buffer_limited_seconds"),
        receive_window_bytes=_whole(kernel, "receive_window_bytes"),
    )


def _shown(value: object) -> str:
    """A value, cut to what an error text has room for."""
    words = repr(value)
    return words if len(words) <= SHOWN_CHARACTERS_MAX else f"{words[:SHOWN_CHARACTERS_MAX]}.."


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _text(document: Mapping[str, Any], name: str) -> str:
    value = document.get(name)
    if not isinstance(value, str):
        raise AnswerError(f"{name} is {_shown(value)}, not a text")
    return messages.words(value)


def _names(document: Mapping[str, Any], name: str) -> tuple[str, ...] | None:
    """Names without spaces, cut as if they were one text; None if the relay does not know.

    Raises:
        AnswerError: It is no list of texts.
    """
    value = document.get(name)
    if value is None:
        return None
    if not (isinstance(value, list) and all(map(_is_text, value))):
        raise AnswerError(f"{name} is {_shown(value)}, not a list of names")
    return tuple(messages.words(" ".join(value)).split())


def _number(document: Mapping[str, Any], name: str) -> float | None:
    """None if the relay does not know.

    Raises:
        AnswerError: It is no number, or below 0 or above ``NUMBER_MAX``.
    """
    value = document.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= NUMBER_MAX:
        raise AnswerError(f"{name} is {_shown(value)}, not a number of 0 or more")
    return float(value)


def _whole(document: Mapping[str, Any], name: str) -> int | None:
    value = _number(document, name)
    if value is not None and not value.is_integer():
        raise AnswerError(f"{name} is {_shown(value)}, not a whole number")
    return None if value is None else int(value)


def since(before: TcpInfo, after: TcpInfo) -> TcpInfo:
    """What was counted between two looks; values that are no counts are those of the second."""
    return TcpInfo(
        segments_sent=_more_whole(before.segments_sent, after.segments_sent),
        segments_resent=_more_whole(before.segments_resent, after.segments_resent),
        round_trip_seconds=after.round_trip_seconds,
        busy_seconds=_more(before.busy_seconds, after.busy_seconds),
        receive_window_limited_seconds=_more(
            before.receive_window_limited_seconds, after.receive_window_limited_seconds
        ),
        send_buffer_limited_seconds=_more(
            before.send_buffer_limited_seconds, after.send_buffer_limited_seconds
        ),
        receive_window_bytes=after.receive_window_bytes,
    )


def _more(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else max(after - before, 0.0)


def _more_whole(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else max(after - before, 0)
