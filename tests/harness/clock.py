"""A process whose clock is wrong: Debian's libfaketime stands between it and the C library.

::

    with Twinsite.run("mirror", ..., environment=clock_off_by(hours=3)) as mirror: ...

The monotonic clock stays as it is. Not for Java, which in places reads the clock without the C library.

Sources: libfaketime's README.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

LIBRARIES = Path("/usr/lib")
LIBRARY = next(iter(sorted(LIBRARIES.glob("*/faketime/libfaketimeMT.so.1"))), None)
"""The library for programs with threads; None where it is not installed."""


def clock_at(when: datetime) -> dict[str, str]:
    """The environment of a process whose clock shows this now, and goes on from there."""
    return _clock(f"{(when - datetime.now(UTC)).total_seconds():+.3f}")


def clock_off_by(*, hours: int) -> dict[str, str]:
    """The environment of a process whose clock is this many hours ahead; negative: behind."""
    return _clock(f"{hours:+d}h")


def _clock(off: str) -> dict[str, str]:
    assert LIBRARY is not None, "the Debian package faketime is not installed"
    return {"LD_PRELOAD": str(LIBRARY), "FAKETIME": off, "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
