"""Rows of hashes as values of Python: a few signed words of 64 bits in Spark, and one number here."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame

from mirror.model import TopicPartition
from spark_jobs.align import Record
from spark_jobs.hashes import words
from spark_jobs.naming import Side

HASHES = ("key", "value", "headers", "header_set")
_MASK = (1 << 64) - 1


def sides(hashes: DataFrame) -> dict[TopicPartition, Side]:
    """The records of each partition, brought to the driver.

    Args:
        hashes: As :func:`spark_jobs.digest.record_hashes` returns them.
    """
    columns = {name: words(hashes, name) for name in HASHES}
    records: defaultdict[TopicPartition, list[Record]] = defaultdict(list)
    keys: defaultdict[TopicPartition, dict[int, bytes | None]] = defaultdict(dict)
    for row in hashes.collect():
        name = TopicPartition(row.topic, row.partition)
        records[name].append(_record(row, columns))
        keys[name][row.offset] = None if row.key_name is None else bytes(row.key_name)
    return {name: Side(sorted(some), keys[name]) for name, some in records.items()}


def _record(row: Any, columns: Mapping[str, Sequence[str]]) -> Record:
    hashes = (_whole(row[column] for column in columns[name]) for name in HASHES)
    return Record(row.offset, row.place, row.timestamp_ms, *hashes)


def _whole(words: Iterable[int]) -> int:
    """One number of signed words."""
    whole = 0
    for word in words:
        whole = whole << 64 | (word & _MASK)
    return whole
