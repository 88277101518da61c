"""What is read of a Kafka cluster, by how many tasks, and that no Python touches it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from mirror.model import TopicPartition
from spark_jobs.algorithms import Algorithm, Hashing
from spark_jobs.answering import answer
from spark_jobs.findings import Kind
from spark_jobs.kafka_source import TASK_OFFSETS_MIN, Cluster, read
from spark_jobs.places import Line
from spark_jobs.questions import Question, What
from spark_jobs.stretches import RANGE_PLACES
from spark_jobs.window import Range
from tests.conftest import TopicFactory
from tests.harness.data import Row
from tests.harness.kafka import KafkaCluster
from tests.harness.loading import load
from tests.spark.sites import compared, settings_of

RANGES, EVERY = 40, 4
KEYS, EVERY_KEY = 30_000, 250
NOWHERE = Cluster("source", {"kafka.bootstrap.servers": "127.0.0.1:1"})
BIG = TopicPartition("big", 0)


def rows(count: int) -> list[Row]:
    return [Row(key=b"%d" % at, value=b"", timestamp_ms=1_700_000_000_000) for at in range(count)]


def damaged(some: list[Row], every: int) -> Iterator[Row]:
    """One record of so many is another."""
    return (replace(row, value=b"?") if at % every == every // 2 else row for at, row in enumerate(some))


async def test_however_many_records_differ_nothing_between_them_is_read_again(
    spark: SparkSession, source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    Ten ranges of an append-only log, each with those beside it, and 120 of 30 000 keys of a compacted one.
    """
    plain = await topic(source, prefix="scattered")
    keyed = await topic(source, prefix="scattered", cleanup_policy="compact")
    for name, count, every in (plain, RANGES * RANGE_PLACES, EVERY * RANGE_PLACES), (keyed, KEYS, EVERY_KEY):
        await target.create_topic(name)
        load(source.bootstrap, name, rows(count))
        load(target.bootstrap, name, damaged(rows(count), every))
    before = set(queries(spark))

    found = await compared(spark, settings_of(source, target, "scattered-.*"), tmp_path)

    logs, keys = (found[TopicPartition(name, 0)] for name in (plain, keyed))
    assert [len(one.findings) for one in (logs, keys)] == [RANGES // EVERY, KEYS // EVERY_KEY]
    assert {finding.difference.kind for one in (logs, keys) for finding in one.findings} == {Kind.CHANGED}
    assert logs.read_again == 2 * 3 * RANGE_PLACES * RANGES // EVERY
    assert keys.read_again == 2 * KEYS // EVERY_KEY
    once = 2 * (RANGES * RANGE_PLACES + KEYS)
    new = [number for number in queries(spark) if number not in before]
    assert sum(rows_read(spark, number) for number in new) == once + logs.read_again + keys.read_again


def queries(spark: SparkSession) -> list[int]:
    """What Spark has been asked for in this session, as far as it remembers."""
    known = spark._jsparkSession.sharedState().statusStore().executionsList()
    return [known.apply(at).executionId() for at in range(known.size())]


def rows_read(spark: SparkSession, query: int) -> int:
    """How many records Spark got from brokers for a query, whatever became of them."""
    store = spark._jsparkSession.sharedState().statusStore()
    values, nodes = store.executionMetrics(query), store.planGraph(query).allNodes()
    found = 0
    for node in (nodes.apply(at) for at in range(nodes.size())):
        if node.name().startswith("Scan ExistingRDD") and "timestampType" in node.desc():
            metrics = (node.metrics().apply(at) for at in range(node.metrics().size()))
            rows = [one.accumulatorId() for one in metrics if one.name() == "number of output rows"]
            found += sum(int(values.apply(at).replace(",", "")) for at in rows if values.contains(at))
    return found


def test_one_big_partition_is_read_by_several_tasks(spark: SparkSession) -> None:
    frame = read(spark, NOWHERE, {BIG: [Range(0, 3 * TASK_OFFSETS_MIN)]})

    assert frame.rdd.getNumPartitions() == 3


@pytest.mark.parametrize("algorithm", Algorithm)
@pytest.mark.parametrize("what", What)
def test_no_python_touches_a_record(spark: SparkSession, what: What, algorithm: Algorithm) -> None:
    """
    Whatever a site is asked, and whether its offsets are places or not.
    """
    mapped = TopicPartition("mapped", 0)
    ranges = {BIG: [Range(0, 50), Range(70, 90)], mapped: [Range(5, 10)]}
    lines = {mapped: [Line(0, 20, 1, 7)]}
    question = Question(name="q", what=what, ranges=ranges, hashing=Hashing(algorithm, "salt"), lines=lines)
    names = {tp.topic: f"copy-{tp.topic}" for tp in ranges}

    plan = _plan(answer(question, names, lambda some, places, _: read(spark, NOWHERE, some, lines=places)))

    assert "timestampType" in plan
    assert not {word for word in ("Python", "Pandas", "Arrow") if word in plan}, plan


def _plan(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().executedPlan().toString())
