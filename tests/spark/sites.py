"""Compare two test clusters, in the session that is there."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol

from pyspark.sql import SparkSession

from mirror.config import Settings, parse
from mirror.consumer_options import consumer_options
from mirror.model import TopicPartition
from mirror.proving import asking
from mirror.proving.wanted import Wanted
from spark_jobs.kafka_source import Cluster
from spark_jobs.logs import Compared
from spark_jobs.reconcile import compare, kafka_sites
from tests.harness.data import Entry
from tests.harness.kafka import KafkaCluster
from tests.harness.loading import load_log


class Pair(Protocol):
    """What the logs of one topic hold at both sites."""

    @property
    def source(self) -> Iterable[Entry]: ...

    @property
    def target(self) -> Iterable[Entry]: ...


async def create_topics(cluster: KafkaCluster, names: Iterable[str], **config: str) -> None:
    """All at the same time; dots in settings are written as underscores."""
    settings = {key.replace("_", "."): value for key, value in config.items()}
    await asyncio.gather(*(cluster.create_topic(name, config=settings) for name in names))


async def write_logs(cluster: KafkaCluster, logs: Mapping[str, Iterable[Entry]]) -> None:
    """Write logs of many topics, several at a time: most of it is waiting for markers."""
    written = (asyncio.to_thread(load_log, cluster.bootstrap, name, log) for name, log in logs.items())
    await asyncio.gather(*written)


async def write_both(source: KafkaCluster, target: KafkaCluster, made: Mapping[str, Pair]) -> None:
    """Write both logs of each topic."""
    await write_logs(source, {name: pair.source for name, pair in made.items()})
    await write_logs(target, {name: pair.target for name, pair in made.items()})


def settings_of(source: KafkaCluster, target: KafkaCluster, topics: str, flow: str = "proof") -> Settings:
    return parse(
        {
            "flow": flow,
            "source": {"bootstrap_servers": source.bootstrap},
            "target": {"bootstrap_servers": target.bootstrap},
            "topics": {"include": [topics]},
        }
    )


async def compared(
    spark: SparkSession, settings: Settings, folder: Path, wanted: Wanted | None = None
) -> Mapping[TopicPartition, Compared]:
    """What a run finds, by partition; copies that nobody but the test made have the same offsets."""
    scope = await asking.scope(settings, wanted or Wanted(same_offsets=True))
    clusters = (
        Cluster("source", consumer_options(settings.way_to_source)),
        Cluster("target", consumer_options(settings.target)),
    )
    sites = kafka_sites(spark, clusters, scope, folder, lambda _: None)
    found = await asyncio.to_thread(compare, sites, scope)
    return {one.log.name: one for one in found}
