"""What frames of digests are asked when logs differ."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from mirror.model import TopicPartition
from spark_jobs import compare
from spark_jobs.algorithms import Algorithm, Hashing
from spark_jobs.digest import record_hashes
from spark_jobs.kafka_source import RECORD_SCHEMA
from spark_jobs.rows import seen_of, sides

ISLANDS = "topic string, partition int, first long, last long"


def test_of_too_many_rows_each_log_has_its_first_ones(spark: SparkSession) -> None:
    """
    A log with more of them than its share leaves the others theirs.
    """
    rows = [("t", 0, at * 10, at * 10 + 3) for at in range(20)]
    rows += [("t", 1, 70, 70), ("u", 0, 5, 6), ("u", 0, 9, 9)]

    found = compare.first(spark.createDataFrame(reversed(rows), ISLANDS), 7).collect()

    assert sorted((row.topic, row.partition, row["first"], row["last"], row.rows) for row in found) == [
        ("t", 0, 0, 3, 20),
        ("t", 0, 10, 13, 20),
        ("t", 0, 20, 23, 20),
        ("t", 0, 30, 33, 20),
        ("t", 1, 70, 70, 1),
        ("u", 0, 5, 6, 2),
        ("u", 0, 9, 9, 2),
    ]


def test_records_are_counted_in_the_section_in_which_their_range_starts(spark: SparkSession) -> None:
    """
    Of sections that begin at the same place all but the last are empty.
    """
    ranges = [("t", 0, place, 3) for place in range(0, 80, 8)] + [("t", 1, 0, 100), ("u", 0, 0, 100)]
    starts = [
        ("t", 0, 0, -5),
        ("t", 0, 1, 0),
        ("t", 0, 2, 24),
        ("t", 0, 3, 24),
        ("t", 0, 4, 72),
        ("u", 0, 0, 0),
    ]

    found = compare.counted(
        spark.createDataFrame(ranges, "topic string, partition int, place long, records long"),
        spark.createDataFrame(starts, "topic string, partition int, section int, place long"),
    ).collect()

    assert {(row.topic, row.partition, row.section): row.records for row in found if row.records} == {
        ("t", 0, 1): 9,
        ("t", 0, 3): 18,
        ("t", 0, 4): 3,
        ("u", 0, 0): 100,
    }


@pytest.mark.parametrize("algorithm", Algorithm)
def test_records_are_found_by_what_they_hold(spark: SparkSession, algorithm: Algorithm) -> None:
    """
    As the driver knows the hashes of values, and with the sign they have in Spark.
    """
    made = [("t", 0, at, at, 1, None, bytearray(b"value %d" % at), None) for at in range(64)]
    hashes = record_hashes(spark.createDataFrame(made, RECORD_SCHEMA), Hashing(algorithm, "salt"))
    log = TopicPartition("t", 0)
    contents = {record.offset: record.content for record in sides(hashes)[log].records}
    nowhere = (7, *contents[0][1:])

    found = seen_of(
        hashes,
        {log: [*(contents[at] for at in range(1, 64, 2)), nowhere], TopicPartition("t", 1): [contents[2]]},
    )

    assert found == {log: {contents[at]: at for at in range(1, 64, 2)}}
