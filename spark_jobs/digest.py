"""Digests of records: what they cover, and how many hashes become one digest.

A record's hash covers its place, timestamp, key, value and headers (:mod:`spark_jobs.hashes`). The hashes of
a range are added up, in lanes of 32 bits so that no sum overflows. A sum does not depend on the order in
which Spark brings the records, and unlike exclusive or it does not lose a record that is there twice. The
place in each hash covers the order of records.

Two ranges that differ have equal digests with a probability of 2**-128, or 2**-256 with SHA-256, if hashes
are random. Somebody who knows the salt can make many records whose hashes, even cryptographic ones, add up to
a given sum. So the salt is drawn when the records are there already (see docs/reconcile.md).

Sources: Clarke and others, "Incremental Multiset Hash Functions and Their Application to Memory Integrity
Checking" (sums of hashes with a key); Wagner, "A Generalized Birthday Problem" (and without).
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from spark_jobs.algorithms import Hashing
from spark_jobs.hashes import Part, binary, hashed, headers, length, number, words
from spark_jobs.stretches import RANGE_PLACES

KEY_BYTES_MAX = 256
"""Bytes of a key that are kept to name a record."""


def digests(records: DataFrame, hashing: Hashing, *, width: int = RANGE_PLACES) -> DataFrame:
    """One row for each range of ``width`` places that has records; see :func:`summed`.

    Args:
        records: As :func:`spark_jobs.kafka_source.read` returns them.
        width: A power of two.
    """
    made = records.select(
        "topic",
        "partition",
        F.shiftright("place", width.bit_length() - 1).alias("range"),
        _size().alias("size"),
        *hashed("hash", hashing, [number("place"), *_contents()]),
    )
    return summed(made, "hash")


def summed(hashes: DataFrame, name: str) -> DataFrame:
    """One row for each range: ``topic``, ``partition``, ``range``, its number of ``records`` and ``bytes``,
    and the sums of their hashes, ``lane_0`` and so on.

    Args:
        hashes: With ``topic``, ``partition``, ``range``, ``size`` (bytes), and the words of a hash.
        name: Of the hash.
    """
    halves = [half(word) for word in words(hashes, name) for half in (_low, _high)]
    return hashes.groupBy("topic", "partition", "range").agg(
        F.count(F.lit(1)).alias("records"),
        F.sum("size").alias("bytes"),
        *(F.sum(half).alias(f"lane_{at}") for at, half in enumerate(halves)),
    )


def lanes(digests: DataFrame) -> list[str]:
    """The columns of digests that are sums of hashes."""
    return [column for column in digests.columns if column.startswith("lane_")]


def key_columns(frame: DataFrame) -> list[str]:
    """The columns that identify a key."""
    return ["topic", "partition", *words(frame, "key")]


def record_hashes(records: DataFrame, hashing: Hashing) -> DataFrame:
    """One row for each record: where it is, and hashes of its parts, to compare it with others.

    Columns ``topic``, ``partition``, ``offset``, ``place``, ``timestamp_ms``, ``bytes``, ``key_name`` (the
    key's first bytes), and the words of the hashes ``key``, ``value``, ``headers`` and ``header_set``.
    """
    return records.select(
        "topic",
        "partition",
        "offset",
        "place",
        "timestamp_ms",
        _size().alias("bytes"),
        F.substring("key", 1, KEY_BYTES_MAX).alias("key_name"),
        *hashed("key", hashing, [binary("key")]),
        *hashed("value", hashing, [binary("value")]),
        *hashed("headers", hashing, [headers()]),
        *hashed("header_set", hashing, [headers(ordered=False)]),
    )


def together(digests: DataFrame) -> DataFrame:
    """Digests with one row for each range: those of the same range are added up."""
    sums = (F.sum(name).alias(name) for name in ("records", "bytes", *lanes(digests)))
    return digests.groupBy("topic", "partition", "range").agg(*sums)


def contents(records: DataFrame, hashing: Hashing) -> DataFrame:
    """One row for each record: where it is, and a hash of what it holds, which does not depend on the place.

    Columns ``topic``, ``partition``, ``offset``, ``place``, ``bytes``, and the words of ``content``.
    """
    content = hashed("content", hashing, _contents())
    return records.select("topic", "partition", "offset", "place", _size().alias("bytes"), *content)


def key_hashes(records: DataFrame, hashing: Hashing) -> DataFrame:
    """One row for each key: the :func:`key_columns`, and the ``bytes`` of all its records."""
    made = records.select(
        "topic", "partition", _size().alias("bytes"), *hashed("key", hashing, [binary("key")])
    )
    return key_hashes_together(made)


def key_hashes_together(keys: DataFrame) -> DataFrame:
    """Keys with one row each: rows of the same key are combined."""
    return keys.groupBy(*key_columns(keys)).agg(F.sum("bytes").alias("bytes"))


def latest(records: DataFrame, hashing: Hashing) -> DataFrame:
    """One row for each key: its :func:`key_columns`, and of its latest record ``offset``, ``place``,
    ``alive`` (it has a value), ``size``, and the words of ``content``; ``held`` and ``bytes`` count all its
    records. Records without a key count as deleted: compaction removes them all.
    """
    made = records.select(
        "topic",
        "partition",
        "offset",
        "place",
        (F.col("key").isNotNull() & F.col("value").isNotNull()).alias("alive"),
        _size().alias("size"),
        *hashed("key", hashing, [binary("key")]),
        *hashed("content", hashing, _contents()),
    )
    return latest_together(made.withColumns({"held": F.lit(1), "bytes": F.col("size")}))


def latest_together(keys: DataFrame) -> DataFrame:
    """Rows of the same key combined: its latest record, and all that it held."""
    columns = ("place", "alive", "size", *words(keys, "content"))
    grouped = keys.groupBy(*key_columns(keys)).agg(
        F.max("offset").alias("latest"),
        F.sum("held").alias("held"),
        F.sum("bytes").alias("bytes"),
        *(F.max_by(name, "offset").alias(name) for name in columns),
    )
    return grouped.withColumnRenamed("latest", "offset")


def _contents() -> list[Part]:
    return [number("timestamp_ms"), binary("key"), binary("value"), headers()]


def _size() -> Column:
    """Bytes of key and value."""
    return length("key", 0) + length("value", 0)


def _low(name: str) -> Column:
    return F.col(name).bitwiseAND(F.lit(0xFFFFFFFF))


def _high(name: str) -> Column:
    return F.shiftrightunsigned(name, 32)
