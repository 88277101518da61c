"""What a comparison asks of a site.

A question names partitions as at the source, so both sites are asked alike; only a site knows what it calls
them. Pure.
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
"""Ranges that are as long as this on average are read in large pieces."""
Ranges = Mapping[TopicPartition, Sequence[Range]]
Lines = Mapping[TopicPartition, Sequence[Line]]


def offsets_of(ranges: Ranges) -> int:
    """How many there are in all, but for ranges without an end."""
    return sum(one.offsets for some in ranges.values() for one in some if one.end < ALL.end)


class What(StrEnum):
    """What the answer is made of."""

    DIGESTS = "digests"
    """Of ranges of places; :func:`spark_jobs.digest.digests`."""
    CONTENTS = "contents"
    """A sample of records, by what they hold; :func:`spark_jobs.digest.contents`."""
    RECORDS = "records"
    """Every record, by its hashes; :func:`spark_jobs.digest.record_hashes`."""
    BUCKETS = "buckets"
    """Of the latest records of keys, in buckets; :func:`spark_jobs.buckets.digests_of_keys`."""
    KEYS = "keys"
    """The latest record of every key, or of those in some buckets; :func:`spark_jobs.digest.latest`."""
    KEYS_WRITTEN = "keys_written"
    """The keys of all records, or those in some buckets; :func:`spark_jobs.digest.key_hashes`."""


class Buckets(NamedTuple):
    """Some of the buckets in which the keys of a partition are.

    Attributes:
        total: How many there are in all.
        ranges: The numbers of those that are meant.
    """

    total: int
    ranges: tuple[Range, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Something to find out about records of a site.

    Attributes:
        name: A site is asked one thing of a name in a comparison.
        ranges: Offsets of the site, partition by partition; one that ends where ``ALL`` does has no end.
        hashing: The same at both sites, or nothing they answer fits.
        lines: How offsets become places, where they are not the same.
        width: Of DIGESTS: how many places one digest is of.
        one_in: Of CONTENTS: one of so many is enough, the same ones at both sites.
        buckets: Of KEYS and KEYS_WRITTEN: no others than those in these.
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
