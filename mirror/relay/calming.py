"""Ends the startup of BBR where BBR does not find out by itself what a link carries.

BBR (Cardwell et al., ACM Queue 14(5), 2016) begins by sending 2.9 times what arrives. It ends this startup
after three round trips in which no more arrived although it always had something to send. If the kernel gives
a connection less buffer than those 2.9 times need (the last number of ``net.ipv4.tcp_wmem``), there are no
such round trips, and startup lasts for minutes: queues on the path are full, a tenth of everything is sent
again, and urgent frames wait behind that.

Held to a little less than what arrives, BBR always has something to send within that buffer, and ends
startup.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from typing import NamedTuple

import structlog

from mirror.kafka.tcp_info import tcp_info

log = structlog.get_logger(__name__)

LOOK_SECONDS = 0.25
TCP_CC_INFO = 26
"""Linux; Python has no name for it."""
_BBR_INFO = struct.Struct("=5I")
"""``struct tcp_bbr_info``: bandwidth (low half, high half), round trip, gains of pacing and of the window."""
_GAIN_UNIT = 256
BEGINNING_ABOVE = 2.0
"""A higher gain is that of startup; later BBR never sends more than 1.25 times what arrives."""
GROWS = 1.25
"""While the rate of arrival now and then grows by this factor, startup is right to go on."""
STALLS_SECONDS, STALLS_ROUND_TRIPS = 1.0, 8
"""If the rate has not grown for both of these, the link is full. BBR itself takes half as long to see it."""
RESENT_ABOVE = 0.02
"""If more than this share of segments was sent again since then, queues on the path are full."""
HELD_SHARE = 0.9
HELD_SECONDS_MAX = 5.0
"""After this time the connection is no longer held, whatever BBR has found out."""
SO_MAX_PACING_RATE = 47
"""Linux; Python has no name for it."""
_RATE, _NO_LIMIT = struct.Struct("=Q"), (1 << 64) - 1


class Bbr(NamedTuple):
    """What BBR has found out about a connection so far.

    Attributes:
        rate: What arrives, in bytes a second.
        gain: How many times as much it sends now.
        round_trip_seconds: The shortest.
    """

    rate: int
    gain: float
    round_trip_seconds: float


def read_bbr(info: bytes) -> Bbr | None:
    """Parse what the kernel says of BBR; None if that is too short. Pure."""
    if len(info) < _BBR_INFO.size:
        return None
    low, high, round_trip_us, gain, _ = _BBR_INFO.unpack_from(info)
    return Bbr(high << 32 | low, gain / _GAIN_UNIT, round_trip_us / 1e6)


def _bbr_of(sock: socket.socket) -> Bbr | None:
    return read_bbr(sock.getsockopt(socket.IPPROTO_TCP, TCP_CC_INFO, _BBR_INFO.size))


def still_begins(sock: socket.socket) -> bool:
    """Whether a connection sends by BBR, and that is still in startup."""
    try:
        bbr = _bbr_of(sock)
    except OSError:
        return False
    return bbr is not None and bbr.gain >= BEGINNING_ABOVE


class Calmed:
    """The rate to which a connection is held. Pure.

    Attributes:
        rate: Bytes a second; None: it is not held.
    """

    def __init__(self) -> None:
        self.rate: int | None = None
        self._since = 0.0
        """Since when it is held, or when the rate last grew."""
        self._grown = (0, 0, 0)
        """The rate then, the segments sent by then, and those sent again."""

    def look(self, bbr: Bbr, segments_sent: int, segments_resent: int, now: float) -> None:
        """Take in how the connection does, and decide on the rate.

        Args:
            segments_sent: Since the connection began, including those sent again.
            segments_resent: Likewise, only those sent again.
            now: Monotonic seconds.
        """
        rate, sent, resent = self._grown
        begins, lasts = bbr.gain >= BEGINNING_ABOVE, now - self._since
        if self.rate is not None:
            if not begins or lasts >= HELD_SECONDS_MAX:
                self.rate, self._since, self._grown = None, now, (bbr.rate, segments_sent, segments_resent)
        elif not begins or bbr.rate > rate * GROWS:
            self._since, self._grown = now, (bbr.rate, segments_sent, segments_resent)
        elif (
            lasts >= max(STALLS_SECONDS, STALLS_ROUND_TRIPS * bbr.round_trip_seconds)
            and segments_resent - resent > (segments_sent - sent) * RESENT_ABOVE
        ):
            self.rate, self._since = int(bbr.rate * HELD_SHARE), now


class Calming:
    """Watches one connection, and holds it to a rate where that ends startup.

    Args:
        sock: A TCP socket that sends by BBR.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._calmed = Calmed()
        self._look_later()

    def close(self) -> None:
        """Stop watching."""
        self._timer.cancel()

    def _look_later(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look)

    def _look(self) -> None:
        before = self._calmed.rate
        try:
            bbr = _bbr_of(self._sock)
            info = tcp_info(self._sock)
            if bbr is None or info.segments_sent is None or info.segments_resent is None:
                log.info("bbr_not_watched", error="the kernel does not report its state")
                return
            self._calmed.look(bbr, info.segments_sent, info.segments_resent, time.monotonic())
            rate = self._calmed.rate
            if rate != before:
                held = _RATE.pack(_NO_LIMIT if rate is None else rate)
                self._sock.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, held)
                log.info("bbr_held", bytes_per_second=rate, arrives=bbr.rate)
        except OSError as error:
            log.info("bbr_not_watched", error=str(error))
            return
        self._look_later()
