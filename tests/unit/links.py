"""Links as a mirror would have seen them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mirror.kafka.tcp_info import TcpInfo
from mirror.link.measuring import Measured, measured
from mirror.link.probe import Arrival, Echo, Load, Observed, Report

MB = 1_000_000
KERNEL = TcpInfo(
    segments_sent=10_000,
    segments_resent=100,
    round_trip_seconds=0.12,
    busy_seconds=8.0,
    receive_window_limited_seconds=0.0,
    send_buffer_limited_seconds=0.0,
    receive_window_bytes=3 * MB,
)
REPORT = Report(
    relay="0.1.0",
    bytes=25 * MB,
    congestion="bbr",
    congestion_available=("reno", "bbr", "cubic"),
    send_buffer_bytes_max=4 << 20,
    send_buffer_full=0.0,
    kernel=KERNEL,
)


def steadily(rate: float, seconds: float = 10.0, slow_seconds: float = 1.0) -> tuple[Arrival, ...]:
    """Nearly nothing at first, then so many bytes a second, noted each tenth of one."""
    arrivals, came = [], 0.0
    for tenth in range(round(seconds * 10) + 1):
        arrivals.append(Arrival(100 + tenth / 10, round(came)))
        came += rate / (100 if tenth < slow_seconds * 10 else 10)
    return tuple(arrivals)


def observed(rate: float = 2.5 * MB, **changes: Any) -> Observed:
    """A link of 100 ms that is longer while it is full."""
    usual = Observed(
        relay="relay.east:9650",
        tls=None,
        load=Load(seconds=10.0, settle_seconds=2.0),
        idle=tuple(Echo(seconds, 5.0) for seconds in (0.102, 0.100, 0.104)),
        loaded=tuple(Echo(seconds, 5.1) for seconds in (0.2, 0.15, 0.5)),
        arrivals=steadily(rate),
        report=REPORT,
    )
    return replace(usual, **changes)


def a_link(
    rate: float = 2.5 * MB, receive_buffer_bytes_max: int | None = 6 << 20, **changes: Any
) -> Measured:
    """The same, measured."""
    return measured(observed(rate, **changes), receive_buffer_bytes_max)


def kernel(send_buffer_full: float | None = 0.0, **changes: Any) -> Report:
    """A report of a kernel that says something else."""
    return replace(REPORT, send_buffer_full=send_buffer_full, kernel=replace(KERNEL, **changes))
