"""How to compress: so that most gets to the other side, whether the link, a core or the mirror limits it.

Pure. It is told what a channel did with its time, and answers with a step of a :func:`ladder`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from mirror.link.frames import Compression

PERIOD_SECONDS = 0.1
PERIOD_BYTES = 32 << 20
"""So long a step is watched, and of so many bytes of records, before it is changed: until its window is full
and what it makes is known, and the kernel's buffers hide no more what the link does.
"""
SETTLE_SECONDS = 2.0
"""So long the link has been full before what takes more time is tried: TCP has to find out first what the
link carries, and needs more for that than the link takes.
"""
OCCUPIED_ABOVE = 0.6
"""So much of a period is spent compressing or waiting for the link, and one of the two is the limit."""
WAITING_ABOVE = 0.1
"""So much waiting, and it is the link."""
DRY_ABOVE = 0.5
"""So much of compressing left the link without work, and that is the limit."""
PACED_ABOVE = 0.5
"""So much of the waiting for the link, and it is a limit of the settings."""
LIMITED = "limits let no more through"
FULL = "the link takes no more"
CORE = "compression is the limit"
MIRROR = "the mirror is the limit"
HELD_ABOVE = 0.1
"""So much waiting for the mirror, and more than for the link, and that is the limit."""
IDLE_SECONDS = 2.0
"""No frame was made for so long, nor waits: there is no limit."""
ROOMY = 2.0
"""Where the mirror is the limit: what a core makes so many times as fast costs nothing that is carried."""
MORE, TIMES = 1.25, 4.0
"""A link that ran dry, and carried so many times what it was said to, is taken to carry so many times as much
as that; and so is one of which nothing is known.
"""
ALIKE = 0.9
"""A step that carries so much of what the best one does is as good, and better if it makes less; and one
that makes so little more is better if it takes less time: zstd's higher levels may take six times as long.
"""
FORGET_SECONDS, FORGET_SLOW_SECONDS = 600.0, 30.0
"""Other data comes: what was found out is found out again; sooner that a core was too slow, as others may
have kept it from its work.
"""
AGAIN_SHARE = 0.02
"""Of the time, at most, goes into finding one of them out again: over a slow link a look takes minutes."""
NEAR_SECONDS = 0.0005
"""A mirror that is no further away, there and back, is in the same place: bytes on the way cost nothing."""
WINDOW_LOG = 24
"""What repeats over 16 MiB is sent once, where that is looked for; that takes up to two thirds more time."""
LONG_FROM_LEVEL = 3
"""Whoever asks for such a level has it looked for."""


STORED = 0


class Step(NamedTuple):
    """How what is behind is sent; ``why`` is said where there is nothing else to choose."""

    compression: Compression
    recode: bool
    why: str = "as configured"

    @property
    def inflates(self) -> str:
        """Whether batches of lz4, gzip and snappy are inflated for the way, and why: that is not measured."""
        if self.recode:
            return "batches inflated as configured"
        stores = self.compression.level == STORED
        return f"batches not inflated, as {'nothing is compressed' if stores else 'configured'}"


FIRST, LONG = Compression(2, WINDOW_LOG), Compression(2, WINDOW_LOG, long=True)
"""zstd's level 3 takes a sixth to a third more time than 2, and makes hardly less of records."""
COMPRESSIONS = (
    Compression(1, WINDOW_LOG),
    FIRST,
    LONG,
    Compression(6, WINDOW_LOG, long=True),
    Compression(9, WINDOW_LOG, long=True),
)
LEVEL_MAX = 19


def ladder(level: int, *, recode: bool, level_max: int = LEVEL_MAX) -> list[Step]:
    """What there is to choose from, from what costs least time to what makes least bytes.

    Args:
        level: zstd's; 0: as the link needs.
        recode: Whether batches may be inflated for the way.
        level_max: No higher level is taken, whatever was asked for.
    """
    if level > level_max:
        why = f"level {level} was asked for; listen.level_max of the relay is {level_max}"
        return [Step(_fixed(level, level_max), recode, why)]
    if level:
        return [Step(_fixed(level, level), recode)]
    steps = [Step(one, recode) for one in COMPRESSIONS if one.level <= level_max]
    return [Step(Compression(STORED, WINDOW_LOG), recode=False), *steps]


def _fixed(asked: int, level: int) -> Compression:
    return Compression(level, WINDOW_LOG, long=asked >= LONG_FROM_LEVEL)


