"""Let brokers start in half the time: ``python -m tests.harness.class_archive VERSION...``.

Most of a broker's start is the JVM reading its classes. A broker that runs once with
``-XX:ArchiveClassesAtExit`` leaves them parsed in a file (class data sharing); later
ones map it. A JVM that cannot use the file, being of another version, starts without it.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.harness.data import json_rows
from tests.harness.jvm import FAST_JVM, class_archive
from tests.harness.kafka import KafkaCluster
from tests.harness.loading import load
from tests.harness.old_kafka import PRODUCER_0_9, running_old_kafka


async def archive_classes(version: str) -> None:
    """Run a broker of a version for a moment and keep the classes it used."""
    archive = class_archive(version)
    unfinished = archive.with_suffix(f".{os.getpid()}")
    jvm = (*(flag for flag in FAST_JVM if flag != "-Xshare:auto"), f"-XX:ArchiveClassesAtExit={unfinished}")
    with tempfile.TemporaryDirectory() as folder:
        await (_run_old if version.startswith("0.") else _run)(version, Path(folder), jvm)
    unfinished.replace(archive)


async def _run(version: str, folder: Path, jvm: Sequence[str]) -> None:
    async with KafkaCluster.start(version=version, work_dir=folder, jvm=jvm) as cluster:
        await cluster.create_topic("warm")
        await cluster.delete_topic("warm")
        await cluster.broker(1).stop()


async def _run_old(version: str, folder: Path, jvm: Sequence[str]) -> None:
    async with running_old_kafka(version, folder, jvm) as broker:
        broker.create_topic("warm")
        load(broker.bootstrap, "warm", json_rows(1), "gzip", **PRODUCER_0_9)
        await broker.stop()


if __name__ == "__main__":
    for release in sys.argv[1:]:
        if not class_archive(release).exists():
            asyncio.run(archive_classes(release))
