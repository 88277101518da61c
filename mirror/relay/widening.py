"""How many connections what is behind takes, where each has too little room.

TCP has no more on its way than fits into the window that the other side advertises, and into the buffer of
this one. Both are bounded by settings of the two kernels, and a long wide link carries more than that in a
round trip: then two connections carry twice as much. What a full link or a mirror that is late holds back
is not helped by that, so each connection is asked what it waits for.

What the way holds shows by how long it takes: BBR that has not found out what a link carries sends all it may
at 2.9 times the pace at which it arrives. What a link cannot carry of that waits on the way, and the round
trip is longer. Where it is not, the link has more to give, and how much is known, too.

Sources: RFC 7323 §1.1 (windows and long links), linux/tcp.h (``tcpi_rwnd_limited``, ``tcpi_sndbuf_limited``),
:mod:`mirror.relay.calming` (how BBR begins).
"""

from __future__ import annotations

import math
import socket
from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

from mirror.kafka.tcp_info import send_buffer_is_full, shortest_round_trip_seconds, tcp_info
from mirror.relay.calming import still_begins

LOOK_SECONDS = 0.25
HELD_ABOVE = 0.45
"""For such a part of the time, of all connections together, there was no room for what could have gone. Where
that is all there is to it, it is half to three quarters: what is sent is spread over the round trip, and the
buffer empties when many acknowledgements come at once.
"""
LOOKS = 12
"""So many together, before more are asked for: what begins, or has begun again, finds its pace first."""
LOOKS_WITHOUT_QUEUE = 3
"""So many do where nothing waits on the way."""
STRETCHED_ABOVE = 1.1
"""So many times the shortest round trip, and something does: where buffers hold more than the link, 1.3."""
GROWS = 1.25
"""A window that has become so many times as large in three looks is no limit yet."""
BEGINS_LOOKS = 5
"""Nor is any so soon after a connection was made: over a long way it is not seen to grow before."""
TIMES, TIMES_WHERE_ROOMY = 2, 4
ROOMY_BELOW = 1.03
"""No longer than that while BBR begins on the only connection, and the link carries that much more: with four
times as much it has 1.01, with twice as much 1.04, with half as much again 1.08. Several do not send all they
may in the same moment, and tell nothing of it.
"""
CONNECTIONS_MAX = 16


class Held(NamedTuple):
    """For how many seconds a connection had no room, since it began.

    Attributes:
        window_seconds: In the window of the other side.
        buffer_seconds: In the buffer of this one; or the program was late, where it is not full.
        buffer_full: Now.
        window_bytes: As the other side has advertised it last.
        stretched: The round trip of late, in shortest ones.
        begins: BBR sends 2.9 times what arrives.
    """

    window_seconds: float
    buffer_seconds: float
    buffer_full: bool
    window_bytes: int = 0
    stretched: float = math.inf
    begins: bool = False

    def since(self, before: Held, earlier: Held | None) -> float:
        """Seconds of them that have come since before: in the buffer where it was full then, or is now, and
        in the window where that has not grown since earlier.
        """
        grows = earlier is None or self.window_bytes > GROWS * earlier.window_bytes
        window = 0.0 if grows else self.window_seconds - before.window_seconds
        buffer = (
            self.buffer_seconds - before.buffer_seconds if self.buffer_full or before.buffer_full else 0.0
        )
        return window + buffer


class Widening:
    """Of one mirror. Pure.

    Attributes:
        connections: So many would carry more; 0: there are enough.
    """

    def __init__(self) -> None:
        self.connections = 0
        self._looked_at = 0.0
        self._looks: deque[Mapping[Any, Held]] = deque(maxlen=LOOKS_WITHOUT_QUEUE)
        """The last ones, of the same connections."""
        self._shares: deque[float] = deque(maxlen=LOOKS)

    def look(self, held: Mapping[Any, Held], now: float, *, mirror_is_late: bool) -> bool:
        """See how they do; answers whether more would carry more, and more than was said before.

        Args:
            held: Of each connection.
            now: Monotonic seconds.
            mirror_is_late: It has received most of what it has not taken; what held it back is not the room.
        """
        lasted, self._looked_at = now - self._looked_at, now
        if not held or not self._looks or held.keys() != self._looks[-1].keys():
            self._shares.clear()
            self._looks.clear()
            self._looks.append(dict(held))
            return False
        earlier = self._looks[0] if len(self._shares) >= BEGINS_LOOKS else {}
        before = self._looks[-1]
        self._looks.append(dict(held))
        seconds = sum(of.since(before[one], earlier.get(one)) for one, of in held.items())
        share = seconds / (lasted * len(held))
        self._shares.append(0.0 if mirror_is_late else share)
        wanted = min(self._times(held) * len(held), CONNECTIONS_MAX)
        if wanted <= max(self.connections, len(held)):
            return False
        self.connections = wanted
        return True

    def _times(self, held: Mapping[Any, Held]) -> int:
        """So many times as many would carry more; 1: those there are do."""
        stretched = max(one.stretched for look in self._looks for one in look.values())
        if self._held_for(LOOKS_WITHOUT_QUEUE) and stretched <= STRETCHED_ABOVE:
            alone = len(held) == 1 and all(one.begins for one in held.values())
            return TIMES_WHERE_ROOMY if alone and stretched <= ROOMY_BELOW else TIMES
        return TIMES if self._held_for(LOOKS) else 1

    def _held_for(self, looks: int) -> bool:
        """Whether there was no room for most of so many looks, the last ones, together."""
        last = list(self._shares)[-looks:]
        return len(last) == looks and sum(last) / looks > HELD_ABOVE


def held(sock: socket.socket) -> Held:
    """What the kernel says of a connection; nothing held it back where it does not."""
    info = tcp_info(sock)
    shortest = shortest_round_trip_seconds(sock)
    return Held(
        info.receive_window_limited_seconds or 0.0,
        info.send_buffer_limited_seconds or 0.0,
        bool(send_buffer_is_full(sock)),
        info.receive_window_bytes or 0,
        info.round_trip_seconds / shortest if info.round_trip_seconds and shortest else math.inf,
        still_begins(sock),
    )
