"""What records are reduced to: nothing that differs may look the same, however it is hashed."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from itertools import combinations
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from mirror.model import TopicPartition
from spark_jobs import compare
from spark_jobs.algorithms import Algorithm, Hashing
from spark_jobs.digest import (
    digests,
    key_hashes,
    lanes,
    latest,
    latest_together,
    record_hashes,
    together,
)
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
    (1, b"a", b"b", [("h", None), ("i", b"2")]),
    (1, b"a", b"b", [("h", b"2"), ("i", None)]),
    (1, b"a", b"b", [('h","value":"MQ==', None)]),
    (1, b"a", b"b", [("h", b"1")]),
    (1, b"a", b'b[{"key":"h"}]', None),
    (1, b"a 1", b"b", None),
    (1, b"a", b"1 b", None),
]


@pytest.fixture(params=Algorithm)
def hashing(request: pytest.FixtureRequest) -> Hashing:
    return Hashing(request.param, "salt")


def frame(spark: SparkSession, *partitions: Sequence[tuple[int, Fields]]) -> DataFrame:
    """Records of partitions, each with its offset, which is its place too."""
    made = [
        ("t", partition, offset, offset, timestamp, _bytes(key), _bytes(value), _headers(headers))
        for partition, rows in enumerate(partitions)
        for offset, (timestamp, key, value, headers) in rows
    ]
    return spark.createDataFrame(made, RECORD_SCHEMA)


def _bytes(value: bytes | None) -> bytearray | None:
    return None if value is None else bytearray(value)


def _headers(headers: Headers) -> list[tuple[str, bytearray | None]] | None:
    return None if headers is None else [(name, _bytes(value)) for name, value in headers]


def said(digest: DataFrame) -> set[tuple[Any, ...]]:
    columns = "topic", "partition", "range", "records", *lanes(digest)
    return {tuple(row[column] for column in columns) for row in digest.collect()}


def by_partition(digest: DataFrame) -> list[tuple[Any, ...]]:
    """What is said of each partition, of which there is one range."""
    return [one[2:] for one in sorted(said(digest))]


def test_records_that_look_alike_have_different_digests(spark: SparkSession, hashing: Hashing) -> None:
    """
    Each stands alone in a partition of its own, all at the same place.
    """
    records = frame(spark, *([(0, fields)] for fields in LOOK_ALIKE))

    found = by_partition(digests(records, hashing))

    alike = [(one, other) for one, other in combinations(range(len(found)), 2) if found[one] == found[other]]
    assert alike == []
    assert len(found) == len(LOOK_ALIKE)


def test_no_headers_and_an_empty_list_of_them_are_the_same(spark: SparkSession, hashing: Hashing) -> None:
    """
    Kafka knows no difference.
    """
    records = frame(spark, [(0, (1, b"k", b"v", None))], [(0, (1, b"k", b"v", []))])

    without, empty = by_partition(digests(records, hashing))

    assert without == empty


def test_a_digest_knows_what_is_doubled_lost_or_in_another_order(
    spark: SparkSession, hashing: Hashing
) -> None:
    one, two = (1, b"a", b"1", None), (1, b"b", b"2", None)
    orders = [
        [(0, one), (1, two)],
        [(0, two), (1, one)],
        [(0, one)],
        [(0, one), (0, one), (1, two)],
        [(0, one), (1, two), (1, two), (1, two)],
        [(0, one), (2, two)],
    ]

    found = by_partition(digests(frame(spark, *orders, orders[0][::-1]), hashing))

    assert len(set(found)) == len(orders)
    assert found[0] == found[-1]


def test_digests_of_parts_add_up_to_that_of_the_whole(spark: SparkSession) -> None:
    rows = [(offset, (offset, b"k%d" % offset, b"v", None)) for offset in range(3000)]
    first, rest = (digests(frame(spark, some), Hashing()) for some in (rows[:1500], rows[1500:]))

    assert said(together(first.unionByName(rest))) == said(digests(frame(spark, rows), Hashing()))


def test_the_latest_record_of_a_key_is_the_same_read_at_once_or_in_parts(spark: SparkSession) -> None:
    rows = [(offset, (offset, b"k%d" % (offset % 7), b"%d" % offset, None)) for offset in range(100)]
    whole = latest(frame(spark, rows), Hashing())

    first, rest = (latest(frame(spark, some), Hashing()) for some in (rows[:37], rows[37:]))
    parts = latest_together(first.unionByName(rest))

    columns = sorted(whole.columns)
    assert sorted(whole.select(columns).collect()) == sorted(parts.select(columns).collect())
    assert sorted(row.offset for row in whole.collect()) == list(range(93, 100))


def test_hashes_of_a_record_say_what_of_it_is_another(spark: SparkSession, hashing: Hashing) -> None:
    rows: list[tuple[int, Fields]] = [
        (0, (1, b"a", b"b", [("h", b"1"), ("i", b"2")])),
        (1, (1, b"a", b"b", [("i", b"2"), ("h", b"1")])),
        (2, (1, b"a", b"c", [("h", b"1"), ("i", b"2")])),
    ]

    side = sides(record_hashes(frame(spark, rows), hashing))[TopicPartition("t", 0)]

    first, turned, other = side.records
    assert (first.headers, first.header_set) != (turned.headers, turned.header_set)
    assert first.header_set == turned.header_set
    assert (first.key, first.headers) == (other.key, other.headers)
    assert first.value != other.value
    assert side.keys == {0: b"a", 1: b"a", 2: b"a"}


def test_each_comparison_has_digests_of_its_own(spark: SparkSession, hashing: Hashing) -> None:
    """
    Nobody can make records in advance that fit.
    """
    records = frame(spark, [(0, (1, b"k", b"v", None))])
    another = Hashing(hashing.algorithm, "another")

    made = digests(records, hashing).unionByName(digests(records, another))

    assert len(said(made)) == 2


def test_the_words_of_sha256_are_all_of_it(spark: SparkSession) -> None:
    """
    Read back, they are what anybody's SHA-256 of salt, length and bytes is.
    """
    hashing = Hashing(Algorithm.SHA256, "salt")
    keys = key_hashes(frame(spark, [(0, (1, b"ab", b"", None)), (1, (1, None, b"", None))]), hashing)

    found = {b"".join(_eight_bytes(row[f"key_{word}"] % 2**64) for word in "abcd") for row in keys.collect()}

    assert found == {hashlib.sha256(text).digest() for text in (b"salt 2 ab", b"salt -1 ")}


def _eight_bytes(hashed: int) -> bytes:
    """Of which Spark made this xxHash64: its steps, backwards."""
    one, two, three, four, five = (
        0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5,
    )  # fmt: skip
    seed, mask = 42, 2**64 - 1

    def without(product: int, factor: int) -> int:
        return product * pow(factor, -1, 2**64) & mask

    def turned_back(number: int, bits: int) -> int:
        return (number >> bits | number << (64 - bits)) & mask

    hashed ^= hashed >> 32
    hashed = without(hashed, three)
    hashed ^= hashed >> 29 ^ hashed >> 58
    hashed = without(hashed, two)
    hashed ^= hashed >> 33
    hashed = turned_back(without(hashed - four, one), 27) ^ (seed + five + 8) & mask
    return without(turned_back(without(hashed, one), 31), two).to_bytes(8, "little")


def test_neighbouring_ranges_that_differ_are_one_island(spark: SparkSession) -> None:
    """
    What only one side has differs too; partitions are kept apart.
    """
    schema = "topic string, partition int, range long, records long, bytes long, lane_0 long, lane_1 long"

    def side(rows: dict[tuple[int, int], int]) -> DataFrame:
        made = [("t", partition, at, 1, 1, lane, 0) for (partition, at), lane in rows.items()]
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
