"""How to compress so that most records get to the mirror, whether link, core or mirror is the limit.

Pure. It is told how a channel spent its time, and chooses a step of a :func:`ladder`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from mirror.link.frames import Compression

PERIOD_SECONDS = 0.1
PERIOD_BYTES = 32 << 20
"""A step is watched for this long, and for this many bytes of records, before it is changed: by then its
window is full, its output is known, and the kernel's buffers no longer hide what the link does.
"""
SETTLE_SECONDS = 2.0
"""For how long the link has to be full before steps that take more time are tried: TCP has to find out first
what the link carries, and for that needs more data than the link takes.
"""
OCCUPIED_ABOVE = 0.6
"""If more than this share of a period goes into compressing or waiting for the link, one of the two is the
limit.
"""
WAITING_ABOVE = 0.1
"""If more than this share is waiting, it is the link."""
DRY_ABOVE = 0.5
"""If more than this share of compressing left the link without work, compressing is the limit."""
PACED_ABOVE = 0.5
"""If more than this share of waiting for the link is due to a limit of the settings, that is the limit."""
LIMITED = "a configured limit is reached"
FULL = "the link is full"
CORE = "compression is the limit"
MIRROR = "the mirror is the limit"
HELD_ABOVE = 0.1
"""If more than this share of a period is waiting for the mirror, and more than for the link, the mirror is
the limit.
"""
IDLE_SECONDS = 2.0
"""If no frame was made for this long, and none waits, there is no limit."""
ROOMY = 2.0
"""If the mirror is the limit: a step that a core does this many times as fast as needed costs nothing."""
MORE, TIMES = 1.25, 4.0
"""A link that ran dry, and carried ``MORE`` times what was assumed, is assumed to carry ``TIMES`` as much as
that; and so is a link of which nothing is known.
"""
ALIKE = 0.9
"""A step that carries this share of what the best one does is as good, and better if it makes less; and one
that makes so little more is better if it takes less time: zstd's higher levels may take six times as long.
"""
FORGET_SECONDS, FORGET_SLOW_SECONDS = 600.0, 30.0
"""After this long a step is measured again, as the data may have changed; sooner if a core was too slow, as
other work may have kept it busy.
"""
AGAIN_SHARE = 0.02
"""The most of the time that goes into measuring a step again: over a slow link one period takes minutes."""
NEAR_SECONDS = 0.0005
"""A mirror with a shorter round trip is at the same place: bytes on the link cost nothing."""
WINDOW_LOG = 24
"""Base-2 logarithm of the window: what repeats within 16 MiB is sent once, if it is searched for; searching
takes up to two thirds more time.
"""
LONG_FROM_LEVEL = 3
"""From this level on, if it was asked for, repeats are searched for in the whole window."""


STORED = 0


class Step(NamedTuple):
    """How what is behind is sent; ``why`` is the reason if there is nothing to choose."""

    compression: Compression
    recode: bool
    why: str = "as configured"

    @property
    def inflates(self) -> str:
        """Whether batches of lz4, gzip and snappy are inflated for the link, and why; it is not measured."""
        if self.recode:
            return "batches inflated as configured"
        stores = self.compression.level == STORED
        return f"batches not inflated, as {'nothing is compressed' if stores else 'configured'}"


FIRST, LONG = Compression(2, WINDOW_LOG), Compression(2, WINDOW_LOG, long=True)
"""zstd's level 3 takes a sixth to a third more time than 2, and makes records hardly smaller."""
COMPRESSIONS = (
    Compression(1, WINDOW_LOG),
    FIRST,
    LONG,
    Compression(6, WINDOW_LOG, long=True),
    Compression(9, WINDOW_LOG, long=True),
)
LEVEL_MAX = 19


def ladder(level: int, *, recode: bool, level_max: int = LEVEL_MAX) -> list[Step]:
    """The steps to choose from, from the one that takes least time to the one that makes least bytes.

    Args:
        level: zstd's; 0: as the link needs.
        recode: Whether batches may be inflated for the link.
        level_max: No higher level is taken, whatever was asked for.
    """
    if level > level_max:
        why = f"level {level} was requested; listen.level_max of the relay is {level_max}"
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
        held: Likewise, for the mirror: most of what it had not taken had arrived there.
        sealed: Seconds in which frames were made.
        dry: Those of ``sealed`` after which the link had nothing left to carry.
        paced: Those of ``waited`` in which the link would have taken more, and a limit did not allow it.
    """

    waited: float = 0.0
    sealed: float = 0.0
    records_bytes: int = 0
    wire_bytes: int = 0
    dry: float = 0.0
    held: float = 0.0
    paced: float = 0.0

    def and_also(self, more: Spent) -> Spent:
        """The sum of both."""
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
        core_rate: Bytes of records a second that a core gets through.
        share: Bytes sent for each byte of records.
        good_until: After this moment, in monotonic seconds, it is measured again.
    """

    core_rate: float
    share: float
    good_until: float

    def rate(self, link_rate: float) -> float:
        """Bytes of records a second over a link that carries ``link_rate``."""
        return min(self.core_rate, link_rate / self.share)


