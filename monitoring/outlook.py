"""When a copy that is behind will have caught up, and when retention will overtake it, at the present pace.

A projection is a number of seconds, ``math.inf`` where what it speaks of never comes at this pace, and None
where it is not known. It holds as long as everything goes on as in the last half minute to minute.

``at`` and ``*_at`` are readings of one monotonic clock in seconds, ``*_per_second`` are source offsets a
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
"""A pace is that of the time since half of this ago at least, and all of it at most."""
SPAN_SECONDS_MIN = 5.0
"""Of less no pace is told."""
NEAR_FACTOR, NOT_NEAR_FACTOR = 2.0, 3.0
"""A loss is near when it comes before twice the time the copy needs, and until that is three times."""
NOT_NEAR_SHARE = 1.5
"""Likewise a loss that was near is near until it is so much further away than the bound."""
NO_LIMIT = -1
"""As Kafka writes it in ``retention.ms`` and ``retention.bytes``."""


class Retention(NamedTuple):
    """What a source topic keeps: Kafka's own settings; negative for no limit, None when not known."""

    ms: int | None = None
    bytes: int | None = None


class Sample(NamedTuple):
    """One partition at one moment.

    Attributes:
        heard_at: When the source last told ``end``; None when it never did.
        end: Where the source lets a reader go.
        log_start_offset: The source's.
        lost_offsets: Given up so far: passing over them is no copying.
        age_seconds: Of the oldest record not copied, at most; see :func:`age_seconds`.
    """

    at: float
    heard_at: float | None
    end: int | None
    next_offset: int
    log_start_offset: int | None
    lost_offsets: int
    age_seconds: float | None


class Moves(NamedTuple):
    """What was seen of a log start: it goes in leaps, a segment at a time.

    Attributes:
        first_at, first_offset: The first leap that was seen, and where it led.
        last_at, last_offset: The last one.
    """

    first_at: float
    first_offset: int
    last_at: float
    last_offset: int


@dataclass(frozen=True, slots=True)
class Trail:
    """Three samples of one partition: enough for a pace over a window that slides by half of its length."""

    older: Sample
    newer: Sample
    latest: Sample
    moves: Moves | None = None

    @classmethod
    def begun(cls, sample: Sample) -> Self:
        """Nothing is known of the time before."""
        return cls(sample, sample, sample)

    def then(self, sample: Sample) -> Trail:
        """One sample further; begun anew where it does not go on from the last one."""
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
        """Nothing was produced or copied for as long as the window is at least."""
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
    """How fast a partition and its copy go; None where that is not known.

    Attributes:
        produced_per_second: At the source; markers and compacted offsets count.
        copied_per_second: Of the copy.
        ageing: Seconds by which the oldest record not copied becomes older in a second: 1 where nothing is
            copied, 0 where the copy goes through the source's time as fast as it passes, below where faster.
        removed_per_second: Of the start of the source's log.
    """

    produced_per_second: float | None = None
    copied_per_second: float | None = None
    ageing: float | None = None
    removed_per_second: float | None = None


UNKNOWN_PACE = Pace()


def pace(trail: Trail | None, *, now: float) -> Pace:
    """How fast it goes, by what was seen.

    What is produced is not known of a source that was not heard for half of the window. A log that was seen
    to leap once loses as much as is produced, and one that never was loses an unknown number.
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
    """The pace of a copy that is not going on, whatever it was."""
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
    """Upper bound of the age of the oldest record not copied, the better of two; 0 if none is missing.

    It was appended after the last moment at which the copy was complete, and after the newest one that was
    copied. The first is a bound of what retention counts as long as records are appended soon after their
    timestamps, the second as long as they are appended in the order of them.
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


def catch_up_seconds(behind_records: int | None, going: Pace, *, in_time: bool) -> float | None:
    """When nothing will be missing any more.

    Args:
        behind_records: From :func:`monitoring.objectives.lag_records`.
        in_time: The copy is known to be complete, or within the stated lag.

    Returns:
        Seconds; 0 for a copy that is in time; ``math.inf`` for one that gains nothing. None where an open
        transaction holds back what is missing: when it ends is not known.
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
    return behind_records / (copied - produced) if copied > produced else math.inf


def retention_loss_seconds(
    sample: Sample, going: Pace, retention: Retention, *, complete: bool
) -> float | None:
    """When the oldest record not copied will be removed at the source, if both go on at this pace.

    By age: that record has ``retention.ms`` less its age left, and loses :attr:`Pace.ageing` of it a second.
    A copy that does not age escapes, even if what it copies just now may go at any moment. Records are
    removed by whole segments, so this comes early rather than late: by up to the time a segment covers.

    By size: the log's start comes nearer by what it goes faster than the copy. It goes in leaps of a segment,
    so this is right to a segment either way, where records at the start are as large as those at the end.

    Args:
        complete: Nothing is missing, as the source has just said.

    Returns:
        Seconds, the sooner of the two; ``math.inf`` where neither comes at this pace; None where nothing can
        be told, or one is not known and the other does not come.
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
    """Whether a projected loss is for somebody to know of: it comes within the bound, and no copy in time.

    Args:
        loss: From :func:`retention_loss_seconds`.
        catch_up: From :func:`catch_up_seconds`; not known is not in time.
        within_seconds: The bound.
        before: It was near until now; it has to go some way to be so no longer.
    """
    if loss is None or loss > within_seconds * (NOT_NEAR_SHARE if before else 1.0):
        return False
    factor = NOT_NEAR_FACTOR if before else NEAR_FACTOR
    return catch_up is None or loss < catch_up * factor


# -- of several partitions -----------------------------------------------------------------------------


def soonest(projections: Iterable[float | None]) -> float | None:
    """The first to come; that some are not known does not make it later. None only where none is a number."""
    every = list(projections)
    numbers = [one for one in every if one is not None and math.isfinite(one)]
    if numbers:
        return min(numbers)
    return None if None in every else math.inf


def last(projections: Iterable[float | None]) -> float | None:
    """The last to come: never where one never does, not known where one is not; 0 of none at all."""
    every = list(projections)
    if math.inf in every:
        return math.inf
    return None if None in every else max((one for one in every if one is not None), default=0.0)


def total(figures: Iterable[float | None]) -> float | None:
    """Of all together; None where one is not known."""
    every = list(figures)
    return None if None in every else sum(one for one in every if one is not None)
