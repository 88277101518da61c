"""Rows of hashes as values of Python: 128 bits are two signed columns in Spark, and one number here."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from pyspark.sql import DataFrame

from mirror.model import TopicPartition
from spark_jobs.align import Record
from spark_jobs.naming import Side

_MASK = (1 << 64) - 1


def sides(hashes: DataFrame) -> dict[TopicPartition, Side]:
    """The records of each partition, brought to the driver.

    Args:
        hashes: As :func:`spark_jobs.digest.record_hashes` returns them.
    """
    records: defaultdict[TopicPartition, list[Record]] = defaultdict(list)
    keys: defaultdict[TopicPartition, dict[int, bytes | None]] = defaultdict(dict)
    for row in hashes.collect():
        name = TopicPartition(row.topic, row.partition)
        records[name].append(_record(row))
        keys[name][row.offset] = None if row.key_name is None else bytes(row.key_name)
    return {name: Side(sorted(some), keys[name]) for name, some in records.items()}


def _record(row: Any) -> Record:
    return Record(
        row.offset,
        row.place,
        row.timestamp_ms,
        _whole(row.key_a, row.key_b),
        _whole(row.value_a, row.value_b),
        _whole(row.headers_a, row.headers_b),
        _whole(row.header_set_a, row.header_set_b),
    )


def _whole(a: int, b: int) -> int:
    """128 bits of two signed numbers of 64."""
    return (a & _MASK) << 64 | (b & _MASK)
