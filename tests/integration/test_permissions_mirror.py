"""A mirror with exactly the rights that docs/permissions.md grants, and with one of them missing.

The authorizer is switched on at both sides; nobody but the administrator may do anything else.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    NewPartitions,
    ResourcePatternType,
    ResourceType,
)
from structlog.testing import capture_logs

from mirror import service
from mirror.config import Settings, parse
from mirror.errors import NotAuthorizedError
from mirror.model import FlowStatus, OffsetMode, PartitionStatus, Reason, State
from tests.faults.steps import ACLS_ADDED
from tests.harness.acls import Grant, allow, allow_nothing, grants_on_the_page
from tests.harness.checker import assert_exact, watermarks
from tests.harness.daemon import free_ports
from tests.harness.kafka import KafkaCluster
from tests.harness.mirror import mirror_once, running, states
from tests.harness.process import WAIT_SECONDS, twinsite
from tests.harness.secured_broker import start_with
from tests.harness.security import BrokerSecurity, Listener

pytestmark = pytest.mark.timeout(180)

READER, WRITER = "User:twinsite-reader", "User:twinsite-writer"
PASSWORD = "correct-horse-battery"
SAME_OFFSETS, SYNC_ACLS = "With `offsets: same`", "With `sync_acls`"


class Site:
    """A cluster with an authorizer, and the one principal the mirror has there."""

    def __init__(self, cluster: KafkaCluster, principal: str, port: int) -> None:
        self.cluster = cluster
        self.principal = principal
        self.settings = {
            "bootstrap_servers": f"localhost:{port}",
            "security": {
                "protocol": "SASL_PLAINTEXT",
                "sasl": {
                    "mechanism": "PLAIN",
                    "username": principal.removeprefix("User:"),
                    "password": PASSWORD,
                },
            },
        }

    def allow_only(self, grants: Sequence[Grant]) -> None:
        """Take every right away, then grant those of our principal."""
        allow_nothing(self.cluster.admin, self.principal)
        self.allow(grants)

    def allow(self, grants: Sequence[Grant]) -> None:
        allow(self.cluster.admin, [grant for grant in grants if grant.principal == self.principal])


@asynccontextmanager
async def site(version: str, principal: str, factory: pytest.TempPathFactory) -> AsyncIterator[Site]:
    (port,) = free_ports(1)
    security = BrokerSecurity(
        (Listener("SASL", port, "SASL_PLAINTEXT", ("PLAIN",)),),
        users={principal.removeprefix("User:"): PASSWORD},
        super_users=("User:ANONYMOUS",),
    )
    async with start_with(security, version, factory.mktemp("site")) as cluster:
        yield Site(cluster, principal, port)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def source(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Site]:
    async with site("3.9", READER, tmp_path_factory) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def target(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Site]:
    async with site("4.3", WRITER, tmp_path_factory) as running:
        yield running


def settings(source: Site, target: Site, topic: str, **more: Any) -> Settings:
    return parse(settings_document(source, target, topic) | more)


def settings_document(source: Site, target: Site, topic: str) -> dict[str, Any]:
    return {
        "flow": "east",
        "source": source.settings,
        "target": target.settings,
        "topics": {"include": [topic.replace(".", r"\.")], "refresh_seconds": 1},
        "api": {"port": -1},
    }


def acls_of(where: Site, principal: str) -> set[AclBinding]:
    """What a principal may do there."""
    anything = AclOperation.ANY, AclPermissionType.ANY
    wanted = AclBindingFilter(ResourceType.TOPIC, None, ResourcePatternType.ANY, principal, None, *anything)
    return set(where.cluster.admin.describe_acls(wanted).result(10))


def write_records(cluster: KafkaCluster, topic: str, count: int, partition: int = -1) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 5})
    for number in range(count):
        producer.produce(topic, key=f"k{number % 7}", value=f"{topic} {number}", partition=partition)
    assert producer.flush(30) == 0


def write_transactions(cluster: KafkaCluster, topic: str) -> None:
    """Every second transaction is aborted: gaps of markers and of aborted records."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": f"{topic}.writer"})
    producer.init_transactions(30)
    for turn in range(6):
        producer.begin_transaction()
        for number in range(20):
            producer.produce(topic, key=f"k{number}", value=f"{turn} {number}")
        producer.commit_transaction(30) if turn % 2 else producer.abort_transaction(30)


