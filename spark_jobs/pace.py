"""Read a site no faster than it can bear: in slices, with pauses between them.

A job that reads a whole cluster as fast as it can pushes what live consumers need out of the brokers' page
cache. The rate is kept on average; one slice is read at full speed, and is small. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from spark_jobs.questions import Ranges
from spark_jobs.window import Range

SLICE_SECONDS = 5.0
"""At the rate that is allowed, a slice should take so long."""
FIRST_OFFSETS = 20_000
"""In the first slice, while nobody knows how large records are."""


@dataclass
class Pace:
    """How much may be read, and what was.

    Attributes:
        bytes_per_second: Keys and values, on average.
        offsets, bytes: Read so far.
    """

    bytes_per_second: float
    offsets: int = 0
    bytes: int = 0

    def read(self, offsets: int, size: int) -> None:
        """A slice was read."""
        self.offsets += offsets
        self.bytes += size

    def next_offsets(self) -> int:
        """How many offsets the next slice may have."""
        if not self.bytes or not self.offsets:
            return FIRST_OFFSETS
        wanted = self.bytes_per_second * SLICE_SECONDS
        return max(1, round(wanted * self.offsets / self.bytes))

    def pause_seconds(self, elapsed_seconds: float) -> float:
        """How long to wait, so long after the first slice began."""
        return max(0.0, self.bytes / self.bytes_per_second - elapsed_seconds)


class Slices:
    """Ranges, taken off slice by slice: the same share of every partition, so that all brokers work."""

    def __init__(self, ranges: Ranges) -> None:
        self._left = {tp: list(some) for tp, some in ranges.items() if any(one.offsets for one in some)}

    def __bool__(self) -> bool:
        return bool(self._left)

    def take(self, offsets: int) -> Ranges:
        """The next ones, of about so many offsets in all."""
        each = max(1, offsets // len(self._left))
        taken = {tp: list(_first(some, each)) for tp, some in self._left.items()}
        left = {tp: list(_without_first(some, each)) for tp, some in self._left.items()}
        self._left = {tp: some for tp, some in left.items() if some}
        return taken


def _first(ranges: Sequence[Range], count: int) -> Iterator[Range]:
    for one in ranges:
        if count <= 0:
            return
        yield Range(one.start, min(one.end, one.start + count))
        count -= one.offsets


def _without_first(ranges: Sequence[Range], count: int) -> Iterator[Range]:
    for one in ranges:
        start = min(one.end, one.start + max(0, count))
        if start < one.end:
            yield Range(start, one.end)
        count -= one.offsets


def offsets_of(ranges: Ranges) -> int:
    """How many there are in all."""
    return sum(one.offsets for some in ranges.values() for one in some)
