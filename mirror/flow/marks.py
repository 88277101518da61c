"""Where the source ended at some moments: a copy that has come so far was complete then.

No I/O. A copy of what is written all the time is hardly ever complete when the source answers, and a moment
later it is what the answer before has told; so several answers are remembered. What is forgotten makes a lag
look larger than it is, and never smaller.
"""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import NamedTuple

MARKS_MAX = 32
STEPS = MARKS_MAX // 2
"""The time from the first mark on is divided in so many steps at least; of more marks than there may be every
second one is forgotten.
"""


class Mark(NamedTuple):
    """The source ended there at that moment, in monotonic seconds."""

    end: int
    at: float


class Marks:
    """Of one partition; offsets grow with time."""

    __slots__ = ("_last", "_marks", "_passed_at")

    def __init__(self) -> None:
        self._marks: deque[Mark] = deque()
        self._last: Mark | None = None
        self._passed_at: float | None = None

    def note(self, end: int, at: float) -> None:
        """The source has said so; it need not have said it later than what is known already.

        One that ends before where it has ended is another log: what is known of the first says nothing of it.
        """
        marks, last = self._marks, self._last
        if last is not None and end < last.end:
            marks.clear()
        elif last is not None:
            at = max(at, last.at)
            if last == (end, at):
                return
        self._last = Mark(end, at)
        if not marks or (at - marks[-1].at) * STEPS >= at - marks[0].at:
            marks.append(self._last)
        if len(marks) > MARKS_MAX:
            self._marks = deque(islice(marks, 0, None, 2))

    def rewind(self) -> None:
        """The copy is not what it was: whatever it had is not all there any more."""
        self._passed_at = None

    def reach(self, next_offset: int) -> None:
        """The copy goes on there: what it has passed takes no room from what is ahead of it."""
        marks, passed = self._marks, None
        while marks and marks[0].end <= next_offset:
            passed = marks.popleft()
        if self._last is not None and self._last.end <= next_offset:
            passed = self._last
        if passed is not None:
            self._passed_at = max(passed.at, self._passed_at or passed.at)

    def passed_at(self, next_offset: int | None) -> float | None:
        """The last moment known at which a copy that goes on there had everything; None when none is."""
        if next_offset is not None:
            self.reach(next_offset)
        return self._passed_at
