"""How long a copy that is behind misses no delete: compaction removes tombstones at the source, too.

A tombstone that goes before it is copied leaves a key in the copy that the source has deleted. The cleaner
gives each one ``delete.retention.ms`` from when it first meets it, which is not before it was written.

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
    """How long a source topic keeps tombstones: what is set, and what was.

    One that the cleaner has met goes when it was to go then: a longer time that is set later is not for it.

    Attributes:
        ms: ``delete.retention.ms``; negative where compaction removes nothing, None when not known.
        before_ms: The least that was set before something longer was; None where nothing was.
        raised_at: When that was seen; not before it was so.
    """

    ms: int | None = None
    before_ms: int | None = None
    raised_at: float = 0.0

    def then(self, ms: int | None, *, now: float) -> Self:
        """What is set now, as it was just read."""
        if ms == self.ms:
            return self
        limits = [one for one in (self.before_ms, self.ms) if one is not None and one >= 0]
        least = min(limits, default=None)
        if least is None or (ms is not None and 0 <= ms <= least):
            return type(self)(ms)
        return type(self)(ms, least, now)

    def least_ms(self, age_seconds: float, *, now: float) -> int | None:
        """What holds for tombstones that are no older than that; negative and None as ``ms``."""
        if self.ms is None or self.ms < 0 or self.before_ms is None:
            return self.ms
        return self.before_ms if age_seconds >= now - self.raised_at else self.ms


class Safety(NamedTuple):
    """For how long deletes of one partition are safe.

    Attributes:
        given_seconds: In all, from when they were written.
        left_seconds: Of that; not below 0.
    """

    given_seconds: float
    left_seconds: float


def safety(
    progress: Progress, behind_seconds: float | None, tombstones: Tombstones, *, now: float
) -> Safety | None:
    """How long until compaction may remove a tombstone that was not copied, of a key that was: a lower bound.

    The cleaner takes the records that a tombstone makes void when it meets it. So a copy that held nothing
    at some moment has none of those which were met before; where that is later than what it is behind by, it
    counts from there, and a first copy of old data has all the time there is.

    Args:
        progress: Of the copy.
        behind_seconds: From :func:`monitoring.objectives.late_seconds`.

    Returns:
        None where compaction removes nothing, or when that or the age of what is missing is not known. With 0
        seconds left one may be gone already. A complete copy has the whole time left.
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
    """What is left of :func:`safety`; None where that is."""
    safe = safety(progress, behind_seconds, tombstones, now=now)
    return None if safe is None else safe.left_seconds


def loss_is_near(safe: Safety, catch_up: float | None, *, within_seconds: float, before: bool) -> bool:
    """Whether deletes that may be missed are for somebody to know of.

    Not before half of the time is used up that they are given: whoever is a minute behind has lost a minute
    of a day, and is not in danger yet.

    Args:
        catch_up, within_seconds, before: As for :func:`monitoring.outlook.is_near`.
    """
    within = min(within_seconds, safe.given_seconds / 2)
    return is_near(safe.left_seconds, catch_up, within_seconds=within, before=before)
