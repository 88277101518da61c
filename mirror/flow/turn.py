"""Whether it is our turn to append to the target: asked right before anything is given to a socket.

Between a question to the coordinator and the next system call a process may stand still for hours, and with
it half a request that the kernel had no room for. By then another mirror has taken the right and copied on.
Most of what leaves all the same is refused by the broker, but not control markers, nor batches where the
broker has forgotten the flow's producer. So that it is our turn counts for a little less than a new owner
waits, from when it was asked (:mod:`mirror.flow.owner`).

Source: docs/design.md.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from weakref import WeakSet

from mirror.kafka.connection import Connection

COUNTS_FOR_SECONDS = 2.25
"""Less than a new owner waits before it writes anything, and more than it takes to see that the coordinator
does not answer, and to ask the flow's state.
"""
WHY_NOT = "not sent to its end: the right to write is another's, or was not proven in time"

HINT = "the broker begins with nothing it has by half; a mirror tries again, a repair is to be run again"


class Turn:
    """Of one mirror, or repair, in one flow. It is not ours before that is proven.

    Attributes:
        since: Before that somebody else may write, whatever is proven (monotonic).

    Args:
        clock: Monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.since = -math.inf
        self._ours_at = -math.inf
        """When it was last known to be ours."""
        self._writers: WeakSet[Connection] = WeakSet()

    def is_ours(self) -> bool:
        """Whether something may be sent now."""
        now = self._clock()
        return now >= self.since and now - self._ours_at < COUNTS_FOR_SECONDS

    def guard(self, connection: Connection) -> None:
        """Nothing leaves over this connection but in our turn, nor the rest of what has been begun."""
        connection.send_while(self.is_ours, WHY_NOT, HINT)
        self._writers.add(connection)

    @property
    def proof_age_seconds(self) -> float:
        """How long ago it was asked what proves it."""
        return self._clock() - self._ours_at

    def proven(self, asked_at: float) -> None:
        """The right is ours; ``asked_at`` is when that was asked."""
        self._ours_at = max(self._ours_at, asked_at)
        self.withdraw()

    def lost(self) -> None:
        """The right is another's."""
        self._ours_at = -math.inf
        self.withdraw()

    def withdraw(self) -> None:
        """Take back what waits to be sent where it is not our turn, as when the proof is too old by now."""
        if not self.is_ours():
            for connection in list(self._writers):
                connection.withdraw()