async def mirror_until(wanted: Settings, done: Callable[[PartitionStatus], bool]) -> PartitionStatus:
    """Mirror one partition until its status is as wanted; answers with that status."""
    stop, seen = asyncio.Event(), []

    def look(status: FlowStatus) -> None:
        found = [partition for partition in status.partitions if done(partition)]
        if found and not stop.is_set():
            seen.extend(found)
            stop.set()

    async with asyncio.timeout(WAIT_SECONDS):
        await service.run(wanted, stop=stop, on_status=look)
    return seen[0]


def blocked(partition: PartitionStatus) -> bool:
    return partition.state is State.BLOCKED


async def test_the_rights_of_the_page_are_enough_for_the_same_offsets(source: Site, target: Site) -> None:
    """
    Topics are made with the source's settings, padded, trimmed, copied, and gaps filled with markers.
    """
    grants = grants_on_the_page(without=[SYNC_ACLS])
    source.allow_only(grants)
    target.allow_only(grants)
    await source.cluster.create_topic("orders.gaps")
    write_transactions(source.cluster, "orders.gaps")
    await source.cluster.create_topic("orders.trimmed", config={"retention.ms": 864_000_000})
    write_records(source.cluster, "orders.trimmed", 100)
    source.cluster.delete_records("orders.trimmed", {0: 40})

    status = await mirror_once(settings(source, target, "orders.(gaps|trimmed)"))

    assert [(p.state, p.offset_mode, p.detail) for p in status.partitions] == [
        (State.ACTIVE, OffsetMode.SAME, "")
    ] * 2
    assert_exact(source.cluster.bootstrap, target.cluster.bootstrap, ["orders.gaps", "orders.trimmed"])


async def test_without_the_rights_for_same_offsets_a_mapped_copy_is_made(source: Site, target: Site) -> None:
    """
    Neither Delete nor ClusterAction: every record is there, with an offset of its own.
    """
    less = grants_on_the_page(without=[SAME_OFFSETS, SYNC_ACLS])
    source.allow_only(less)
    target.allow_only(less)
    await source.cluster.create_topic("orders.mapped")
    write_transactions(source.cluster, "orders.mapped")
    write_records(source.cluster, "orders.mapped", 10)

    status = await mirror_once(settings(source, target, "orders.mapped", offsets="mapped"))

    assert [(p.state, p.offset_mode) for p in status.partitions] == [(State.ACTIVE, OffsetMode.MAPPED)]
    assert_exact(source.cluster.bootstrap, target.cluster.bootstrap, ["orders.mapped"], offsets="mapped")


async def test_auto_maps_a_log_that_starts_late_where_nothing_may_be_deleted(
    source: Site, target: Site
) -> None:
    """
    No Delete: not one padding record is written, and the copy has the records and nothing else.
    """
    grants = grants_on_the_page(without=[SYNC_ACLS])
    source.allow_only(grants)
    target.allow_only([grant for grant in grants if grant.operation != "Delete"])
    await source.cluster.create_topic("orders.undeletable", config={"retention.ms": 864_000_000})
    write_records(source.cluster, "orders.undeletable", 100)
    source.cluster.delete_records("orders.undeletable", {0: 40})
    wanted = settings(source, target, "orders.undeletable")

    refused = await mirror_until(wanted, blocked)
    untouched = watermarks(target.cluster.bootstrap, "orders.undeletable")
    async with running(settings(source, target, "orders.undeletable", offsets="auto")) as until:
        await until(lambda seen: seen[0].next_offset == 100 and seen[0].offset_mode is OffsetMode.MAPPED)

    assert (refused.reason, untouched) == (Reason.PREPARATION_REFUSED, {0: (0, 0)})
    assert_exact(source.cluster.bootstrap, target.cluster.bootstrap, ["orders.undeletable"], offsets="mapped")
    assert retention_ms(target, "orders.undeletable") == "864000000"


