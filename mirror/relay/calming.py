"""BBR that does not find out what a link carries, and how it does all the same.

BBR (Cardwell et al., ACM Queue 14(5), 2016) begins by sending 2.9 times what arrives, and ends that after
three round trips in which no more arrived although it always had something to send. Where the kernel has less
room for a connection than those 2.9 times take (the last of ``net.ipv4.tcp_wmem``) there are no such round
trips, and it goes on for minutes: queues on the way are full, a tenth of all is sent again, and what is
urgent waits behind that.

Held to a little less than what arrives it always has something to send, within that room, and ends it.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import NamedTuple

from mirror.link.tcp_info import tcp_info

LOOK_SECONDS = 0.25
TCP_CC_INFO = 26
"""Of Linux; Python has no name for it."""
_BBR_INFO = struct.Struct("=5I")
"""``struct tcp_bbr_info``: bandwidth (low half, high half), round trip, gains of pacing and of the window."""
_GAIN_UNIT = 256
BEGINNING_ABOVE = 2.0
"""Later it never sends more than 1.25 times what arrives."""
RESENT_ABOVE = 0.02
"""Such a part of segments is sent again where queues on the way are full."""
HELD_SHARE = 0.9
HELD_LOOKS_MAX = 20
"""It is let go after that, whatever it has found out."""
SO_MAX_PACING_RATE = 47
"""Likewise."""
_RATE, _NO_LIMIT = struct.Struct("=Q"), (1 << 64) - 1


class Bbr(NamedTuple):
    """What it has found out so far.

    Attributes:
        rate: That arrives, in bytes a second.
        gain: Of that it sends so many times as much now.
    """

    rate: int
    gain: float


def read_bbr(info: bytes) -> Bbr | None:
    """What the kernel says of it; None where that is nothing. Pure."""
    if len(info) < _BBR_INFO.size:
        return None
    low, high, _, gain, _ = _BBR_INFO.unpack_from(info)
    return Bbr(high << 32 | low, gain / _GAIN_UNIT)


class Calmed:
    """To what a connection is held. Pure.

    Attributes:
        rate: Bytes a second; None: to nothing.
    """

    def __init__(self) -> None:
        self.rate: int | None = None
        self._looks = 0
        self._sent = self._resent = 0

    def look(self, bbr: Bbr, segments_sent: int, segments_resent: int) -> None:
        """See how it does, :data:`LOOK_SECONDS` after it was seen last.

        Args:
            segments_sent: Since the connection began, those sent again included.
            segments_resent: Likewise, those alone.
        """
        sent, resent = segments_sent - self._sent, segments_resent - self._resent
        self._sent, self._resent = segments_sent, segments_resent
        if bbr.gain < BEGINNING_ABOVE or self._looks >= HELD_LOOKS_MAX:
            self.rate, self._looks = None, 0
        elif self.rate is not None:
            self._looks += 1
        elif resent > sent * RESENT_ABOVE:
            self.rate = int(bbr.rate * HELD_SHARE)


class Calming:
    """Looks after one connection.

    Args:
        sock: Of TCP, which sends by BBR.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._calmed = Calmed()
        self._look_later()

    def close(self) -> None:
        """Look no more."""
        self._timer.cancel()

    def _look_later(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look)

    def _look(self) -> None:
        before = self._calmed.rate
        try:
            bbr = read_bbr(self._sock.getsockopt(socket.IPPROTO_TCP, TCP_CC_INFO, _BBR_INFO.size))
            info = tcp_info(self._sock)
            if bbr is None or info.segments_sent is None or info.segments_resent is None:
                return  # a kernel that does not say: nothing can be done
            self._calmed.look(bbr, info.segments_sent, info.segments_resent)
            rate = self._calmed.rate
            if rate != before:
                held = _RATE.pack(_NO_LIMIT if rate is None else rate)
                self._sock.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, held)
        except OSError:
            return  # likewise, or the connection is gone
        self._look_later()
