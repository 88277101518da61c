"""What records are reduced to: nothing that differs may look the same."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from mirror.model import TopicPartition
from spark_jobs import compare
from spark_jobs.digest import LANES, digests, latest, latest_together, record_hashes, together
from spark_jobs.kafka_source import RECORD_SCHEMA
from spark_jobs.rows import sides

Headers = list[tuple[str, bytes | None]] | None
Fields = tuple[int, bytes | None, bytes | None, Headers]
"""Of a record: timestamp, key, value, headers."""

LOOK_ALIKE: list[Fields] = [
    (1, None, None, None),
    (1, b"", None, None),
    (1, None, b"", None),
    (1, b"", b"", None),
    (1, b"ab", b"", None),
    (1, b"a", b"b", None),
    (1, b"", b"ab", None),
    (1, b"ab", None, None),
    (1, None, b"ab", None),
    (2, b"a", b"b", None),
    (1, b"b", b"a", None),
    (1, b"a", b"b", [("", None)]),
    (1, b"a", b"b", [("", b"")]),
    (1, b"a", b"b", [("h", None)]),
    (1, b"a", b"b", [("h", b"")]),
    (1, b"a", b"b", [("", b"h")]),
    (1, b"a", b"b", [("h", b""), ("h", b"")]),
    (1, b"a", b"b", [("h", b"1"), ("i", b"2")]),
    (1, b"a", b"b", [("i", b"2"), ("h", b"1")]),
    (1, b"a", b"b", [("h", b"2"), ("i", b"1")]),
    (1, b"a", b"b", [("hi", b"12")]),
    (1, b"a", b"bh", None),
]


def frame(spark: SparkSession, rows: Sequence[tuple[int, Fields]]) -> DataFrame:
    """Records of one partition, each with its offset, which is its place too."""
    made = [
        ("t", 0, offset, offset, timestamp, _bytes(key), _bytes(value), _headers(headers))
        for offset, (timestamp, key, value, headers) in rows
    ]
    return spark.createDataFrame(made, RECORD_SCHEMA)


def _bytes(value: bytes | None) -> bytearray | None:
    return None if value is None else bytearray(value)


def _headers(headers: Headers) -> list[tuple[str, bytearray | None]] | None:
    return None if headers is None else [(name, _bytes(value)) for name, value in headers]


def lanes(digest: DataFrame) -> set[tuple[Any, ...]]:
    return {
        (row.topic, row.partition, row["range"], row.records, *(row[lane] for lane in LANES))
        for row in digest.collect()
    }


def test_records_that_look_alike_have_different_digests(spark: SparkSession) -> None:
    """
    Each stands alone in a range of its own, all at the same place within it.
    """
    rows = [(number, fields) for number, fields in enumerate(LOOK_ALIKE)]
    records = frame(spark, rows)
    same_place = records.withColumn("partition", records["offset"].cast("int")).withColumn(
        "place", records["place"] * 0
    )

    found = {row.partition: tuple(row[lane] for lane in LANES) for row in digests(same_place).collect()}

    alike = [(one, other) for one, other in combinations(found, 2) if found[one] == found[other]]
    assert alike == []
    assert len(found) == len(LOOK_ALIKE)


def test_no_headers_and_an_empty_list_of_them_are_the_same(spark: SparkSession) -> None:
    """
    Kafka knows no difference.
    """
    without, empty = frame(spark, [(0, (1, b"k", b"v", None))]), frame(spark, [(0, (1, b"k", b"v", []))])

    assert lanes(digests(without)) == lanes(digests(empty))


def test_a_digest_knows_what_is_doubled_lost_or_in_another_order(spark: SparkSession) -> None:
    one, two = (1, b"a", b"1", None), (1, b"b", b"2", None)
    orders = [
        [(0, one), (1, two)],
        [(0, two), (1, one)],
        [(0, one)],
        [(0, one), (0, one), (1, two)],
        [(0, one), (1, two), (1, two), (1, two)],
        [(0, one), (2, two)],
    ]

    found = [lanes(digests(frame(spark, rows))) for rows in orders]

    assert len({frozenset(one) for one in found}) == len(orders)
    assert lanes(digests(frame(spark, orders[0][::-1]))) == found[0]


def test_digests_of_parts_add_up_to_that_of_the_whole(spark: SparkSession) -> None:
    rows = [(offset, (offset, b"k%d" % offset, b"v", None)) for offset in range(3000)]
    parts = digests(frame(spark, rows[:1500])).unionByName(digests(frame(spark, rows[1500:])))

    assert lanes(together(parts)) == lanes(digests(frame(spark, rows)))


def test_the_latest_record_of_a_key_is_the_same_read_at_once_or_in_parts(spark: SparkSession) -> None:
    rows = [(offset, (offset, b"k%d" % (offset % 7), b"%d" % offset, None)) for offset in range(100)]
    whole = latest(frame(spark, rows))

    parts = latest_together(latest(frame(spark, rows[:37])).unionByName(latest(frame(spark, rows[37:]))))

    columns = sorted(whole.columns)
    assert sorted(whole.select(columns).collect()) == sorted(parts.select(columns).collect())
    assert sorted(row.offset for row in whole.collect()) == list(range(93, 100))


def test_hashes_of_a_record_say_what_of_it_is_another(spark: SparkSession) -> None:
    rows: list[tuple[int, Fields]] = [
        (0, (1, b"a", b"b", [("h", b"1"), ("i", b"2")])),
        (1, (1, b"a", b"b", [("i", b"2"), ("h", b"1")])),
        (2, (1, b"a", b"c", [("h", b"1"), ("i", b"2")])),
    ]

    side = sides(record_hashes(frame(spark, rows)))[TopicPartition("t", 0)]

    first, turned, other = side.records
    assert (first.headers, first.header_set) != (turned.headers, turned.header_set)
    assert first.header_set == turned.header_set
    assert (first.key, first.headers) == (other.key, other.headers)
    assert first.value != other.value
    assert side.keys == {0: b"a", 1: b"a", 2: b"a"}


def test_neighbouring_ranges_that_differ_are_one_island(spark: SparkSession) -> None:
    """
    What only one side has differs too; partitions are kept apart.
    """
    schema = "topic string, partition int, range long, records long, bytes long, " + ", ".join(
        f"{lane} long" for lane in LANES
    )

    def side(rows: dict[tuple[int, int], int]) -> DataFrame:
        made = [("t", partition, at, 1, 1, lane, 0, 0, 0) for (partition, at), lane in rows.items()]
        return spark.createDataFrame(made, schema)

    source = side({(0, at): at for at in range(10)} | {(1, 3): 5})
    target = side({(0, at): at for at in range(10) if at not in (9,)} | {(0, 2): 0, (0, 3): 0, (0, 7): 0})

    found = {(row.partition, row["first"], row["last"]) for row in compare.islands(source, target).collect()}

    assert found == {(0, 2, 3), (0, 7, 7), (0, 9, 9), (1, 3, 3)}


def test_rows_of_records_that_are_once_on_both_sides_tell_the_shift(spark: SparkSession) -> None:
    """
    What occurs twice says nothing.
    """
    schema = "topic string, partition int, offset long, place long, content_a long, content_b long"

    def side(contents: Sequence[int]) -> DataFrame:
        rows = [("t", 0, at, at, content, 0) for at, content in enumerate(contents)]
        return spark.createDataFrame(rows, schema)

    found = compare.anchors(side([1, 2, 3, 9, 9, 4, 5]), side([1, 2, 8, 3, 9, 9, 4, 5])).collect()

    rows = {(row["first"], row["last"], row["shift"], row.records) for row in found}
    assert rows == {(0, 1, 0, 2), (2, 6, 1, 3)}
