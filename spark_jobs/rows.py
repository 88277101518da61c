"""Rows of hashes as values of Python: a few signed words of 64 bits in Spark, and one number here."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

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


def of_values(hashes: DataFrame, values: Iterable[int]) -> DataFrame:
    """Those of records of which the value has one of these hashes.

    Args:
        values: As :class:`spark_jobs.align.Record` has them.
    """
    columns = words(hashes, "value")
    shifts = range(64 * (len(columns) - 1), -1, -64)
    rows = [tuple(_signed(value >> shift & _MASK) for shift in shifts) for value in values]
    schema = ", ".join(f"{column} long" for column in columns)
    wanted = hashes.sparkSession.createDataFrame(rows, schema)
    return hashes.join(F.broadcast(wanted), columns, "left_semi")


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word


def _record(row: Any, columns: Mapping[str, Sequence[str]]) -> Record:
    hashes = (_whole(row[column] for column in columns[name]) for name in HASHES)
    return Record(row.offset, row.place, row.timestamp_ms, *hashes)


def _whole(words: Iterable[int]) -> int:
    """One number of signed words."""
    whole = 0
    for word in words:
        whole = whole << 64 | (word & _MASK)
    return whole
