"""Copies that the mirror itself made, with the same offsets and with others."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from mirror.model import TopicPartition
from mirror.proving.wanted import Wanted
from spark_jobs.findings import Kind
from tests.conftest import TopicFactory
from tests.harness.data import edge_rows, json_rows
from tests.harness.kafka import KafkaCluster
from tests.harness.loading import load, load_compacted, load_transactions
from tests.harness.process import twinsite
from tests.spark.sites import compared, settings_of


async def copy(
    source: KafkaCluster, target: KafkaCluster, topics: str, flow: str, folder: Path, *more: str
) -> None:
    done = await twinsite(
        "mirror", "--source", source.bootstrap, "--target", target.bootstrap,
        "--topics", topics, "--flow", flow, "--once", "-o", "json", *more, work_dir=folder,
    )  # fmt: skip
    assert done.code == 0, done.stderr


@pytest.mark.parametrize("mode", ["same", "mapped"])
async def test_what_the_mirror_copied_is_the_same(
    mode: str,
    spark: SparkSession,
    source: KafkaCluster,
    target: KafkaCluster,
    topic: TopicFactory,
    tmp_path: Path,
) -> None:
    """
    Transactions, some of them aborted, records of every odd kind, compacted topics.
    """
    plain = await topic(source, partitions=2, prefix=f"made-{mode}")
    load(source.bootstrap, plain, [*edge_rows(), *json_rows(5000, 100)], "lz4")
    transactional = await topic(source, prefix=f"made-{mode}")
    load_transactions(source.bootstrap, transactional, json_rows(5000, 100), transactional_id=transactional)
    keyed = await topic(source, prefix=f"made-{mode}", cleanup_policy="compact")
    load_compacted(source.bootstrap, keyed, json_rows(3000, 100, keys=500))
    await copy(source, target, f"made-{mode}-.*", f"made-{mode}", tmp_path, "--offsets", mode)

    settings = settings_of(source, target, f"made-{mode}-.*", flow=f"made-{mode}")
    found = await compared(spark, settings, tmp_path, Wanted())

    assert {name.topic for name in found} == {plain, transactional, keyed}
    assert all(one.is_match for one in found.values()), found
    assert found[TopicPartition(transactional, 0)].source_records == 5000


async def test_a_record_written_into_a_mapped_copy_is_found_where_it_is(
    spark: SparkSession, source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    Behind the end of the source nothing can be a copy.
    """
    name = await topic(source, prefix="foreign")
    load_transactions(source.bootstrap, name, json_rows(1000, 100), transactional_id=name)
    await copy(source, target, name, name, tmp_path, "--offsets", "mapped")
    load(target.bootstrap, name, json_rows(1, 100))

    found = await compared(spark, settings_of(source, target, name, flow=name), tmp_path, Wanted())

    (finding,) = found[TopicPartition(name, 0)].findings
    assert (finding.difference.kind, finding.difference.target_offset) == (Kind.EXTRA, 1000)
    assert finding.key == b"000000000000"
