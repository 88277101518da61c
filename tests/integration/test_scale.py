"""Many topics, and many partitions of one: all there, with their settings, and exact."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka.admin import ConfigResource, NewTopic, ResourceType

from tests.conftest import TopicFactory
from tests.faults.flows import complete, mirror_of, once
from tests.harness.checker import read_together, watermarks
from tests.harness.data import json_rows
from tests.harness.judging import judge
from tests.harness.kafka import KafkaCluster
from tests.harness.loading import load, load_interleaved, load_topics
from tests.harness.process import Twinsite, twinsite

pytestmark = pytest.mark.timeout(240)

TOPICS = 1000
BACKLOG_BYTES = 160_000_000
PROMISED_BYTES = 150_000_000
"""What a mirror of 64 partitions may have resident, whatever the lag."""
PARTITIONS = 200


@pytest.mark.timeout(480)
async def test_a_thousand_topics_are_made_and_copied(tmp_path: Path) -> None:
    """
    Each has a setting of its own and a few records; one run brings them all.
    """
    async with (
        KafkaCluster.start(version="3.9", name="source", work_dir=tmp_path) as source,
        KafkaCluster.start(version="4.3", name="target", work_dir=tmp_path) as target,
    ):
        names = [f"topic-{number:04d}" for number in range(TOPICS)]
        await asyncio.to_thread(create_all, source, names)
        load_topics(source.bootstrap, names, json_rows(5, 100))

        done = await twinsite(*once(source, target, "topic-.*", "f"), work_dir=tmp_path, seconds=240)

        assert done.code == 0, done.missing
        assert retentions(target, names) == [str(retention(number)) for number in range(TOPICS)]
        assert records_exact(source, target, [(name, 0) for name in names]) == TOPICS * 5


async def test_two_hundred_partitions_of_one_topic_are_copied_while_they_are_written(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    Three transactional producers in turn, one of which aborts: gaps in every partition.
    """
    name = await topic(source, partitions=PARTITIONS)
    load(source.bootstrap, name, json_rows(20_000, 200))
    with Twinsite.run(*mirror_of(source, target, name, name), work_dir=tmp_path) as mirror:
        for seed in (2, 3):
            load_interleaved(source.bootstrap, name, json_rows(4000, 200, seed=seed))
            load(source.bootstrap, name, json_rows(4000, 200, seed=seed))
        await mirror.wait_for(partial(complete, mirror, source, [name]), "all is copied", 60)

    where = [(name, number) for number in range(PARTITIONS)]
    assert records_exact(source, target, where) > 28_000
    assert watermarks(target.bootstrap, name) == watermarks(source.bootstrap, name)


async def test_a_backlog_many_times_the_buffers_stays_within_the_promised_memory(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    64 partitions that are all behind, and in records of a size that fills every buffer there is.
    """
    name = await topic(source, partitions=64)
    load(source.bootstrap, name, json_rows(BACKLOG_BYTES // 4096, 4096), "none", batch_size=65536)

    done = await twinsite(*once(source, target, name, name), work_dir=tmp_path, seconds=120)

    assert done.code == 0, done.missing
    assert done.document["totals"]["bytes"] > BACKLOG_BYTES
    assert done.document["totals"]["peak_memory_bytes"] < PROMISED_BYTES


def create_all(cluster: KafkaCluster, names: Sequence[str]) -> None:
    """Make the topics in one request, each with a retention of its own."""
    topics = [
        NewTopic(name, 1, 1, config={"retention.ms": str(retention(number))})
        for number, name in enumerate(names)
    ]
    for made in cluster.admin.create_topics(topics).values():
        made.result()


def retention(number: int) -> int:
    """A retention no other topic has; longer than any test."""
    return 10**10 + number


def retentions(cluster: KafkaCluster, names: Sequence[str]) -> list[str]:
    """What each topic of a cluster is set to."""
    resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
    answers = cluster.admin.describe_configs(resources)
    return [answers[resource].result()["retention.ms"].value for resource in resources]


def records_exact(source: KafkaCluster, target: KafkaCluster, partitions: Iterable[tuple[str, int]]) -> int:
    """Demand that each of these partitions has the same records with the same offsets on both sides."""
    ours = read_together(source.bootstrap, partitions)
    theirs = read_together(target.bootstrap, ours)
    verdicts = {where: judge(ours[where], theirs[where]) for where in ours}
    assert {where: verdict.findings for where, verdict in verdicts.items() if not verdict.exact} == {}
    return sum(verdict.records for verdict in verdicts.values())
