"""Keys in buckets: few bytes say whether they are the same, and few keys travel where they are not."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from mirror.model import TopicPartition
from spark_jobs.algorithms import Algorithm, Hashing
from spark_jobs.buckets import (
    BUCKET_BYTES,
    buckets_for,
    differing,
    digests_of_keys,
    of_buckets,
    superseded,
)
from spark_jobs.compacted import differing_keys, first_keys
from spark_jobs.costs import cost_of
from spark_jobs.digest import latest
from spark_jobs.kafka_source import RECORD_COLUMNS
from spark_jobs.questions import Lines, Question, Ranges, What
from spark_jobs.sites import KEPT_SECONDS, KafkaSite, forget_old_keys, keep
from spark_jobs.window import Range

LOG = TopicPartition("t", 0)
VALUE_BYTES = 500


def records(spark: SparkSession, count: int, sizes: Mapping[int, int] | None = None) -> DataFrame:
    """So many keys with a value each; offsets are their numbers.

    Args:
        sizes: Of values that are not as large as the others.
    """
    size = F.lit(VALUE_BYTES)
    for number, other in (sizes or {}).items():
        size = F.when(F.col("id") == number, other).otherwise(size)
    made = spark.range(count).select(
        F.lit("t").alias("topic"),
        F.lit(0).alias("partition"),
        F.col("id").alias("offset"),
        F.col("id").alias("place"),
        F.lit(1).cast("long").alias("timestamp_ms"),
        F.col("id").cast("string").cast("binary").alias("key"),
        F.repeat(F.lit("v"), size).cast("binary").alias("value"),
        F.expr("cast(null as array<struct<key: string, value: binary>>)").alias("headers"),
    )
    return made.select(*RECORD_COLUMNS)


@pytest.mark.parametrize(
    ("size", "buckets"),
    [(0, 1), (BUCKET_BYTES, 1), (2 * BUCKET_BYTES - 1, 1), (2 * BUCKET_BYTES, 2), (1000 * BUCKET_BYTES, 512)],
)
def test_there_are_as_many_buckets_as_the_keys_hold(size: int, buckets: int) -> None:
    assert buckets_for(size) == buckets


@pytest.mark.parametrize("algorithm", Algorithm)
def test_digests_of_keys_are_less_than_a_thousandth_of_the_data(
    algorithm: Algorithm, spark: SparkSession, tmp_path: Path
) -> None:
    count = 40_000
    keys = latest(records(spark, count), Hashing(algorithm, "salt")).cache()

    keep(digests_of_keys(keys), tmp_path / "digests")

    sent = sum(file.stat().st_size for file in (tmp_path / "digests").glob("*.parquet"))
    assert sent < count * VALUE_BYTES / 1000
    assert spark.read.parquet(str(tmp_path / "digests")).count() > 100


def test_only_keys_beside_one_that_differs_are_asked_for(spark: SparkSession) -> None:
    """
    Though the target has put its keys in twice as many buckets, for a large value that is another.
    """
    here, there = (
        latest(frame, Hashing()).cache()
        for frame in (records(spark, 10_000), records(spark, 10_000, {77: 1, 78: 2_000_000}))
    )
    source, target = digests_of_keys(here), digests_of_keys(there)
    assert [digests.select("buckets").distinct().collect() for digests in (source, target)] == [
        [(32,)],
        [(64,)],
    ]

    found = differing(source, target)
    (asked, told) = (of_buckets(keys, found) for keys in (here, there))

    assert found[LOG].total == 32
    assert sum(some.offsets for some in found[LOG].ranges) == 2
    offsets = {row.offset for row in asked.collect()}
    assert offsets == {row.offset for row in told.collect()} >= {77, 78}
    assert len(offsets) < 1000


def test_keys_without_a_value_are_read_and_in_no_digest(spark: SparkSession) -> None:
    """
    Nor do they make more buckets. Who has them and who has not is the same, also in a bucket that holds
    nothing else.
    """
    dead = F.col("offset") > 0
    with_dead = records(spark, 40, {0: 250_000}).withColumns(
        {
            "key": F.rpad(F.col("key").cast("string"), 10_000, "-").cast("binary"),
            "value": F.when(~dead, F.col("value")),
        }
    )
    here, there = (latest(frame, Hashing()).cache() for frame in (with_dead, with_dead.where(~dead)))
    source, target = digests_of_keys(here), digests_of_keys(there)

    assert sorted(tuple(row) for row in source.select("buckets", "records").collect()) == [(2, 0), (2, 1)]
    assert superseded(source) == {LOG: 39}
    assert [tuple(row) for row in target.select("buckets", "records", "held").collect()] == [(2, 1, 1)]
    assert superseded(target) == {LOG: 0}
    assert differing(source, target) == differing(target, source) == {}


def test_buckets_that_differ_are_asked_for_in_order_however_spark_brings_them(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Else a question that is carried would be another one each time it is asked.
    """
    digests = digests_of_keys(latest(records(spark, 10), Hashing()))
    rows = spark.createDataFrame(
        [("t", 0, 5, 5), ("t", 0, 1, 2)], "topic string, partition int, first int, last int"
    )
    monkeypatch.setattr("spark_jobs.buckets.islands", lambda *_: rows)

    assert differing(digests, digests)[LOG].ranges == (Range(1, 3), Range(5, 6))


