"""Dates from milliseconds since 1970 that came from outside.

A leaf, and pure: it imports nothing of the project, anyone may import it.
"""

from __future__ import annotations

from datetime import UTC, datetime


def date_of(at_ms: float) -> datetime | None:
    """The date in UTC; None where no clock says such a time: before 1970, or beyond the year 9999."""
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC) if at_ms >= 0 else None
    except (ValueError, OverflowError):
        return None


def moment(at_ms: float) -> str:
    """``2026-11-22 14:30:00 UTC``, or that it is unknown."""
    date = date_of(at_ms)
    return "an unknown time" if date is None else f"{date:%Y-%m-%d %H:%M:%S} UTC"