class Tuner:
    """Watches one channel. If there is a limit it tries the steps that could help, one after the other as
    long as they do, and stays with the one that carries most.

    Attributes:
        step: The current one.
        why: The reason for its level, for people.

    Args:
        steps: As :func:`ladder` returns them; with one there is nothing to choose.
        now: Monotonic seconds.
        near: Saving bytes is not worth a core's time before the link is full.
    """

    def __init__(self, steps: Sequence[Step], now: float, *, near: bool = False) -> None:
        self._steps = steps
        self._at = 0 if near else _at(FIRST, steps)
        self._long = _at(LONG, steps)
        self._spared = 0 if near else self._long
        self._limit = ""
        """The current limit, as far as is known."""
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
        """Why this level, and why batches are inflated or not."""
        return f"{self.why}; {self.step.inflates}"

    def watched(self, spent: Spent, now: float) -> bool:
        """A frame was made; True if from now on another step, or another reason, applies."""
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
        """No frame is being made, and none waits; True if a limit was reported that no longer applies.

        The reason for which a level was chosen remains true, and remains reported.
        """
        nothing_to_choose = len(self._steps) == 1
        return nothing_to_choose and now - self._watched_at >= IDLE_SECONDS and self._say("")

    def _say(self, limit: str) -> bool:
        """With nothing to choose: note the limit; True if it is another one than before."""
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
        """The mirror is the limit, and fewer bytes get it no more records: save what a core has time for."""
        self._learn_made(spent, now + max(FORGET_SLOW_SECONDS, period / AGAIN_SHARE))
        rate = spent.records_bytes / period
        able = {at: made for at, made in self._made.items() if at == self._at or self._carries(made, rate)}
        roomy = {at: made.share for at, made in able.items() if made.core_rate >= ROOMY * rate}
        beside = self._at + 1 if self._at in roomy else self._at - 1
        untried = beside if 0 <= beside <= self._spared and beside not in self._made else None
        self._take(untried, _lightest(roomy or {at: made.share for at, made in able.items()}))

    def _carries(self, made: Made, rate: float) -> bool:
        """Whether a step keeps this pace, as far as the rate of the link is known."""
        return made.rate(self._link_rate or math.inf) >= rate

    def _take(self, untried: int | None, best: int) -> None:
        if untried is not None:
            self._at = untried
            self.why = f"being tried, as {self._limit}"
            return
        self._at = best
        made = ", ".join(
            f"{one.share:.3f} at {_words(self._steps[at].compression)}"
            for at, one in sorted(self._made.items())
        )
        self.why = f"{self._limit}; this level is the best of those tried: {made}{self._rates(best)}"

    def _rates(self, at: int) -> str:
        """What a choice is based on: what the link carries, and how fast a core gets through records."""
        core_rate = self._made[at].core_rate
        link = f"; {self._link_rate / 1e6:.1f} MB/s over the link" if self._link_known else ""
        return link + (f"; one core handles {core_rate / 1e6:.0f} MB/s" if core_rate < math.inf else "")

    def _learn_made(self, spent: Spent, good_until: float) -> None:
        self._made[self._at] = Made(
            core_rate=spent.records_bytes / spent.sealed if spent.sealed else math.inf,
            share=spent.wire_bytes / spent.records_bytes,
            good_until=good_until,
        )

    def _learn_link_rate(self, carried: float, *, full: bool) -> None:
        """The link has carried this much. If it was full it carries no more; otherwise that is not known."""
        if full or carried > self._link_rate * MORE:
            self._link_known = full
        if full:
            self._link_rate = carried
        elif not self._link_known:
            self._link_rate = max(self._link_rate, carried * TIMES)
        if self._level(0) == STORED:
            self._made[0] = Made(core_rate=math.inf, share=1.0, good_until=math.inf)

    def _untried(self, *, full: bool) -> int | None:
        """A step to try that was not measured; None if there is none.

        If compressing is the limit: the next lighter one. While the link is full: one next to a step that
        makes about as little as any, or the one that searches far back, which no other tells anything about.
        Not while the step that makes least is too slow already; and not above a level that made no less than
        the one below it.
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
        """Whether a step above this one may make less: not if this one makes no less than those below it that
        search far back, too.
        """
        below = [made.share for lower, made in self._made.items() if self._long <= lower < at]
        return not below or self._made[at].share < min(below)

    def _best(self) -> int:
        return _lightest({at: self._made[at].share for at in self._good()})

    def _good(self) -> list[int]:
        """The steps that carry about as much as the best one."""
        rates = {at: made.rate(self._link_rate) for at, made in self._made.items()}
        return [at for at, rate in rates.items() if rate >= ALIKE * max(rates.values())]

    def _compresses(self, at: int) -> bool:
        return 0 <= at < len(self._steps) and self._level(at) != STORED

    def _level(self, at: int) -> int:
        return self._steps[at].compression.level


def _limit(spent: Spent, period: float) -> str:
    """What limited a channel in a period; empty if nothing did."""
    if spent.held > max(spent.waited, HELD_ABOVE * period):
        return MIRROR
    if spent.waited + spent.sealed < OCCUPIED_ABOVE * period:
        return ""
    if spent.waited > WAITING_ABOVE * period or spent.dry < DRY_ABOVE * spent.sealed:
        return LIMITED if spent.paced > PACED_ABOVE * spent.waited else FULL
    return CORE


def _lightest(shares: Mapping[int, float]) -> int:
    """The lightest of the steps that make about as little as any."""
    least = min(shares.values())
    return min(at for at, share in shares.items() if ALIKE * share <= least)


def _at(compression: Compression, steps: Sequence[Step]) -> int:
    """The first step that compresses as hard as this, or the one that compresses hardest."""
    return next((at for at, step in enumerate(steps) if step.compression >= compression), len(steps) - 1)


def _words(compression: Compression) -> str:
    over = f" over {compression.long_bytes >> 20} MiB" if compression.long_bytes else ""
    return f"level {compression.level}{over}"


def is_near(round_trip_seconds: float | None, rate: float | None) -> bool:
    """Whether sending more bytes to a mirror costs nothing: it is at the same place, and no rate is set."""
    return rate is None and round_trip_seconds is not None and round_trip_seconds < NEAR_SECONDS
