"""How much has to come over a connection before it is worth to wake up for it.

Over a long way bytes come packet by packet. To look at each of them costs more than all that is done with
what they bring, and nothing can be done before the slice is whole that they are of.

Source: socket(7), ``SO_RCVLOWAT``.
"""

from __future__ import annotations

import socket
import ssl

WAKE_BYTES_MAX = 64 << 10
OFTEN_SECONDS, SELDOM_SECONDS = 0.005, 0.05
"""Who wakes up more often waits for twice as much, who does it less often for half of it: it should be known
that something still comes.
"""
TLS_RECORD_BYTES = (16 << 10) + 512
"""So much may have left the kernel and wait for the rest of its record."""


class Waking:
    """Tells the kernel, for one connection."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._apart = TLS_RECORD_BYTES if isinstance(sock, ssl.SSLSocket) else 0
        self._most = self._told = 1
        self._at = 0.0

    def received(self, left: int, now: float) -> None:
        """Something has come.

        Args:
            left: So many bytes are certain to follow, whatever happens at the other side.
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