async def test_auto_maps_a_topic_with_gaps_where_no_markers_may_be_written(
    source: Site, target: Site
) -> None:
    """
    No ClusterAction: it is mapped at its first gap.
    """
    grants = grants_on_the_page(without=[SYNC_ACLS])
    source.allow_only(grants)
    target.allow_only([grant for grant in grants if grant.operation != "ClusterAction"])
    await source.cluster.create_topic("orders.unmarkable")
    write_transactions(source.cluster, "orders.unmarkable")

    status = await mirror_once(settings(source, target, "orders.unmarkable", offsets="auto"))

    assert [(p.state, p.offset_mode) for p in status.partitions] == [(State.ACTIVE, OffsetMode.MAPPED)]
    assert_exact(source.cluster.bootstrap, target.cluster.bootstrap, ["orders.unmarkable"], offsets="mapped")


async def test_a_missing_right_is_a_named_state_and_ends_when_it_is_granted(
    source: Site, target: Site
) -> None:
    """
    Markers are refused at the first gap; once ClusterAction is granted the same mirror goes on.
    """
    grants = grants_on_the_page(without=[SYNC_ACLS])
    source.allow_only(grants)
    target.allow_only([grant for grant in grants if grant.operation != "ClusterAction"])
    await source.cluster.create_topic("orders.late")
    write_transactions(source.cluster, "orders.late")
    wanted = settings(source, target, "orders.late")

    refused: list[PartitionStatus] = []

    def granted_and_active(partition: PartitionStatus) -> bool:
        if blocked(partition) and not refused:
            refused.append(partition)
            target.allow(grants)
        return bool(refused) and partition.state is State.ACTIVE and partition.lag_records == 0

    await mirror_until(wanted, granted_and_active)

    assert refused[0].reason is Reason.MARKERS_NOT_AUTHORIZED
    assert "CLUSTER_ACTION" in refused[0].hint
    assert_exact(source.cluster.bootstrap, target.cluster.bootstrap, ["orders.late"])


async def test_a_topic_that_may_not_be_read_is_blocked_with_the_reason(source: Site, target: Site) -> None:
    """
    Describe without Read: the topic is seen, and the mirror says why nothing comes.
    """
    grants = grants_on_the_page(without=[SYNC_ACLS])
    source.allow_only([Grant(READER, "Describe", "topic", "orders.", prefixed=True)])
    target.allow_only(grants)
    await source.cluster.create_topic("orders.closed")
    write_records(source.cluster, "orders.closed", 10)

    partition = await mirror_until(settings(source, target, "orders.closed"), blocked)

    assert partition.reason is Reason.SOURCE_NOT_AUTHORIZED
    assert partition.records == 0


async def test_a_topic_that_may_not_be_written_is_blocked_with_the_reason(source: Site, target: Site) -> None:
    """
    The target's topic may be read and not written.
    """
    grants = grants_on_the_page(without=[SYNC_ACLS])
    source.allow_only(grants)
    target.allow_only([g for g in grants if not (g.operation == "Write" and g.name == "orders.")])
    await source.cluster.create_topic("orders.shut")
    write_records(source.cluster, "orders.shut", 10)

    partition = await mirror_until(settings(source, target, "orders.shut"), blocked)

    assert partition.reason is Reason.TARGET_NOT_AUTHORIZED
    assert partition.records == 0


@pytest.mark.parametrize("missing", ["Read", "Create"])
async def test_a_target_that_may_not_be_looked_at_or_made_is_blocked_with_the_reason(
    source: Site, target: Site, missing: str
) -> None:
    """
    Without Read the mirror does not write where it cannot look; without Create there is no topic.
    """
    name = f"orders.without-{missing.lower()}"
    grants = grants_on_the_page(without=[SYNC_ACLS])
    source.allow_only(grants)
    target.allow_only([g for g in grants if not (g.operation == missing and g.name == "orders.")])
    await source.cluster.create_topic(name)
    write_records(source.cluster, name, 10)

    partition = await mirror_until(settings(source, target, name), blocked)

    assert (partition.reason, partition.records) == (Reason.TARGET_NOT_AUTHORIZED, 0)


