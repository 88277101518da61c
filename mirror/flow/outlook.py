"""When partitions will have caught up, and when retention at their source will overtake them.

A few numbers are kept of each partition that moves, and nothing of those that are idle and complete; so
thousands of idle partitions cost nothing here.

``now`` and ``*_at`` are readings of one monotonic clock in seconds, ``now_ms`` is the
wall clock in milliseconds since 1970.

Sources: :mod:`monitoring.outlook`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from mirror.flow.partition import PartitionCopy
from mirror.model import FlowOutlook, Forecast, Outlook, State
from monitoring.durations import duration
from monitoring.objectives import Progress
from monitoring.outlook import (
    SPAN_SECONDS_MIN,
    UNKNOWN_PACE,
    Pace,
    Retention,
    Sample,
    Trail,
    age_seconds,
    catch_up_seconds,
    last,
    pace,
    produced_since,
    retention_loss_seconds,
    soonest,
    standing_still,
    total,
)

GOING_ON = frozenset({State.UNKNOWN, State.STANDBY, State.ACTIVE, State.LAGGING})
NO_GAIN = Pace(0.0, 0.0)
"""The pace assumed for a partition in time whose own is unknown: it copies as much as is produced."""


class Behind(Protocol):
    """How far behind a partition is; None is unknown, never zero."""

    @property
    def records(self) -> int | None: ...

    @property
    def seconds(self) -> float | None: ...


@dataclass(frozen=True, slots=True)
class Projection:
    """What is to be expected of one partition; ``math.inf``: never at this pace, None: not known.

    Attributes:
        catch_up_seconds: Until nothing is missing; 0 for a partition in time.
        retention_loss_seconds: Until retention takes a record that is not copied; 0 in state DATA_LOSS.
        state: The partition's. One in DATA_LOSS has lost already and does not count for losses to come.
        headroom_seconds: Until retention takes the next record if nothing more is copied; 0 in DATA_LOSS.
        unheard_records: What is missing besides, by the pace: written since the source was last heard.
    """

    behind_records: int | None
    catch_up_seconds: float | None
    retention_loss_seconds: float | None
    pace: Pace
    state: State = State.ACTIVE
    headroom_seconds: float | None = None
    unheard_records: float = 0.0

    def status(self) -> Outlook:
        """The projection as the status shows it."""
        loss = self.retention_loss_seconds
        return Outlook(
            *_said(self.catch_up_seconds),
            *_said(loss),
            self.pace.produced_per_second,
            self.pace.copied_per_second,
        )


NOTHING_EXPECTED = Projection(None, None, None, UNKNOWN_PACE)
"""For a topic that is gone: in any state of its partitions, nothing more is copied or lost."""


class Stopped(NamedTuple):
    """What is known of a partition that is not being copied for now.

    Attributes:
        going: The pace at which the source's log start moved before it stopped; nothing is copied.
        retention: The topic's retention at that time.
        log_start_offset: The source's log start, as last reported.
        at: When it was last reported.
    """

    going: Pace
    retention: Retention
    log_start_offset: int | None
    at: float

    def log_start_by(self, now: float, next_offset: int) -> int | None:
        """The source's log start by now if it has moved on at this pace, at most ``next_offset``."""
        start, removed = self.log_start_offset, self.going.removed_per_second
        if start is None or not removed:
            return start
        return max(start, min(start + int(removed * (now - self.at)), next_offset))


