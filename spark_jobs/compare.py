"""Compare two sites by their answers: functions from frames to frames.

Both frames name partitions as at the source.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from spark_jobs.digest import lanes
from spark_jobs.hashes import words

PARTITION = ("topic", "partition")


def renamed(frame: DataFrame, names: Mapping[str, str]) -> DataFrame:
    """A frame of the target, with topics renamed to their names at the source.

    Args:
        names: From target to source.
    """
    if all(old == new for old, new in names.items()):
        return frame
    table = frame.sparkSession.createDataFrame(list(names.items()), "topic string, source_topic string")
    joined = frame.join(F.broadcast(table), "topic").drop("topic")
    return joined.withColumnRenamed("source_topic", "topic").select(*frame.columns)


def islands(source: DataFrame, target: DataFrame) -> DataFrame:
    """Neighbouring ranges whose digests differ, joined; a range that only one side has differs, too.

    Args:
        source, target: Digests.

    Returns:
        ``topic``, ``partition``, ``first``, ``last``: numbers of ranges, both included.
    """
    key, digest = (*PARTITION, "range"), ("records", *lanes(source))
    here = source.select(*key, F.struct(*digest).alias("here"))
    there = target.select(*key, F.struct(*digest).alias("there"))
    both = here.join(there, list(key), "full_outer")
    return _rows(both.where(~F.col("here").eqNullSafe(F.col("there"))), "range")


def _rows(ranges: DataFrame, column: str) -> DataFrame:
    """Join neighbours: as long as ranges follow each other, range minus row number stays the same."""
    order = Window.partitionBy(*PARTITION).orderBy(column)
    numbered = ranges.withColumn("island", F.col(column) - F.row_number().over(order))
    rows = numbered.groupBy(*PARTITION, "island").agg(
        F.min(column).alias("first"), F.max(column).alias("last")
    )
    return rows.drop("island")


def first(rows: DataFrame, most: int) -> DataFrame:
    """At most ``most`` of these rows: the first row of every log, then the second of every log, and so on.

    Args:
        rows: As :func:`islands` returns them.

    Returns:
        The rows, with one more column, ``rows``: how many the log has in all.
    """
    log = Window.partitionBy(*PARTITION)
    ranked = rows.withColumns(
        {"rank": F.row_number().over(log.orderBy("first")), "rows": F.count(F.lit(1)).over(log)}
    )
    return ranked.orderBy("rank", *PARTITION).limit(most).drop("rank")


def counted(ranges: DataFrame, starts: DataFrame) -> DataFrame:
    """How many records each section of a log has.

    Args:
        ranges: ``topic``, ``partition``, ``place`` (where it starts) and ``records``.
        starts: ``topic``, ``partition``, ``section`` and ``place`` (where it starts); a section has all
            ranges that start in it.

    Returns:
        ``topic``, ``partition``, ``section``, ``records``, for every section.
    """
    logs = F.broadcast(starts.select(*PARTITION).distinct())
    some = ranges.join(logs, list(PARTITION), "left_semi").withColumn("section", F.lit(None).cast("int"))
    both = some.unionByName(starts.withColumn("records", F.lit(0)))
    before = Window.partitionBy(*PARTITION).orderBy("place", F.col("section").asc_nulls_last())
    before = before.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    known = both.withColumn("section", F.last("section", ignorenulls=True).over(before))
    return known.groupBy(*PARTITION, "section").agg(F.sum("records").alias("records"))


def anchors(source: DataFrame, target: DataFrame) -> DataFrame:
    """Records whose content occurs once on both sides, joined into rows of the same shift along the source.

    Args:
        source, target: Contents of the same sample of both.

    Returns:
        ``topic``, ``partition``, and for each row ``first``, ``last`` (places at the source), ``shift``,
        ``records``.
    """
    content = (*PARTITION, *words(source, "content"))
    here = _unique(source, content).withColumnRenamed("place", "here")
    there = _unique(target, content).withColumnRenamed("place", "there")
    pairs = here.join(there, list(content)).select(
        *PARTITION, "here", (F.col("there") - F.col("here")).alias("shift")
    )
    order = Window.partitionBy(*PARTITION).orderBy("here")
    is_new = ~F.col("shift").eqNullSafe(F.lag("shift").over(order))
    marked = pairs.withColumn("is_new", is_new.cast("int"))
    numbered = marked.withColumn("row", F.sum("is_new").over(order))
    return numbered.groupBy(*PARTITION, "row", "shift").agg(
        F.min("here").alias("first"), F.max("here").alias("last"), F.count(F.lit(1)).alias("records")
    )


def _unique(frame: DataFrame, content: tuple[str, ...]) -> DataFrame:
    counted = frame.groupBy(*content).agg(F.count(F.lit(1)).alias("times"), F.min("place").alias("place"))
    return counted.where(F.col("times") == 1).drop("times")


def totals(digests: DataFrame) -> DataFrame:
    """``topic``, ``partition``, ``ranges``, ``records`` and ``bytes`` of a frame of digests."""
    columns: list[Column] = [F.sum("records").alias("records"), F.sum("bytes").alias("bytes")]
    return digests.groupBy(*PARTITION).agg(F.count(F.lit(1)).alias("ranges"), *columns)


def within(digests: DataFrame, rows: DataFrame) -> DataFrame:
    """The digests of ranges that lie in these rows.

    Args:
        rows: As :func:`islands` returns them.
    """
    joined = digests.join(F.broadcast(rows), list(PARTITION))
    return joined.where(F.col("range").between(F.col("first"), F.col("last"))).select(*digests.columns)
