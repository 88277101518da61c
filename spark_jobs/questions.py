"""What a comparison asks of a site.

A question names partitions as at the source, so both sites are asked alike; only a site knows what it calls
them. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from mirror.model import TopicPartition
from spark_jobs.algorithms import Hashing
from spark_jobs.places import Line
from spark_jobs.window import ALL, Range

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
    KEYS = "keys"
    """The latest record of every key; :func:`spark_jobs.digest.latest`."""
    KEYS_WRITTEN = "keys_written"
    """The keys of all records; :func:`spark_jobs.digest.key_hashes`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Something to find out about records of a site.

    Attributes:
        name: A site is asked one thing of a name in a comparison.
        ranges: Offsets of the site, partition by partition; one that ends where ``ALL`` does has no end.
        hashing: The same at both sites, or nothing they answer fits.
        lines: How offsets become places, where they are not the same.
        one_in: Of CONTENTS: one of so many is enough, the same ones at both sites.
    """

    name: str
    what: What
    ranges: Ranges
    hashing: Hashing
    lines: Lines = field(default_factory=dict)
    one_in: int = 1

    @property
    def reads_little(self) -> bool:
        """Whether only a few records here and there are wanted."""
        return self.what in {What.RECORDS, What.KEYS_WRITTEN}
