"""A record as the slow path sees it."""

from __future__ import annotations

from typing import NamedTuple


class Record(NamedTuple):
    """One record; ``tail`` is key, value and headers exactly as format v2 encodes them, never looked into."""

    offset: int
    timestamp: int
    tail: bytes
