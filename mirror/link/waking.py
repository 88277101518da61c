"""How much has to arrive over a connection before the process wakes up for it.

Over a long link bytes arrive packet by packet. Waking up for each packet costs more than all that is done
with its bytes, and nothing can be done before the slice that they belong to is complete.

Source: socket(7), ``SO_RCVLOWAT``.
"""

from __future__ import annotations

import socket
import ssl

WAKE_BYTES_MAX = 64 << 10
OFTEN_SECONDS, SELDOM_SECONDS = 0.005, 0.05
"""Waking up more often doubles the amount that is waited for, less often halves it: that data still arrives
should be noticed.
"""
TLS_RECORD_BYTES = (16 << 10) + 512
"""Bytes that may have left the kernel and wait for the rest of its TLS record."""


class Waking:
    """Tells the kernel for one connection how much that is."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._apart = TLS_RECORD_BYTES if isinstance(sock, ssl.SSLSocket) else 0
        self._most = self._told = 1
        self._at = 0.0

    def received(self, left: int, now: float) -> None:
        """Adjust the amount after bytes have arrived.

        Args:
            left: Bytes that are certain to follow, whatever happens at the other side.
            now: Monotonic seconds.
        """
        since, self._at = now - self._at, now
        if since < OFTEN_SECONDS:
            self._most = min(2 * self._most, WAKE_BYTES_MAX)
        elif since > SELDOM_SECONDS:
            self._most = max(self._most // 2, 1)
        wanted = max(min(left - self._apart, self._most), 1)
        if wanted != self._told:
            self._told = wanted
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, wanted)
