"""What was planted is found and named, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest
from pyspark.sql import SparkSession

from mirror.config import Settings
from mirror.model import TopicPartition
from mirror.proving.wanted import Wanted
from spark_jobs import closer
from spark_jobs.algorithms import Algorithm, Hashing
from spark_jobs.logs import Compared, Finding
from tests.harness.data import Row
from tests.harness.kafka import KafkaCluster
from tests.harness.loading import load_log
from tests.spark.planting import PLANTS, Planted, matrix, plant, seen
from tests.spark.planting_keys import FIRST_PLANTS, Named, plant_keys
from tests.spark.sites import compared, create_topics, settings_of, write_both, write_logs
from tests.spark.test_mapped import copy

SEEDS = range(15)
KEY_SEEDS = range(len(FIRST_PLANTS))
"""So that each of them is at the first offset of a log."""

T = TypeVar("T")


@pytest.mark.timeout(600)
async def test_every_planted_difference_is_found_and_named_and_nothing_else(
    spark: SparkSession, source: KafkaCluster, target: KafkaCluster, tmp_path: Path
) -> None:
    """
    Every kind of mistake befalls every sort of record and occurs at every sort of place; and by the dice.
    """
    made = {f"planted-{number}": planted for number, planted in enumerate(matrix())}
    made |= {f"planted-dice-{seed}": plant(seed) for seed in SEEDS}
    await write_all(source, target, made)

    await check_both_ways(spark, settings_of(source, target, "planted-.*"), tmp_path, made)


@pytest.mark.timeout(400)
async def test_every_difference_planted_in_a_mapped_copy_is_found_and_named_and_nothing_else(
    spark: SparkSession, source: KafkaCluster, target: KafkaCluster, tmp_path: Path
) -> None:
    """
    The mirror's offset map is that of a sound copy; the copy is another then.
    """
    made = {f"mapped-{number}": planted for number, planted in enumerate(matrix(mapped=True))}
    await create_topics(source, made)
    await write_logs(source, {name: planted.source for name, planted in made.items()})
    await copy(source, target, "mapped-.*", "mapped", tmp_path, "--offsets", "mapped")
    await asyncio.gather(*(target.delete_topic(name) for name in made))
    await create_topics(target, made)
    await write_logs(target, {name: planted.target for name, planted in made.items()})
    settings = settings_of(source, target, "mapped-.*", flow="mapped")

    await check_both_ways(spark, settings, tmp_path, made, Wanted())


@pytest.mark.timeout(300)
async def test_every_planted_difference_of_compacted_topics_is_found_and_named_and_nothing_else(
    spark: SparkSession, source: KafkaCluster, target: KafkaCluster, tmp_path: Path
) -> None:
    """
    Seventeen keys in each of 12 logs, of every kind, among others that only look different.
    """
    made = {f"keys-{seed}": plant_keys(seed) for seed in KEY_SEEDS}
    for cluster in (source, target):
        await create_topics(cluster, made, cleanup_policy="compact", min_cleanable_dirty_ratio="1")
    await write_both(source, target, made)

    found = await compared(spark, settings_of(source, target, "keys-.*"), tmp_path)

    assert len(found) == len(made)
    for name, planted in made.items():
        findings = found[TopicPartition(name, 0)].findings
        assert in_order([named(one) for one in findings]) == in_order(planted.expected), planted.what


async def write_all(source: KafkaCluster, target: KafkaCluster, made: Mapping[str, Planted]) -> None:
    """A topic of each name, on both sides."""
    for cluster in (source, target):
        await create_topics(cluster, made)
    await write_both(source, target, made)


async def check_both_ways(
    spark: SparkSession,
    settings: Settings,
    folder: Path,
    made: Mapping[str, Planted],
    wanted: Wanted | None = None,
) -> list[Mapping[TopicPartition, Compared]]:
    """Where ranges that differ are read whole, and where only what of them differs by closer digests is."""
    found = []
    for most in (closer.WHOLE_MAX, 0):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(closer, "WHOLE_MAX", most)
            found.append(await compared(spark, settings, folder / f"whole-{most}", wanted))
        check_named(found[-1], made)
    return found


def check_named(found: Mapping[TopicPartition, Compared], made: Mapping[str, Planted]) -> None:
    """All that can be seen of what was planted was named, and nothing else."""
    assert len(found) == len(made)
    for name, planted in made.items():
        differences = [finding.difference for finding in found[TopicPartition(name, 0)].findings]
        assert in_order(differences) == in_order(seen(planted)), (name, planted.what)


def named(finding: Finding) -> Named:
    one = finding.difference
    return one.kind, finding.key, one.named_source_offset, one.target_offset, one.parts


def in_order(differences: Sequence[T]) -> list[T]:
    return sorted(differences, key=repr)


async def test_with_sha256_the_same_is_found(
    spark: SparkSession, source: KafkaCluster, target: KafkaCluster, tmp_path: Path
) -> None:
    """
    Each kind of mistake once.
    """
    made = {"strong": plant(0, records=4_000, plants=len(PLANTS))}
    await write_all(source, target, made)
    wanted = Wanted(same_offsets=True, hashing=Hashing(Algorithm.SHA256, "salt"))

    await check_both_ways(spark, settings_of(source, target, "strong"), tmp_path, made, wanted)


async def test_one_lost_record_early_in_a_long_log_does_not_make_all_that_follows_differ(
    spark: SparkSession, source: KafkaCluster, target: KafkaCluster, tmp_path: Path
) -> None:
    """
    The shift is found by a sample of both sides and undone in the target's digests; apart from that, little
    more than what differs is read again.
    """
    made = {f"long-{seed}": plant(seed, records=80_000, plants=6) for seed in range(2)}
    await write_all(source, target, made)

    whole, closely = await check_both_ways(spark, settings_of(source, target, "long-.*"), tmp_path, made)

    for one in whole.values():
        assert one.read_again < 2.2 * (one.source_records + one.target_records), one.log.name
    assert sum(one.read_again for one in whole.values()) != sum(one.read_again for one in closely.values())


async def test_of_too_much_that_differs_the_first_of_each_log_is_named_and_the_rest_counted(
    spark: SparkSession,
    source: KafkaCluster,
    target: KafkaCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    With limits that a small log goes beyond: twenty of the ranges that are compared closely.
    """
    monkeypatch.setattr(closer, "WHOLE_MAX", 0)
    monkeypatch.setattr(closer, "NAMED_MAX", 20 * closer.CLOSER_PLACES)
    rows = [Row(key=b"%d" % at, value=b"sound", timestamp_ms=1 + at) for at in range(4_000)]
    damaged = {"toomuch-many": range(3, 4_000, 20), "toomuch-few": range(100, 4_000, 1_500)}
    for name, offsets in damaged.items():
        await create_topics(source, [name])
        await create_topics(target, [name])
        load_log(source.bootstrap, name, rows)
        load_log(
            target.bootstrap,
            name,
            [replace(row, value=b"bad") if at in offsets else row for at, row in enumerate(rows)],
        )

    found = await compared(spark, settings_of(source, target, "toomuch-.*"), tmp_path)

    many, few = (found[TopicPartition(name, 0)] for name in damaged)
    assert [one.difference.source_offset for one in few.findings] == list(damaged["toomuch-few"])
    assert not few.unread
    named = [one.difference.source_offset for one in many.findings]
    assert named == list(damaged["toomuch-many"])[:17]
    assert all(at in named or any(one.holds(at) for one in many.unread) for at in damaged["toomuch-many"])