class Outlooks:
    """The paces of one flow's partitions, and what follows from them.

    Args:
        retention: The retention of a source topic.
        fresh_seconds: The source's last answer counts for this long.
    """

    def __init__(self, retention: Callable[[str], Retention], *, fresh_seconds: float) -> None:
        self._retention = retention
        self._fresh_seconds = fresh_seconds
        self._trails: dict[PartitionCopy, Trail] = {}
        self._stopped: dict[PartitionCopy, Stopped] = {}
        self._before: dict[PartitionCopy, Stopped] = {}
        """Partitions that are copied again, as they were while stopped; until their log start moves."""

    def wants(self, p: PartitionCopy, now: float) -> bool:
        """Whether an idle partition is due for a sample: its last one is SPAN_SECONDS_MIN old, or it was
        stopped before.
        """
        trail = self._trails.get(p)
        return p in self._stopped or (trail is not None and now - trail.latest.at >= SPAN_SECONDS_MIN)

    def note(self, p: PartitionCopy, progress: Progress, *, now: float, now_ms: int) -> None:
        """Take a sample of a partition that is being copied."""
        stopped = self._stopped.pop(p, None)
        if stopped is not None and stopped.going.removed_per_second is not None:
            self._before[p] = stopped
        sample = self._sample(p, progress, now, now_ms)
        if sample is None:
            self._trails.pop(p, None)
            return
        before = self._trails.get(p)
        after = Trail.begun(sample) if before is None else before.then(sample)
        if self._nothing_missing(progress, now) and after.stands_still:
            self._trails.pop(p, None)
            self._before.pop(p, None)
        else:
            self._trails[p] = after

    def forget(self, p: PartitionCopy) -> None:
        """Drop the pace of a partition that is not being copied and may never be again."""
        self._trails.pop(p, None)
        self._stopped.pop(p, None)
        self._before.pop(p, None)

    def stand(self, p: PartitionCopy, now: float) -> None:
        """The partition is not being copied for now. Its log start is assumed to move on as before, until the
        source reports another one or its retention changes.
        """
        retention, start = self._retention(p.tp.topic), p.source_log_start_offset
        trail = self._trails.pop(p, None)
        if trail is not None:
            removed = self._with_before(p, pace(trail, now=trail.latest.at)).removed_per_second
            self._before.pop(p, None)
            going = standing_still(Pace(removed_per_second=removed))
            self._stopped[p] = Stopped(going, retention, trail.latest.log_start_offset, trail.latest.at)
        stopped = self._stopped.get(p)
        if stopped is None:
            return
        if stopped.retention != retention:
            del self._stopped[p]
            return
        told_at = max((at for at in (p.told_at, p.looked_at) if at is not None), default=stopped.at)
        if stopped.log_start_offset != start:
            self._stopped[p] = stopped._replace(log_start_offset=start, at=now)
        elif told_at > stopped.at:
            self._stopped[p] = stopped._replace(at=told_at)

    def project(
        self, p: PartitionCopy, state: State, progress: Progress, behind: Behind, *, now: float, now_ms: int
    ) -> Projection:
        """What is to be expected of a partition, by its progress at this moment.

        Args:
            state: Its state, by that progress.
            behind: How far behind it is. ACTIVE with a known lag counts as in time.
        """
        complete = self._nothing_missing(progress, now)
        going = self._pace(p, now, complete=complete)
        in_time = complete or (state is State.ACTIVE and behind.seconds is not None)
        unheard = produced_since(progress, going, now=now)
        catch_up = catch_up_seconds(behind.records, going, in_time=in_time, unheard_records=unheard)
        sample = self._sample(p, progress, now, now_ms)
        lost = state is State.DATA_LOSS and not p.copied_elsewhere
        loss = headroom = 0.0 if lost else None
        if sample is not None and loss is None:
            loss = retention_loss_seconds(sample, going, self._retention(p.tp.topic), complete=complete)
            headroom = self._headroom(p, sample, going, complete=False)
        return Projection(behind.records, catch_up, loss, going, state, headroom, unheard)

    def headroom_seconds(
        self, p: PartitionCopy, progress: Progress, *, now: float, now_ms: int
    ) -> float | None:
        """Seconds until retention, by time or by size, takes the next record if nothing more is copied;
        ``math.inf``: never, None: not known.
        """
        sample = self._sample(p, progress, now, now_ms)
        if sample is None:
            return None
        complete = self._nothing_missing(progress, now)
        return self._headroom(p, sample, self._pace(p, now, complete=complete), complete=complete)

    def _headroom(self, p: PartitionCopy, sample: Sample, going: Pace, *, complete: bool) -> float | None:
        return retention_loss_seconds(
            sample, standing_still(going), self._retention(p.tp.topic), complete=complete
        )

    def _nothing_missing(self, progress: Progress, now: float) -> bool:
        """Whether the source has just said so; what it said before it fell silent does not count."""
        return progress.complete and progress.fresh(now, self._fresh_seconds)

    def _pace(self, p: PartitionCopy, now: float, *, complete: bool) -> Pace:
        if p in self._trails:
            return self._with_before(p, pace(self._trails[p], now=now))
        if p in self._stopped:
            return self._stopped[p].going
        going_on = complete or p.copying or p.state in {State.UNKNOWN, State.STANDBY}
        return UNKNOWN_PACE if going_on else standing_still(UNKNOWN_PACE)

    def _with_before(self, p: PartitionCopy, going: Pace) -> Pace:
        """The pace; while the log start has not moved since the copy stopped, with its pace from before."""
        before = self._before.get(p)
        if before is None or going.removed_per_second is not None:
            return going
        if before.retention != self._retention(p.tp.topic):
            return going
        return replace(going, removed_per_second=before.going.removed_per_second)

    def _sample(self, p: PartitionCopy, progress: Progress, now: float, now_ms: int) -> Sample | None:
        if progress.next_offset is None:
            return None
        stopped, start = self._stopped.get(p), p.source_log_start_offset
        return Sample(
            now,
            progress.heard_at,
            progress.last_stable_offset,
            progress.next_offset,
            start if stopped is None else stopped.log_start_by(now, progress.next_offset),
            p.counters.lost_offsets,
            age_seconds(progress, now=now, now_ms=now_ms, fresh_seconds=self._fresh_seconds),
        )


