"""What a comparison asks of a site.

A question names partitions as at the source, so both sites are asked alike; a site translates the names.
Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from mirror.model import TopicPartition
from spark_jobs.algorithms import Hashing
from spark_jobs.places import Line
from spark_jobs.stretches import RANGE_PLACES
from spark_jobs.window import ALL, Range

LONG_PLACES = 16 * RANGE_PLACES
"""Ranges that are at least this long on average are read with large fetches."""
Ranges = Mapping[TopicPartition, Sequence[Range]]
Lines = Mapping[TopicPartition, Sequence[Line]]


def offsets_of(ranges: Ranges) -> int:
    """How many offsets there are in all; ranges without an end do not count."""
    return sum(one.offsets for some in ranges.values() for one in some if one.end < ALL.end)


class What(StrEnum):
    """What the answer is made of."""

    DIGESTS = "digests"
    """Digests of ranges of places; :func:`spark_jobs.digest.digests`."""
    CONTENTS = "contents"
    """Hashes of the contents of a sample of records; :func:`spark_jobs.digest.contents`."""
    RECORDS = "records"
    """Hashes of every record; :func:`spark_jobs.digest.record_hashes`."""
    BUCKETS = "buckets"
    """Digests of the latest records of keys, by bucket; :func:`spark_jobs.buckets.digests_of_keys`."""
    KEYS = "keys"
    """The latest record of every key, or of those in some buckets; :func:`spark_jobs.digest.latest`."""
    KEYS_WRITTEN = "keys_written"
    """The keys of all records, or those in some buckets; :func:`spark_jobs.digest.key_hashes`."""


class Buckets(NamedTuple):
    """Some of the buckets in which the keys of a partition are.

    Attributes:
        total: How many buckets there are in all.
        ranges: The numbers of the chosen ones.
    """

    total: int
    ranges: tuple[Range, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Something to find out about records of a site.

    Attributes:
        name: Unique among the questions of a comparison to one site.
        ranges: Offsets of the site, by partition; a range that ends where ``ALL`` does has no end.
        hashing: The same at both sites, or their answers cannot be compared.
        lines: How offsets become places, where they are not the same.
        width: For DIGESTS: how many places one digest covers.
        one_in: For CONTENTS: one record in this many is enough, the same ones at both sites.
        buckets: For KEYS and KEYS_WRITTEN: only keys in these.
    """

    name: str
    what: What
    ranges: Ranges
    hashing: Hashing
    lines: Lines = field(default_factory=dict)
    width: int = RANGE_PLACES
    one_in: int = 1
    buckets: Mapping[TopicPartition, Buckets] = field(default_factory=dict)

    @property
    def reads_little(self) -> bool:
        """Whether only a few records here and there are wanted."""
        if self.width == RANGE_PLACES:
            return self.what in {What.RECORDS, What.KEYS_WRITTEN}
        count = sum(len(some) for some in self.ranges.values())
        return offsets_of(self.ranges) < count * LONG_PLACES
