"""A rate that depends on the time of day and the day of the week, in a time zone.

A leaf, and pure: it imports nothing of the project, the time is an argument.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo

TIMETABLE_SECONDS = 1.0
"""How often the rate that holds is looked up."""
DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
MINUTES_OF_A_DAY = 24 * 60

_HOURS = re.compile(r"([01]\d|2[0-4]):([0-5]\d)-([01]\d|2[0-4]):([0-5]\d)")


@dataclass(frozen=True, slots=True)
class Period:
    """When a rate holds.

    Attributes:
        rate: Bytes a second; None: no limit.
        days: Those on which it begins; Monday is 0.
        begins, ends: Minutes after midnight; if it ends before it begins, it ends on the day after.
    """

    rate: float | None
    days: frozenset[int]
    begins: int
    ends: int
    zone: tzinfo

    @property
    def always(self) -> bool:
        """Whether the rate holds at any time."""
        return len(self.days) == len(DAYS) and (self.begins, self.ends) == (0, MINUTES_OF_A_DAY)

    def holds(self, now: datetime) -> bool:
        """Whether the rate holds at ``now``.

        Args:
            now: In any zone, but with one.
        """
        there = now.astimezone(self.zone)
        minute, today = there.hour * 60 + there.minute, there.weekday()
        if self.begins < self.ends:
            return today in self.days and self.begins <= minute < self.ends
        yesterday = (there - timedelta(days=1)).weekday()
        return (today in self.days and minute >= self.begins) or (
            yesterday in self.days and minute < self.ends
        )


def rate_at(periods: Sequence[Period], now: datetime) -> float | None:
    """The rate of the first period that holds; None if it has no limit, or none of them holds."""
    return next((period.rate for period in periods if period.holds(now)), None)


def lowest(*rates: float | None) -> float | None:
    """The lowest of some rates; None is no limit."""
    return min((rate for rate in rates if rate is not None), default=None)


def days_of(text: str) -> frozenset[int]:
    """``mon-fri``, ``sat,sun`` or ``fri-mon`` as numbers.

    Raises:
        ValueError: It is no list of days.
    """
    found: set[int] = set()
    for part in text.lower().split(","):
        first, dash, last = part.strip().partition("-")
        if first not in DAYS or (dash and last not in DAYS):
            raise ValueError(f"must be days like mon-fri or sat,sun, out of {', '.join(DAYS)}")
        at, end = DAYS.index(first), DAYS.index(last or first)
        found |= {day % 7 for day in range(at, end + (7 if end < at else 0) + 1)}
    return frozenset(found)


def hours_of(text: str) -> tuple[int, int]:
    """``08:00-18:30`` as minutes after midnight; ``22:00-06:00`` ends on the next day.

    Raises:
        ValueError: It is no such time, or no time passes.
    """
    found = _HOURS.fullmatch(text.strip())
    if found is None:
        raise ValueError("must be hours like 08:00-18:30")
    hours = [int(group) for group in found.groups()]
    begins, ends = hours[0] * 60 + hours[1], hours[2] * 60 + hours[3]
    nothing_passes = begins >= ends and (begins - ends) % MINUTES_OF_A_DAY == 0
    if nothing_passes or max(begins, ends) > MINUTES_OF_A_DAY:
        raise ValueError("must be hours between 00:00 and 24:00, and must not end when they begin")
    return begins, ends
