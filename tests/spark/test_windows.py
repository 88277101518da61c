"""What lies at the border of what is asked for is named as it is where all is compared."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from mirror.model import TopicPartition
from mirror.proving.comparable import AROUND
from mirror.proving.wanted import Wanted
from spark_jobs.findings import Difference, Kind
from spark_jobs.window import Range
from tests.harness.data import Row
from tests.harness.kafka import KafkaCluster
from tests.harness.loading import load
from tests.spark.planting import FIRST_TIMESTAMP_MS, PLANTS, Spot, made_of
from tests.spark.sites import compared, create_topics, settings_of
from tests.spark.test_planted import write_all

AT = 2_500
"""Where the mistake is, and what is asked for begins, or ends behind it."""
RECORDS = 5_000


@pytest.mark.timeout(400)
async def test_a_mistake_at_the_border_of_what_is_asked_for_is_named(
    spark: SparkSession, source: KafkaCluster, target: KafkaCluster, tmp_path: Path
) -> None:
    """
    Every kind, at the first offset, at the last, at the only one.
    """
    made = {
        f"border-{kind}": made_of({AT: Spot(kind, "plain")}, random.Random(number), RECORDS)
        for number, kind in enumerate(PLANTS)
    }
    await write_all(source, target, made)
    settings = settings_of(source, target, "border-.*")
    windows = {
        "from": Wanted(same_offsets=True, start=AT),
        "to": Wanted(same_offsets=True, end=AT + 1),
        "only": Wanted(same_offsets=True, start=AT, end=AT + 1),
    }

    for name, wanted in windows.items():
        found = await compared(spark, settings, tmp_path / name, wanted)
        for topic, planted in made.items():
            differences = [finding.difference for finding in found[TopicPartition(topic, 0)].findings]
            assert single(differences) == single(planted.expected), (name, topic)


async def test_between_two_times_only_what_lies_there_is_compared(
    spark: SparkSession, source: KafkaCluster, target: KafkaCluster, tmp_path: Path
) -> None:
    """
    And what is around it: times are those of records, ten milliseconds apart.
    """
    rows = [
        Row(key=b"k%d" % at, value=b"v", timestamp_ms=FIRST_TIMESTAMP_MS + at * 10) for at in range(RECORDS)
    ]
    bad = {500, AT, 4_500}
    await create_topics(source, ["times"])
    await create_topics(target, ["times"])
    load(source.bootstrap, "times", rows)
    load(
        target.bootstrap,
        "times",
        [replace(row, value=b"bad") if at in bad else row for at, row in enumerate(rows)],
    )
    since, until = (FIRST_TIMESTAMP_MS + at * 10 for at in (AT - 100, AT + 100))
    wanted = Wanted(same_offsets=True, since_ms=since, until_ms=until)

    found = await compared(spark, settings_of(source, target, "times"), tmp_path, wanted)

    (one,) = found.values()
    assert one.log.window.source == Range(AT - 100 - AROUND, AT + 100 + AROUND)
    assert [finding.difference.source_offset for finding in one.findings] == [AT]


def single(differences: list[Difference]) -> list[Difference]:
    """Without rows that are shifted: they go on beyond what is asked for."""
    return sorted((one for one in differences if one.kind is not Kind.SHIFTED), key=repr)
