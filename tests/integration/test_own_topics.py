"""Whose topics a running mirror changes: settings and partitions of its own, and of nobody else."""

from __future__ import annotations

from collections.abc import MutableMapping
from pathlib import Path
from typing import Any, Literal

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewPartitions
from structlog.testing import capture_logs

from mirror.flow.memory import OtherNamesError
from mirror.model import FlowStatus, OffsetMode, Reason, State
from tests.conftest import TopicFactory
from tests.faults.flows import configured
from tests.harness.checker import assert_exact, watermarks
from tests.harness.data import json_rows
from tests.harness.kafka import KafkaCluster
from tests.harness.loading import load
from tests.harness.mirror import Condition, flow_of, mirror_once, running, states, watching
from tests.harness.process import Twinsite, twinsite

pytestmark = pytest.mark.timeout(180)

SHORT = {"retention.ms": "3600000", "cleanup.policy": "delete"}
KEPT = {"retention.ms": "-1", "cleanup.policy": "compact"}


def some_of(cluster: KafkaCluster, topic: str, wanted: dict[str, str]) -> dict[str, str]:
    """The settings of a topic that are compared."""
    found = cluster.topic_config(topic)
    return {key: found[key] for key in wanted}


def write_to(cluster: KafkaCluster, topic: str, partition: int, count: int) -> None:
    """Records in one partition."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    for number in range(count):
        producer.produce(topic, key=f"k{number}", value=f"{number}", partition=partition)
    assert producer.flush(20) == 0


# -- topics that are somebody else's -------------------------------------------------------------------


async def test_a_topic_of_which_one_partition_is_not_ours_keeps_its_settings(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory
) -> None:
    """
    An empty partition beside it is copied, also by a second run, which finds it in the flow's memory.
    """
    name = await topic(source, partitions=2, retention_ms=3_600_000)
    await target.create_topic(name, 2, config=KEPT)
    for partition in (0, 1):
        write_to(source, name, partition, 5)
    write_to(target, name, 1, 3)
    wanted = flow_of(source, target, name)
    expected = [(State.ACTIVE, None), (State.BLOCKED, Reason.TARGET_NOT_EMPTY)]

    for _ in range(2):
        async with running(wanted) as until:
            await until(lambda seen: states(seen) == expected and seen[0].next_offset == 5)

    assert some_of(target, name, KEPT) == KEPT
    assert watermarks(target.bootstrap, name) == {0: (0, 5), 1: (0, 3)}


async def test_the_old_copy_of_a_topic_made_again_keeps_its_settings(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory
) -> None:
    """
    It may be all that is left of the old topic; the new one's settings are not its own.
    """
    name = await topic(source)
    load(source.bootstrap, name, json_rows(20, 50))
    wanted = flow_of(source, target, name)
    await mirror_once(wanted)
    await target.alter_topic(name, KEPT)
    await source.delete_topic(name)
    await source.create_topic(name, 3, config=SHORT)

    after = await mirror_once(wanted)

    assert after.partitions[0].state is State.TOPIC_RECREATED
    assert some_of(target, name, KEPT) == KEPT
    assert watermarks(target.bootstrap, name) == {0: (0, 20)}


async def test_records_that_were_there_before_a_mapped_copy_keep_their_settings(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory
) -> None:
    """
    With mapped offsets the copy stands behind them; both runs leave the topic's settings alone.
    """
    name = await topic(source, retention_ms=3_600_000)
    await target.create_topic(name, 1, config=KEPT)
    write_to(target, name, 0, 3)
    load(source.bootstrap, name, json_rows(20, 50))
    wanted = flow_of(source, target, name, offsets="mapped")

    for _ in range(2):
        async with running(wanted) as until:
            await until(lambda seen: len(seen) == 1 and seen[0].offset_mode is OffsetMode.MAPPED)

    assert some_of(target, name, KEPT) == KEPT
    assert watermarks(target.bootstrap, name) == {0: (0, 23)}


@pytest.mark.parametrize(
    "topics", [{"sync_configs": False}, {"config_exclude": ["retention.*", "cleanup.policy"]}]
)
async def test_an_archive_keeps_everything_where_settings_are_not_to_follow(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, topics: dict[str, Any]
) -> None:
    """
    Though it looks like a topic that was made to keep everything while it was made to start late, as it is.
    """
    name = await topic(source, retention_ms=3_600_000)
    archive = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
    await target.create_topic(name, 1, config=archive)
    load(source.bootstrap, name, json_rows(20, 50))
    source.delete_records(name, {0: 5})
    wanted = flow_of(source, target, name, topics)

    for _ in range(2):
        await mirror_once(wanted)

    assert some_of(target, name, archive) == archive


async def test_a_topic_that_others_write_to_by_now_keeps_its_settings(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory
) -> None:
    """
    As after a failover with a mirror left running: what the old site deletes is not to go at the new one.
    """
    name = await topic(source)
    load(source.bootstrap, name, json_rows(20, 50))
    wanted = flow_of(source, target, name, {"refresh_seconds": 1})
    await mirror_once(wanted)
    write_to(target, name, 0, 3)

    async with running(wanted) as until:
        await until(lambda seen: states(seen) == [(State.DIVERGED, Reason.FOREIGN_WRITE)])
        await target.alter_topic(name, KEPT)
        await source.alter_topic(name, SHORT)
        source.admin.create_partitions([NewPartitions(name, 2)])[name].result(20)
        await until(lambda seen: len(seen) == 2)  # so a pass has gone by
    alone = len(watermarks(target.bootstrap, name))
    afterwards = await mirror_once(wanted)

    assert alone == 1
    assert afterwards.partitions[0].state is State.DIVERGED
    assert some_of(target, name, KEPT) == KEPT


async def test_a_mirror_left_idle_after_a_failover_leaves_the_topic_to_those_who_write_to_it(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory
) -> None:
    """
    Nothing is to be copied, so no refusal would tell; the topic is looked at before it would be changed.
    """
    name = await topic(source)
    load(source.bootstrap, name, json_rows(20, 50))

    async with running(flow_of(source, target, name)) as until:
        await until(lambda seen: states(seen) == [(State.ACTIVE, None)] and seen[0].next_offset == 20)
        await target.alter_topic(name, KEPT)
        write_to(target, name, 0, 3)
        await source.alter_topic(name, SHORT)
        source.admin.create_partitions([NewPartitions(name, 2)])[name].result(20)
        await until(
            lambda seen: (
                states(seen)
                == [(State.DIVERGED, Reason.FOREIGN_WRITE), (State.BLOCKED, Reason.TARGET_PARTITIONS)]
            )
        )

    assert some_of(target, name, KEPT) == KEPT
    assert watermarks(target.bootstrap, name) == {0: (0, 23)}


async def test_a_mirror_that_stands_by_leaves_alone_what_the_one_that_copies_does(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory
) -> None:
    """
    It judges nothing, so it does not know that others write to the topic.
    """
    name = await topic(source)
    load(source.bootstrap, name, json_rows(20, 50))
    wanted = flow_of(source, target, name)
    diverged = [(State.DIVERGED, Reason.FOREIGN_WRITE), (State.BLOCKED, Reason.TARGET_PARTITIONS)]

    async with running(wanted) as standby:
        await standby(lambda seen: states(seen) == [(State.ACTIVE, None)] and seen[0].next_offset == 20)
        async with running(wanted) as owner:
            await owner(lambda seen: states(seen) == [(State.ACTIVE, None)])
            await standby(lambda seen: seen[0].state is State.STANDBY)
            await target.alter_topic(name, KEPT)
            write_to(target, name, 0, 3)
            await source.alter_topic(name, SHORT)
            source.admin.create_partitions([NewPartitions(name, 2)])[name].result(20)
            await owner(lambda seen: states(seen) == diverged)
            await standby(lambda seen: len(seen) == 2)  # so a pass of it has gone by
            kept, partitions = some_of(target, name, KEPT), len(watermarks(target.bootstrap, name))

    assert (kept, partitions) == (KEPT, 1)


async def test_partitions_are_not_added_at_a_start_to_a_topic_that_others_write_to(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory
) -> None:
    """
    What is there is looked at first, also in a copy that ends.
    """
    name = await topic(source)
    load(source.bootstrap, name, json_rows(20, 50))
    wanted = flow_of(source, target, name)
    await mirror_once(wanted)
    write_to(target, name, 0, 3)
    source.admin.create_partitions([NewPartitions(name, 4)])[name].result(20)

    after = await mirror_once(wanted)

    assert [p.state for p in after.partitions] == [State.DIVERGED, *[State.BLOCKED] * 3]
    assert watermarks(target.bootstrap, name) == {0: (0, 23)}


# -- topics of the flow --------------------------------------------------------------------------------


async def test_partitions_added_while_no_mirror_ran_are_copied_by_a_copy_that_ends(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory
) -> None:
    """
    They are added once those that are there were looked at, and there is no further pass to do so.
    """
    name = await topic(source)
    load(source.bootstrap, name, json_rows(20, 50))
    wanted = flow_of(source, target, name)
    await mirror_once(wanted)
    source.admin.create_partitions([NewPartitions(name, 3)])[name].result(20)
    write_to(source, name, 2, 9)

    after = await mirror_once(wanted)

    assert [(p.state, p.next_offset) for p in after.partitions] == [
        (State.ACTIVE, 20),
        (State.ACTIVE, 0),
        (State.ACTIVE, 9),
    ]
    assert_exact(source.bootstrap, target.bootstrap, [name])


async def test_an_empty_topic_made_by_somebody_gets_its_settings_once_it_is_ours(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory
) -> None:
    """
    Also in a copy that ends: all that a topic needs is there when it has ended.
    """
    name = await topic(source, retention_ms=3_600_000)
    await target.create_topic(name, 1, config=KEPT)
    load(source.bootstrap, name, json_rows(20, 50))

    done = await mirror_once(flow_of(source, target, name))

    assert done.partitions[0].state is State.ACTIVE
    assert some_of(target, name, SHORT) == SHORT
    assert_exact(source.bootstrap, target.bootstrap, [name])


async def test_a_setting_changed_at_the_source_reaches_the_target_of_a_running_mirror(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory
) -> None:
    """
    What this run made is followed, and what an earlier run made too; added partitions are added.
    """
    name = await topic(source, retention_ms=3_600_000)
    wanted = flow_of(source, target, name)

    def has_become(partitions: int, retention_ms: str) -> Condition:
        return lambda seen: (
            (len(seen), target.topic_config(name)["retention.ms"]) == (partitions, retention_ms)
        )

    for number, value in enumerate(["7200000", "7300000"], 2):
        async with running(wanted) as until:
            await until(lambda seen: {state for state, _ in states(seen)} == {State.ACTIVE})
            await source.alter_topic(name, {"retention.ms": value})
            source.admin.create_partitions([NewPartitions(name, number)])[name].result()
            await until(has_become(number, value))

    assert target.topic_config(name)["retention.ms"] == "7300000"
    assert len(watermarks(target.bootstrap, name)) == 3


# -- topics that cannot be made, or not wholly ---------------------------------------------------------


async def test_partitions_that_may_not_be_added_do_not_hold_up_those_that_are_there(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory
) -> None:
    """
    Passes go by, and what is written to the healthy partition still arrives; once added they are copied.
    """
    name = await topic(source, partitions=2)
    await target.create_topic(name, 1)

    async with running(flow_of(source, target, name, {"create": False})) as until:
        await until(
            lambda seen: states(seen) == [(State.ACTIVE, None), (State.BLOCKED, Reason.TARGET_PARTITIONS)]
        )
        write_to(source, name, 0, 10)
        await until(lambda seen: seen[0].next_offset == 10)
        target.admin.create_partitions([NewPartitions(name, 2)])[name].result()
        write_to(source, name, 1, 10)
        await until(lambda seen: [seen[number].next_offset for number in (0, 1)] == [10, 10])

    assert_exact(source.bootstrap, target.bootstrap, [name])


async def test_more_replicas_than_brokers_are_said_and_others_go_on(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory
) -> None:
    """
    A topic that is there needs none made; one that is not there waits for brokers, with the reason.
    """
    there, missing = await topic(source, prefix="replicas"), await topic(source, prefix="replicas")
    await target.create_topic(there, 1)
    load(source.bootstrap, there, json_rows(20, 50))
    wanted = {"include": [there, missing], "replication_factor": 3}

    status = await mirror_once(flow_of(source, target, there, wanted))

    assert {p.topic: (p.state, p.reason) for p in status.partitions} == {
        there: (State.ACTIVE, None),
        missing: (State.BLOCKED, Reason.REPLICATION_FACTOR),
    }
    assert missing not in target.admin.list_topics(timeout=10).topics


# -- topics that go, and come back ---------------------------------------------------------------------


def reasons(status: FlowStatus, topic: str) -> set[Reason | None]:
    """Of a topic's partitions."""
    return {partition.reason for partition in status.partitions if partition.topic == topic}


