"""One Spark session for the suite: it takes longer to start than most tests to run."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_jobs.session import JARS_VARIABLE, session
from tests.harness.jvm import cache_folder
from tests.harness.kafka import KafkaCluster
from tests.spark import commands
from tests.spark.commands import FAST, Command


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """PySpark leaves the sockets over which results came to the garbage collector."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"))
            unraisable = "ignore:Exception ignored in.*socket:pytest.PytestUnraisableExceptionWarning"
            item.add_marker(pytest.mark.filterwarnings(unraisable))


@pytest.fixture(scope="session", autouse=True)
def jars() -> None:
    """Where scripts/bootstrap puts the jars of Spark's Kafka source."""
    os.environ.setdefault(JARS_VARIABLE, str(cache_folder() / "spark" / "jars"))


@pytest.fixture(scope="session")
def spark(jars: None) -> Iterator[SparkSession]:
    """A session that everything in this process uses."""
    with session(master="local[2]", settings=FAST) as made:
        yield made
    gc.collect()


@pytest.fixture
def reconcile(spark: SparkSession) -> Command:
    """``twinsite reconcile``, in this process and session."""
    return commands.reconcile


@pytest.fixture
def own_source(tmp_path: Path) -> Iterator[KafkaCluster]:
    """A source whose disk may be changed."""
    yield from _own("3.9", "source", tmp_path)


@pytest.fixture
def own_target(tmp_path: Path) -> Iterator[KafkaCluster]:
    """A target whose disk may be changed."""
    yield from _own("4.3", "target", tmp_path)


def _own(version: str, name: str, work_dir: Path) -> Iterator[KafkaCluster]:
    cluster = KafkaCluster.prepare(version, 1, name, {}, work_dir)
    try:
        asyncio.run(cluster.launch())
        yield cluster
    finally:
        cluster.close()
