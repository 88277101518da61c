"""Where the source's log ended at certain moments: a copy that has reached that end was complete then.

No I/O. The copy of a partition that is written to all the time is hardly ever complete when the source
answers; a moment later it reaches the end that an earlier answer gave. So several answers are remembered.
Forgetting some of them can make a lag look larger than it is, never smaller.
"""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import NamedTuple

MARKS_MAX = 32
STEPS = MARKS_MAX // 2
"""A mark is kept once this fraction (1/STEPS) of the time since the first mark has passed since the last one.
Above MARKS_MAX marks every second one is dropped.
"""


class Mark(NamedTuple):
    """The source's log ended at offset ``end`` at the moment ``at``, in monotonic seconds."""

    end: int
    at: float


class Marks:
    """The marks of one partition, ascending in offset and in time."""

    __slots__ = ("_last", "_marks", "_passed_at")

    def __init__(self) -> None:
        self._marks: deque[Mark] = deque()
        self._last: Mark | None = None
        self._passed_at: float | None = None

    def note(self, end: int, at: float) -> None:
        """The source says that its log ended there at that moment, or at the last known one if that is later.

        A log that ends before the last known end is another log: the marks of the first one are dropped.
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
        """The copy has lost records: when it was complete before no longer counts."""
        self._passed_at = None

    def reach(self, next_offset: int) -> None:
        """The copy continues at this offset; marks up to it are used up and make room."""
        marks, passed = self._marks, None
        while marks and marks[0].end <= next_offset:
            passed = marks.popleft()
        if self._last is not None and self._last.end <= next_offset:
            passed = self._last
        if passed is not None:
            self._passed_at = max(passed.at, self._passed_at or passed.at)

    def passed_at(self, next_offset: int | None) -> float | None:
        """The last known moment at which a copy that continues there was complete; None if there is none."""
        if next_offset is not None:
            self.reach(next_offset)
        return self._passed_at