@pytest.mark.parametrize("create", [True, False])
async def test_a_target_topic_that_may_not_be_described_is_blocked_until_it_may(
    source: Site, target: Site, create: bool
) -> None:
    """
    Neither Read nor Write: whoever must grant them is told so, and not that the topic is missing.
    """
    name = f"orders.unseen-{create}".lower()
    grants = grants_on_the_page(without=[SYNC_ACLS])
    source.allow_only(grants)
    target.allow_only([g for g in grants if g.name != "orders." or g.operation == "Create"])
    for site in (source, target):
        await site.cluster.create_topic(name)
    write_records(source.cluster, name, 10)
    topics = {"include": [name.replace(".", r"\.")], "refresh_seconds": 1, "create": create}

    async with running(settings(source, target, name, topics=topics)) as until:
        await until(lambda seen: states(seen) == [(State.BLOCKED, Reason.TARGET_NOT_AUTHORIZED)])
        target.allow(grants)
        await until(lambda seen: seen[0].next_offset == 10 and seen[0].state is State.ACTIVE)

    assert_exact(source.cluster.bootstrap, target.cluster.bootstrap, [name])


@pytest.mark.parametrize(
    ("operation", "kind"),
    [("Write", "transactional-id"), ("Read", "topic"), ("Write", "topic"), ("Create", "topic")],
)
async def test_a_mirror_that_may_not_hold_its_state_does_not_start(
    source: Site, target: Site, operation: str, kind: str
) -> None:
    """
    Neither without its transactional id nor without any of its rights on the state topic.
    """
    flow = f"lost-{operation.lower()}-{kind[:5]}"
    grants = [
        grant._replace(name=re.sub(r"\beast$", flow, grant.name))
        for grant in grants_on_the_page(without=[SYNC_ACLS])
    ]
    source.allow_only(grants)
    less = [g for g in grants if not g.name.endswith(flow) or (g.operation, g.kind) != (operation, kind)]
    target.allow_only(less)
    name = f"orders.{flow}"
    await source.cluster.create_topic(name)

    with pytest.raises(NotAuthorizedError):
        await mirror_once(settings(source, target, name, flow=flow))


async def test_neither_the_probe_nor_a_look_at_the_state_topic_is_needed(source: Site, target: Site) -> None:
    """
    Topics are made without knowing the target's defaults, and the copy is the same.
    """
    grants = grants_on_the_page(without=[SYNC_ACLS])
    spared = ("twinsite-settings-probe", "__twinsite_state.east")
    source.allow_only(grants)
    target.allow_only(
        [g for g in grants if g.name != spared[0] and (g.operation, g.name) != ("DescribeConfigs", spared[1])]
    )
    await source.cluster.create_topic("orders.unprobed", config={"retention.ms": 864_000_000})
    write_records(source.cluster, "orders.unprobed", 10)

    status = await mirror_once(settings(source, target, "orders.unprobed"))

    assert [(p.state, p.next_offset) for p in status.partitions] == [(State.ACTIVE, 10)]
    assert retention_ms(target, "orders.unprobed") == "864000000"
    assert_exact(source.cluster.bootstrap, target.cluster.bootstrap, ["orders.unprobed"])


@pytest.mark.parametrize("side", ["source", "target"])
async def test_acls_that_may_not_be_seen_are_not_carried_and_the_copy_goes_on(
    source: Site, target: Site, side: str
) -> None:
    """
    No Describe on the cluster; the log says so.
    """
    name = f"orders.unlisted-{side}"
    grants = grants_on_the_page()
    # Alter on the cluster would include Describe
    less = [g for g in grants if g.kind != "cluster" or g.operation not in {"Describe", "Alter"}]
    source.allow_only(less if side == "source" else grants)
    target.allow_only(less if side == "target" else grants)
    await source.cluster.create_topic(name)
    write_records(source.cluster, name, 10)
    topics = {"include": [name.replace(".", r"\.")], "sync_acls": True}

    with capture_logs() as logs:
        status = await mirror_once(settings(source, target, name, topics=topics))

    assert [(p.state, p.next_offset) for p in status.partitions] == [(State.ACTIVE, 10)]
    assert [line["log_level"] for line in logs if line["event"] == "acls_not_carried"] == ["warning"]


