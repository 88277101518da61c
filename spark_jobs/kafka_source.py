"""Read ranges of Kafka partitions into Spark: exactly those, or not at all.

A frame of records has the columns ``topic``, ``partition``, ``offset``, ``place`` (see
:mod:`spark_jobs.findings`), ``timestamp_ms``, ``key``, ``value``, ``headers``. Aborted and control records
are not in it.

Offsets are given explicitly: Spark then reads what is asked for, fails where it cannot, and waits for
nothing. Nothing between the ranges of a partition is read.

Sources: Spark's Structured Streaming + Kafka Integration Guide; KIP-98 (read_committed).
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from mirror.model import TopicPartition
from spark_jobs.kafka_ranges import pieces, read_ranges
from spark_jobs.pace import fetch_bytes
from spark_jobs.places import Line, clipped
from spark_jobs.questions import Lines, Ranges, offsets_of
from spark_jobs.window import ALL, Range

LATEST = -1
"""Spark's name for the end that a partition has when it is read."""
TASK_OFFSETS_MIN, TASK_OFFSETS_ENOUGH = 50_000, 4_000_000
"""A task reads at least the first number of offsets, and more than the second only where there would be too
many tasks."""
TASKS_PER_CORE, TASKS_PER_CORE_MAX = 4, 64

OPTIONS = {
    "kafka.isolation.level": "read_committed",
    "includeHeaders": "true",
    "failOnDataLoss": "true",  # otherwise a range that is gone would silently come back shorter
    "kafka.max.poll.records": "10000",
    "kafka.receive.buffer.bytes": str(1 << 20),
    "kafka.fetch.max.wait.ms": "20",  # the fetch after the end of a range comes back empty, after this
    "kafkaConsumer.pollTimeoutMs": "60000",
}
BULK_BYTES, SMALL_BYTES = 16 << 20, 128 << 10
"""Fetched from a partition at once, where much is read of it and where little is read."""
LINE_BUCKET = 4096
"""Offsets in a bucket of the join that finds the line of each record."""
_LINE_SCHEMA = "topic string, partition int, line_start long, line_end long, slope long, base long"
RECORD_SCHEMA = (
    "topic string, partition int, offset long, place long, timestamp_ms long, key binary, value binary, "
    "headers array<struct<key: string, value: binary>>"
)
RECORD_COLUMNS = ("topic", "partition", "offset", "place", "timestamp_ms", "key", "value", "headers")


@dataclass(frozen=True, slots=True)
class Spared:
    """How brokers are kept from sending what is not wanted, or what is sent again in the next slice.

    Attributes:
        offset_bytes: Bytes of an offset, as far as is known: fetches are no larger than ranges need.
        group: Group of the consumers, which use in the next slice what they have fetched already.
    """

    offset_bytes: float
    group: str


@dataclass(frozen=True, slots=True)
class Cluster:
    """How Spark reaches a cluster.

    Attributes:
        name: ``source`` or ``target``, for people.
        options: Of Kafka's consumer, each with the prefix ``kafka.``.
        spared: How its brokers are spared; None: it is read as fast as possible.
    """

    name: str
    options: Mapping[str, str]
    spared: Spared | None = None

    def sparing(self, spared: Spared) -> Cluster:
        """The same cluster, whose brokers send little that is not wanted."""
        return replace(self, spared=spared)

    def read(self, spark: SparkSession, ranges: Ranges, lines: Lines, little: bool, /) -> DataFrame:
        """A frame of the records of ranges, see :func:`read`."""
        return read(spark, self, ranges, lines=lines, little=little)


def read(
    spark: SparkSession,
    cluster: Cluster,
    ranges: Ranges,
    *,
    lines: Mapping[TopicPartition, Sequence[Line]] | None = None,
    little: bool = False,
) -> DataFrame:
    """A frame of the records of ranges; a range that ends where ``ALL`` does ends where the log does.

    Args:
        lines: How offsets become places, for partitions where they are not the same.
        little: Only small ranges here and there are asked for: fetch no more than is needed.
    """
    lines = lines or {}
    plain, mapped = (
        {tp: some for tp, some in ranges.items() if (tp in lines) is has_lines} for has_lines in (False, True)
    )
    table = {tp: clipped(lines[tp], some) for tp, some in mapped.items()}
    frames = [at_offsets(frame) for frame in _parts(spark, cluster, plain, little=little)]
    frames += [placed(frame, table) for frame in _parts(spark, cluster, mapped, little=little)]
    return union(spark, [frame.select(*RECORD_COLUMNS) for frame in frames])


def at_offsets(frame: DataFrame) -> DataFrame:
    """Records whose places are their offsets."""
    return frame.withColumn("place", F.col("offset"))


