"""When something happened that the other side has told by its own clock.

Both clocks are steady: they are never set, and may run a little differently. What is known of their
distance is that a question was asked before it was answered, and answered before the answer came. Of all
moments that could be meant the earliest one is taken: so nothing that was told looks newer than it is.

Pure; moments are arguments, in seconds.
"""

from __future__ import annotations

import math

DRIFT = 1e-4
"""The clocks of two machines differ by less than so many seconds in a second."""


class Distance:
    """By how much our clock is ahead of theirs, at least."""

    def __init__(self) -> None:
        self._least = -math.inf
        self._at = 0.0

    def learned(self, *, asked_at: float, theirs: float, came_at: float) -> None:
        """Their clock read ``theirs`` at some moment between two of ours."""
        least, most = asked_at - theirs, came_at - theirs
        before = self._known(came_at)
        self._least = before if least <= before <= most else least
        self._at = came_at

    def ours(self, theirs: float, came_at: float) -> float:
        """The moment by our clock, or an earlier one; minus infinity before anything was learned."""
        return min(theirs + self._known(came_at), came_at)

    def _known(self, now: float) -> float:
        return self._least - DRIFT * max(now - self._at, 0.0)