def test_the_keys_that_are_named_are_the_first_ones_however_spark_brings_them(spark: SparkSession) -> None:
    """
    Else a folder would hold answers about other keys when it is looked at again.
    """
    here, there = (latest(frame, Hashing()) for frame in (records(spark, 50), records(spark, 40)))
    keys = differing_keys(here, there).union(differing_keys(there.where("offset < 5"), here.limit(0)))

    for parts in (1, 7):
        first = first_keys(keys.repartition(parts), 7).collect()

        assert [(row.here or row.there).place for row in first] == [0, 1, 2, 3, 4, 40, 41]


@dataclass
class Watched:
    """Records of a site, and what was read of them.

    Attributes:
        reads: The ranges of each read.
    """

    frame: DataFrame
    name: str = "source"
    reads: list[Ranges] = field(default_factory=list)

    def bounded(self, _spark: SparkSession, ranges: Ranges, /) -> Ranges:
        return ranges

    def read(self, _spark: SparkSession, ranges: Ranges, _lines: Lines, _little: bool, /) -> DataFrame:
        self.reads.append(ranges)
        return self.frame


def test_a_site_reads_its_log_once_for_digests_and_for_the_keys_they_are_of(
    spark: SparkSession, tmp_path: Path
) -> None:
    """
    What it has kept is gone when it has told; asked once more it has to read again.
    """
    watched = Watched(records(spark, 2_000, {5: 1}))
    other = digests_of_keys(latest(records(spark, 2_000), Hashing(salt="salt")))
    folder, kept = tmp_path / "carried", tmp_path / "keys"
    site = KafkaSite(spark, watched, {"t": "t"}, folder, kept, lambda _: None)
    first = Question(
        name="buckets",
        what=What.BUCKETS,
        ranges={LOG: [Range(0, 2_000)]},
        hashing=Hashing(salt="salt"),
    )
    digested = site.ask(first)
    buckets = differing(digested, other)
    question = replace(first, name="keys", what=What.KEYS, buckets=buckets)
    assert "salt" not in str(list(kept.iterdir()))

    answer = site.ask(question)
    told, cost = answer.collect(), cost_of(question, answer)

    assert len(watched.reads) == 1
    assert cost_of(first, digested).read_bytes == 2_000 * VALUE_BYTES - 499 + len(
        "".join(map(str, range(2_000)))
    )
    assert cost.read_bytes == 0
    assert 5 in {row.offset for row in told}
    assert 100 < len(told) < 500
    assert list(kept.iterdir()) == []
    assert {row.offset for row in site.ask(question).collect()} == {row.offset for row in told}
    assert len(watched.reads) == 2


def test_keys_of_a_comparison_that_nobody_goes_on_with_are_thrown_away(tmp_path: Path) -> None:
    for name in ("source-keys-1", "source-keys-2", "others"):
        (tmp_path / name).mkdir()
    os.utime(tmp_path / "source-keys-1", (0, 0))
    os.utime(tmp_path / "source-keys-2", (100, 100))
    os.utime(tmp_path / "others", (0, 0))

    forget_old_keys(tmp_path, KEPT_SECONDS + 50)

    assert sorted(left.name for left in tmp_path.iterdir()) == ["others", "source-keys-2"]
