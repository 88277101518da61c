"""How many connections what is behind takes, where each has too little room.

TCP has no more on its way than fits into the window that the other side advertises, and into the buffer of
this one. Both are bounded by settings of the two kernels, and a long wide link carries more than that in a
round trip: then two connections carry twice as much. What a full link or a mirror that is late holds back
is not helped by that, so each connection is asked what it waits for.

Sources: RFC 7323 §1.1 (windows and long links), linux/tcp.h (``tcpi_rwnd_limited``, ``tcpi_sndbuf_limited``).
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

from mirror.kafka.tcp_info import send_buffer_is_full, tcp_info

LOOK_SECONDS = 1.0
HELD_ABOVE = 0.45
"""For such a part of the time, of all connections together, there was no room for what could have gone. Where
that is all there is to it, it is half to three quarters: what is sent is spread over the round trip, and the
buffer empties when many acknowledgements come at once.
"""
LOOKS = 3
"""So many together, before more are asked for: what begins, or has begun again, finds its pace first."""
CONNECTIONS_MAX = 16


class Held(NamedTuple):
    """For how many seconds a connection had no room, since it began.

    Attributes:
        window_seconds: In the window of the other side.
        buffer_seconds: In the buffer of this one; or the program was late, where it is not full.
        buffer_full: Now.
    """

    window_seconds: float
    buffer_seconds: float
    buffer_full: bool

    def since(self, before: Held) -> float:
        """Seconds of them that have come since; in the buffer where it was full then, or is now."""
        buffer = (
            self.buffer_seconds - before.buffer_seconds if self.buffer_full or before.buffer_full else 0.0
        )
        return self.window_seconds - before.window_seconds + buffer


class Widening:
    """Of one mirror. Pure.

    Attributes:
        connections: So many would carry more; 0: there are enough.
    """

    def __init__(self) -> None:
        self.connections = 0
        self._before: dict[Any, Held] = {}
        self._looked_at = 0.0
        self._shares: deque[float] = deque(maxlen=LOOKS)

    def look(self, held: Mapping[Any, Held], now: float, *, mirror_is_late: bool) -> bool:
        """See how they do; answers whether more would carry more, and more than was said before.

        Args:
            held: Of each connection.
            now: Monotonic seconds.
            mirror_is_late: It has received most of what it has not taken; what held it back is not the room.
        """
        before, lasted = self._before, now - self._looked_at
        self._before, self._looked_at = dict(held), now
        if not held or held.keys() != before.keys():
            self._shares.clear()
            return False
        share = sum(held[one].since(before[one]) for one in held) / (lasted * len(held))
        self._shares.append(0.0 if mirror_is_late else share)
        wanted = min(2 * len(held), CONNECTIONS_MAX)
        enough = len(self._shares) < LOOKS or sum(self._shares) / LOOKS <= HELD_ABOVE
        if enough or wanted <= max(self.connections, len(held)):
            return False
        self.connections = wanted
        return True


def held(sock: socket.socket) -> Held:
    """What the kernel says of a connection; nothing held it back where it does not."""
    info = tcp_info(sock)
    return Held(
        info.receive_window_limited_seconds or 0.0,
        info.send_buffer_limited_seconds or 0.0,
        bool(send_buffer_is_full(sock)),
    )
