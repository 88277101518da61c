"""How to compress: so that least goes over the link, as far as one core can.

Pure. It is told what a channel did with its time, and answers with a step of a :func:`ladder`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mirror.link.frames import Compression

PERIOD_SECONDS = 4.0
"""So long something is watched before it is changed."""
FULL_ABOVE = 0.6
"""So much of a period is spent waiting for the link: a heavier step takes two to three times as long."""
BUSY_ABOVE = 0.85
"""So much of a period is spent compressing."""
FORGET_SECONDS = 600.0
"""Other data comes: what was found out is found out again."""
WINDOW_LOG = 24


class Step(NamedTuple):
    """How what is behind is sent."""

    compression: Compression
    recode: bool


LEVELS = (1, 3, 6, 9)
LEVEL_FIRST = 3


def ladder(level: int, *, recode: bool) -> list[Step]:
    """What there is to choose from, from what costs least time to what makes least bytes.

    Args:
        level: zstd's; 0: as the link needs.
        recode: Whether batches may be inflated for the way.
    """
    steps = [Step(Compression(one, WINDOW_LOG), recode) for one in ([level] if level else LEVELS)]
    if recode and not level:
        steps.insert(0, steps[0]._replace(recode=False))
    return steps


class Spent(NamedTuple):
    """What frames have taken.

    Attributes:
        waited: Seconds in which a frame was ready and waited for the link.
        sealed: Seconds in which the next one was made.
    """

    waited: float = 0.0
    sealed: float = 0.0
    records_bytes: int = 0
    wire_bytes: int = 0

    def and_also(self, more: Spent) -> Spent:
        """Both together."""
        return Spent(
            self.waited + more.waited,
            self.sealed + more.sealed,
            self.records_bytes + more.records_bytes,
            self.wire_bytes + more.wire_bytes,
        )


class Tuner:
    """Watches one channel. While the link is full it tries each step, and stays with what makes least.

    Attributes:
        step: Taken now.
        why: The reason, for people.

    Args:
        steps: As :func:`ladder` has them; with one there is nothing to choose.
        now: Monotonic seconds.
    """

    def __init__(self, steps: Sequence[Step], now: float) -> None:
        self._steps = steps
        self._at = next(
            (at for at, step in enumerate(steps) if step.compression.level >= LEVEL_FIRST), len(steps) - 1
        )
        self.why = "not measured yet" if len(steps) > 1 else "as configured"
        self._shares: dict[int, float] = {}
        self._too_slow: set[int] = set()
        self._began = self._since = now
        self._spent = Spent()

    @property
    def step(self) -> Step:
        return self._steps[self._at]

    def watched(self, spent: Spent, now: float) -> bool:
        """A frame was made; True when another step is to be taken from now on."""
        self._spent = self._spent.and_also(spent)
        period = now - self._since
        if period < PERIOD_SECONDS:
            return False
        spent, self._spent, self._since = self._spent, Spent(), now
        if now - self._began >= FORGET_SECONDS:
            self._shares, self._too_slow, self._began = {}, set(), now
        if len(self._steps) == 1 or not spent.records_bytes:
            return False
        return self._conclude(spent, period)

    def _conclude(self, spent: Spent, period: float) -> bool:
        before = self._at
        self._shares[before] = spent.wire_bytes / spent.records_bytes
        waited, busy = spent.waited / period, spent.sealed / period
        if busy > BUSY_ABOVE and before:
            self._too_slow.add(before)
            self._at = before - 1
            self.why = f"compression is the limit: it is at work {busy:.0%} of the time"
        elif waited > FULL_ABOVE:
            untried = self._untried()
            self._at = min(self._shares, key=lambda at: self._shares[at]) if untried is None else untried
            self.why = f"the link is full, and of what was tried this makes least: {self._least()}"
        return self._at != before

    def _untried(self) -> int | None:
        """The nearest step of which nobody knows what it makes of this data; lz4 as it is makes more."""
        recode = self._steps[-1].recode
        steps = {at for at, step in enumerate(self._steps) if step.recode is recode}
        untried = steps - self._shares.keys() - self._too_slow
        return min(untried, key=lambda at: abs(at - self._at), default=None)

    def _least(self) -> str:
        return ", ".join(
            f"{share:.3f} at level {self._steps[at].compression.level}"
            for at, share in sorted(self._shares.items(), key=lambda pair: pair[1])
            if at not in self._too_slow
        )
