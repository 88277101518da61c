"""Let brokers start in half the time: ``python -m tests.harness.class_archive``.

Most of a broker's start is the JVM reading its classes. A broker that runs once with
``-XX:ArchiveClassesAtExit`` leaves them parsed in a file (class data sharing); later
ones map it. A JVM that cannot use the file, being of another version, starts without it.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path

from tests.harness.jvm import FAST_JVM, RELEASES, class_archive
from tests.harness.kafka import KafkaCluster


async def archive_classes(version: str) -> None:
    """Run a broker of a version for a moment and keep the classes it used."""
    archive = class_archive(version)
    unfinished = archive.with_suffix(f".{os.getpid()}")
    jvm = (*(flag for flag in FAST_JVM if flag != "-Xshare:auto"), f"-XX:ArchiveClassesAtExit={unfinished}")
    with tempfile.TemporaryDirectory() as folder:
        async with KafkaCluster.start(version=version, work_dir=Path(folder), jvm=jvm) as cluster:
            await cluster.create_topic("warm")
            await cluster.delete_topic("warm")
            await cluster.broker(1).stop()
    unfinished.replace(archive)


if __name__ == "__main__":
    for release in RELEASES:
        if not class_archive(release).exists():
            asyncio.run(archive_classes(release))