def _parts(spark: SparkSession, cluster: Cluster, ranges: Ranges, *, little: bool) -> Iterator[DataFrame]:
    """One frame of the ranges with an end, and one of those without."""
    bounded = {tp: [one for one in some if one.offsets and one.end < ALL.end] for tp, some in ranges.items()}
    if any(bounded.values()):
        cores, total = spark.sparkContext.defaultParallelism, offsets_of(bounded)
        task = task_offsets(total, cores)
        tasks = max(cores * TASKS_PER_CORE, len(bounded) + total // task)
        fetched = _fetched(cluster, bounded, task, little=little)
        group = f"{cluster.spared.group}-{fetched}" if cluster.spared else None
        records = read_ranges(spark, _options(cluster, fetched), bounded, task, group)
        yield with_times(records.coalesce(tasks))
    endless = {tp: one for tp, some in ranges.items() for one in some if one.end == ALL.end}
    if endless:
        options = _options(cluster, _most(little=little))
        yield with_times(_to_the_end(spark, options, endless))


def task_offsets(total: int, cores: int) -> int:
    """How many offsets a task reads: enough to be worth a task, and few enough to keep every core busy until
    the end and to show progress."""
    wanted = min(total // (cores * TASKS_PER_CORE), TASK_OFFSETS_ENOUGH)
    return max(TASK_OFFSETS_MIN, wanted, total // (cores * TASKS_PER_CORE_MAX))


def _fetched(cluster: Cluster, ranges: Ranges, task: int, *, little: bool) -> int:
    most = _most(little=little)
    if cluster.spared is None:
        return most
    reads = sum(1 for _ in pieces(ranges, task))
    return fetch_bytes(cluster.spared.offset_bytes * offsets_of(ranges), reads, most)


def _most(*, little: bool) -> int:
    return SMALL_BYTES if little else BULK_BYTES


def _options(cluster: Cluster, fetched: int) -> dict[str, str]:
    return {**OPTIONS, **cluster.options, "kafka.max.partition.fetch.bytes": str(fetched)}


def _to_the_end(
    spark: SparkSession, options: Mapping[str, str], ranges: Mapping[TopicPartition, Range]
) -> DataFrame:
    """Everything from the start of each range on: Spark's source finds out where logs end."""
    starts: defaultdict[str, dict[str, int]] = defaultdict(dict)
    ends: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for tp, one in ranges.items():
        starts[tp.topic][str(tp.partition)] = one.start
        ends[tp.topic][str(tp.partition)] = LATEST
    assigned = {topic: [int(partition) for partition in some] for topic, some in starts.items()}
    reader = spark.read.format("kafka").options(**options).option("assign", json.dumps(assigned))
    return reader.options(startingOffsets=json.dumps(starts), endingOffsets=json.dumps(ends)).load()


def with_times(records: DataFrame) -> DataFrame:
    """The columns of Spark's source, with timestamps in milliseconds, as Kafka has them."""
    return records.select(
        "topic",
        "partition",
        "offset",
        F.unix_millis("timestamp").alias("timestamp_ms"),
        "key",
        "value",
        "headers",
    )


def placed(records: DataFrame, lines: Mapping[TopicPartition, Sequence[Line]]) -> DataFrame:
    """Records with their places; those in no line of their partition are left out.

    Args:
        records: With ``topic``, ``partition`` and ``offset``.
        lines: Of each partition in it.
    """
    rows = list(chain.from_iterable(((*tp, *line) for line in some) for tp, some in lines.items()))
    table = records.sparkSession.createDataFrame(rows, _LINE_SCHEMA)
    table = table.withColumn(
        "bucket",
        F.explode(F.expr(f"sequence(line_start div {LINE_BUCKET}, (line_end - 1) div {LINE_BUCKET})")),
    )
    records = records.withColumn("bucket", F.expr(f"offset div {LINE_BUCKET}"))
    joined = records.join(F.broadcast(table), ["topic", "partition", "bucket"])
    found = joined.where((F.col("line_start") <= F.col("offset")) & (F.col("offset") < F.col("line_end")))
    place = F.col("offset") * F.col("slope") + F.col("base")
    return found.withColumn("place", place).drop("bucket", "line_start", "line_end", "slope", "base")


def union(spark: SparkSession, frames: Iterable[DataFrame]) -> DataFrame:
    """All records of some frames; of none, an empty frame."""
    result: DataFrame | None = None
    for frame in frames:
        result = frame if result is None else result.unionByName(frame)
    return result if result is not None else spark.createDataFrame([], RECORD_SCHEMA)
