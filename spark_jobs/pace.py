"""Read a site no faster than it can bear: in slices, with pauses between them.

A job that reads a whole cluster as fast as it can pushes what live consumers need out of the brokers' page
cache. The rate is kept on average; one slice is read at full speed, and is small. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from spark_jobs.questions import Ranges
from spark_jobs.window import ALL, Range

SLICE_SECONDS = 5.0
"""At the rate that is allowed, a slice should take so long."""
FIRST_OFFSETS = 200
"""In the first slice, while nobody knows how large records are."""
GROWTH = 50
"""A slice has so many times the offsets of the one before, at most: its records may be larger."""


@dataclass
class Pace:
    """How much may be read, and what was.

    Attributes:
        bytes_per_second: Keys and values, on average.
        offsets, bytes: Read so far.
        most: Offsets that the next slice may have, whatever is known of their size.
        heaviest: Bytes an offset, on average of all slices or of the last one, whichever is more.
    """

    bytes_per_second: float
    offsets: int = 0
    bytes: int = 0
    most: int = FIRST_OFFSETS
    heaviest: float = 0.0

    def read(self, offsets: int, size: int) -> None:
        """A slice was read."""
        self.offsets += offsets
        self.bytes += size
        self.most = max(FIRST_OFFSETS, offsets * GROWTH)
        self.heaviest = max(self.bytes / max(1, self.offsets), size / max(1, offsets))

    def next_offsets(self) -> int:
        """How many offsets the next slice may have."""
        wanted = self.bytes_per_second * SLICE_SECONDS
        return max(1, round(min(self.most, wanted / self.heaviest if self.heaviest else self.most)))

    def pause_seconds(self, elapsed_seconds: float) -> float:
        """How long to wait, so long after the first slice began."""
        return max(0.0, self.bytes / self.bytes_per_second - elapsed_seconds)


class Slices:
    """Ranges, taken off slice by slice: the same share of every partition, so that all brokers work.

    A range without an end is a slice of its own: nobody knows where it could be cut.
    """

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
        yield Range(one.start, _cut(one, count))
        count -= one.offsets


def _without_first(ranges: Sequence[Range], count: int) -> Iterator[Range]:
    for one in ranges:
        start = _cut(one, max(0, count))
        if start < one.end:
            yield Range(start, one.end)
        count -= one.offsets


def _cut(one: Range, count: int) -> int:
    """Where its first so many offsets end."""
    return min(one.end, one.start + count) if one.end < ALL.end or not count else one.end
