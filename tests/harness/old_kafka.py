"""A real broker of Kafka 0.9 or 0.10, which writes message format v0 or v1, on a ZooKeeper of its own.

::

    async with running_old_kafka("0.9", tmp_path) as old:
        old.create_topic("orders", {"cleanup.policy": "compact"})
        load(old.bootstrap, "orders", rows, "gzip", **PRODUCER_0_9)
        await old.upgrade("0.10")

An upgrade leaves the disk as it is: one log then holds messages of both formats, as in every
cluster that is that old. These brokers know no admin clients, and those of 0.9 no API versions,
so topics are created where their own tools would create them, in ZooKeeper.
"""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.harness.daemon import HOST, Daemon, free_ports
from tests.harness.jvm import FAST_JVM, java_command, logging_flag, write_properties
from tests.harness.zookeeper import ZooKeeper, running_zookeeper

BROKER_ID = 1
PRODUCER: Mapping[str, Any] = {"enable_idempotence": False, "max_in_flight": 1}
"""Settings of :func:`tests.harness.loading.load` for a broker that knows no idempotent producers."""

PRODUCER_0_9: Mapping[str, Any] = {
    **PRODUCER,
    "api_version_request": False,
    "broker_version_fallback": "0.9.0",
}
"""Likewise for one of 0.9, or to write as a producer of that time would: format v0."""

_PROPERTIES: Mapping[str, object] = {
    "broker.id": BROKER_ID,
    "host.name": HOST,
    "auto.create.topics.enable": "false",
    "controlled.shutdown.enable": "false",
    "num.network.threads": 1,
    "num.io.threads": 2,
    "log.cleaner.enable": "true",
    "log.cleaner.backoff.ms": 100,
    "log.cleaner.dedupe.buffer.size": 4 << 20,
    "log.retention.ms": -1,
}


class OldKafka(Daemon):
    """One broker; made by :func:`running_old_kafka`.

    Attributes:
        zookeeper: Where it keeps its topics and their settings.
    """

    def __init__(
        self, version: str, zookeeper: ZooKeeper, folder: Path, jvm: Sequence[str] = FAST_JVM
    ) -> None:
        (port,) = free_ports(1)
        super().__init__("the old broker", port, folder, _command(version, folder, jvm))
        self.zookeeper = zookeeper
        (folder / "data").mkdir()
        own = {"port": port, "log.dirs": self.log_dir(), "zookeeper.connect": zookeeper.connection_string}
        write_properties(folder / "server.properties", {**_PROPERTIES, **own})

    @property
    def bootstrap(self) -> str:
        """What clients connect to."""
        return self.address

    def log_dir(self, node: int = BROKER_ID) -> Path:
        """Where it keeps its partitions."""
        return self.folder / "data"

    def create_topic(self, name: str, config: Mapping[str, object] | None = None) -> None:
        """Create a topic of one partition; it has a leader a little later, for which producers wait."""
        texts = {key: str(value) for key, value in (config or {}).items()}
        self.zookeeper.create(
            {
                f"/config/topics/{name}": json.dumps({"version": 1, "config": texts}).encode(),
                f"/brokers/topics/{name}": json.dumps(
                    {"version": 1, "partitions": {"0": [BROKER_ID]}}
                ).encode(),
            }
        )

    async def upgrade(self, version: str) -> None:
        """Restart as a broker of another version, on the same disk; returns when it serves clients."""
        await self.stop()
        self._command = _command(version, self.folder, FAST_JVM)
        await self.start()

    def _serves(self) -> bool:
        try:
            socket.create_connection((self.host, self.port), 1).close()
        except OSError:
            return False
        return self.zookeeper.exists(f"/brokers/ids/{BROKER_ID}")


def _command(version: str, folder: Path, jvm: Sequence[str]) -> list[str]:
    flags = (*jvm, logging_flag(version, folder))
    return java_command(version, "kafka.Kafka", str(folder / "server.properties"), jvm=flags)


@asynccontextmanager
async def running_old_kafka(
    version: str, work_dir: Path, jvm: Sequence[str] = FAST_JVM
) -> AsyncIterator[OldKafka]:
    """A ZooKeeper and a broker, both killed when the block ends.

    Args:
        version: ``0.9`` or ``0.10``.
        jvm: Flags of the broker's JVM.

    Raises:
        JarsMissingError: Kafka was not downloaded.
        JavaFailedError: One did not come up; carries the end of its output.
    """
    async with running_zookeeper(work_dir) as zookeeper:
        folder = work_dir / "old-kafka"
        folder.mkdir()
        broker = OldKafka(version, zookeeper, folder, jvm)
        try:
            await broker.start()
            yield broker
        finally:
            broker.discard()
