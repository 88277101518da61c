"""Comparisons on a cluster of Spark: workers are processes of their own, and take their part of the work."""

from __future__ import annotations

import os
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pyspark
import pytest

from spark_jobs.session import JARS_VARIABLE
from tests.conftest import TopicFactory
from tests.harness.daemon import free_ports, until
from tests.harness.data import Row, json_rows
from tests.harness.jvm import spawn
from tests.harness.kafka import KafkaCluster
from tests.harness.loading import load
from tests.harness.process import twinsite
from tests.spark.commands import FAST, INTERPRETED, settings_file

HOST = "127.0.0.1"
WORKERS = 2
DEPLOY = "org.apache.spark.deploy"


@pytest.fixture
async def master(tmp_path: Path) -> AsyncIterator[str]:
    """The address of a standalone cluster with two workers of one core each."""
    spark_class = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
    (port,) = free_ports(1)
    address = f"spark://{HOST}:{port}"
    log = tmp_path / "master.out"
    running: list[subprocess.Popen[bytes]] = []

    def start(output: Path, *arguments: str) -> None:
        running.append(spawn([spark_class, *arguments, "--webui-port", "0"], output))

    try:
        start(log, f"{DEPLOY}.master.Master", "--host", HOST, "--port", str(port))
        await until(lambda: "New state: ALIVE" in log.read_text(), "Spark's master is there")
        for number in range(WORKERS):
            place = tmp_path / f"worker-{number}"
            shape = "--host", HOST, "--cores", "1", "--memory", "1g", "--work-dir", str(place)
            start(tmp_path / f"{place.name}.out", f"{DEPLOY}.worker.Worker", *shape, address)
        workers = "Registering worker"
        await until(lambda: log.read_text().count(workers) == WORKERS, "Spark's workers are there")
        yield address
    finally:
        for process in running:
            process.kill()
            process.wait()


@pytest.mark.timeout(300)
async def test_a_cluster_of_spark_finds_the_same(
    master: str, source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    What its workers write is all there.
    """
    rows = [Row(key=row.key, value=row.value, timestamp_ms=1) for row in json_rows(600, 100)]
    name = await topic(source, partitions=4, prefix="clustered")
    await target.create_topic(name, partitions=4)
    load(source.bootstrap, name, rows)
    load(target.bootstrap, name, [*rows, Row(key=b"zombie", value=b"x")])
    flow = settings_file(tmp_path / "flow.yaml", source.bootstrap, target.bootstrap, name)
    java = FAST["spark.driver.extraJavaOptions"]
    said = {**FAST, **INTERPRETED, "spark.driver.host": HOST, "spark.executor.extraJavaOptions": java}
    said |= {
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "60s",
    }
    settings = [word for setting, value in said.items() for word in ("--conf", f"{setting}={value}")]

    done = await twinsite(
        "reconcile", "--config", str(flow), "--same-offsets", "--folder", str(tmp_path / "runs"),
        "--master", master, "-o", "json", *settings,
        work_dir=tmp_path, environment={JARS_VARIABLE: os.environ[JARS_VARIABLE]}, seconds=200,
    )  # fmt: skip

    assert done.code == 10, done.stderr
    summary = done.document
    assert summary["differences"] == {"extra": 1}
    assert [one["key"] for one in summary["examples"]] == ["zombie"]
    assert (summary["source"]["records"], summary["target"]["records"]) == (600, 601)
    assert sorted(took_part(tmp_path)) == [f"worker-{number}" for number in range(WORKERS)]


def took_part(folder: Path) -> set[str]:
    """Workers whose executors have run tasks."""
    said = folder.glob("worker-*/app-*/*/stderr")
    return {log.parents[2].name for log in said if "Running task" in log.read_text()}
