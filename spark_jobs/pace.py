"""Read a site no faster than it can bear: in slices, with pauses between them.

A job that reads a whole cluster as fast as it can pushes what live consumers need out of the brokers' page
cache. The rate is kept on average; one slice is read at full speed, and is small. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from spark_jobs.questions import Ranges
from spark_jobs.window import ALL, Range

SLICE_SECONDS = 4.0
"""At the rate that is allowed, a slice should take so long: less than consumers are kept for the next one."""
FIRST_OFFSETS = 200
"""In the first slice, while nobody knows how large records are."""
GROWTH = 50
"""A slice has so many times the offsets of the one before, at most: its records may be larger."""
FETCHES_MIN = 4
"""A range is fetched in so many parts: of the last one, and of one ahead, some is sent for nothing."""
FETCH_BYTES_MIN = 16 << 10
"""What producers put into a batch where nobody tells them otherwise; a batch is sent whole."""
SHARE_BYTES_MIN = 256 << 10
"""A slice takes so much of each partition, however many there are: less costs the brokers hardly less."""


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

    def next_offsets(self, partitions: int = 1) -> int:
        """How many offsets the next slice may have, of so many partitions."""
        wanted = max(self.bytes_per_second * SLICE_SECONDS, partitions * SHARE_BYTES_MIN)
        return max(1, round(min(self.most, wanted / self.heaviest if self.heaviest else self.most)))

    def pause_seconds(self, elapsed_seconds: float) -> float:
        """How long to wait, so long after the first slice began."""
        return max(0.0, self.bytes / self.bytes_per_second - elapsed_seconds)


def fetch_bytes(size: float, ranges: int, most: int) -> int:
    """How much to ask a broker for at once, where so much is read in so many ranges.

    It sends what it is asked for, whatever is wanted of it, and is asked once ahead. A power of two, so that
    it stays the same from slice to slice, and consumers with it.

    Args:
        size: Of all ranges, as far as is known.
        most: However large they are.
    """
    part = int(size / max(1, ranges) / FETCHES_MIN)
    return min(most, max(FETCH_BYTES_MIN, 1 << part.bit_length() >> 1))


class Slices:
    """Ranges, taken off slice by slice: the same share of every partition, so that all brokers work.

    A range without an end is a slice of its own: nobody knows where it could be cut.
    """

    def __init__(self, ranges: Ranges) -> None:
        self._left = {tp: list(some) for tp, some in ranges.items() if any(one.offsets for one in some)}

    def __len__(self) -> int:
        """Of how many partitions something is left."""
        return len(self._left)

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
