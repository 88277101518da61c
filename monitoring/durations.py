"""Durations in words. Pure."""

from __future__ import annotations


def duration(seconds: float | None) -> str:
    """``0.4 s``, ``12 s``, ``3 min``, ``5 h 20 min``, ``12 days``; a question mark if not known."""
    if seconds is None:
        return "?"
    if seconds < 10:
        return f"{seconds:.1f} s" if seconds else "0 s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7_200:
        return f"{seconds // 60:.0f} min"
    if seconds < 172_800:
        return f"{seconds // 3600:.0f} h {seconds % 3600 // 60:.0f} min"
    return f"{seconds // 86_400:.0f} days"
