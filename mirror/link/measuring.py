"""What a probe found out about a link: how long it is, what it carries, what it loses, what holds it back.

What is not known is None; :attr:`Measured.unknown` says why, by the name of the field.

Pure. Times are seconds; rates are bytes a second that a mirror receives, without TLS.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median

from mirror.link.probe import BYTES_MAX, Arrival, Echo, Load, Observed, Report
from mirror.timetable import lowest

SETTLE_SECONDS_MIN = 1.0
SETTLE_ROUND_TRIPS = 30
"""BBR needs one or two dozen to find what a link carries, and has then drained what it sent in excess."""
SETTLE_SHARE_MAX = 0.5
"""Of the time of the load."""
CLOCK_STEP_SECONDS = 0.001
"""The relay gives its clock in whole milliseconds."""
SECOND = 1.0
HELD_BACK_ABOVE = 0.2
"""Share of the time in which there was something to send."""
FULL_ABOVE = 0.5
"""Share, of the times the kernel took no more, in which its buffer was full."""
IDLE_BELOW = 0.8
"""If there is something to send for less than this share of the time, the programs are too slow."""
AT_RATE_ABOVE = 0.9
ROOM = 2
"""The kernel's size of a buffer includes its overhead around packets: half of it is window."""

TOO_SHORT = "the load ended before TCP had found its pace: raise --seconds"
NOT_SAID = "the kernel of {} machine does not report it (net.ipv4.{})"
AVAILABLE_NOT_SAID = NOT_SAID.format("the relay's", "tcp_available_congestion_control")


class Limit(StrEnum):
    """What kept the rate from being higher."""

    LINK = "link"
    RECEIVE_BUFFER = "receive_buffer"
    SEND_BUFFER = "send_buffer"
    RATE_MAX = "rate_max"
    PROGRAMS = "programs"
    """The relay or the mirror is too slow, or shares its processor with others."""


@dataclass(frozen=True, slots=True)
class RoundTrips:
    """Round trip times, and how many were measured."""

    count: int
    min_seconds: float
    median_seconds: float
    max_seconds: float


@dataclass(frozen=True, slots=True)
class Clock:
    """How far the relay's clock is ahead of ours, give or take the uncertainty."""

    offset_seconds: float
    uncertainty_seconds: float


@dataclass(frozen=True, slots=True)
class Rate:
    """The rate of arrival, once TCP had found its pace.

    Attributes:
        seconds: For how long it was watched.
        slowest, fastest: The rates of its slowest and fastest second; None if there are fewer than two.
    """

    bytes_per_second: float
    seconds: float
    slowest: float | None
    fastest: float | None


@dataclass(frozen=True, slots=True)
class Measured:
    """A link to one relay.

    Attributes:
        loaded: While the link is full, waiting in the relay and its kernel included: urgent frames wait as
            long while a copy fills the link.
        loaded_wire_seconds: The part of that on the wire and in the queues of the link.
        loss: Share of segments that the relay's kernel sent again.
        receive_window_bytes: At the end.
        receive_window_allows: Bytes a second that a window of this size allows.
        receive_buffer_bytes_max: How large this machine lets it grow; ``send_...``: likewise at the relay.
        buffer_bytes_wanted: The size that both need for what the link carries.
        bandwidth_delay_bytes: In flight at once while the link is full.
        rate_limit: What the relay's own limits allow; None if it has none, or does not say.
        unknown: Why a field is None, by its name.
    """

    relay: str
    version: str
    tls: tuple[str, str] | None
    bytes: int
    idle: RoundTrips
    loaded: RoundTrips | None
    loaded_wire_seconds: float | None
    clock: Clock
    rate: Rate | None
    loss: float | None
    limit: Limit | None
    congestion: str
    congestion_available: tuple[str, ...] | None
    receive_window_bytes: int | None
    receive_window_allows: float | None
    receive_buffer_bytes_max: int | None
    send_buffer_bytes_max: int | None
    buffer_bytes_wanted: int | None
    bandwidth_delay_bytes: int | None
    rate_limit: float | None
    unknown: dict[str, str]


def load_for(idle: Sequence[Echo], seconds: float, rate_max: int | None) -> Load:
    """What to ask a relay for over a link with these round trips."""
    longest = max(echo.seconds for echo in idle)
    settle = min(seconds * SETTLE_SHARE_MAX, max(SETTLE_SECONDS_MIN, SETTLE_ROUND_TRIPS * longest))
    return Load(seconds, settle, BYTES_MAX, rate_max)