class Spent(NamedTuple):
    """What frames have taken.

    Attributes:
        waited: Seconds in which a frame was ready and waited for the link.
        held: Likewise, for the mirror: most of what it had not taken was there.
        sealed: Seconds in which the next one was made.
        dry: Of these, where the link had nothing left to carry at the end.
        paced: Of those that were waited, where the link would have taken more, and a limit did not let it.
    """

    waited: float = 0.0
    sealed: float = 0.0
    records_bytes: int = 0
    wire_bytes: int = 0
    dry: float = 0.0
    held: float = 0.0
    paced: float = 0.0

    def and_also(self, more: Spent) -> Spent:
        """Both together."""
        return Spent(
            self.waited + more.waited,
            self.sealed + more.sealed,
            self.records_bytes + more.records_bytes,
            self.wire_bytes + more.wire_bytes,
            self.dry + more.dry,
            self.held + more.held,
            self.paced + more.paced,
        )


class Made(NamedTuple):
    """What a step makes of records.

    Attributes:
        core_rate: Bytes a second that a core gets through.
        share: That is sent.
        good_until: It is found out again after that.
    """

    core_rate: float
    share: float
    good_until: float

    def rate(self, link_rate: float) -> float:
        """Bytes of records a second over a link that carries so much."""
        return min(self.core_rate, link_rate / self.share)


class Tuner:
    """Watches one channel. Where there is a limit it tries the steps that could help, one after the other as
    long as they do, and stays with what carries most.

    Attributes:
        step: Taken now.
        why: The reason for its level, for people.

    Args:
        steps: As :func:`ladder` has them; with one there is nothing to choose.
        now: Monotonic seconds.
        near: Bytes are not worth a core's time before the link is full of them.
    """

    def __init__(self, steps: Sequence[Step], now: float, *, near: bool = False) -> None:
        self._steps = steps
        self._at = 0 if near else _at(FIRST, steps)
        self._long = _at(LONG, steps)
        self._spared = 0 if near else self._long
        self._limit = ""
        """What it is, as far as is known."""
        self.why = steps[0].why if len(steps) == 1 else "the mirror is near" if near else "not measured yet"
        self._made: dict[int, Made] = {}
        self._link_rate, self._link_known = 0.0, False
        self._since = self._watched_at = now
        self._spent = Spent()
        self._full_seconds = 0.0

    @property
    def step(self) -> Step:
        return self._steps[self._at]

    @property
    def reasons(self) -> str:
        """All of them: for the level, and for what is inflated."""
        return f"{self.why}; {self.step.inflates}"

    def watched(self, spent: Spent, now: float) -> bool:
        """A frame was made; True when another step is to be taken from now on, or for another reason."""
        self._watched_at = now
        self._spent = self._spent.and_also(spent)
        period = now - self._since
        if period < PERIOD_SECONDS or self._spent.records_bytes < PERIOD_BYTES:
            return False
        spent, self._spent, self._since = self._spent, Spent(), now
        if len(self._steps) == 1:
            return self._say(_limit(spent, period))
        before = self._at, self._limit
        self._made = {at: made for at, made in self._made.items() if now < made.good_until}
        self._conclude(spent, period, now)
        return (self._at, self._limit) != before

    def idle(self, now: float) -> bool:
        """No frame is being made, and none waits; True where a limit was said that holds no more.

        Why a level was chosen is as true as before: that is said on.
        """
        nothing_to_choose = len(self._steps) == 1
        return nothing_to_choose and now - self._watched_at >= IDLE_SECONDS and self._say("")

    def _say(self, limit: str) -> bool:
        """There is nothing to choose; where another limit holds than before people are told."""
        if limit == self._limit:
            return False
        self._limit = limit
        self.why = f"{self.step.why}; {limit}" if limit else self.step.why
        return True

    def _conclude(self, spent: Spent, period: float, now: float) -> None:
        limit = _limit(spent, period)
        if not limit:
            return
        self._limit = limit
        if limit == MIRROR:
            self._save_bytes(spent, period, now)
            return
        full = limit != CORE
        self._learn_link_rate(spent.wire_bytes / period, full=full)
        forget = FORGET_SECONDS if full else FORGET_SLOW_SECONDS
        self._learn_made(spent, now + max(forget, period / AGAIN_SHARE))
        if full:
            self._full_seconds += period
        settled = not full or self._full_seconds >= SETTLE_SECONDS
        self._take(self._untried(full=full) if settled else None, self._best())

    def _save_bytes(self, spent: Spent, period: float, now: float) -> None:
        """The mirror is the limit, and less on the link carries no more: spare what a core has time for."""
        self._learn_made(spent, now + max(FORGET_SLOW_SECONDS, period / AGAIN_SHARE))
        rate = spent.records_bytes / period
        able = {at: made for at, made in self._made.items() if at == self._at or self._carries(made, rate)}
        roomy = {at: made.share for at, made in able.items() if made.core_rate >= ROOMY * rate}
        beside = self._at + 1 if self._at in roomy else self._at - 1
        untried = beside if 0 <= beside <= self._spared and beside not in self._made else None
        self._take(untried, _lightest(roomy or {at: made.share for at, made in able.items()}))

    def _carries(self, made: Made, rate: float) -> bool:
        """Whether a step keeps this pace, over the link as far as that is known."""
        return made.rate(self._link_rate or math.inf) >= rate

    def _take(self, untried: int | None, best: int) -> None:
        if untried is not None:
            self._at = untried
            self.why = f"being tried: {self._limit}"
            return
        self._at = best
        made = ", ".join(
            f"{one.share:.3f} at {_words(self._steps[at].compression)}"
            for at, one in sorted(self._made.items())
        )
        self.why = f"{self._limit}; of what was tried this is best: {made}{self._rates(best)}"

    def _rates(self, at: int) -> str:
        """What a choice rests on: how much the link carries, and how much of records a core gets through."""
        core_rate = self._made[at].core_rate
        link = f"; {self._link_rate / 1e6:.1f} MB/s go over the link" if self._link_known else ""
        return link + (f"; a core makes {core_rate / 1e6:.0f} MB/s" if core_rate < math.inf else "")

    def _learn_made(self, spent: Spent, good_until: float) -> None:
        self._made[self._at] = Made(
            core_rate=spent.records_bytes / spent.sealed if spent.sealed else math.inf,
            share=spent.wire_bytes / spent.records_bytes,
            good_until=good_until,
        )

    def _learn_link_rate(self, carried: float, *, full: bool) -> None:
        """It has carried so much, and could carry no more, or nobody knows how much more."""
        if full or carried > self._link_rate * MORE:
            self._link_known = full
        if full:
            self._link_rate = carried
        elif not self._link_known:
            self._link_rate = max(self._link_rate, carried * TIMES)
        if self._level(0) == STORED:
            self._made[0] = Made(core_rate=math.inf, share=1.0, good_until=math.inf)

    def _untried(self, *, full: bool) -> int | None:
        """A step of which nobody knows what it makes of this: while the link is full, next to one that makes
        about as little as any, or the one that finds what is far back, of which no other tells; unless what
        makes least is too slow already, or the level below makes no less than the one below that. Else the
        next that is lighter.
        """
        steps = self._beside_least() if full else [max(self._at - 1, 0)]
        return next((at for at in steps if at not in self._made), None)

    def _beside_least(self) -> list[int]:
        good, least = self._good(), min(self._made, key=lambda at: self._made[at].share)
        if least not in good:
            return []
        little = [at for at in good if ALIKE * self._made[at].share <= self._made[least].share]
        beside = [beside for at in little for beside in (at - 1, at + 1) if beside < at or self._pays(at)]
        return [at for at in (*beside, self._long) if self._compresses(at)]

    def _pays(self, at: int) -> bool:
        """Whether to look still harder may: not above a step that does already, and makes no less for it."""
        below = [made.share for lower, made in self._made.items() if self._long <= lower < at]
        return not below or self._made[at].share < min(below)

    def _best(self) -> int:
        return _lightest({at: self._made[at].share for at in self._good()})

    def _good(self) -> list[int]:
        """The steps that carry about as much as the one that carries most."""
        rates = {at: made.rate(self._link_rate) for at, made in self._made.items()}
        return [at for at, rate in rates.items() if rate >= ALIKE * max(rates.values())]

    def _compresses(self, at: int) -> bool:
        return 0 <= at < len(self._steps) and self._level(at) != STORED

    def _level(self, at: int) -> int:
        return self._steps[at].compression.level


