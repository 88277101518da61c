"""Rows of hashes as Python values: a hash is a few signed 64-bit words in Spark, and one number here."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from mirror.model import TopicPartition
from spark_jobs.align import Content, Record
from spark_jobs.hashes import words
from spark_jobs.naming import Side

HASHES = ("key", "value", "headers", "header_set")
CONTENT = HASHES[:3]
Contents = Mapping[TopicPartition, Mapping[Content, int]]
"""What records hold, with the first offset of a record that does."""
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


def seen_of(hashes: DataFrame, wanted: Mapping[TopicPartition, Collection[Content]]) -> Contents:
    """Which of these contents are among the records, and where first; nothing else reaches the driver.

    Args:
        hashes: As :func:`sides` takes them.
    """
    columns = ["timestamp_ms", *(word for name in CONTENT for word in words(hashes, name))]
    count = (len(columns) - 1) // len(CONTENT)
    rows = [
        (*name, time, *(word for whole in held for word in _words(whole, count)))
        for name, some in wanted.items()
        for time, *held in {*some}
    ]
    schema = "topic string, partition int, " + ", ".join(f"{column} long" for column in columns)
    known = hashes.sparkSession.createDataFrame(rows, schema)
    seen = hashes.join(F.broadcast(known), known.columns, "left_semi")
    found: defaultdict[TopicPartition, dict[Content, int]] = defaultdict(dict)
    for row in seen.groupBy(known.columns).agg(F.min("offset")).collect():
        _, _, time, *held, first = row
        parts = (_whole(held[at : at + count]) for at in range(0, len(held), count))
        key, value, headers = parts
        found[TopicPartition(row.topic, row.partition)][(time, key, value, headers)] = first
    return found


def _words(whole: int, count: int) -> list[int]:
    """A number as ``count`` signed words."""
    return [_signed(whole >> shift & _MASK) for shift in range(64 * (count - 1), -1, -64)]


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word


def _record(row: Any, columns: Mapping[str, Sequence[str]]) -> Record:
    hashes = (_whole(row[column] for column in columns[name]) for name in HASHES)
    return Record(row.offset, row.place, row.timestamp_ms, *hashes)


def _whole(words: Iterable[int]) -> int:
    """Signed words as one number."""
    whole = 0
    for word in words:
        whole = whole << 64 | (word & _MASK)
    return whole