def measured(observed: Observed, receive_buffer_bytes_max: int | None) -> Measured:
    """What was observed, as figures.

    Args:
        receive_buffer_bytes_max: What the kernel of this machine allows; None if it does not say.
    """
    report, load = observed.report, observed.load
    kernel = report.kernel
    idle, loaded = round_trips(observed.idle), round_trips(observed.loaded)
    assert idle is not None, "there is no load before there are echoes"
    found = rate(observed.arrivals, load.settle_seconds)
    product = None if found is None else round(found.bytes_per_second * idle.min_seconds)
    wanted = None if product is None else ROOM * product
    window = kernel.receive_window_bytes if kernel else None
    wire = kernel.round_trip_seconds if kernel else None
    loss = _loss(report)
    limited = limit(report, load, found, receive_buffer_bytes_max, wanted)
    reasons = (
        ("loaded", loaded, "no answer came during the load"),
        ("loaded_wire_seconds", wire, _why_no(report, "the round trip")),
        ("rate", found, TOO_SHORT),
        ("bandwidth_delay_bytes", product, TOO_SHORT),
        ("buffer_bytes_wanted", wanted, TOO_SHORT),
        ("loss", loss, _why_no(report, "retransmissions")),
        ("limit", limited, _why_no(report, "what sending waited for")),
        ("receive_window_bytes", window, _why_no(report, "the receive window")),
        ("receive_window_allows", window, _why_no(report, "the receive window")),
        ("receive_buffer_bytes_max", receive_buffer_bytes_max, NOT_SAID.format("this", "tcp_rmem")),
        ("send_buffer_bytes_max", report.send_buffer_bytes_max, NOT_SAID.format("the relay's", "tcp_wmem")),
        ("congestion_available", report.congestion_available, AVAILABLE_NOT_SAID),
    )
    return Measured(
        relay=str(observed.relay),
        version=report.relay,
        tls=observed.tls,
        bytes=report.bytes,
        idle=idle,
        loaded=loaded,
        loaded_wire_seconds=wire,
        clock=clock([*observed.idle, *observed.loaded]),
        rate=found,
        loss=loss,
        limit=limited,
        congestion=report.congestion,
        congestion_available=report.congestion_available,
        receive_window_bytes=window,
        receive_window_allows=None if window is None else window / idle.min_seconds,
        receive_buffer_bytes_max=receive_buffer_bytes_max,
        send_buffer_bytes_max=report.send_buffer_bytes_max,
        buffer_bytes_wanted=wanted,
        bandwidth_delay_bytes=product,
        rate_limit=report.rate_limit,
        unknown={name: why for name, value, why in reasons if value is None},
    )


def round_trips(echoes: Sequence[Echo]) -> RoundTrips | None:
    """The shortest, the median and the longest; None without any."""
    if not echoes:
        return None
    seconds = [echo.seconds for echo in echoes]
    return RoundTrips(len(seconds), min(seconds), median(seconds), max(seconds))


def clock(echoes: Sequence[Echo]) -> Clock:
    """By the shortest round trip: the less time it spent in queues, the more precise it is.

    Args:
        echoes: At least one.
    """
    shortest = min(echoes, key=lambda echo: echo.seconds)
    return Clock(shortest.clock_offset_seconds, shortest.seconds / 2 + CLOCK_STEP_SECONDS)


def rate(arrivals: Sequence[Arrival], settle_seconds: float) -> Rate | None:
    """The rate of arrival after ``settle_seconds``; None if fewer than two arrivals are left."""
    if not arrivals:
        return None
    begins = arrivals[0].at + settle_seconds
    steady = [arrival for arrival in arrivals if arrival.at >= begins]
    if len(steady) < 2 or steady[-1].at <= steady[0].at:
        return None
    first, last = steady[0], steady[-1]
    seconds = last.at - first.at
    each, mean = _each_second(steady), (last.bytes - first.bytes) / seconds
    return Rate(mean, seconds, min(each), max(each)) if len(each) > 1 else Rate(mean, seconds, None, None)


def _each_second(arrivals: Sequence[Arrival]) -> list[float]:
    """Bytes a second in each stretch of a second or a little more."""
    found, began = [], arrivals[0]
    for arrival in arrivals:
        if arrival.at - began.at >= SECOND:
            found.append((arrival.bytes - began.bytes) / (arrival.at - began.at))
            began = arrival
    return found


def _loss(report: Report) -> float | None:
    kernel = report.kernel
    if kernel is None or not kernel.segments_sent or kernel.segments_resent is None:
        return None
    return kernel.segments_resent / kernel.segments_sent


def limit(
    report: Report,
    load: Load,
    found: Rate | None,
    receive_buffer_bytes_max: int | None,
    buffer_bytes_wanted: int | None,
) -> Limit | None:
    """What kept the rate from being higher; None if there is no rate, or the relay's kernel does not say.

    If the receive window is closed although the buffer could grow, the mirror does not read fast enough. If
    the send buffer is empty although it has room, the relay had no time to fill it.
    """
    kernel = report.kernel
    if found is None:
        return None
    rate_max = lowest(load.rate_max, report.rate_limit)
    if rate_max is not None and found.bytes_per_second >= AT_RATE_ABOVE * rate_max:
        return Limit.RATE_MAX
    if kernel is None or not kernel.busy_seconds:
        return None
    if (kernel.receive_window_limited_seconds or 0.0) / kernel.busy_seconds > HELD_BACK_ABOVE:
        has_room = (receive_buffer_bytes_max or 0) > 2 * (buffer_bytes_wanted or 0)
        return Limit.PROGRAMS if has_room else Limit.RECEIVE_BUFFER
    if (kernel.send_buffer_limited_seconds or 0.0) / kernel.busy_seconds > HELD_BACK_ABOVE:
        full = report.send_buffer_full
        return Limit.SEND_BUFFER if full is None or full > FULL_ABOVE else Limit.PROGRAMS
    lasted = min(load.seconds - load.settle_seconds, found.seconds)  # bytes_max may have ended it
    if kernel.busy_seconds < IDLE_BELOW * lasted:
        return Limit.PROGRAMS
    return Limit.LINK


def _why_no(report: Report, what: str) -> str:
    if report.kernel is None:
        return TOO_SHORT
    return f"the kernel of the relay's machine does not report {what}"
