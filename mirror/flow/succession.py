"""When one that waits for the owner takes its place.

No I/O. Whoever waits takes the right from an owner that has stood still for a while. Of several that wait one
comes first, and the others' patience would be at its end before it can begin. So each new owner is given a
time of its own, and a longer one with each that came and moved nothing: else two that are slow take the right
from each other for ever.
"""

from __future__ import annotations

from mirror.kafka.transactions import Token

TAKE_OVER_AFTER_SECONDS = 5.0
"""So long without progress where only the owner may write, and it is taken for gone."""
DOUBLINGS_MAX = 4
"""A minute and a half is the longest that a dead owner is waited for, and only after others had no luck."""


class Succession:
    """Of one flow, as one of those sees it who wait."""

    def __init__(self) -> None:
        self._holder: Token | None = None
        self._came_at: float | None = None
        self._without_progress = 0

    def due(self, holder: Token | None, waiting_since: float, now: float) -> bool:
        """Whether the owner is to be taken for gone.

        Args:
            holder: Who holds the right now, as the coordinator says; None for nobody.
            waiting_since: Since when nothing has moved that only the owner can move (monotonic seconds, like
                ``now``). It is later than it was once something did.
        """
        if self._came_at is None:
            self._holder, self._came_at = holder, waiting_since
        if waiting_since > self._came_at:
            self._came_at, self._without_progress = waiting_since, 0
        if holder != self._holder:
            self._holder, self._came_at = holder, now
            self._without_progress += 1
        patience = TAKE_OVER_AFTER_SECONDS * (1 << min(self._without_progress, DOUBLINGS_MAX))
        return now - self._came_at > patience