async def test_settings_that_may_not_be_changed_do_not_stop_the_copy(source: Site, target: Site) -> None:
    """
    A prepared topic keeps what it had while it was prepared, until the right is there; its records come.
    """
    grants = grants_on_the_page(without=[SYNC_ACLS])
    source.allow_only(grants)
    target.allow_only([grant for grant in grants if grant.operation != "AlterConfigs"])
    target.allow([Grant(WRITER, "DescribeConfigs", "topic", "orders.", prefixed=True)])
    await source.cluster.create_topic("orders.held", config={"retention.ms": 864_000_000})
    write_records(source.cluster, "orders.held", 100)
    source.cluster.delete_records("orders.held", {0: 40})
    wanted = settings(source, target, "orders.held")

    await mirror_once(wanted)
    write_records(source.cluster, "orders.held", 10)
    again = await mirror_once(wanted)
    held = retention_ms(target, "orders.held")
    target.allow(grants)
    await mirror_once(wanted)

    assert [(p.state, p.next_offset) for p in again.partitions] == [(State.ACTIVE, 110)]
    assert (held, retention_ms(target, "orders.held")) == ("-1", "864000000")


async def test_a_topic_that_replaces_times_is_said_though_its_settings_may_not_be_read(
    source: Site, target: Site
) -> None:
    """
    The answer to the first append tells. Without AlterConfigs there is no DescribeConfigs at the target.
    """
    grants = grants_on_the_page(without=[SYNC_ACLS])
    source.allow_only(grants)
    target.allow_only([grant for grant in grants if grant.operation != "AlterConfigs"])
    await source.cluster.create_topic("orders.stamped")
    await target.cluster.create_topic("orders.stamped", config={"message.timestamp.type": "LogAppendTime"})
    write_records(source.cluster, "orders.stamped", 10)
    topics = {"include": [r"orders\.stamped"], "refresh_seconds": 1, "sync_configs": False}

    async with running(settings(source, target, "orders.stamped", topics=topics)) as until:
        await until(lambda seen: states(seen) == [(State.BLOCKED, Reason.APPEND_TIMES)])
        await target.cluster.alter_topic("orders.stamped", {"message.timestamp.type": "CreateTime"})
        write_records(source.cluster, "orders.stamped", 10)
        await until(lambda seen: seen[0].next_offset == 20 and seen[0].state is State.ACTIVE)


async def test_a_topic_whose_settings_may_not_be_read_is_made_to_keep_everything(
    source: Site, target: Site
) -> None:
    """
    A compacted topic would else expire at the target; once they may be read its settings are those of the
    source, and until then the log warns.
    """
    grants = grants_on_the_page(without=[SYNC_ACLS])
    source.allow_only([grant for grant in grants if grant.operation != "DescribeConfigs"])
    target.allow_only(grants)
    own = {"cleanup.policy": "compact", "retention.ms": 864_000_000}
    await source.cluster.create_topic("orders.unreadable", config=own)
    write_records(source.cluster, "orders.unreadable", 20)

    def keeping() -> tuple[str, ...]:
        found = target.cluster.topic_config("orders.unreadable")
        return found["cleanup.policy"], found["retention.ms"], found["retention.bytes"]

    with capture_logs() as logs:
        async with running(settings(source, target, "orders.unreadable")) as until:
            await until(lambda seen: seen[0].next_offset == 20)
            before = keeping()
            source.allow(grants)
            await until(lambda _: keeping()[:2] == ("compact", "864000000"))

    assert before == ("delete", "-1", "-1")
    assert ("warning", "all") in [
        (line["log_level"], line["setting"]) for line in logs if line["event"] == "setting_left_out"
    ]


async def test_what_a_running_mirror_may_not_change_is_said_and_the_rest_goes_on(
    source: Site, target: Site
) -> None:
    """
    Neither Alter nor AlterConfigs: the log names the settings, new partitions the right; the old ones go on.
    """
    grants = grants_on_the_page(without=[SYNC_ACLS])
    source.allow_only(grants)
    target.allow_only([grant for grant in grants if grant.operation not in {"Alter", "AlterConfigs"}])
    target.allow([Grant(WRITER, "DescribeConfigs", "topic", "orders.", prefixed=True)])
    await source.cluster.create_topic("orders.fixed")

    with capture_logs() as logs:
        async with running(settings(source, target, "orders.fixed")) as until:
            await until(lambda seen: states(seen) == [(State.ACTIVE, None)])
            await source.cluster.alter_topic("orders.fixed", {"retention.ms": 864_000_000})
            source.cluster.admin.create_partitions([NewPartitions("orders.fixed", 2)])[
                "orders.fixed"
            ].result()
            await until(
                lambda seen: (
                    states(seen)[1:] == [(State.BLOCKED, Reason.TARGET_NOT_AUTHORIZED)]
                    and any(line["event"] == "settings_not_changed" for line in logs)
                )
            )
            write_records(source.cluster, "orders.fixed", 50, partition=0)
            await until(lambda seen: seen[0].next_offset == 50 and seen[0].state is State.ACTIVE)

    (said,) = [line for line in logs if line["event"] == "settings_not_changed"]
    assert (said["topic"], said["settings"], said["log_level"]) == (
        "orders.fixed",
        ["retention.ms"],
        "warning",
    )