async def test_a_topic_deleted_at_the_source_keeps_its_copy_and_says_so(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    The running mirror sees it; nothing is taken away at the target. What an operator paused stays paused.
    """
    gone, paused = await topic(source, prefix="gone"), await topic(source, prefix="gone")
    await topic(source, prefix="there")  # an answer without any topic says nothing
    topics = {"include": [gone, paused], "refresh_seconds": 1}
    command = configured(tmp_path, source, target, gone, topics=topics)
    for name in (gone, paused):
        load(source.bootstrap, name, json_rows(20, 50))

    with Twinsite.run(*command, work_dir=tmp_path) as mirror:

        def found(key: str) -> dict[str, Any]:
            return {p["topic"]: p[key] for p in mirror.status().get("partitions", [])}

        await mirror.wait_for(lambda: found("next_offset") == {gone: 20, paused: 20}, "both are copied")
        url = f"http://127.0.0.1:{mirror.port}"
        assert (await twinsite("pause", paused, "--url", url, work_dir=tmp_path)).code == 0
        for name in (paused, gone):
            await source.delete_topic(name)
        await mirror.wait_for(lambda: found("reason")[gone] == "topic_deleted", "it is seen that it is gone")
        states = found("state")

    assert states == {gone: "BLOCKED", paused: "PAUSED"}
    assert watermarks(target.bootstrap, gone) == watermarks(target.bootstrap, paused) == {0: (0, 20)}


@pytest.mark.parametrize("mode", ["same", "mapped"])
async def test_a_topic_deleted_at_both_sides_is_forgotten(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, mode: str
) -> None:
    """
    By the mirror that copies and by the one that stands by, and for the one that is started next. One that is
    made under its name later is copied from its first record.
    """
    gone, there = await topic(source, 2, prefix="gone"), await topic(source, prefix="there")
    for name in (gone, there):
        load(source.bootstrap, name, json_rows(20, 50))
    wanted = flow_of(source, target, gone, {"include": [gone, there]}, offsets=mode)

    async with watching(wanted) as standby:
        await standby(lambda status: [p.lag_records for p in status.partitions] == [0, 0, 0])
        async with watching(wanted) as owner:
            await owner(lambda status: [p.lag_records for p in status.partitions] == [0, 0, 0])
            await standby(lambda status: {p.state for p in status.partitions} == {State.STANDBY})
            await source.delete_topic(gone)
            for one in (owner, standby):
                await one(lambda status: reasons(status, gone) == {Reason.TOPIC_DELETED})
            kept = watermarks(target.bootstrap, gone)
            await target.delete_topic(gone)
            for one in (owner, standby):
                await one(lambda status: {p.topic for p in status.partitions} == {there})
    next_one = await mirror_once(wanted)
    await source.create_topic(gone, 1)
    load(source.bootstrap, gone, json_rows(7, 50))
    anew = await mirror_once(wanted)

    assert sum(end for _, end in kept.values()) == 20
    assert {p.topic for p in next_one.partitions} == {there}
    assert {p.topic: (p.state, p.next_offset) for p in anew.partitions} == {
        gone: (State.ACTIVE, 7),
        there: (State.ACTIVE, 20),
    }
    assert watermarks(target.bootstrap, gone) == {0: (0, 7)}


async def test_a_topic_deleted_while_no_mirror_ran_is_missed_by_the_next_one(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    The flow's state knows what was copied; a topic that is excluded by then is nobody's concern any more.
    """
    there, gone, excluded = [await topic(source, prefix="missed") for _ in range(3)]
    for name in (there, gone, excluded):
        load(source.bootstrap, name, json_rows(20, 50))
    topics = {"include": [there, gone, excluded]}
    command = configured(tmp_path, source, target, there, topics=topics)
    first = await twinsite(*command, "--once", work_dir=tmp_path)
    for name in (gone, excluded):
        await source.delete_topic(name)
    command = configured(tmp_path, source, target, there, topics=topics | {"exclude": [excluded]})

    second = await twinsite(*command, "--once", "-o", "json", work_dir=tmp_path)

    assert (first.code, second.code) == (0, 3)
    assert {p["topic"]: (p["state"], p["reason"]) for p in second.document["partitions"]} == {
        there: ("ACTIVE", None),
        gone: ("BLOCKED", "topic_deleted"),
    }
    assert watermarks(target.bootstrap, gone) == {0: (0, 20)}


async def test_a_topic_made_again_with_fewer_partitions_is_another_one_in_all_of_them(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory
) -> None:
    """
    Those that it does not have any more wait for no broker; seen by a running mirror and by the next one.
    """
    name = await topic(source, partitions=3)
    for partition in range(3):
        write_to(source, name, partition, 5)
    wanted = flow_of(source, target, name)
    recreated = [(State.TOPIC_RECREATED, Reason.TOPIC_ID_CHANGED)] * 3

    async with running(wanted) as until:
        await until(lambda seen: [p.next_offset for p in seen.values()] == [5, 5, 5])
        await source.delete_topic(name)
        await source.create_topic(name, 1)
        write_to(source, name, 0, 9)
        await until(lambda seen: states(seen) == recreated)
    next_one = await mirror_once(wanted)

    assert [(p.state, p.reason) for p in next_one.partitions] == recreated
    assert watermarks(target.bootstrap, name) == {0: (0, 5), 1: (0, 5), 2: (0, 5)}


async def test_a_copy_that_is_deleted_since_its_topic_was_made_again_stays_so(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory
) -> None:
    """
    As its hint says: an empty topic in its place would be in the way of whoever copies the new one.
    """
    name = await topic(source)
    write_to(source, name, 0, 5)
    wanted = flow_of(source, target, name)
    recreated = [(State.TOPIC_RECREATED, Reason.TOPIC_ID_CHANGED)]
    await mirror_once(wanted)
    await source.delete_topic(name)
    await source.create_topic(name, 1)
    await mirror_once(wanted)
    await target.delete_topic(name)

    next_one = await mirror_once(wanted)

    assert [(p.state, p.reason) for p in next_one.partitions] == recreated
    assert name not in target.admin.list_topics(timeout=10).topics


async def test_a_topic_made_again_with_more_partitions_is_another_one_in_all_of_them(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory
) -> None:
    """
    Also where somebody gives the copy of the old one as many.
    """
    name = await topic(source)
    write_to(source, name, 0, 5)
    wanted = flow_of(source, target, name)
    await mirror_once(wanted)
    await source.delete_topic(name)
    await source.create_topic(name, 2)
    write_to(source, name, 1, 9)
    target.admin.create_partitions([NewPartitions(name, 2)])[name].result(20)

    next_one = await mirror_once(wanted)

    recreated = [(State.TOPIC_RECREATED, Reason.TOPIC_ID_CHANGED)] * 2
    assert [(p.state, p.reason) for p in next_one.partitions] == recreated
    assert watermarks(target.bootstrap, name) == {0: (0, 5), 1: (0, 0)}


async def test_a_topic_made_again_before_anything_was_copied_is_copied_like_a_new_one(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory
) -> None:
    """
    It has fewer partitions than the one before, of which there is no copy that it could be mixed up with.
    """
    name = await topic(source, partitions=2)
    missing = (State.BLOCKED, Reason.TARGET_TOPIC_MISSING)

    async with running(flow_of(source, target, name, {"create": False})) as until:
        await until(lambda seen: states(seen) == [missing] * 2)
        await source.delete_topic(name)
        await source.create_topic(name, 1)
        load(source.bootstrap, name, json_rows(20, 50))
        await target.create_topic(name, 1)
        await until(lambda seen: seen[0].next_offset == 20)

    assert_exact(source.bootstrap, target.bootstrap, [name])


# -- settings that were changed ------------------------------------------------------------------------


@pytest.mark.parametrize("offsets", ["same", "mapped"])
async def test_a_flow_does_not_start_with_other_names_for_what_it_has_copied(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, offsets: Literal["same", "mapped"]
) -> None:
    """
    Its position would be looked for in another topic; nothing is made, and the flow goes on as it was.
    """
    name = await topic(source)
    load(source.bootstrap, name, json_rows(20, 50))
    as_before = flow_of(source, target, name, offsets=offsets)
    await mirror_once(as_before)
    prefixed = {"names": "prefix", "prefix": "east."}

    with pytest.raises(OtherNamesError, match=rf"{name} to {name}; .* in east\.{name}") as refused:
        await mirror_once(flow_of(source, target, name, prefixed, offsets=offsets))
    load(source.bootstrap, name, json_rows(10, 50))
    async with running(as_before) as until:
        await until(lambda seen: seen[0].next_offset == 30)

    assert (refused.value.exit_code, "another name" in refused.value.hint) == (2, True)
    assert f"east.{name}" not in target.admin.list_topics(timeout=10).topics
    assert_exact(source.bootstrap, target.bootstrap, [name], offsets=offsets)


async def test_an_offset_mode_that_comes_too_late_is_said_once(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory
) -> None:
    """
    A partition keeps the mode it began with; a change to auto is heeded, and nothing is said of it.
    """
    name = await topic(source, partitions=2)
    await mirror_once(flow_of(source, target, name))
    logs: dict[str, list[MutableMapping[str, Any]]] = {}

    for mode in ("mapped", "auto"):
        with capture_logs() as logs[mode]:
            async with running(flow_of(source, target, name, offsets=mode)) as until:
                await until(lambda seen: states(seen) == [(State.ACTIVE, None)] * 2)

    said = {
        mode: [line for line in lines if line["event"] == "offset_mode_kept"] for mode, lines in logs.items()
    }
    assert [(line["asked_for"], line["mode"], line["partitions"]) for line in said["mapped"]] == [
        ("mapped", OffsetMode.SAME, 2)
    ]
    assert said["auto"] == []
