"""Keys of compacted logs in buckets: few digests of many keys, to find those that differ.

A site puts the keys of a partition in as many buckets as suits their size, always a power of two. So a bucket
of a smaller number is several of a larger number together, and digests add up: sites that have chosen
differently can still be compared.

Only keys that have a value are in a digest: a deleted key and an absent one are the same.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from mirror.model import TopicPartition
from spark_jobs.compare import PARTITION, islands
from spark_jobs.digest import summed, together
from spark_jobs.questions import Buckets
from spark_jobs.window import Range

BUCKET_BYTES = 100_000
"""Keys and values in a bucket, on average at least; its digest is 40 to 80 bytes, less than a thousandth."""


def buckets_for(size: int) -> int:
    """How many buckets there are for this many bytes of keys and values."""
    return 1 << (max(1, size // BUCKET_BYTES).bit_length() - 1)


def digests_of_keys(keys: DataFrame) -> DataFrame:
    """Digests of the keys that have a value; their ranges are buckets, of which there are ``buckets``.

    ``held`` and ``read_bytes`` count all records that were read, also those of keys that have no value: a
    bucket with only such keys has 0 ``records``.

    Args:
        keys: As :func:`spark_jobs.digest.latest` returns them; read several times.
    """
    alive = F.sum(F.when(F.col("alive"), F.col("size")).otherwise(0))
    sizes = keys.groupBy(*PARTITION).agg(alive.alias("bytes")).collect()
    totals = {TopicPartition(row.topic, row.partition): buckets_for(row.bytes) for row in sizes}
    table = _table(keys, totals)
    numbered = _numbered(keys, table, "range")
    sums = F.sum("held").alias("held"), F.sum("bytes").alias("read_bytes")
    read = numbered.groupBy(*PARTITION, "range").agg(*sums)
    digests = summed(numbered.where("alive").drop("held", "bytes"), "content")
    return read.join(digests, [*PARTITION, "range"], "left").na.fill(0).join(table, [*PARTITION])


def superseded(digests: DataFrame) -> dict[TopicPartition, int]:
    """How many records of each partition compaction has not removed yet: older ones of keys, tombstones, and
    records without a key.
    """
    rows = digests.groupBy(*PARTITION).agg(F.sum(F.col("held") - F.col("records")).alias("held")).collect()
    return {TopicPartition(row.topic, row.partition): row.held for row in rows}


def differing(source: DataFrame, target: DataFrame) -> dict[TopicPartition, Buckets]:
    """The buckets that differ, for each partition that has some.

    Args:
        source, target: Digests of both; compared in the smaller number of buckets of the two.
    """
    both = source.select(*PARTITION, "buckets").union(target.select(*PARTITION, "buckets"))
    rows = both.groupBy(*PARTITION).agg(F.min("buckets").alias("buckets")).collect()
    totals = {TopicPartition(row.topic, row.partition): row.buckets for row in rows}
    here, there = (_in_fewer(digests, totals) for digests in (source, target))
    found: defaultdict[TopicPartition, list[Range]] = defaultdict(list)
    for row in islands(here, there).collect():
        found[TopicPartition(row.topic, row.partition)].append(Range(row["first"], row["last"] + 1))
    return {name: Buckets(totals[name], tuple(sorted(some))) for name, some in found.items()}


def _in_fewer(digests: DataFrame, totals: Mapping[TopicPartition, int]) -> DataFrame:
    filled = digests.where("records > 0").drop("buckets")
    numbered = filled.join(_table(digests, totals), [*PARTITION])
    return together(numbered.withColumn("range", F.expr("pmod(range, buckets)")))


def of_buckets(keys: DataFrame, buckets: Mapping[TopicPartition, Buckets]) -> DataFrame:
    """The rows whose key is in one of some buckets.

    Args:
        keys: With the :func:`spark_jobs.digest.key_columns`.
    """
    rows = [(*name, *some) for name, one in buckets.items() for some in one.ranges]
    ranges = keys.sparkSession.createDataFrame(rows, "topic string, partition int, first long, next long")
    wanted = ranges.select(*PARTITION, F.explode(F.expr("sequence(first, next - 1)")).alias("bucket"))
    table = _table(keys, {name: one.total for name, one in buckets.items()})
    numbered = _numbered(keys, table, "bucket")
    return numbered.join(F.broadcast(wanted), [*PARTITION, "bucket"], "left_semi").select(*keys.columns)


def _numbered(keys: DataFrame, totals: DataFrame, name: str) -> DataFrame:
    """Keys with the number of their bucket; those of other partitions are left out."""
    return keys.join(totals, [*PARTITION]).withColumn(name, F.expr("pmod(key_a, buckets)"))


def _table(frame: DataFrame, totals: Mapping[TopicPartition, int]) -> DataFrame:
    """``topic``, ``partition`` and ``buckets``, to be broadcast in a join."""
    rows = [(*name, total) for name, total in totals.items()]
    made = frame.sparkSession.createDataFrame(rows, "topic string, partition int, buckets long")
    return F.broadcast(made)
