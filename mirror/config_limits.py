"""How much may go over a link, and when.

A leaf: it imports only leaves.
"""

from __future__ import annotations

from datetime import UTC, tzinfo
from typing import Annotated, Any
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, BeforeValidator, Field

from mirror.config_values import RATE_PATTERN, AlsoTaken, Section, bytes_per_second
from mirror.timetable import MINUTES_OF_A_DAY, Period, days_of, hours_of

Rate = Annotated[
    int,
    Field(strict=True, ge=1000, le=10**12),
    BeforeValidator(bytes_per_second),
    AlsoTaken({"type": "string", "pattern": f"^{RATE_PATTERN}$"}),
]


def _checked(read: Any) -> AfterValidator:
    def check(text: str) -> str:
        read(text)
        return text

    return AfterValidator(check)


def zone_of(name: str) -> tzinfo:
    """A time zone by its name.

    Raises:
        ValueError: This machine knows none of that name.
    """
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        raise ValueError("must be a time zone that this machine knows, for example Europe/Berlin") from error


class RateLimitSettings(Section):
    """A rate, and when it applies."""

    rate: Rate | None = Field(
        description="The most that is sent, for example 20 Mbit/s or 2.5 MB/s; a plain number is bytes per "
        "second. null: no limit at this time."
    )
    days: Annotated[str, _checked(days_of)] = Field(
        default="mon-sun", description="Days on which it applies, for example mon-fri or sat,sun."
    )
    hours: Annotated[str, _checked(hours_of)] = Field(
        default="00:00-24:00",
        description="Hours of these days; 22:00-06:00 begins on these days and ends on the next.",
    )
    zone: Annotated[str, _checked(zone_of)] = Field(
        default="UTC", description="Time zone of days and hours, for example Europe/Berlin."
    )

    @property
    def period(self) -> Period:
        begins, ends = hours_of(self.hours)
        assert ends <= MINUTES_OF_A_DAY
        return Period(self.rate, days_of(self.days), begins, ends, zone_of(self.zone))


def periods_of(limits: tuple[RateLimitSettings, ...]) -> tuple[Period, ...]:
    """What the settings say, for :func:`mirror.timetable.rate_at`."""
    return tuple(limit.period for limit in limits)


def limits_warnings(name: str, limits: tuple[RateLimitSettings, ...]) -> list[str]:
    """What is allowed and has no effect, one sentence each.

    Args:
        name: Where the limits stand in the settings.
    """
    always = next((at for at, period in enumerate(periods_of(limits)) if period.always), len(limits))
    return [
        f"{name}[{at}]: never applies: {name}[{always}] always does, and the first that does counts"
        for at in range(always + 1, len(limits))
    ]
