"""How far behind a copy is, as numbers that never look better than the truth.

An age is an upper bound: a record that is not on the target was appended after the last moment at which the
copy was known to be complete. That moment is always past, so an age is never zero: nobody knows what the
source has taken since. A source that does not answer, a mirror that stands still or a clock that jumps can
make a figure larger, or unknown (None), but not smaller.

``*_at`` are readings of one monotonic clock in seconds, ``*_ms`` are Kafka record
timestamps, ``*_seconds`` are durations. Pure: clocks are arguments.

Sources: docs/metrics.md, docs/states.md.
"""

from __future__ import annotations

from dataclasses import dataclass

from mirror.model import State

CATCHING_UP_SHARE = 0.5
"""A lagging partition is ACTIVE again at or below this share of the bound, so that it does not flap."""
LEAST_SECONDS = 0.001
"""The lag of a copy that was complete this very moment."""


@dataclass(frozen=True, slots=True)
class Progress:
    """What is known of one partition's copy.

    Attributes:
        next_offset: Source offset of the next record to copy; None before the first look.
        last_stable_offset: Up to where the source lets a reader go, as last heard; None if it never said.
        heard_at: When the source last gave an answer that would have shown new records; None if it never did,
            or if the partition is not being read.
        complete_at: The last moment at which nothing was missing; None if there is none.
        last_timestamp_ms: Largest timestamp of the last batch copied; None, or negative, if there is none.
        empty_at: The last moment at which the copy was known to hold nothing; None if there is none.
        high_watermark: Where the source's log ends, as last heard; None if a reader may read up to there.
    """

    next_offset: int | None
    last_stable_offset: int | None
    heard_at: float | None
    complete_at: float | None
    last_timestamp_ms: int | None
    empty_at: float | None = None
    high_watermark: int | None = None

    @property
    def complete(self) -> bool:
        """Whether nothing is missing, according to the source."""
        return self._all_is_read and not self.held_back

    @property
    def held_back(self) -> bool:
        """Whether all that may be read is copied, but an open transaction holds back more."""
        return self._all_is_read and (self.next_offset or 0) < (self.high_watermark or 0)

    @property
    def _all_is_read(self) -> bool:
        return (
            self.next_offset is not None
            and self.last_stable_offset is not None
            and self.next_offset >= self.last_stable_offset
        )

    def fresh(self, now: float, fresh_seconds: float) -> bool:
        """Whether the source's last answer is at most ``fresh_seconds`` old."""
        return self.heard_at is not None and now - self.heard_at <= fresh_seconds


def lag_records(progress: Progress, *, now: float, fresh_seconds: float) -> int | None:
    """Source offsets that may be read and are not copied, as last heard; markers and compacted ones count.

    0 means that nothing was missing at the source's last answer; the lag in seconds says how long ago that
    was. None if nothing was missing but that answer is older than ``fresh_seconds``, for example because the
    partition is paused; and if nothing is known.
    """
    if progress.next_offset is None or progress.last_stable_offset is None:
        return None
    behind = max(progress.last_stable_offset - progress.next_offset, 0)
    return behind if behind or progress.fresh(now, fresh_seconds) else None


def lag_seconds(progress: Progress, *, now: float, now_ms: int) -> float | None:
    """Upper bound of the age of the oldest record that is not on the target.

    It is never 0. A complete copy counts from the source's last answer, because whatever the source has taken
    since is not copied. A copy that was complete once counts from then. One that never was counts from the
    newest record it copied, which is a bound if records are appended in timestamp order. What waits after an
    open transaction is missing, too: other producers may have committed it.

    Args:
        now: The monotonic clock.
        now_ms: The wall clock, to compare with record timestamps.

    Returns:
        Seconds, or None if nothing can be said: nothing was looked at, or the timestamp is in the future.
    """
    complete_at = progress.complete_at
    known_at = _latest(complete_at, progress.heard_at) if progress.complete else complete_at
    if known_at is not None:
        return max(now - known_at, LEAST_SECONDS)
    return _age_of_last_batch(progress.last_timestamp_ms, now_ms)


def late_seconds(
    progress: Progress, behind_seconds: float | None, *, now: float, prompt_seconds: float
) -> float | None:
    """The lag that counts for deciding states; :func:`lag_seconds` is what is shown.

    A source with nothing new answers only now and then. In between a complete copy is not late as long as the
    source answers as often as it should, however tight a bound is.

    Args:
        behind_seconds: From :func:`lag_seconds`.
        prompt_seconds: The longest time between two answers of a source that answers as it should.

    Returns:
        Seconds: 0 for such a copy, else ``behind_seconds``.
    """
    return 0.0 if progress.complete and progress.fresh(now, prompt_seconds) else behind_seconds


def _latest(*moments: float | None) -> float | None:
    return max((moment for moment in moments if moment is not None), default=None)


def _age_of_last_batch(last_timestamp_ms: int | None, now_ms: int) -> float | None:
    if last_timestamp_ms is None or last_timestamp_ms < 0 or last_timestamp_ms >= now_ms:
        return None
    return (now_ms - last_timestamp_ms) / 1000


def lag_state(
    behind_records: int | None, behind_seconds: float | None, *, before: State, lagging_seconds: float
) -> State:
    """ACTIVE or LAGGING, for a partition that is being copied.

    Args:
        behind_records: From :func:`lag_records`.
        behind_seconds: From :func:`late_seconds`.
        before: Its state until now.
        lagging_seconds: The stated lag. A partition lags once it is behind by more, until it is behind by
            at most half of it.

    Returns:
        If ``behind_seconds`` is not known: LAGGING if records are missing, else ACTIVE.
    """
    if behind_seconds is None:
        return State.LAGGING if behind_records else State.ACTIVE
    bound = lagging_seconds * CATCHING_UP_SHARE if before is State.LAGGING else lagging_seconds
    return State.LAGGING if behind_seconds > bound else State.ACTIVE