async def test_a_mirror_killed_when_acls_were_added_adds_nothing_twice(
    source: Site, target: Site, tmp_path: Path
) -> None:
    """
    They are there, and after the next run they are what they would have been, no more and no less.
    """
    grants = grants_on_the_page()
    source.allow_only(grants)
    target.allow_only(grants)
    await source.cluster.create_topic("orders.opened")
    bob = [Grant("User:bob", operation, "topic", "orders.opened") for operation in ("Read", "Write")]
    prefixed = Grant("User:carol", "Read", "topic", "orders.open", prefixed=True)
    allow(source.cluster.admin, [*bob, prefixed])
    document = settings_document(source, target, "orders.opened")
    document["topics"]["sync_acls"] = True
    file = tmp_path / "flow.yaml"
    file.write_text(json.dumps(document))
    arguments = ("mirror", "--config", str(file), "--once", "-o", "json")

    first = await twinsite(*arguments, work_dir=tmp_path, failpoints=ACLS_ADDED)
    added = acls_of(target, "User:bob") | acls_of(target, "User:carol")
    second = await twinsite(*arguments, work_dir=tmp_path)

    assert (first.code, second.code) == (-9, 0), first.stderr + second.stderr
    read = Grant("User:carol", "Read", "topic", "orders.opened")
    assert added == {bob[0].binding(), read.binding()}
    assert acls_of(target, "User:bob") | acls_of(target, "User:carol") == added
    assert "acls_added" not in second.stderr


async def test_acls_are_not_carried_to_a_topic_of_somebody_else(source: Site, target: Site) -> None:
    """
    It only bears the name; who may read the source's is none of its business.
    """
    grants = grants_on_the_page()
    source.allow_only(grants)
    target.allow_only(grants)
    for name in ("orders.theirs", "orders.ours"):
        await source.cluster.create_topic(name)
        write_records(source.cluster, name, 10)
        allow(source.cluster.admin, [Grant("User:dave", "Read", "topic", name)])
    await target.cluster.create_topic("orders.theirs")
    write_records(target.cluster, "orders.theirs", 3)
    topics = {"include": [r"orders\.(theirs|ours)"], "sync_acls": True}

    status = await mirror_once(settings(source, target, "orders.theirs", topics=topics))

    assert {(p.topic, p.reason) for p in status.partitions} == {
        ("orders.theirs", Reason.TARGET_NOT_EMPTY),
        ("orders.ours", None),
    }
    assert acls_of(target, "User:dave") == {Grant("User:dave", "Read", "topic", "orders.ours").binding()}


async def test_a_topic_that_was_hidden_for_a_while_goes_on(source: Site, target: Site) -> None:
    """
    Without Describe it is not shown, and not said to be gone; shown again it goes on without a restart.
    """
    grants = grants_on_the_page(without=[SYNC_ACLS])
    source.allow_only(grants)
    target.allow_only(grants)
    for topic in ("orders.hidden", "seen"):
        await source.cluster.create_topic(topic)
    write_records(source.cluster, "orders.hidden", 10)

    async with running(settings(source, target, "orders.hidden")) as until:
        await until(lambda seen: seen[0].next_offset == 10)
        source.allow_only([Grant(READER, "Describe", "topic", "seen")])
        await until(lambda seen: states(seen) == [(State.BLOCKED, Reason.SOURCE_NOT_AUTHORIZED)])
        write_records(source.cluster, "orders.hidden", 10)
        source.allow(grants)
        await until(lambda seen: seen[0].next_offset == 20 and seen[0].state is State.ACTIVE)

    assert_exact(source.cluster.bootstrap, target.cluster.bootstrap, ["orders.hidden"])


