"""MirrorMaker 2 as a dedicated process, from Kafka's own jars: what we compare ourselves with.

:data:`DEFAULT` is MirrorMaker with its defaults, :data:`TUNED` has the settings its users
find out after weeks. Both keep topic names and mirror into replication factor 1.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.harness.jvm import java_command, logging_flag, spawn, tail, write_properties
from tests.harness.kafka import KafkaCluster

JVM = ("-Xms256m", "-Xmx2g", "-XX:+UseG1GC")
"""As ``connect-mirror-maker.sh`` starts it."""

DEFAULT: Mapping[str, object] = {}

TUNED: Mapping[str, object] = {
    "tasks.max": 2,
    "source.consumer.max.partition.fetch.bytes": 8 << 20,
    "source.consumer.fetch.max.bytes": 64 << 20,
    "source.consumer.max.poll.records": 10_000,
    "target.producer.batch.size": 512 << 10,
    "target.producer.linger.ms": 20,
    "target.producer.buffer.memory": 128 << 20,
    "target.producer.compression.type": "lz4",
}


@dataclass(frozen=True, slots=True)
class MirrorMaker:
    """A running MirrorMaker 2.

    Attributes:
        pid: Process id of its JVM.
        output: The file with all its output.
    """

    pid: int
    output: Path
    process: subprocess.Popen[bytes]

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    @property
    def said(self) -> str:
        """The end of its output."""
        return tail(self.output)


@contextmanager
def mirror_maker(
    source: KafkaCluster,
    target: KafkaCluster,
    topics: str,
    *,
    work_dir: Path,
    version: str = "3.9",
    settings: Mapping[str, object] = DEFAULT,
    jvm: Sequence[str] = JVM,
) -> Iterator[MirrorMaker]:
    """Mirror topics with MirrorMaker 2 until the block ends; it is killed then.

    Args:
        topics: Its ``topics`` setting: regular expressions, joined by commas.
        settings: They override what it needs to run; the clusters are called ``source`` and ``target``.
    """
    folder = work_dir / "mirror-maker"
    folder.mkdir(parents=True, exist_ok=True)
    file, output = folder / "mm2.properties", folder / "mm2.log"
    write_properties(file, {**_needed(source, target, topics), **settings})
    command = java_command(
        version,
        "org.apache.kafka.connect.mirror.MirrorMaker",
        str(file),
        jvm=(*jvm, logging_flag(version, folder)),
    )
    process = spawn(command, output)
    try:
        yield MirrorMaker(process.pid, output, process)
    finally:
        process.kill()
        process.wait()


def _needed(source: KafkaCluster, target: KafkaCluster, topics: str) -> dict[str, object]:
    """Two single-node clusters, one direction, names kept, and nothing that makes a measurement wait."""
    return {
        "clusters": "source,target",
        "source.bootstrap.servers": source.bootstrap,
        "target.bootstrap.servers": target.bootstrap,
        "source->target.enabled": "true",
        "source->target.topics": topics,
        "target->source.enabled": "false",
        "replication.policy.class": "org.apache.kafka.connect.mirror.IdentityReplicationPolicy",
        "replication.factor": 1,
        "checkpoints.topic.replication.factor": 1,
        "heartbeats.topic.replication.factor": 1,
        "offset-syncs.topic.replication.factor": 1,
        "offset.storage.replication.factor": 1,
        "status.storage.replication.factor": 1,
        "config.storage.replication.factor": 1,
        "emit.heartbeats.enabled": "false",
        "emit.checkpoints.enabled": "false",
        "refresh.topics.interval.seconds": 5,
        "sync.topic.acls.enabled": "false",
        "dedicated.mode.enable.internal.rest": "false",
    }
