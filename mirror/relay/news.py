"""What was read for mirrors, before it becomes a frame."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from mirror.link.parts import Part

Taken = Callable[[], None]
"""Called when the mirror has taken it."""
Gone = Callable[[], None]
"""Called when the memory of its records is no longer needed."""


class News(NamedTuple):
    """What one answer of a broker brought for a mirror, and when, in microseconds of our steady clock."""

    node: int
    read_us: int
    parts: Sequence[Part]


def records_bytes(news: News) -> int:
    """Bytes of records, all parts together."""
    return sum(len(part.fetched.records) for part in news.parts)


def steady_us() -> int:
    """A clock that is never set, in microseconds."""
    return time.monotonic_ns() // 1000


def nothing() -> None:
    """A callback for what needs to know neither when it is taken nor when it is gone."""