async def test_acls_reach_the_target_of_a_running_mirror_once_they_may(source: Site, target: Site) -> None:
    """
    Without the rights that is said and records come; with them readers may read the copy, and nothing else.
    """
    grants = grants_on_the_page()
    source.allow_only(grants)
    target.allow_only(grants_on_the_page(without=[SYNC_ACLS]))
    await source.cluster.create_topic("orders.readable")
    await target.cluster.create_topic("orders.own")
    write_records(source.cluster, "orders.readable", 10)
    ann = Grant("User:ann", "Read", "topic", "orders.", prefixed=True)
    allow(source.cluster.admin, [ann, Grant("User:ann", "Write", "topic", "orders.readable")])
    wanted = settings(source, target, "orders.readable")
    wanted = wanted.model_copy(update={"topics": wanted.topics.model_copy(update={"sync_acls": True})})

    with capture_logs() as logs:
        async with running(wanted) as until:
            await until(
                lambda seen: (
                    seen[0].next_offset == 10 and any(line["event"] == "acls_not_carried" for line in logs)
                )
            )
            target.allow(grants)
            await until(lambda _: bool(rights_of(target, "User:ann")))

    assert rights_of(target, "User:ann") == {("orders.readable", "LITERAL", "READ")}


async def test_denials_that_would_stop_the_mirror_are_not_carried_and_named_once(
    source: Site, target: Site
) -> None:
    """
    Passes go by after that; whom else a rule keeps out is kept out of the copy too.
    """
    grants = grants_on_the_page()
    source.allow_only(grants)
    target.allow_only(grants)
    await source.cluster.create_topic("orders.denied")
    write_records(source.cluster, "orders.denied", 10)
    for principal in ("User:*", WRITER, "User:bob"):
        deny_writes(source, principal, "orders.denied")
    wanted = settings(source, target, "orders.denied")
    wanted = wanted.model_copy(update={"topics": wanted.topics.model_copy(update={"sync_acls": True})})

    with capture_logs() as logs:
        async with running(wanted) as until:
            for later in ("User:ann", "User:eve"):
                allow(source.cluster.admin, [Grant(later, "Read", "topic", "orders.denied")])
                await until(partial(may_read, target, later, "orders.denied"))
            await until(lambda seen: seen[0].next_offset == 10)

    named = [line for line in logs if line["event"] == "denial_not_carried"]
    assert sorted((line["principal"], line["operation"], line["log_level"]) for line in named) == [
        ("User:*", "WRITE", "warning"),
        (WRITER, "WRITE", "warning"),
    ]
    assert {line["why"] for line in named} == {"it would stop the mirror itself"}
    assert rights_of(target, "User:bob", AclPermissionType.DENY) == {("orders.denied", "LITERAL", "WRITE")}


def deny_writes(site: Site, principal: str, topic: str) -> None:
    kind, pattern = ResourceType.TOPIC, ResourcePatternType.LITERAL
    rule = AclBinding(kind, topic, pattern, principal, "*", AclOperation.WRITE, AclPermissionType.DENY)
    site.cluster.admin.create_acls([rule])[rule].result(10)


def may_read(site: Site, principal: str, topic: str, _: object) -> bool:
    return (topic, "LITERAL", "READ") in rights_of(site, principal)


def rights_of(
    site: Site, principal: str, permission: AclPermissionType = AclPermissionType.ALLOW
) -> set[tuple[str, str, str]]:
    """Name, kind of pattern and operation of what is allowed, or denied, to somebody."""
    asked = AclBindingFilter(
        ResourceType.TOPIC,
        None,
        ResourcePatternType.ANY,
        principal,
        None,
        AclOperation.ANY,
        permission,
    )
    found = site.cluster.admin.describe_acls(asked).result(10)
    return {(acl.name, acl.resource_pattern_type.name, acl.operation.name) for acl in found}


def retention_ms(site: Site, topic: str) -> str:
    """What the topic is set to."""
    return site.cluster.topic_config(topic)["retention.ms"]
