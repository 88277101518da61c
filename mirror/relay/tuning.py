"""How to compress: so that most gets to the other side, whether the link or a core is what limits it.

Pure. It is told what a channel did with its time, and answers with a step of a :func:`ladder`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from mirror.link.frames import Compression

PERIOD_SECONDS = 0.1
PERIOD_BYTES, PERIOD_BYTES_FIRST = 32 << 20, 8 << 20
"""So long a step is watched, and of so many bytes of records, before it is changed: until its window is full
and what it makes is known; less before the link was full, as a core that is the limit shows at once.
"""
FULL_ABOVE = 0.6
"""So much of a period is spent waiting for the link, and it is the limit."""
BUSY_ABOVE = 0.5
"""So much is spent compressing, and hardly anything waiting: that is the limit."""
WAITING_BELOW = 0.1
ALIKE = 0.9
"""A step that carries so much of what the best one does is as good, and better if it makes less; and one
that makes so little more is better if it takes less time: zstd's higher levels may take six times as long.
"""
FORGET_SECONDS = 600.0
"""Other data comes: what was found out is found out again."""
WINDOW_LOG = 24


class Step(NamedTuple):
    """How what is behind is sent."""

    compression: Compression
    recode: bool


STORED = 0
LEVELS = (1, 3, 6, 9)
LEVEL_FIRST = 3


def ladder(level: int, *, recode: bool) -> list[Step]:
    """What there is to choose from, from what costs least time to what makes least bytes.

    Args:
        level: zstd's; 0: as the link needs.
        recode: Whether batches may be inflated for the way.
    """
    if level:
        return [Step(Compression(level, WINDOW_LOG), recode)]
    steps = [Step(Compression(one, WINDOW_LOG), recode) for one in LEVELS]
    return [Step(Compression(STORED, WINDOW_LOG), recode=False), *steps]


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


class Made(NamedTuple):
    """What a step makes of records.

    Attributes:
        core_rate: Bytes a second that a core gets through; ``math.inf`` where it was not the limit.
        share: That is sent.
    """

    core_rate: float
    share: float

    def rate(self, link_rate: float) -> float:
        """Bytes of records a second over a link that carries so much; ``math.inf`` for no limit."""
        return min(self.core_rate, link_rate / self.share)


class Tuner:
    """Watches one channel. Where there is a limit it tries the steps that could help, one after the other as
    long as they do, and stays with what carries most.

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
        self._made: dict[int, Made] = {}
        self._link_rate = math.inf
        self._period_bytes = PERIOD_BYTES_FIRST
        self._began = self._since = now
        self._spent = Spent()

    @property
    def step(self) -> Step:
        return self._steps[self._at]

    def watched(self, spent: Spent, now: float) -> bool:
        """A frame was made; True when another step is to be taken from now on."""
        self._spent = self._spent.and_also(spent)
        period = now - self._since
        if period < PERIOD_SECONDS or self._spent.records_bytes < self._period_bytes:
            return False
        spent, self._spent, self._since = self._spent, Spent(), now
        if now - self._began >= FORGET_SECONDS:
            self._made, self._began, self._period_bytes = {}, now, PERIOD_BYTES_FIRST
        if len(self._steps) == 1:
            return False
        before = self._at
        self._conclude(spent, period)
        return self._at != before

    def _conclude(self, spent: Spent, period: float) -> None:
        waited, busy = spent.waited / period, spent.sealed / period
        full, slow = waited > FULL_ABOVE, waited < WAITING_BELOW and busy > BUSY_ABOVE
        if not full and not slow:
            return
        self._link_rate = spent.wire_bytes / period if full else math.inf
        core_rate = math.inf if full else spent.records_bytes / period
        self._made[self._at] = Made(core_rate, spent.wire_bytes / spent.records_bytes)
        if full:
            self._period_bytes = PERIOD_BYTES
        untried = self._untried(full=full)
        if untried is not None:
            self._at = untried
            self.why = "being tried: " + ("the link is full" if full else "compression was the limit")
            return
        self._at = self._best()
        limit = "the link is full" if full else "compression is the limit"
        made = ", ".join(
            f"{one.share:.3f} at level {self._level(at)}" for at, one in sorted(self._made.items())
        )
        self.why = f"{limit}; of what was tried this is best: {made}"

    def _untried(self, *, full: bool) -> int | None:
        """A step of which nobody knows what it makes of this: while the link is full, next to the one that
        makes least, unless that is too slow already; else the next one that is lighter.
        """
        least = min(self._made, key=lambda at: self._made[at].share)
        beside = (least - 1, least + 1) if least in self._good() else ()
        steps = [at for at in beside if self._compresses(at)] if full else [max(self._at - 1, 0)]
        return next((at for at in steps if not math.isfinite(self._rate(at))), None)

    def _best(self) -> int:
        shares = {at: self._made[at].share for at in self._good()}
        least = min(shares.values())
        return min(at for at, share in shares.items() if ALIKE * share <= least)

    def _good(self) -> list[int]:
        """The steps that carry about as much as the one that carries most, where that is known."""
        rates = {at: self._rate(at) for at in self._made if math.isfinite(self._rate(at))}
        return [at for at, rate in rates.items() if rate >= ALIKE * max(rates.values())]

    def _rate(self, at: int) -> float:
        return self._made[at].rate(self._link_rate) if at in self._made else math.inf

    def _compresses(self, at: int) -> bool:
        return 0 <= at < len(self._steps) and self._level(at) != STORED

    def _level(self, at: int) -> int:
        return self._steps[at].compression.level
