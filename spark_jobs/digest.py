"""Digests of records: what they are made of, and how many of them become one.

A record's hash covers its place, timestamp, key, value and headers, each with its length, so that nothing can
trade places with its neighbour and null is not empty. It is 128 bits: two xxHash64, the second over a salt
first. The hashes of a range are added up, in four lanes of 32 bits so that no sum overflows: a sum does not
care in which order Spark brings the records, and unlike exclusive or it does not lose a record that is there
twice. The order of records is in the hash, by the place.

Two ranges that differ have equal digests with a probability of 2**-128 for hashes that are random; xxHash64
is not cryptographic, and somebody who wants to can make two values that collide (see docs/reconcile.md).

Every expression here is Spark's own: no Python runs for a record.

Sources: xxHash64 as in Spark's ``xxhash64``; Bellare and Micciancio, "A New Paradigm for Collision-Free
Hashing" (sums of hashes).
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from spark_jobs.stretches import RANGE_PLACES

LANES = ("lane_0", "lane_1", "lane_2", "lane_3")
DIGEST_SCHEMA = (
    "topic string, partition int, range long, records long, bytes long, "
    "lane_0 long, lane_1 long, lane_2 long, lane_3 long"
)
KEY = ("topic", "partition", "key_a", "key_b")
"""What tells a key from all others."""
BUCKETS = 4096
"""Keys of a partition have so many digests, at most."""
KEY_BYTES_MAX = 256
"""As much of a key is kept to name a record."""

_SALT = "twinsite"


def digests(records: DataFrame, *, width: int = RANGE_PLACES) -> DataFrame:
    """One row for each range of ``width`` places that has records; see ``DIGEST_SCHEMA``.

    Args:
        records: As :func:`spark_jobs.kafka_source.read` returns them.
    """
    parts = [F.col("place"), F.col("timestamp_ms"), *_binary("key"), *_binary("value"), *_headers()]
    hashed = records.select(
        "topic",
        "partition",
        F.expr(f"place div {width}").alias("range"),
        _size(),
        *_hashes("hash", parts),
    ).toDF("topic", "partition", "range", "size", "hash_a", "hash_b")
    return summed(hashed, "hash")


def summed(hashed: DataFrame, name: str) -> DataFrame:
    """One row for each range: how many there are of it, and the sums of their hashes.

    Args:
        hashed: With ``topic``, ``partition``, ``range``, ``size`` (bytes), and the hash ``{name}_a``,
            ``{name}_b``.
    """
    lanes = [half(f"{name}_{which}") for which in ("a", "b") for half in (_low, _high)]
    return hashed.groupBy("topic", "partition", "range").agg(
        F.count(F.lit(1)).alias("records"),
        F.sum("size").alias("bytes"),
        *(F.sum(lane).alias(column) for column, lane in zip(LANES, lanes, strict=True)),
    )


def record_hashes(records: DataFrame) -> DataFrame:
    """One row for each record: where it is, and hashes of its parts, to compare it with others.

    Columns ``topic``, ``partition``, ``offset``, ``place``, ``timestamp_ms``, ``key_name`` (the key's first
    bytes), and ``*_a``, ``*_b`` of ``key``, ``value``, ``headers`` and ``header_set``.
    """
    return records.select(
        "topic",
        "partition",
        "offset",
        "place",
        "timestamp_ms",
        F.substring("key", 1, KEY_BYTES_MAX).alias("key_name"),
        *_hashes("key", _binary("key")),
        *_hashes("value", _binary("value")),
        *_hashes("headers", _headers()),
        *_hashes("header_set", _headers(ordered=False)),
    )


def together(digests: DataFrame) -> DataFrame:
    """Digests of which several may speak of the same range, as one each: they add up."""
    sums = (F.sum(name).alias(name) for name in ("records", "bytes", *LANES))
    return digests.groupBy("topic", "partition", "range").agg(*sums)


def contents(records: DataFrame) -> DataFrame:
    """One row for each record: where it is, and a hash of what it holds, wherever it stands.

    Columns ``topic``, ``partition``, ``offset``, ``place``, ``content_a``, ``content_b``.
    """
    return records.select("topic", "partition", "offset", "place", *_contents())


def key_hashes(records: DataFrame) -> DataFrame:
    """One row for each record: ``KEY``."""
    return records.select("topic", "partition", *_hashes("key", _binary("key")))


def latest(records: DataFrame) -> DataFrame:
    """One row for each key: ``KEY``, ``bucket``, and of its latest record ``offset``, ``place``, ``alive``
    (it has a value), ``size``, ``content_a``, ``content_b``; ``bytes`` are those of all its records."""
    hashed = records.select(
        "topic",
        "partition",
        "offset",
        "place",
        F.col("value").isNotNull().alias("alive"),
        _size().alias("size"),
        *_hashes("key", _binary("key")),
        *_contents(),
    )
    return _latest(hashed.withColumn("bytes", F.col("size")))


def latest_together(keys: DataFrame) -> DataFrame:
    """The latest of each key, of which several rows may speak."""
    return _latest(keys.drop("bucket"))


def _latest(keys: DataFrame) -> DataFrame:
    columns = ("place", "alive", "size", "content_a", "content_b")
    grouped = keys.groupBy(*KEY).agg(
        F.max("offset").alias("latest"),
        F.sum("bytes").alias("bytes"),
        *(F.max_by(name, "offset").alias(name) for name in columns),
    )
    bucket = F.pmod("key_a", F.lit(BUCKETS))
    return grouped.withColumnRenamed("latest", "offset").withColumn("bucket", bucket)


def digests_of_keys(keys: DataFrame) -> DataFrame:
    """Digests of the keys that have a value; their ranges are buckets.

    Args:
        keys: As :func:`latest` returns them.
    """
    return summed(keys.where("alive").withColumnRenamed("bucket", "range"), "content")


# -- what is hashed ------------------------------------------------------------------------------


def _contents() -> list[Column]:
    return _hashes("content", [F.col("timestamp_ms"), *_binary("key"), *_binary("value"), *_headers()])


def _hashes(name: str, parts: Sequence[Column]) -> list[Column]:
    return [
        F.xxhash64(*parts).alias(f"{name}_a"),
        F.xxhash64(F.lit(_SALT), *parts).alias(f"{name}_b"),
    ]


def _length(name: str, without: int) -> Column:
    """Bytes; what null is told by."""
    return F.coalesce(F.octet_length(name), F.lit(without))


def _size() -> Column:
    return _length("key", 0) + _length("value", 0)


def _binary(name: str) -> list[Column]:
    return [_length(name, -1), F.col(name)]


def _headers(*, ordered: bool = True) -> list[Column]:
    """How many there are, and of each the name and the value with their lengths."""
    each = F.transform("headers", _header)
    return [
        F.coalesce(F.size("headers"), F.lit(0)),
        each if ordered else F.array_sort(each),
    ]


def _header(header: Column) -> Column:
    name, value = header["key"], header["value"]
    return F.struct(
        F.octet_length(name).alias("name_length"),
        name.alias("name"),
        F.coalesce(F.octet_length(value), F.lit(-1)).alias("value_length"),
        value.alias("value"),
    )


def _low(name: str) -> Column:
    return F.col(name).bitwiseAND(F.lit(0xFFFFFFFF))


def _high(name: str) -> Column:
    return F.shiftrightunsigned(name, 32)