def of_flow(projections: Sequence[Projection]) -> FlowOutlook:
    """What is to be expected of all partitions together; all is unknown if there are none.

    The backlog and its rates are those of the partitions in GOING_ON, which are not stopped.
    """
    if not projections:
        return FlowOutlook()
    together = [one for one in projections if one.state in GOING_ON]
    behind = total(one.behind_records for one in together) if together else None
    backlog_records = None if behind is None else int(behind)
    going = _together([_counted(one) for one in together])
    unheard = sum(one.unheard_records for one in together)
    backlog = catch_up_seconds(backlog_records, going, in_time=_in_time(together), unheard_records=unheard)
    to_lose = [one for one in projections if one.state is not State.DATA_LOSS]
    catch_up = last(one.catch_up_seconds for one in projections)
    return FlowOutlook(
        *_said(catch_up),
        *_said(soonest(one.retention_loss_seconds for one in to_lose)),
        going.produced_per_second,
        going.copied_per_second,
        backlog_records,
        *_said(backlog),
    )


def _together(paces: Sequence[Pace]) -> Pace:
    if not paces:
        return UNKNOWN_PACE
    return Pace(
        total(one.produced_per_second for one in paces), total(one.copied_per_second for one in paces)
    )


def _in_time(projections: Sequence[Projection]) -> bool:
    return bool(projections) and all(one.catch_up_seconds == 0 for one in projections)


def _counted(one: Projection) -> Pace:
    """The pace of a partition as it counts in the sum."""
    known = None not in {one.pace.produced_per_second, one.pace.copied_per_second}
    return one.pace if known or one.catch_up_seconds != 0 else NO_GAIN


def _said(seconds: float | None) -> tuple[Forecast, float | None]:
    if seconds is None:
        return Forecast.UNKNOWN, None
    return (Forecast.NEVER, None) if math.isinf(seconds) else (Forecast.EXPECTED, seconds)


# -- in words ------------------------------------------------------------------------------------------


def catching_up(projection: Projection) -> str:
    """How long catching up takes, to end a sentence that says how far behind the partition is."""
    seconds = projection.catch_up_seconds
    if seconds is None:
        return ""
    if math.isinf(seconds):
        return ", and not catching up at this pace"
    return f", caught up in {duration(seconds)} at this pace"


def losing(projection: Projection) -> str:
    """What is lost, and when. Call it only if the projected loss is a number."""
    seconds, catch_up = projection.retention_loss_seconds, projection.catch_up_seconds
    if seconds == 0:
        return "records that are not copied may be removed at any moment"
    return f"at this pace records are lost in {duration(seconds)}{_beside(seconds, catch_up)}"


def forgetting(headroom_seconds: float, catch_up: float | None) -> str:
    """Which deletes are missed, and when."""
    if headroom_seconds == 0:
        return "deletes that are not copied may be compacted away already"
    words = f"deletes that are not copied are safe from compaction for {duration(headroom_seconds)}"
    return words + _beside(headroom_seconds, catch_up)


def _beside(loss: float | None, catch_up: float | None) -> str:
    """Whether the loss comes before the partition has caught up, or not long after."""
    if catch_up is None:
        return ""
    if loss is not None and catch_up > loss:
        return ", before it has caught up"
    return f", not long after it has caught up in {duration(catch_up)}"
