"""Real Kafka clusters (KRaft, combined roles, one to three nodes) that start in seconds.

::

    async with KafkaCluster.start(version="3.9", nodes=3, name="source", work_dir=tmp_path) as source:
        await source.create_topic("orders", partitions=4, replication=3)
        await source.broker(2).kill()
        await source.broker(2).restart()

Nodes are numbered from 1 and keep their ports over restarts. Of an even number of nodes
the last one does not vote, so a cluster of two survives the loss of node 2, a cluster of
three that of any node. At the end nodes are killed, not stopped: their data goes with
the work folder.
"""

from __future__ import annotations

import asyncio
import copy
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from confluent_kafka import ElectionType, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    ResourceType,
)
from kafka.admin import KafkaAdminClient
from kafka.structs import TopicPartition as WirePartition
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_fixed

from tests.harness.daemon import HERE, POLL_SECONDS, READY_SECONDS, NotReadyError, Site, free_ports, until
from tests.harness.jvm import FAST_JVM
from tests.harness.node import Broker, new_id, prepare_node, quiet_admin

NO_LEADER_YET = {
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
}
ASK_AGAIN = wait_fixed(POLL_SECONDS)
GIVE_UP = stop_after_delay(READY_SECONDS)


class KafkaCluster:
    """A running cluster; made by :meth:`start`.

    Attributes:
        told_of_relays: How often relays were handed out in place of brokers, by all clusters together.
    """

    told_of_relays = 0

    def __init__(self, name: str, version: str, brokers: Mapping[int, Broker]) -> None:
        self._relays: Sequence[str] = ()
        self.name = name
        self.version = version
        self._brokers = dict(brokers)
        self._admin: AdminClient | None = None

    @classmethod
    @asynccontextmanager
    async def start(
        cls,
        *,
        version: str = "3.9",
        nodes: int = 1,
        name: str = "cluster",
        properties: Mapping[str, object] | None = None,
        work_dir: Path,
        jvm: Sequence[str] = FAST_JVM,
        site: Site = HERE,
    ) -> AsyncIterator[KafkaCluster]:
        """Start a cluster, kill it when the block ends.

        Args:
            version: ``3.9`` or ``4.3``.
            nodes: 1 to 3.
            properties: Added to ``server.properties`` of every node, over :data:`BASE_PROPERTIES`.
            work_dir: The cluster's files go to ``work_dir / name``.
            jvm: Flags of the JVM.
            site: Where its nodes run.

        Raises:
            JarsMissingError: Kafka was not downloaded.
            JavaFailedError: A node did not come up; carries the end of its output.
        """
        cluster = cls.prepare(version, nodes, name, properties or {}, work_dir, jvm, site)
        try:
            await cluster.launch()
            yield cluster
        finally:
            cluster.close()

    @classmethod
    def prepare(
        cls,
        version: str,
        nodes: int,
        name: str,
        properties: Mapping[str, object],
        work_dir: Path,
        jvm: Sequence[str] = FAST_JVM,
        site: Site = HERE,
    ) -> KafkaCluster:
        """Write the files of a cluster and format its storage; nothing runs yet."""
        free = free_ports(2 * nodes)
        ports = {node: (free[2 * node - 2], free[2 * node - 1]) for node in range(1, nodes + 1)}
        cluster_id = new_id()
        brokers = {
            node: prepare_node(
                version, node, ports, cluster_id, work_dir / name / f"node-{node}", properties, jvm, site
            )
            for node in ports
        }
        return cls(name, version, brokers)

    async def launch(self) -> None:
        """Start all nodes at once and wait until each serves clients."""
        for broker in self.brokers:
            broker.launch()
        await asyncio.gather(*(broker.ready() for broker in self.brokers))

    def close(self) -> None:
        """Kill every node that still runs."""
        for broker in self.brokers:
            broker.discard()

    @property
    def brokers(self) -> tuple[Broker, ...]:
        return tuple(self._brokers.values())

    @property
    def bootstrap(self) -> str:
        """Addresses of all nodes, joined by commas."""
        return ",".join(broker.address for broker in self.brokers)

    def through(self, relays: Sequence[str]) -> KafkaCluster:
        """The same cluster, for mirrors that reach it through relays."""
        relayed = copy.copy(self)
        relayed._relays = relays
        return relayed

    @property
    def relays(self) -> Sequence[str]:
        """The relays through which mirrors reach it; empty: directly."""
        KafkaCluster.told_of_relays += bool(self._relays)
        return self._relays

    @property
    def source_options(self) -> tuple[str, str]:
        """How a mirror's command line names it as the source."""
        return ("--relay", ",".join(self.relays)) if self.relays else ("--source", self.bootstrap)

    @property
    def source_settings(self) -> dict[str, dict[str, object]]:
        """How a mirror's settings name it as the source."""
        if self.relays:
            return {"link": {"relays": list(self.relays)}}
        return {"source": {"bootstrap_servers": self.bootstrap.split(",")}}

    @property
    def admin(self) -> AdminClient:
        """confluent-kafka's admin client of this cluster."""
        if self._admin is None:
            self._admin = quiet_admin(self.bootstrap)
        return self._admin

    def broker(self, node: int) -> Broker:
        """A node by its id, counted from 1."""
        return self._brokers[node]

    def log_dir(self, node: int = 1) -> Path:
        """Where a node keeps its partitions."""
        return self._brokers[node].folder / "data"

    async def create_topic(
        self,
        name: str,
        partitions: int = 1,
        replication: int = 1,
        config: Mapping[str, object] | None = None,
        assignment: Sequence[Sequence[int]] | None = None,
    ) -> None:
        """Create a topic and wait until every running node knows all its leaders.

        Args:
            assignment: Nodes of each partition, preferred leader first; instead of ``partitions`` and
                ``replication``.
        """
        texts = {key: str(value) for key, value in (config or {}).items()}
        if assignment is None:
            topic = NewTopic(name, partitions, replication, config=texts)
        else:
            topic = NewTopic(
                name, len(assignment), replica_assignment=[list(a) for a in assignment], config=texts
            )
        await asyncio.wrap_future(self.admin.create_topics([topic])[name])
        await until(
            lambda: self._led_everywhere(name, topic.num_partitions), f"{name} has leaders everywhere"
        )

    async def add_partitions(self, name: str, total: int) -> None:
        """Give a topic more partitions and wait until every running node knows all their leaders."""
        await asyncio.wrap_future(self.admin.create_partitions([NewPartitions(name, total)])[name])
        await until(lambda: self._led_everywhere(name, total), f"{name} has {total} partitions everywhere")

    async def delete_topic(self, name: str) -> None:
        """Delete a topic and wait until no running node knows it."""
        await asyncio.wrap_future(self.admin.delete_topics([name])[name])
        await until(lambda: self._unknown(name), f"{name} is gone")

    def topic_config(self, name: str) -> dict[str, str]:
        """All settings of a topic, its own and the defaults."""
        resource = ConfigResource(ResourceType.TOPIC, name)
        entries = self.admin.describe_configs([resource])[resource].result(10)
        return {key: entry.value for key, entry in entries.items()}

    async def alter_topic(self, name: str, config: Mapping[str, object | None]) -> None:
        """Change settings of a topic, ``None``: to the default; returns when all running nodes have them."""
        resource = ConfigResource(
            ResourceType.TOPIC,
            name,
            incremental_configs=[
                ConfigEntry(
                    key,
                    str(value),
                    incremental_operation=AlterConfigOpType.DELETE
                    if value is None
                    else AlterConfigOpType.SET,
                )
                for key, value in config.items()
            ],
        )
        await asyncio.wrap_future(self.admin.incremental_alter_configs([resource])[resource])
        await until(lambda: self._configured(name, config), f"{name} has {dict(config)} everywhere")

    def _configured(self, topic: str, config: Mapping[str, object | None]) -> bool:
        views = [broker.topic_config(topic) for broker in self._serving()]
        own = ConfigSource.DYNAMIC_TOPIC_CONFIG.value
        return all(
            key in view and (view[key].source != own if value is None else _reads(view[key].value, value))
            for view in views
            for key, value in config.items()
        )

    def delete_records(self, topic: str, before: Mapping[int, int]) -> None:
        """Remove all records of some partitions below an offset; returns when their logs start there.

        A broker that was just started may not lead yet what the metadata says it leads: it is asked again, as
        every client does.

        Args:
            before: The offset by partition.

        Raises:
            KafkaException: The broker refused, or still did not lead after :data:`READY_SECONDS`.
            NotReadyError: The logs start elsewhere afterwards.
        """
        leaders = retry_if_exception(_no_leader_yet)
        for attempt in Retrying(retry=leaders, wait=ASK_AGAIN, stop=GIVE_UP, reraise=True):
            with attempt:
                asked = self.admin.delete_records([TopicPartition(topic, *where) for where in before.items()])
                starts = {where.partition: answer.result(30).low_watermark for where, answer in asked.items()}
        if starts != before:
            raise NotReadyError(f"{topic} starts at {starts} after records before {before} were deleted")

    async def topic_id(self, name: str) -> uuid.UUID:
        """The id the cluster gave this topic when it was created."""
        futures = self.admin.describe_topics(TopicCollection([name]))
        described = await asyncio.wrap_future(futures[name])
        high, low = (
            described.topic_id.get_most_significant_bits(),
            described.topic_id.get_least_significant_bits(),
        )
        return uuid.UUID(int=(high % (1 << 64)) << 64 | low % (1 << 64))

    async def leader(self, topic: str, partition: int = 0) -> int:
        """The node that leads a partition, -1 if none does."""
        metadata = await asyncio.to_thread(self.admin.list_topics, topic, 10)
        return int(metadata.topics[topic].partitions[partition].leader)

    async def move_leader(self, topic: str, partition: int, node: int) -> None:
        """Make ``node``, which must hold a replica, the leader of a partition; returns when it is."""
        metadata = await asyncio.to_thread(self.admin.list_topics, topic, 10)
        replicas = metadata.topics[topic].partitions[partition].replicas
        order = [node, *(replica for replica in replicas if replica != node)]
        await asyncio.to_thread(self._reassign, topic, partition, order)
        await until(lambda: self._elected(topic, partition, node), f"{topic}-{partition} is led by {node}")

    def _reassign(self, topic: str, partition: int, order: list[int]) -> None:
        admin = KafkaAdminClient(bootstrap_servers=self.bootstrap.split(","))
        try:
            admin.alter_partition_reassignments({WirePartition(topic, partition): order})
        finally:
            admin.close()

    def _elected(self, topic: str, partition: int, node: int) -> bool:
        where = TopicPartition(topic, partition)
        self.admin.elect_leaders(ElectionType.PREFERRED, [where]).result()
        views = [(broker.topics() or {}).get(topic) for broker in self._serving()]
        return all(view is not None and view.partitions[partition].leader == node for view in views)

    def _unknown(self, topic: str) -> bool:
        views = [broker.topics() for broker in self._serving()]
        return all(view is not None and topic not in view for view in views)

    def _led_everywhere(self, topic: str, partitions: int) -> bool:
        views = [(broker.topics() or {}).get(topic) for broker in self._serving()]
        return all(
            view is not None
            and len(view.partitions) == partitions
            and all(partition.leader != -1 for partition in view.partitions.values())
            for view in views
        )

    def _serving(self) -> list[Broker]:
        return [broker for broker in self.brokers if broker.running and not broker.frozen]


def _reads(text: str, value: object) -> bool:
    """Whether a broker's text is this value: it writes numbers in its own way."""
    try:
        return float(text) == float(str(value))
    except ValueError:
        return text == str(value)


def _no_leader_yet(failure: BaseException) -> bool:
    return isinstance(failure, KafkaException) and failure.args[0].code() in NO_LEADER_YET
