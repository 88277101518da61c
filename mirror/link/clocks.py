"""Converts moments by the other side's clock to ours.

Both clocks are steady: they are never set, but may run at slightly different speeds. What is known of their
distance is that the other side answered after we asked, and before the answer arrived. Of all possible
moments the earliest is taken, so nothing looks newer than it is.

Pure; moments are arguments, in seconds.
"""

from __future__ import annotations

import math

DRIFT = 1e-4
"""The clocks of two machines drift apart by less than this many seconds a second."""


class Distance:
    """How far our clock is ahead of theirs, at least."""

    def __init__(self) -> None:
        self._least = -math.inf
        self._at = 0.0

    def learned(self, *, asked_at: float, theirs: float, came_at: float) -> None:
        """Their clock showed ``theirs`` at some moment between ``asked_at`` and ``came_at`` by ours."""
        least, most = asked_at - theirs, came_at - theirs
        before = self._known(came_at)
        self._least = before if least <= before <= most else least
        self._at = came_at

    def ours(self, theirs: float, came_at: float) -> float:
        """The moment ``theirs`` by our clock, or an earlier one, and never after ``came_at``. Minus infinity
        before anything was learned.
        """
        return min(theirs + self._known(came_at), came_at)

    def _known(self, now: float) -> float:
        return self._least - DRIFT * max(now - self._at, 0.0)
