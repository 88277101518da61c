"""Limit the rate at which a site is read: in slices, with pauses between them.

A job that reads a whole cluster as fast as it can pushes what live consumers need out of the brokers' page
cache. The rate holds on average; a single slice is small and is read at full speed. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from spark_jobs.questions import Ranges, offsets_of
from spark_jobs.window import ALL, Range

SLICE_SECONDS = 4.0
"""How long a slice should take at the allowed rate: less than Spark keeps consumers for the next one."""
FIRST_OFFSETS = 200
"""Offsets in the first slice, while the size of records is not known."""
GROWTH = 50
"""A slice has at most this many times the offsets of one before: its records may be larger."""
FETCHES_MIN = 4
"""A range is fetched in at least this many parts: of the last one, and of the one fetched ahead, some is
sent for nothing."""
FETCH_BYTES_MIN = 16 << 10
"""The default batch size of producers; brokers send a batch whole."""
SHARE_BYTES_MIN = 256 << 10
"""A slice takes at least this of each partition, however many there are: less costs brokers hardly less."""


@dataclass
class Pace:
    """How much may be read, and what was.

    Attributes:
        bytes_per_second: Limit on keys and values, on average.
        offsets, bytes: Read so far.
        most: The most offsets that the next slice may have, however small they seem.
        heaviest: Bytes of an offset, as the average of all slices or of the last one, whichever is more.
    """

    bytes_per_second: float
    offsets: int = 0
    bytes: int = 0
    most: int = FIRST_OFFSETS
    heaviest: float = 0.0

    def read(self, offsets: int, size: int) -> None:
        """Count a slice that was read, and its bytes of keys and values. A short one, as the last of a round
        is, does not make the next one short.
        """
        most, short = max(FIRST_OFFSETS, offsets * GROWTH), offsets * 2 < self.next_offsets()
        self.most = max(self.most, most) if short else most
        self.offsets += offsets
        self.bytes += size
        self.heaviest = max(self.bytes / max(1, self.offsets), size / max(1, offsets))

    def next_offsets(self, partitions: int = 1) -> int:
        """How many offsets the next slice may have, over all its partitions."""
        wanted = max(self.bytes_per_second * SLICE_SECONDS, partitions * SHARE_BYTES_MIN)
        return max(1, round(min(self.most, wanted / self.heaviest if self.heaviest else self.most)))

    def pause_seconds(self, elapsed_seconds: float) -> float:
        """How long to wait now, from the time since the first slice began."""
        return max(0.0, self.bytes / self.bytes_per_second - elapsed_seconds)


def fetch_bytes(size: float, ranges: int, most: int) -> int:
    """How many bytes to fetch at once to read this much in this many ranges.

    A broker sends all that a fetch asks for, wanted or not, and a consumer fetches once ahead. The result is
    a power of two, so that it stays the same from slice to slice and consumers can be reused.

    Args:
        size: Bytes of all ranges, as far as is known.
        most: The upper limit, however large the ranges are.
    """
    part = int(size / max(1, ranges) / FETCHES_MIN)
    return min(most, max(FETCH_BYTES_MIN, 1 << part.bit_length() >> 1))


class Slices:
    """Ranges, taken off slice by slice: the same share of every partition, so that all brokers work."""

    def __init__(self, ranges: Ranges) -> None:
        self._left = {tp: list(some) for tp, some in ranges.items() if any(one.offsets for one in some)}

    def __len__(self) -> int:
        """How many partitions have something left."""
        return len(self._left)

    def take(self, offsets: int) -> Ranges:
        """The next slice, of about this many offsets in all."""
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


def rounds(
    ranges: Ranges, bounded: Callable[[Ranges], Ranges], slice_offsets: Callable[[int], int]
) -> Iterator[tuple[Ranges, bool]]:
    """What to read, at least one round, and of each whether to read it at once: that is the last one.

    Where ranges have no end, what was written during a round is the next one: until a record is read,
    compaction may have removed it because of a newer one. The last round is no more than a slice, or more
    than half of the one before: then more is written than can be read in time. What is removed during the
    last one, because of what is written meanwhile, is missed.

    Args:
        bounded: Gives the same ranges an end each, as it is now.
        slice_offsets: How many offsets a slice may have now, from the number of its partitions.
    """
    before = math.inf
    while True:
        found = bounded(ranges)
        offsets = offsets_of(found)
        at_once = not slice_offsets(len(Slices(found))) < offsets <= before / 2
        if offsets or math.isinf(before):
            yield found, at_once
        if at_once:
            return
        ranges, before = _behind(ranges, found), offsets


def _behind(ranges: Ranges, bounded: Ranges) -> Ranges:
    """What comes after the end that was found for ranges without one."""
    return {
        tp: [
            Range(known.end, ALL.end)
            for one, known in zip(some, bounded[tp], strict=True)
            if one.end == ALL.end
        ]
        for tp, some in ranges.items()
    }


def slices(wanted: Iterable[tuple[Ranges, bool]], pace: Pace) -> Iterator[tuple[Ranges, int]]:
    """The slices of rounds, and with each how many offsets are known to be wanted in all."""
    total = 0
    for ranges, at_once in wanted:
        total += offsets_of(ranges)
        left = Slices({} if at_once else ranges)
        while left:
            yield left.take(pace.next_offsets(len(left))), total
        if at_once:
            yield ranges, total