def _limit(spent: Spent, period: float) -> str:
    """What most of a period went into; empty where that was nothing."""
    if spent.held > max(spent.waited, HELD_ABOVE * period):
        return MIRROR
    if spent.waited + spent.sealed < OCCUPIED_ABOVE * period:
        return ""
    if spent.waited > WAITING_ABOVE * period or spent.dry < DRY_ABOVE * spent.sealed:
        return LIMITED if spent.paced > PACED_ABOVE * spent.waited else FULL
    return CORE


def _lightest(shares: Mapping[int, float]) -> int:
    """Of the steps that make about as little as any."""
    least = min(shares.values())
    return min(at for at, share in shares.items() if ALIKE * share <= least)


def _at(compression: Compression, steps: Sequence[Step]) -> int:
    """The first step that makes as little as that, or the one that makes least."""
    return next((at for at, step in enumerate(steps) if step.compression >= compression), len(steps) - 1)


def _words(compression: Compression) -> str:
    over = f" over {compression.long_bytes >> 20} MiB" if compression.long_bytes else ""
    return f"level {compression.level}{over}"


def is_near(round_trip_seconds: float | None, rate: float | None) -> bool:
    """Whether sending more bytes to a mirror costs nothing: it is in the same place, and no rate is set."""
    return rate is None and round_trip_seconds is not None and round_trip_seconds < NEAR_SECONDS
