"""How many connections BULK needs if each has too little room.

TCP has no more in flight than fits into the window that the other side advertises, and into the send buffer
of this side. Settings of the two kernels bound both, and a long link of high bandwidth carries more than that
in a round trip: then two connections carry twice as much. If a full link or a slow mirror is what holds them
back, more connections do not help; so each one is asked what it waits for.

The round trip shows what waits on the path. BBR in startup sends all it may at 2.9 times the pace at which it
arrives. What the link cannot carry of that waits on the path, and the round trip gets longer. If it does not,
the link can carry more, and it is known how much.

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
"""The share of the time, over all connections, in which there was no room for what could have been sent. If
nothing else limits them it is half to three quarters: what is sent is spread over the round trip, and the
buffer empties when many acknowledgements arrive at once.
"""
LOOKS = 12
"""The average of this many looks counts before more connections are asked for: one that begins, or begins
again, finds its pace first.
"""
LOOKS_WITHOUT_QUEUE = 3
"""This many are enough if nothing waits on the path."""
STRETCHED_ABOVE = 1.1
"""A round trip this many times the shortest means that something does; if buffers exceed the link, 1.3."""
GROWS = 1.25
"""A window that has grown by this factor in three looks is no limit yet."""
BEGINS_LOOKS = 5
"""Nor is any window so soon after a connection was made: over a long link it is not seen to grow before."""
TIMES, TIMES_WHERE_ROOMY = 2, 4
ROOMY_BELOW = 1.03
"""If the round trip is not longer while BBR is in startup on the only connection, the link carries
``TIMES_WHERE_ROOMY`` as much: if it carries four times as much it is 1.01, twice as much 1.04, half as much
again 1.08. Several connections do not send all they may at the same moment, and so do not show it.
"""
CONNECTIONS_MAX = 16


class Held(NamedTuple):
    """For how many seconds a connection lacked room, since it began.

    Attributes:
        window_seconds: In the window of the other side.
        buffer_seconds: In the send buffer of this side; if that is not full, the program was late.
        buffer_full: Whether the buffer is full now.
        window_bytes: The window that the other side advertised last.
        stretched: The recent round trip, divided by the shortest.
        begins: BBR is in startup, and sends 2.9 times what arrives.
    """

    window_seconds: float
    buffer_seconds: float
    buffer_full: bool
    window_bytes: int = 0
    stretched: float = math.inf
    begins: bool = False

    def since(self, before: Held, earlier: Held | None) -> float:
        """Seconds that were added since ``before``: those in the buffer if it was full then, or is now, and
        those in the window if that has not grown since ``earlier``.
        """
        grows = earlier is None or self.window_bytes > GROWS * earlier.window_bytes
        window = 0.0 if grows else self.window_seconds - before.window_seconds
        buffer = (
            self.buffer_seconds - before.buffer_seconds if self.buffer_full or before.buffer_full else 0.0
        )
        return window + buffer


class Widening:
    """Watches the BULK connections of one mirror. Pure.

    Attributes:
        connections: This many would carry more; 0: there are enough.
    """

    def __init__(self) -> None:
        self.connections = 0
        self._looked_at = 0.0
        self._looks: deque[Mapping[Any, Held]] = deque(maxlen=LOOKS_WITHOUT_QUEUE)
        """The last ones, of the same connections."""
        self._shares: deque[float] = deque(maxlen=LOOKS)

    def look(self, held: Mapping[Any, Held], now: float, *, mirror_is_late: bool) -> bool:
        """Take in how the connections do; returns whether more than ``connections`` said so far would carry
        more, and updates it.

        Args:
            held: For each connection.
            now: Monotonic seconds.
            mirror_is_late: It has received most of what it has not taken; lack of room did not hold it back.
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
        """How many times as many connections would carry more; 1: those there are suffice."""
        stretched = max(one.stretched for look in self._looks for one in look.values())
        if self._held_for(LOOKS_WITHOUT_QUEUE) and stretched <= STRETCHED_ABOVE:
            alone = len(held) == 1 and all(one.begins for one in held.values())
            return TIMES_WHERE_ROOMY if alone and stretched <= ROOMY_BELOW else TIMES
        return TIMES if self._held_for(LOOKS) else 1

    def _held_for(self, looks: int) -> bool:
        """Whether room was lacking for more than ``HELD_ABOVE`` of the last ``looks`` looks together."""
        last = list(self._shares)[-looks:]
        return len(last) == looks and sum(last) / looks > HELD_ABOVE


def held(sock: socket.socket) -> Held:
    """What the kernel says of a connection; where it says nothing, nothing held it back."""
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
