"""When a copy that is behind will have caught up, and when retention will overtake it, at the present pace.

A projection is a number of seconds; ``math.inf`` if the event never comes at this pace, None if it is not
known. It holds as long as everything goes on as in the last half minute to minute.

``at`` and ``*_at`` are readings of one monotonic clock in seconds, ``*_per_second`` are source offsets per
second, ``*_seconds`` are durations. Pure: clocks are arguments.

Sources: docs/metrics.md, docs/states.md; Kafka's ``LogConfig`` (``retention.ms``, ``retention.bytes``).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

from monitoring.objectives import LEAST_SECONDS, Progress

WINDOW_SECONDS = 60.0
"""A pace is measured over at least half of this time, if there is as much, and at most all of it."""
SPAN_SECONDS_MIN = 5.0
"""Over less time no pace is measured."""
NEAR_FACTOR, NOT_NEAR_FACTOR = 2.0, 3.0
"""A loss is near if it comes before twice the time the copy needs, and stays near up to three times."""
NOT_NEAR_SHARE = 1.5
"""Likewise a loss that was near stays near until it is this many times as far away as the bound."""
NO_LIMIT = -1
"""As Kafka writes it in ``retention.ms`` and ``retention.bytes``."""


class Retention(NamedTuple):
    """How much a source topic keeps: Kafka's own settings; negative for no limit, None if not known."""

    ms: int | None = None
    bytes: int | None = None


class Sample(NamedTuple):
    """One partition at one moment.

    Attributes:
        heard_at: When the source last reported ``end``; None if it never did.
        end: Up to where the source lets a reader go.
        log_start_offset: The start of the source's log.
        lost_offsets: Source offsets given up so far: skipping them is not copying.
        age_seconds: Upper bound of the age of the oldest record not copied; see :func:`age_seconds`.
    """

    at: float
    heard_at: float | None
    end: int | None
    next_offset: int
    log_start_offset: int | None
    lost_offsets: int
    age_seconds: float | None


class Moves(NamedTuple):
    """How a log start was seen to move: in leaps, a segment at a time.

    Attributes:
        first_at, first_offset: When the first leap was seen, and the log start after it.
        last_at, last_offset: The same for the last leap.
    """

    first_at: float
    first_offset: int
    last_at: float
    last_offset: int


@dataclass(frozen=True, slots=True)
class Trail:
    """Three samples of one partition: enough for a pace over a window that slides by half its length."""

    older: Sample
    newer: Sample
    latest: Sample
    moves: Moves | None = None

    @classmethod
    def begun(cls, sample: Sample) -> Self:
        """A trail that begins with this sample."""
        return cls(sample, sample, sample)

    def then(self, sample: Sample) -> Trail:
        """The trail with one more sample; a new trail if the sample does not continue from the last one."""
        if self._is_broken_by(sample):
            return Trail.begun(sample)
        moves = _moved(self.moves, self.latest, sample)
        if sample.at - self.newer.at < WINDOW_SECONDS / 2:
            return Trail(self.older, self.newer, sample, moves)
        return Trail(self.newer, sample, sample, moves)

    def _is_broken_by(self, sample: Sample) -> bool:
        before = self.latest
        return (
            sample.at - before.at > WINDOW_SECONDS / 2
            or sample.next_offset < before.next_offset
            or sample.lost_offsets != before.lost_offsets
            or (self.older.end is before.end is None and sample.end is not None)
            or (self.older.age_seconds is before.age_seconds is None and sample.age_seconds is not None)
        )

    @property
    def stands_still(self) -> bool:
        """Whether nothing was produced or copied for half the window or longer."""
        first, last = self.older, self.latest
        same = (first.end, first.next_offset) == (last.end, last.next_offset)
        return same and last.at - first.at >= WINDOW_SECONDS / 2


