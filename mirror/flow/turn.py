"""Whether it is our turn to append to the target: checked right before anything is given to a socket.

Between a question to the coordinator and the next system call a process may stand still for hours, with half
a request still unsent because the kernel had no room. By then another mirror has taken the right and copied
on. The broker refuses most of what is sent after that, but not control markers, nor batches if it has
forgotten the flow's producer. So a proof counts for a little less than a new owner waits, from the moment the
question was asked (:mod:`mirror.flow.owner`).

Source: docs/design.md.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from weakref import WeakSet

from mirror.kafka.connection import Connection

COUNTS_FOR_SECONDS = 2.25
"""Less than a new owner waits before it writes anything; more than it takes to find that the coordinator does
not answer, and to ask the flow's state.
"""
WHY_NOT = "not fully sent: another mirror has the right to write, or it was not confirmed in time"

HINT = "run a repair again; a mirror retries by itself; the broker does not act on half a request"


class Turn:
    """The turn of one mirror, or repair, in one flow. It is not ours until that is proven.

    Attributes:
        since: Until then somebody else may write, whatever is proven (monotonic seconds).

    Args:
        clock: Monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.since = -math.inf
        self._ours_at = -math.inf
        """When the question was asked that last proved it to be ours."""
        self._writers: WeakSet[Connection] = WeakSet()

    def is_ours(self) -> bool:
        """Whether something may be sent now."""
        now = self._clock()
        return now >= self.since and now - self._ours_at < COUNTS_FOR_SECONDS

    def guard(self, connection: Connection) -> None:
        """Let nothing leave over this connection outside our turn, not even the rest of a begun request."""
        connection.send_while(self.is_ours, WHY_NOT, HINT)
        self._writers.add(connection)

    @property
    def proof_age_seconds(self) -> float:
        """How long ago the question was asked that last proved our turn."""
        return self._clock() - self._ours_at

    def proven(self, asked_at: float) -> None:
        """The right is ours, by the answer to a question asked at ``asked_at`` (monotonic seconds)."""
        self._ours_at = max(self._ours_at, asked_at)
        self.withdraw()

    def lost(self) -> None:
        """The right is another's."""
        self._ours_at = -math.inf
        self.withdraw()

    def withdraw(self) -> None:
        """If it is not our turn, perhaps because the proof has expired, take back what is not sent yet."""
        if not self.is_ours():
            for connection in list(self._writers):
                connection.withdraw()
