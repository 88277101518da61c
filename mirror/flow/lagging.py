"""Which partitions lag, and why: all are looked at a few times within the stated lag.

While a partition is copied, only this module turns ACTIVE into LAGGING and back.
Status, metrics and the log show what was concluded here, whether or not anybody asks.

``now`` and ``*_at`` are readings of one monotonic clock in seconds, ``now_ms`` is the
wall clock in milliseconds since 1970.

Sources: docs/states.md, :mod:`monitoring.objectives`, :mod:`monitoring.outlook`.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import structlog

from mirror.flow.context import Flow
from mirror.flow.outlook import Outlooks, Projection, catching_up, forgetting, losing
from mirror.flow.partition import COPIED, PartitionCopy
from mirror.kafka.fetch import Isolation
from mirror.model import Reason, State
from monitoring.objectives import Progress, lag_records, lag_seconds, lag_state, late_seconds
from monitoring.outlook import is_near
from monitoring.tombstones import Tombstones, loss_is_near, safety

log = structlog.get_logger(__name__)

NOTHING_KNOWN = Progress(None, None, None, None, None)
LOOK_SECONDS_MAX = 1.0
LOOKS_WITHIN_LAG = 4
UNHEARD_WAITS, UNHEARD_SECONDS = 3, 1.0
"""A broker holds a request back for one wait at most, and a relay speaks at least once per wait of its own:
after this many waits, and a second, nobody is there.
"""
PROMPT_SECONDS = 0.5
"""A source that can be reached reports again within one wait and this."""

NEAR_SAID_SECONDS = 300.0
"""How often, at most, it is logged that records, or deletes, are about to be lost."""
NEAR = (Reason.RETENTION_NEAR, Reason.COMPACTION_NEAR)
WAITING = frozenset({State.PAUSED, State.BLOCKED})
"""Nothing is copied of these for now; retention at the source does not wait."""

Behind = tuple[Reason, str]
"""Why a partition lags, also in words."""


@dataclass(frozen=True, slots=True)
class Lag:
    """How far behind one partition is; None is unknown, never zero.

    Attributes:
        seconds: Since nothing was missing; never 0, as that moment is always past.
        late_seconds: The part of ``seconds`` that counts against the copy: 0 while a source that reports as
            often as it should says that nothing is missing.
        progress: What this was concluded from.
    """

    records: int | None
    seconds: float | None
    late_seconds: float | None
    progress: Progress

    @property
    def heard_at(self) -> float | None:
        """When the source last reported news of the partition, or that there are none."""
        return self.progress.heard_at


@dataclass(frozen=True, slots=True)
class Danger:
    """A loss that is near: why, in how many seconds, and in words."""

    reason: Reason
    seconds: float
    detail: str


class LagMeter:
    """Measures partitions of one flow.

    Attributes:
        fresh_seconds: A source that reports nothing for this long is silent, and what it said before no
            longer counts as known.
        prompt_seconds: How old its report that nothing is missing may be for the copy not to be late.

    Args:
        answered_at: When the source last reported on a partition; None while that is not being read.
        arriving_at: When the last piece arrived of what may be its next report; None if none is in transit.
    """

    def __init__(
        self,
        flow: Flow,
        answered_at: Callable[[PartitionCopy], float | None],
        arriving_at: Callable[[PartitionCopy], float | None],
    ) -> None:
        self._flow = flow
        self._answered_at = answered_at
        self._arriving_at = arriving_at
        wait_seconds = flow.limits.fetch.wait_ms_max / 1000
        self.fresh_seconds = UNHEARD_WAITS * wait_seconds + UNHEARD_SECONDS
        self.prompt_seconds = wait_seconds + PROMPT_SECONDS
        self._ahead_ms = 0

    def measure(self, p: PartitionCopy, *, now: float, now_ms: int) -> Lag:
        """How far behind the partition is now. Nothing is known of one that another mirror copies, or whose
        topic is gone.
        """
        if p.copied_elsewhere or p.topic_gone:
            return Lag(None, None, None, NOTHING_KNOWN)
        progress = Progress(
            p.next_offset,
            self._end(p),
            self._heard_at(p),
            p.complete_at,
            self._by_our_clock(p.last_timestamp_ms),
            p.empty_at,
            p.source_high_watermark,
        )
        records = lag_records(progress, now=now, fresh_seconds=self.fresh_seconds)
        seconds = lag_seconds(progress, now=now, now_ms=now_ms)
        late = late_seconds(progress, seconds, now=now, prompt_seconds=self.prompt_seconds)
        return Lag(records, seconds, late, progress)

    def _by_our_clock(self, timestamp_ms: int | None) -> int | None:
        """A record's timestamp by our clock, or an earlier time: records carry the time of the source's site.

        Where the relay's clock was last measured to be ahead of ours, the site's may be too, and its records
        are older than they look. Where it is behind, that may be true of the relay alone: nothing is changed.
        """
        stream = self._flow.stream
        measured_ms = stream.clock_offset_ms if stream is not None else None
        if measured_ms is not None:
            self._ahead_ms = max(int(measured_ms), 0)
        if timestamp_ms is None or timestamp_ms < 0:
            return timestamp_ms
        return max(timestamp_ms - self._ahead_ms, 0)

    def idle(self, p: PartitionCopy, now: float) -> bool:
        """True when all is copied, as the source just reported: a cheap test that most partitions pass."""
        end = p.source_high_watermark
        if end is None or p.next_offset != end or p.source_last_stable_offset != end:
            return False
        heard_at = self._answered_at(p)
        return heard_at is not None and now - heard_at <= self.fresh_seconds

    def _heard_at(self, p: PartitionCopy) -> float | None:
        """When the source last reported on it, in whatever way; while it is copied, a look counts too."""
        answered_at = self._answered_at(p)
        if answered_at is not None or not p.copying:
            return answered_at
        return max((at for at in (p.told_at, p.looked_at) if at is not None), default=None)

    def _end(self, p: PartitionCopy) -> int | None:
        """Where the source lets a reader go; None if unknown. It is never above the high watermark, so a copy
        that has reached that needs to know no more.
        """
        high_watermark, last_stable = p.source_high_watermark, p.source_last_stable_offset
        if self._flow.limits.fetch.isolation is Isolation.READ_UNCOMMITTED:
            return high_watermark
        if last_stable is None and high_watermark is not None and (p.next_offset or 0) >= high_watermark:
            return high_watermark
        return last_stable

    def silent(self, p: PartitionCopy, lag: Lag, now: float) -> bool:
        """Whether the source should have answered by now.

        Without room nothing is asked, and nothing heard; over a slow link an answer takes time. A batch that
        was acknowledged is a sign of life too, though it may have been in transit for long.
        """
        limits, pool = self._flow.limits, self._flow.pool
        crowded = pool.used_bytes + limits.fetch.bytes_max > limits.buffer_bytes_max
        if not p.copying or crowded or p.queue.bytes or p.in_flight:
            return False
        signs = [at for at in (lag.heard_at, self._arriving_at(p), p.acknowledged_at) if at is not None]
        return now - max(signs) > self.fresh_seconds


class LagWatch:
    """Turns partitions that are copied from ACTIVE to LAGGING and back, and warns of losses that are near.

    Args:
        tombstones: How long a source topic keeps tombstones.
        lagging_seconds: The stated lag.
        near_seconds: A loss that is further away is not near.
        changed: Called with every partition whose state or reason has changed.
    """

    def __init__(
        self,
        meter: LagMeter,
        outlooks: Outlooks,
        tombstones: Callable[[str], Tombstones],
        *,
        lagging_seconds: float,
        near_seconds: float,
        changed: Callable[[PartitionCopy], None],
    ) -> None:
        self._meter = meter
        self._outlooks = outlooks
        self._tombstones = tombstones
        self._lagging_seconds = lagging_seconds
        self._near_seconds = near_seconds
        self._changed = changed
        self._held: dict[PartitionCopy, tuple[int, float]] = {}
        """The offset at which open transactions hold a partition back, and since when."""
        self._near: list[tuple[PartitionCopy, Danger]] = []
        """Which partitions are about to lose something, as this look finds."""
        self._warned_at = dict.fromkeys(NEAR, -math.inf)

    async def run(
        self, partitions: Callable[[], Iterable[PartitionCopy]], beat: Callable[[float], None]
    ) -> None:
        """Look again and again until cancelled; ``beat`` is called with the time of each look."""
        pause = min(LOOK_SECONDS_MAX, self._lagging_seconds / LOOKS_WITHIN_LAG)
        while True:
            now = time.monotonic()
            self.look(partitions(), now=now, now_ms=int(time.time() * 1000))
            beat(now)
            await asyncio.sleep(pause)

    def look(self, partitions: Iterable[PartitionCopy], *, now: float, now_ms: int) -> None:
        """Conclude once for each partition that is copied; the others keep their state."""
        self._near = []
        for p in partitions:
            if p.state not in COPIED:
                self._held.pop(p, None)
                if p.state is State.UNKNOWN:
                    continue  # soon it is what it was, or something else
                if p.state not in WAITING or p.topic_gone:
                    self._outlooks.forget(p)
                else:
                    self._outlooks.stand(p, now)
                    self._project(p, p.state, self._meter.measure(p, now=now, now_ms=now_ms), now, now_ms)
                continue
            in_order = p.state is State.ACTIVE and self._meter.idle(p, now)
            if in_order and not self._outlooks.wants(p, now):
                continue
            before = (p.state, p.reason)
            p.measured(self._conclude(p, now, now_ms))
            if (p.state, p.reason) != before:
                self._changed(p)
        self._warn_of(Reason.RETENTION_NEAR, "retention_loss_near", now)
        self._warn_of(Reason.COMPACTION_NEAR, "tombstone_loss_near", now)

    def forget(self, p: PartitionCopy) -> None:
        """The partition is not looked at any more."""
        self._held.pop(p, None)
        self._outlooks.forget(p)

    def _conclude(self, p: PartitionCopy, now: float, now_ms: int) -> Behind | None:
        """Why the partition lags; None if it does not."""
        lag = self._meter.measure(p, now=now, now_ms=now_ms)
        if p.copying:
            self._outlooks.note(p, lag.progress, now=now, now_ms=now_ms)
        silent = self._meter.silent(p, lag, now)
        held = not silent and now - self._held_since(p, now) > self._lagging_seconds
        unheard = silent and lag.seconds is None and now - p.acknowledged_at > self._lagging_seconds
        late = lag.late_seconds
        state = lag_state(lag.records, late, before=p.state, lagging_seconds=self._lagging_seconds)
        state = State.LAGGING if held or unheard else state
        projection, dangers = self._project(p, state, lag, now, now_ms)
        if held:
            return Reason.OPEN_TRANSACTION, _held_back(p)
        if state is State.ACTIVE:
            return None
        if silent:
            return Reason.SOURCE_UNAVAILABLE, _unheard(p, lag, now, now_ms)
        if lag.progress.held_back:
            return Reason.CATCHING_UP, _held_back(p)
        words = f"{lag.records} offsets behind" if lag.records else "it is not being read at the moment"
        if dangers:
            return dangers[0].reason, f"{words}; {dangers[0].detail}"
        return Reason.CATCHING_UP, words + (catching_up(projection) if lag.records else "")

    # -- losses that are near --------------------------------------------------------------------

    def _project(
        self, p: PartitionCopy, state: State, lag: Lag, now: float, now_ms: int
    ) -> tuple[Projection, Sequence[Danger]]:
        """What is to be expected, and which of it is a loss to warn of, the worst first.

        Args:
            state: The state that follows from ``lag``; ``p`` may still have the previous one.
        """
        projection = self._outlooks.project(p, state, lag.progress, lag, now=now, now_ms=now_ms)
        held_back = lag.progress.held_back
        if lag.records == 0 and not held_back:
            return projection, ()
        found = [self._retention_danger(p, projection)]
        if not held_back:  # the cleaner does not pass what a transaction holds back; retention does
            found.append(self._compaction_danger(p, lag, projection, now))
        dangers = [danger for danger in found if danger is not None]
        self._near.extend((p, danger) for danger in dangers)
        return projection, dangers

    def _retention_danger(self, p: PartitionCopy, projection: Projection) -> Danger | None:
        loss, before = projection.retention_loss_seconds, p.reason is Reason.RETENTION_NEAR
        if not is_near(loss, projection.catch_up_seconds, within_seconds=self._near_seconds, before=before):
            return None
        return Danger(Reason.RETENTION_NEAR, loss or 0.0, losing(projection))

    def _compaction_danger(
        self, p: PartitionCopy, lag: Lag, projection: Projection, now: float
    ) -> Danger | None:
        safe = safety(lag.progress, lag.late_seconds, self._tombstones(p.tp.topic), now=now)
        before, catch_up = p.reason is Reason.COMPACTION_NEAR, projection.catch_up_seconds
        if safe is None or (_just_begun(lag, projection) and not before):
            return None
        if not loss_is_near(safe, catch_up, within_seconds=self._near_seconds, before=before):
            return None
        left = safe.left_seconds
        return Danger(Reason.COMPACTION_NEAR, left, forgetting(left, catch_up))

    def _warn_of(self, reason: Reason, event: str, now: float) -> None:
        """One line for all partitions with the same danger, now and then: the first to lose, and how many."""
        near = [(danger, p) for p, danger in self._near if danger.reason is reason]
        if not near or now - self._warned_at[reason] < NEAR_SAID_SECONDS:
            return
        self._warned_at[reason] = now
        danger, first = min(near, key=lambda one: one[0].seconds)
        log.warning(
            event,
            topic=first.tp.topic,
            partition=first.tp.partition,
            next_offset=first.next_offset,
            detail=danger.detail,
            partitions=len(near),
            topics=len({p.tp.topic for _, p in near}),
        )

    def _held_since(self, p: PartitionCopy, now: float) -> float:
        """Since when everything that may be read is copied while something after it may not be read; ``now``
        if that is not so. It still holds while it is briefly unknown how far one may read.
        """
        held_at, _ = self._held.get(p, (None, now))
        end = held_at if p.source_last_stable_offset is None else p.source_last_stable_offset
        high_watermark = p.source_high_watermark
        waits = end is not None and high_watermark is not None and p.next_offset == end < high_watermark
        if not waits or end is None:
            self._held.pop(p, None)
            return now
        if held_at != end:
            self._held[p] = (end, now)
        return self._held[p][1]


def _just_begun(lag: Lag, projection: Projection) -> bool:
    """Whether the copy has just begun: within seconds its pace will be known."""
    return (
        projection.state is State.LAGGING and bool(lag.records) and projection.pace.copied_per_second is None
    )


def _held_back(p: PartitionCopy) -> str:
    held = f"offsets {p.next_offset} to {p.source_high_watermark}"
    return f"{held} wait for the end of a transaction"


def _unheard(p: PartitionCopy, lag: Lag, now: float, now_ms: int) -> str:
    """What the way to the source has reported since it was last heard; if nothing, since when it was not."""
    reported, heard_at = p.unheard, lag.heard_at
    if reported is not None and (heard_at is None or reported.at >= heard_at):
        return reported.why
    if heard_at is None:
        return "the source has not answered yet"
    answered = time.gmtime(now_ms / 1000 - (now - heard_at))
    return f"the source has not answered since {time.strftime('%H:%M:%S', answered)} UTC"