def _moved(moves: Moves | None, before: Sample, sample: Sample) -> Moves | None:
    start, then = sample.log_start_offset, before.log_start_offset
    if start is None or then is None or start <= then:
        return moves
    if moves is None:
        return Moves(sample.at, start, sample.at, start)
    return moves._replace(last_at=sample.at, last_offset=start)


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast a partition and its copy move; None if not known.

    Attributes:
        produced_per_second: Offsets produced at the source; markers and compacted offsets count.
        copied_per_second: Offsets copied.
        ageing: Seconds by which the oldest record not copied ages in a second: 1 if nothing is copied, 0 if
            the copy advances through record time as fast as time passes, negative if faster.
        removed_per_second: Offsets by which the start of the source's log moves.
    """

    produced_per_second: float | None = None
    copied_per_second: float | None = None
    ageing: float | None = None
    removed_per_second: float | None = None


UNKNOWN_PACE = Pace()


def pace(trail: Trail | None, *, now: float) -> Pace:
    """The pace, according to a trail.

    What is produced is not known if the source was not heard for half the window. A log start that was seen
    to leap once is assumed to move as fast as is produced; the pace of one that never did is not known.
    """
    if trail is None or trail.latest.at - trail.older.at < SPAN_SECONDS_MIN:
        return UNKNOWN_PACE
    first, last = trail.older, trail.latest
    span = last.at - first.at
    produced = _produced(first, last, now)
    ageing = None
    if first.age_seconds is not None and last.age_seconds is not None:
        ageing = min((last.age_seconds - first.age_seconds) / span, 1.0)
    copied = (last.next_offset - first.next_offset) / span
    return Pace(produced, copied, ageing, _removed(trail.moves, produced))


def standing_still(behind: Pace) -> Pace:
    """The pace of the partition if its copy stopped."""
    return replace(behind, copied_per_second=0.0, ageing=1.0)


def _produced(first: Sample, last: Sample, now: float) -> float | None:
    if first.heard_at is None or last.heard_at is None or first.end is None or last.end is None:
        return None
    span = last.heard_at - first.heard_at
    if span < SPAN_SECONDS_MIN or now - last.heard_at > WINDOW_SECONDS / 2:
        return None
    return max(last.end - first.end, 0) / span


def _removed(moves: Moves | None, produced: float | None) -> float | None:
    if moves is None:
        return None
    span = moves.last_at - moves.first_at
    return (moves.last_offset - moves.first_offset) / span if span >= SPAN_SECONDS_MIN else produced


def age_seconds(progress: Progress, *, now: float, now_ms: int, fresh_seconds: float) -> float | None:
    """Upper bound of the age of the oldest record not copied, the lower of two; 0 if none is missing.

    That record was appended after the last moment at which the copy was complete, and after the newest record
    that was copied. The first bounds the age that retention counts if records are appended soon after their
    timestamps, the second if they are appended in timestamp order.

    Returns:
        Seconds; None if neither is known.
    """
    if progress.complete and progress.fresh(now, fresh_seconds):
        return 0.0
    bounds = []
    complete_at = progress.heard_at if progress.complete else progress.complete_at
    if complete_at is not None:
        bounds.append(now - complete_at)
    timestamp_ms = progress.last_timestamp_ms
    if timestamp_ms is not None and 0 <= timestamp_ms < now_ms:
        bounds.append((now_ms - timestamp_ms) / 1000)
    return max(min(bounds), LEAST_SECONDS) if bounds else None


def produced_since(progress: Progress, going: Pace, *, now: float) -> float:
    """How many offsets the source has produced at this pace since its last answer; 0 if that is not known."""
    if progress.heard_at is None:
        return 0.0
    return (going.produced_per_second or 0.0) * max(now - progress.heard_at, 0.0)


def catch_up_seconds(
    behind_records: int | None, going: Pace, *, in_time: bool, unheard_records: float = 0.0
) -> float | None:
    """How long until nothing is missing any more.

    Args:
        behind_records: From :func:`monitoring.objectives.lag_records`.
        in_time: The copy is known to be complete, or within the stated lag.
        unheard_records: From :func:`produced_since`; over a slow link that may be most of what is missing.

    Returns:
        Seconds; 0 for a copy that is in time; ``math.inf`` for one that does not gain. None if the lag or the
        pace is not known, or if an open transaction holds back what is missing: nobody knows when it ends.
    """
    if in_time:
        return 0.0
    copied, produced = going.copied_per_second, going.produced_per_second
    if not behind_records or copied is None:
        return None
    if copied == 0:
        return math.inf
    if produced is None:
        return None
    missing = behind_records + unheard_records
    return missing / (copied - produced) if copied > produced else math.inf


def retention_loss_seconds(
    sample: Sample, going: Pace, retention: Retention, *, complete: bool
) -> float | None:
    """How long until the oldest record not copied is removed at the source, if both go on at this pace.

    By age: that record has ``retention.ms`` less its age left, and loses :attr:`Pace.ageing` of that per
    second. A copy that does not age escapes, even if what it is copying may go at any moment. Records are
    removed in whole segments, so this is early rather than late, by up to the time a segment covers.

    By size: the log start approaches by the difference between its pace and the copy's. It moves in leaps of
    a segment, so this is right to a segment either way, if records at the start are as large as at the end.

    Args:
        complete: Nothing is missing, as the source has just said.

    Returns:
        Seconds, the sooner of the two, and 0 if the log start has passed the copy; ``math.inf`` if neither
        comes at this pace; None if neither is known, or one is not and the other does not come.
    """
    start = sample.log_start_offset
    if start is not None and start > sample.next_offset:
        return 0.0
    if complete:
        return math.inf
    by_age = _loss_by_age(sample.age_seconds, going, retention.ms)
    return soonest((by_age, _loss_by_size(sample, going, retention.bytes)))


def _loss_by_age(age: float | None, going: Pace, retention_ms: int | None) -> float | None:
    if retention_ms is not None and retention_ms < 0:
        return math.inf
    if retention_ms is None or age is None or going.ageing is None:
        return None
    return max(retention_ms / 1000 - age, 0.0) / going.ageing if going.ageing > 0 else math.inf


def _loss_by_size(sample: Sample, going: Pace, retention_bytes: int | None) -> float | None:
    if retention_bytes is not None and retention_bytes < 0:
        return math.inf
    copied, produced, removed = going.copied_per_second, going.produced_per_second, going.removed_per_second
    if retention_bytes is None or sample.log_start_offset is None or copied is None:
        return None
    if removed is None:
        gaining = produced is not None and copied > 0 and copied >= produced
        return math.inf if gaining else None
    distance = sample.next_offset - sample.log_start_offset
    return distance / (removed - copied) if removed > copied else math.inf


def is_near(loss: float | None, catch_up: float | None, *, within_seconds: float, before: bool) -> bool:
    """Whether to warn of a projected loss: it comes within the bound, and the copy is not in time by far.

    Args:
        loss: From :func:`retention_loss_seconds`.
        catch_up: From :func:`catch_up_seconds`; None counts as too slow.
        within_seconds: The bound.
        before: It was near until now; then it has to recede some way to be near no longer.
    """
    if loss is None or loss > within_seconds * (NOT_NEAR_SHARE if before else 1.0):
        return False
    factor = NOT_NEAR_FACTOR if before else NEAR_FACTOR
    return catch_up is None or loss < catch_up * factor


# -- of several partitions -----------------------------------------------------------------------------


def soonest(projections: Iterable[float | None]) -> float | None:
    """The first to come of those that are known. If no number is among them: None if one is not known, else
    ``math.inf``.
    """
    every = list(projections)
    numbers = [one for one in every if one is not None and math.isfinite(one)]
    if numbers:
        return min(numbers)
    return None if None in every else math.inf


def last(projections: Iterable[float | None]) -> float | None:
    """The last to come: ``math.inf`` if one is; else None if one is not known; 0 if there are none at all."""
    every = list(projections)
    if math.inf in every:
        return math.inf
    return None if None in every else max((one for one in every if one is not None), default=0.0)


def total(figures: Iterable[float | None]) -> float | None:
    """The sum; None if one of them is not known."""
    every = list(figures)
    return None if None in every else sum(one for one in every if one is not None)
