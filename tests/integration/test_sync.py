"""Plans of topics and ACLs carried out on real brokers: taken as they are, and in step afterwards."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from mirror.config import TopicsSettings, host_and_port
from mirror.errors import BrokerError
from mirror.kafka.acls import TopicAcl, create_topic_acls, describe_topic_acls
from mirror.kafka.cluster import Cluster
from mirror.kafka.dial import Address, ConnectionOptions, Relays
from mirror.kafka.topics import create_partitions, create_topic, set_configs, topic_defaults
from mirror.sync.carry_acls import carry_acls
from mirror.sync.describe import describe
from mirror.sync.names import NamePolicy
from mirror.sync.topics import Target, TopicPlan, plan_topics
from tests.conftest import TopicFactory
from tests.harness.daemon import until
from tests.harness.kafka import KafkaCluster
from tests.harness.relay import WayIn, through
from tests.harness.secured_broker import start_with
from tests.harness.security import BrokerSecurity

pytestmark = pytest.mark.timeout(120)

ODD = {
    "cleanup.policy": "compact",
    "compression.type": "lz4",
    "max.message.bytes": "3000000",
    "message.downconversion.enable": "false",
    "message.timestamp.before.max.ms": "86400000",
    "message.timestamp.type": "LogAppendTime",
    "min.insync.replicas": "2",
    "segment.bytes": "16384",
    "retention.ms": "-1",
}
"""Settings a broker of 3.9 takes and one of 4.3 would not all take."""
UNDERSCORED: dict[str, Any] = {key.replace(".", "_"): value for key, value in ODD.items()}
LONG_MAX = str(2**63 - 1)


@asynccontextmanager
async def connected(kafka: KafkaCluster, name: str) -> AsyncIterator[Cluster]:
    """Our own way to a running cluster, through its relays where it has any."""
    servers = [Address(*host_and_port(server)) for server in kafka.relays or kafka.bootstrap.split(",")]
    options = ConnectionOptions(relays=Relays(servers) if kafka.relays else None)
    cluster = Cluster(name, servers, options)
    await cluster.start()
    try:
        yield cluster
    finally:
        await cluster.close()


def steps(plan: TopicPlan) -> list[object]:
    """What a plan changes at the target."""
    return [*plan.create, *plan.add_partitions, *plan.alter_configs]


async def sync(source: Cluster, target: Cluster, topic: str, policy: NamePolicy) -> TopicPlan:
    """Make a plan for one topic from what both clusters say, and carry it out."""
    settings = TopicsSettings(include=(".*",), sync_configs=True, config_exclude=())
    there = (await source.describe_topics([topic])).topics.values()
    all_here = await target.describe_topics(None)
    here = [found for name, found in all_here.topics.items() if name == policy.to_target(topic)]
    described, defaults = await describe(target, here), await topic_defaults(target, "probe")
    ours = frozenset(described)
    facts = Target(described, len(all_here.brokers), defaults, owned=ours, settled=ours)
    plan = plan_topics((await describe(source, there)).values(), facts, policy, settings)
    for made in plan.create:
        await create_topic(
            target,
            made.name,
            partitions=made.partitions,
            replication_factor=made.replication_factor,
            configs=made.configs,
        )
    for added in plan.add_partitions:
        await create_partitions(target, added.name, added.partitions)
    for altered in plan.alter_configs:
        await set_configs(target, altered.name, altered.changes)
    return plan


async def test_a_topic_of_the_old_version_is_made_in_the_new_one_with_what_that_takes(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory
) -> None:
    """
    What 4.3 does not know or take is left out and reported; times and payloads will be kept.
    """
    name = await topic(source, partitions=3, **UNDERSCORED)

    async with connected(source, "source") as there, connected(target, "target") as here:
        plan = await sync(there, here, name, NamePolicy("east."))

    assert [made.partitions for made in plan.create] == [3]
    assert {note.setting for note in plan.notes} == {
        "message.downconversion.enable",
        "min.insync.replicas",
        "segment.bytes",
    }
    made = target.topic_config(f"east.{name}")
    expected = {
        "cleanup.policy": "compact",
        "compression.type": "lz4",
        "max.message.bytes": "3000000",
        "message.timestamp.type": "CreateTime",
        "message.timestamp.before.max.ms": LONG_MAX,
        "message.timestamp.after.max.ms": LONG_MAX,
        "retention.ms": "-1",
        "segment.bytes": "1048576",
    }
    assert {key: made[key] for key in expected} == expected


async def test_a_topic_is_in_step_after_one_pass_and_stays_so(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory
) -> None:
    """
    The second plan is empty; a change at the source is followed, and so is its end.
    """
    name = await topic(source, partitions=1, **UNDERSCORED)
    policy = NamePolicy()

    async with connected(source, "source") as there, connected(target, "target") as here:
        first = await sync(there, here, name, policy)
        second = await sync(there, here, name, policy)
        await source.alter_topic(name, {"retention.ms": "5000", "compression.type": None})
        await sync(there, here, name, policy)
        await until(
            lambda: settings(target, name, "retention.ms", "compression.type") == ["5000", "producer"],
            "the target has what the source has now",
        )
        await source.alter_topic(name, {"cleanup.policy": None})
        await sync(there, here, name, policy)
        await until(
            lambda: settings(target, name, "cleanup.policy") == ["delete"], "the target has the default again"
        )
        last = await sync(there, here, name, policy)

    assert [len(steps(plan)) for plan in (first, second, last)] == [1, 0, 0]


async def test_partitions_added_at_the_source_are_added_at_the_target(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory
) -> None:
    """
    As many as there are at the source.
    """
    name = await topic(source, partitions=2)

    async with connected(source, "source") as there, connected(target, "target") as here:
        await sync(there, here, name, NamePolicy())
        await source.add_partitions(name, 5)
        plan = await sync(there, here, name, NamePolicy())
        last = await sync(there, here, name, NamePolicy())

    assert [added.partitions for added in plan.add_partitions] == [5]
    assert steps(last) == []


# -- ACLs ----------------------------------------------------------------------------------------------


def binding(name: str, operation: AclOperation, **changes: object) -> AclBinding:
    """A right of Ann on a topic, with these changes."""
    given = {
        "restype": ResourceType.TOPIC,
        "name": name,
        "resource_pattern_type": ResourcePatternType.LITERAL,
        "principal": "User:ann",
        "host": "*",
        "operation": operation,
        "permission_type": AclPermissionType.ALLOW,
    }
    return AclBinding(**(given | changes))


def bindings_of(kafka: KafkaCluster, beginning: str) -> set[tuple[str, str, str, str, str]]:
    """What another client says of topics whose names begin so."""
    everything = AclBindingFilter(
        ResourceType.TOPIC, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
    )
    return {
        (
            acl.name,
            acl.resource_pattern_type.name,
            acl.principal,
            acl.operation.name,
            acl.permission_type.name,
        )
        for acl in kafka.admin.describe_acls(everything).result(10)
        if acl.name.startswith(beginning)
    }


@pytest.mark.parametrize("version", ["3.9", "4.3"])
async def test_acls_of_copied_topics_are_carried_over_once(
    tmp_path: Path, way_in: WayIn, version: str
) -> None:
    """
    Rights to read and denials, renamed; nothing else, and nothing twice.
    """
    security = BrokerSecurity((), users={}, super_users=("User:ANONYMOUS",))
    async with (
        start_with(security, version, tmp_path) as kafka,
        way_in(kafka, tmp_path) as source,
        connected(source, "source") as there,
        connected(kafka, "target") as here,
    ):
        acls = [
            binding("orders", AclOperation.ALL),
            binding("orders", AclOperation.WRITE, principal="User:bob"),
            binding("ord", AclOperation.READ, resource_pattern_type=ResourcePatternType.PREFIXED),
            binding("orders", AclOperation.READ, host="10.0.0.7", permission_type=AclPermissionType.DENY),
            binding("payroll", AclOperation.READ),
        ]
        for done in kafka.admin.create_acls(acls).values():
            done.result(10)

        first = await carry_acls(there, here, ["orders"], NamePolicy("east."))
        second = await carry_acls(there, here, ["orders"], NamePolicy("east."))

        assert first is not None
        assert second is not None
        assert [skipped.acl.principal for skipped in first.skipped] == ["User:bob"]
        assert (len(first.create), second.create) == (4, ())
        assert bindings_of(kafka, "east.") == {
            ("east.orders", "LITERAL", "User:ann", "READ", "ALLOW"),
            ("east.orders", "LITERAL", "User:ann", "DESCRIBE", "ALLOW"),
            ("east.ord", "PREFIXED", "User:ann", "READ", "ALLOW"),
            ("east.orders", "LITERAL", "User:ann", "READ", "DENY"),
        }


async def test_a_cluster_without_an_authorizer_has_no_acls_to_carry(source: KafkaCluster) -> None:
    """
    That is said, not taken for an empty list; and adding one there is refused.
    """
    acl = TopicAcl("orders", "LITERAL", "User:ann", "*", "READ", "ALLOW")

    async with connected(source, "source") as there, connected(through(source), "target") as here:
        described = await describe_topic_acls(there)
        carried = await carry_acls(there, here, ["orders"], NamePolicy("east."))
        with pytest.raises(BrokerError, match="adding ALLOW READ on topic orders"):
            await create_topic_acls(here, [acl])

    assert described is None
    assert carried is None


def settings(cluster: KafkaCluster, topic: str, *keys: str) -> list[str]:
    """What a topic has of these settings."""
    found = cluster.topic_config(topic)
    return [found[key] for key in keys]
