"""One node of a Kafka cluster: its settings, its storage, and the process that serves it."""

from __future__ import annotations

import base64
import functools
import shutil
import socket
import subprocess
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ConfigEntry, ConfigResource, ResourceType, TopicMetadata

from tests.harness.daemon import HERE, HOST, Daemon, Site
from tests.harness.jvm import FAST_JVM, JavaFailedError, java_command, logging_flag, write_properties

BASE_PROPERTIES: Mapping[str, object] = {
    "controller.listener.names": "CONTROLLER",
    "auto.create.topics.enable": "false",
    "offsets.topic.num.partitions": 4,
    "transaction.state.log.num.partitions": 4,
    "share.coordinator.state.topic.num.partitions": 4,
    "transaction.state.log.min.isr": 1,
    "share.coordinator.state.topic.min.isr": 1,
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 1000,
    "broker.heartbeat.interval.ms": 500,
    "broker.session.timeout.ms": 4000,
    "metadata.max.idle.interval.ms": 5000,
    "controller.quorum.election.timeout.ms": 500,
    "controller.quorum.fetch.timeout.ms": 2000,
    "replica.lag.time.max.ms": 4000,
    "log.cleaner.backoff.ms": 200,
    "log.cleaner.dedupe.buffer.size": 16 << 20,
    "log.initial.task.delay.ms": 500,
    "log.retention.ms": -1,
    "log.retention.check.interval.ms": 500,
    "log.segment.delete.delay.ms": 500,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 500,
}
"""Quick in everything that makes a test wait, small in everything that costs memory.

Nothing expires unless a topic says so: test data has timestamps of its own. The metadata log is written to
when there is news, and every five seconds, not twice a second: that was a third of what an idle node did.
"""


def quiet_admin(bootstrap: str) -> AdminClient:
    """An admin client that reconnects quickly once a broker is back, and prints nothing."""
    return AdminClient(
        {
            "bootstrap.servers": bootstrap,
            "log_level": 0,
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 200,
        }
    )


class Broker(Daemon):
    """One node of a Kafka cluster. It serves clients once it counts itself among the brokers."""

    def __init__(self, node: int, port: int, folder: Path, command: Sequence[str], host: str = HOST) -> None:
        super().__init__(f"node {node}", port, folder, command, host)
        self.node = node

    def _serves(self) -> bool:
        try:
            socket.create_connection((self.host, self.port), 1).close()
            return self.node in quiet_admin(self.address).list_topics(timeout=2).brokers
        except (OSError, KafkaException):
            return False

    def topic_config(self, topic: str) -> dict[str, ConfigEntry]:
        """The settings of a topic as this node knows them; none if it does not answer."""
        admin, resource = quiet_admin(self.address), ConfigResource(ResourceType.TOPIC, topic)
        try:
            return dict(admin.describe_configs([resource])[resource].result(10))
        except KafkaException:
            return {}

    def topics(self) -> dict[str, TopicMetadata] | None:
        """The topics as this node sees them now; None if it does not answer."""
        try:
            return dict(quiet_admin(self.address).list_topics(timeout=2).topics)
        except KafkaException:
            return None


def new_id() -> str:
    """A random id as Kafka writes them; never with a leading hyphen: its tools mistake that for an option."""
    while (text := base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")).startswith("-"):
        continue
    return text


def prepare_node(
    version: str,
    node: int,
    ports: Mapping[int, tuple[int, int]],
    cluster_id: str,
    folder: Path,
    properties: Mapping[str, object],
    jvm: Sequence[str] = FAST_JVM,
    site: Site = HERE,
) -> Broker:
    """Write the settings of a node and format its storage; nothing runs yet.

    Args:
        ports: Of every node of the cluster: where clients and where controllers connect.
        properties: Put over the harness's own settings.
    """
    (folder / "data").mkdir(parents=True)
    settings = {**BASE_PROPERTIES, **_node_properties(node, ports, folder, site.host), **properties}
    write_properties(folder / "server.properties", settings)
    _write_storage(version, node, cluster_id, folder / "data")
    flags = (*jvm, logging_flag(version, folder))
    command = java_command(version, "kafka.Kafka", str(folder / "server.properties"), jvm=flags)
    return Broker(node, ports[node][0], folder, [*site.inside, *command], site.host)


def _node_properties(
    node: int, ports: Mapping[int, tuple[int, int]], folder: Path, host: str = HOST
) -> dict[str, object]:
    voters = [other for other in ports if other <= (len(ports) - 1) // 2 * 2 + 1]
    client, controller = ports[node]
    replicas = min(len(ports), 3)
    votes = node in voters
    listeners = [f"PLAINTEXT://{host}:{client}"] + [f"CONTROLLER://{host}:{controller}"] * votes
    return {
        "node.id": node,
        "process.roles": "broker,controller" if votes else "broker",
        "controller.quorum.voters": ",".join(f"{voter}@{host}:{ports[voter][1]}" for voter in voters),
        "listeners": ",".join(listeners),
        "advertised.listeners": f"PLAINTEXT://{host}:{client}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": folder / "data",
        "offsets.topic.replication.factor": replicas,
        "transaction.state.log.replication.factor": replicas,
        "share.coordinator.state.topic.replication.factor": replicas,
    }


def _write_storage(version: str, node: int, cluster_id: str, data: Path) -> None:
    (data / "bootstrap.checkpoint").write_bytes(_bootstrap_checkpoint(version))
    identity = {"version": 1, "cluster.id": cluster_id, "node.id": node, "directory.id": new_id()}
    write_properties(data / "meta.properties", identity)


@functools.cache
def _bootstrap_checkpoint(version: str) -> bytes:
    """What Kafka's storage tool writes for a version, apart from the identity; the same for every node."""
    folder = Path(tempfile.mkdtemp(prefix="kafka-format-"))
    try:
        settings = {**BASE_PROPERTIES, **_node_properties(1, {1: (9092, 9093)}, folder)}
        write_properties(folder / "server.properties", settings)
        arguments = ["format", "-t", new_id(), "-c", str(folder / "server.properties")]
        command = java_command(version, "kafka.tools.StorageTool", *arguments)
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise JavaFailedError(f"storage of {version} not formatted\n{done.stdout}{done.stderr}")
        return (folder / "data" / "bootstrap.checkpoint").read_bytes()
    finally:
        shutil.rmtree(folder)
