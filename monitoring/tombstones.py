"""How long a copy may be behind without missing a delete: compaction removes tombstones at the source, too.

If a tombstone is removed before it is copied, the copy keeps a key that the source has deleted. The cleaner
keeps each tombstone for ``delete.retention.ms`` from when it first meets it, which is not before it was
written.

``now`` and ``*_at`` are readings of one monotonic clock in seconds, ``*_ms`` are Kafka's own settings,
``*_seconds`` are durations. Pure: clocks are arguments.

Sources: KIP-534 (the horizon is noted in the batch, once), docs/metrics.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Self

from monitoring.objectives import Progress
from monitoring.outlook import is_near


@dataclass(frozen=True, slots=True)
class Tombstones:
    """How long a source topic keeps tombstones: the present setting and a shorter former one.

    A tombstone that the cleaner has met keeps its removal time: a longer time set later does not apply to it.

    Attributes:
        ms: ``delete.retention.ms``; negative if compaction removes nothing, None if not known.
        before_ms: The shortest time that was set before the present one; None if none was shorter.
        raised_at: When the longer time was first seen, which is not before it was set.
    """

    ms: int | None = None
    before_ms: int | None = None
    raised_at: float = 0.0

    def then(self, ms: int | None, *, now: float) -> Self:
        """The same after ``ms`` was just read as the present setting."""
        if ms == self.ms:
            return self
        limits = [one for one in (self.before_ms, self.ms) if one is not None and one >= 0]
        least = min(limits, default=None)
        if least is None or (ms is not None and 0 <= ms <= least):
            return type(self)(ms)
        return type(self)(ms, least, now)

    def least_ms(self, age_seconds: float, *, now: float) -> int | None:
        """The least time that tombstones up to this age are kept; negative and None as for ``ms``."""
        if self.ms is None or self.ms < 0 or self.before_ms is None:
            return self.ms
        return self.before_ms if age_seconds >= now - self.raised_at else self.ms


class Safety(NamedTuple):
    """How long deletes of one partition are safe.

    Attributes:
        given_seconds: How long in all, from when they were written.
        left_seconds: How much of that is left; at least 0.
    """

    given_seconds: float
    left_seconds: float


def safety(
    progress: Progress, behind_seconds: float | None, tombstones: Tombstones, *, now: float
) -> Safety | None:
    """Lower bound of the time until compaction may remove an uncopied tombstone of a key that was copied.

    When the cleaner meets a tombstone it also removes the records that the tombstone deletes. So a copy that
    held nothing at some moment has no records deleted by tombstones that were met before. If that moment is
    more recent than the lag, the time counts from there: a first copy of old data has all the time there is.

    Args:
        progress: Of the copy.
        behind_seconds: From :func:`monitoring.objectives.late_seconds`.

    Returns:
        None if compaction removes nothing, or if the setting or the age of what is missing is not known. With
        0 seconds left a tombstone may be gone already. A complete copy has the whole time left.
    """
    held_nothing_for = None if progress.empty_at is None else now - progress.empty_at
    ages = [age for age in (behind_seconds, held_nothing_for) if age is not None]
    if not ages:
        return None
    given_ms = tombstones.least_ms(min(ages), now=now)
    if given_ms is None or given_ms < 0:
        return None
    return Safety(given_ms / 1000, max(given_ms / 1000 - min(ages), 0.0))


def tombstone_headroom_seconds(
    progress: Progress, behind_seconds: float | None, tombstones: Tombstones, *, now: float
) -> float | None:
    """The seconds left according to :func:`safety`; None if that is None."""
    safe = safety(progress, behind_seconds, tombstones, now=now)
    return None if safe is None else safe.left_seconds


def loss_is_near(safe: Safety, catch_up: float | None, *, within_seconds: float, before: bool) -> bool:
    """Whether to warn of deletes that may be missed.

    Not before half of their time is used up: a copy that is a minute behind has used a minute of a day, and
    is in no danger yet.

    Args:
        catch_up, within_seconds, before: As for :func:`monitoring.outlook.is_near`.
    """
    within = min(within_seconds, safe.given_seconds / 2)
    return is_near(safe.left_seconds, catch_up, within_seconds=within, before=before)
