"""One Kafka node as a process: its settings, its storage, and everything that can happen to it."""

from __future__ import annotations

import asyncio
import base64
import functools
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ConfigEntry, ConfigResource, ResourceType, TopicMetadata

from tests.harness.jvm import FAST_JVM, JavaFailedError, freeze, java_command, logging_flag, spawn, tail

HOST = "127.0.0.1"
READY_SECONDS = 60.0
POLL_SECONDS = 0.05
PORTS = range(18_000, 32_000)
"""Below the ports the kernel gives to clients, so that nobody takes one while its broker is down."""
PORTS_HELD = 500
_taken: deque[socket.socket] = deque()

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

Nothing expires unless a topic says so: test data has timestamps of its own. The log of metadata is
written to when there is news, and every five seconds, not twice a second: a third of what an idle node does.
"""


class NotReadyError(Exception):
    """A condition did not become true in time."""


async def until(condition: Callable[[], bool], what: str, seconds: float = READY_SECONDS) -> None:
    """Ask again and again, in a thread, until the answer is yes.

    Raises:
        NotReadyError: It never was; says what was waited for.
    """
    deadline = asyncio.get_running_loop().time() + seconds
    while not await asyncio.to_thread(condition):
        if asyncio.get_running_loop().time() > deadline:
            raise NotReadyError(f"not within {seconds:g} s: {what}")
        await asyncio.sleep(POLL_SECONDS)


def free_ports(count: int, among: range = PORTS) -> list[int]:
    """Different ports nobody listens on, outside the kernel's own range.

    They are ours while whatever is given them starts, is down, and starts again: other processes, of this run
    and of others, take none of the last :data:`PORTS_HELD` of anybody.
    """
    found: list[int] = []
    for port in random.SystemRandom().sample(among, len(among)):
        if len(found) == count:
            break
        if _is_free(port) and _take(port):
            found.append(port)
    if len(found) < count:
        raise NotReadyError(f"fewer than {count} free ports in {among}")
    return found


def _is_free(port: int) -> bool:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((HOST, port))
        except OSError:
            return False
        return True


def _take(port: int) -> bool:
    """Whether nobody else has: a name in the abstract namespace has one owner, and ends with its process."""
    claim = socket.socket(socket.AF_UNIX)
    try:
        claim.bind(f"\0twinsite-test-port-{port}")
    except OSError:
        claim.close()
        return False
    if len(_taken) == PORTS_HELD:
        _taken.popleft().close()
    _taken.append(claim)
    return True


def quiet_admin(bootstrap: str) -> AdminClient:
    """An admin client that comes back quickly after a broker did, and prints nothing."""
    return AdminClient(
        {
            "bootstrap.servers": bootstrap,
            "log_level": 0,
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 200,
        }
    )


@dataclass(frozen=True, slots=True)
class Site:
    """Where nodes run.

    Attributes:
        host: The address they listen on.
        inside: What their command is put behind, as to run at the far end of a link.
    """

    host: str = HOST
    inside: Sequence[str] = ()


HERE = Site()


class Daemon:
    """A process that serves clients at a place of its own, where it can be killed, frozen and started again.

    Args:
        name: What error messages call it.
        port: Where clients connect.
        folder: Its settings, data and output.
        command: The command line.
        host: The address it listens on.
    """

    def __init__(self, name: str, port: int, folder: Path, command: Sequence[str], host: str = HOST) -> None:
        self.name = name
        self.host = host
        self.port = port
        self.folder = folder
        self.output = folder / "output.log"
        self.frozen = False
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def running(self) -> bool:
        """Whether there is a process, frozen or not."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Process id of the JVM."""
        return self._alive().pid

    def launch(self) -> None:
        """Start the process and do not wait."""
        if self.running:
            raise JavaFailedError(f"{self.name} runs already")
        self._process = spawn(self._command, self.output)
        self.frozen = False

    async def start(self) -> None:
        """Start and wait until it serves clients."""
        self.launch()
        await self.ready()

    async def ready(self) -> None:
        """Wait until it serves clients.

        Raises:
            JavaFailedError: It ended, or did not get there; carries the end of its output.
        """
        try:
            await until(lambda: not self.running or self._serves(), f"{self.name} serves clients")
        except NotReadyError as late:
            raise JavaFailedError(f"{late}\n{tail(self.output)}") from late
        if not self.running:
            raise JavaFailedError(f"{self.name} ended at its start\n{tail(self.output)}")

    async def stop(self) -> None:
        """Shut down in an orderly way: a broker hands over leadership and closes its logs clean."""
        process = self._alive()
        process.terminate()
        await asyncio.to_thread(process.wait, READY_SECONDS)

    async def kill(self) -> None:
        """End it as a power cut would."""
        process = self._alive()
        process.kill()
        await asyncio.to_thread(process.wait)

    def discard(self) -> None:
        """Kill it if it runs, frozen or not, and wait for its end."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    async def freeze(self) -> None:
        """Stop the process where it is; connections stay open and nothing answers."""
        freeze(self._alive())
        self.frozen = True

    async def thaw(self) -> None:
        """Let a frozen process run on."""
        self._alive().send_signal(signal.SIGCONT)
        self.frozen = False

    async def restart(self) -> None:
        """Start again, stopping first if it still runs; returns when it serves clients."""
        if self.running:
            await self.stop()
        await self.start()

    def _alive(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            raise JavaFailedError(f"{self.name} does not run\n{tail(self.output)}")
        return self._process

    def _serves(self) -> bool:
        """Whether clients are served now; asked again and again at a start."""
        raise NotImplementedError


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

    def topics(self) -> dict[str, TopicMetadata]:
        """The topics as this node sees them now; none if it does not answer."""
        try:
            return dict(quiet_admin(self.address).list_topics(timeout=2).topics)
        except KafkaException:
            return {}


def new_id() -> str:
    """A random id as Kafka writes them; never with a hyphen in front, which its tools take for an option."""
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


def write_properties(file: Path, settings: Mapping[str, object]) -> None:
    """Write a Java properties file."""
    file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))


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
    """What Kafka's storage tool writes for a version beside the identity; the same for every node."""
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
