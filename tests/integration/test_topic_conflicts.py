"""What stands in the way of a topic as a whole: said with the way out, and not written over before."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from mirror import service
from mirror.flow.engine import wants_look
from mirror.model import Reason, State, TopicPartition
from mirror.waiting import Waiting
from tests.conftest import TopicFactory
from tests.faults.flows import configured
from tests.harness.checker import assert_exact, read_partition, watermarks
from tests.harness.data import json_rows
from tests.harness.kafka import KafkaCluster
from tests.harness.loading import load
from tests.harness.mirror import flow_of, running, states
from tests.harness.process import twinsite

pytestmark = pytest.mark.timeout(180)

IN_FLIGHT_MAX = 5
"""Batches of a partition that are in flight at once."""
STAMPED = {"message.timestamp.type": "LogAppendTime"}


async def test_a_name_that_kafka_takes_for_another_holds_up_that_topic_until_it_is_free(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory
) -> None:
    """
    The way out that is shown is one: another name, not another right.
    """
    name = await topic(source, prefix="dots.or")
    rival = name.replace(".", "_")
    await target.create_topic(rival, 1)
    load(source.bootstrap, name, json_rows(20, 50))
    wanted = flow_of(source, target, name, flow=name.replace(".", "-"))

    async with running(wanted) as until:
        await until(
            lambda seen: (
                states(seen) == [(State.BLOCKED, Reason.NAME_COLLISION)]
                and rival in seen[0].detail
                and "another prefix" in seen[0].hint
            )
        )
        await target.delete_topic(rival)
        await until(lambda seen: seen[0].next_offset == 20)

    assert_exact(source.bootstrap, target.bootstrap, [name])


async def test_a_missing_topic_that_is_not_to_be_made_is_copied_once_somebody_makes_it(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory
) -> None:
    """
    It is said how many partitions it needs.
    """
    name = await topic(source, partitions=2)
    load(source.bootstrap, name, json_rows(20, 50))

    async with running(flow_of(source, target, name, {"create": False})) as until:
        await until(
            lambda seen: (
                states(seen) == [(State.BLOCKED, Reason.TARGET_TOPIC_MISSING)] * 2
                and "2 partitions" in seen[1].detail
                and "topics.create" in seen[1].hint
            )
        )
        await target.create_topic(name, 2)
        await until(lambda seen: sum(seen[number].next_offset or 0 for number in (0, 1)) == 20)

    assert_exact(source.bootstrap, target.bootstrap, [name])


async def test_a_topic_that_replaces_times_is_not_written_before_it_keeps_them(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory
) -> None:
    """
    It is somebody's, so its settings are not changed; whose they are to change is shown.
    """
    name = await topic(source)
    await target.create_topic(name, 1, config=STAMPED)
    load(source.bootstrap, name, json_rows(20, 50))

    async with running(flow_of(source, target, name)) as until:
        await until(
            lambda seen: (
                states(seen) == [(State.BLOCKED, Reason.APPEND_TIMES)]
                and "message.timestamp.type" in seen[0].hint
            )
        )
        untouched = watermarks(target.bootstrap, name)
        await target.alter_topic(name, {"message.timestamp.type": "CreateTime"})
        await until(lambda seen: seen[0].next_offset == 20)

    assert untouched == {0: (0, 0)}
    assert_exact(source.bootstrap, target.bootstrap, [name])


@pytest.mark.parametrize("whose", ["the operator's", "the flow's"])
async def test_a_topic_that_begins_to_replace_times_is_said_at_once_and_copied_on_when_it_no_longer_does(
    whose: str, source: KafkaCluster, target: KafkaCluster, topic: TopicFactory
) -> None:
    """
    What was in flight keeps the times of the appends; nothing is doubled and nothing is missing. Where
    settings follow the source, the mirror takes the setting back itself.
    """
    name = await topic(source)
    load(source.bootstrap, name, json_rows(20, 50))
    followed = {"sync_configs": True, "refresh_seconds": 15}  # an append is to show it first
    left = {"sync_configs": False, "refresh_seconds": 3600}
    wanted = flow_of(source, target, name, followed if whose == "the flow's" else left)

    async with running(wanted) as until:
        await until(lambda seen: seen[0].next_offset == 20)
        await target.alter_topic(name, STAMPED)
        await asyncio.to_thread(load, source.bootstrap, name, json_rows(20, 50, seed=0))
        await until(lambda seen: states(seen) == [(State.BLOCKED, Reason.APPEND_TIMES)])
        for number in range(1, 10):
            await asyncio.to_thread(load, source.bootstrap, name, json_rows(20, 50, seed=number))
        if whose == "the operator's":
            await target.alter_topic(name, {"message.timestamp.type": "CreateTime"})
        await until(lambda seen: seen[0].next_offset == 220 and states(seen) == [(State.ACTIVE, None)])
        load(source.bootstrap, name, json_rows(20, 50))
        await until(lambda seen: seen[0].next_offset == 240)

    there = list(read_partition(source.bootstrap, name, 0))
    here = list(read_partition(target.bootstrap, name, 0))
    assert [(r.offset, r.key, r.value) for r in here] == [(r.offset, r.key, r.value) for r in there]
    stamped = [r.offset for r, original in zip(here, there, strict=True) if r.content != original.content]
    assert stamped == list(range(20, 20 + len(stamped)))
    assert len(stamped) <= IN_FLIGHT_MAX * 20


async def test_nothing_but_a_look_at_the_topics_ends_what_holds_them_up(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory
) -> None:
    """
    Time does not, and no operator: the records would have other times than at the source, for good.
    """
    name = await topic(source)
    await target.create_topic(name, 1, config=STAMPED)
    load(source.bootstrap, name, json_rows(20, 50))
    wanted = flow_of(source, target, name)

    async with AsyncExitStack() as stack:
        mirror = await service._begin(wanted, stack, Waiting(wanted), once=True)
        await mirror.follower.follow()
        partition = mirror.engine.partitions[TopicPartition(name, 0)]
        by_itself = wants_look(partition)
        await mirror.operator.pause(partition.tp)
        await mirror.operator.resume(partition.tp)

    assert not by_itself
    assert (partition.state, partition.reason) == (State.BLOCKED, Reason.APPEND_TIMES)
    assert not wants_look(partition)


async def test_a_copy_that_cannot_have_its_name_is_said_once_and_others_are_copied(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    One would be taken for an internal topic, the other has a name that is too long: the copy ends with 3.
    """
    fine, inner, long = await topic(source), await topic(source, prefix="_inner"), "x" * 249
    await source.create_topic(long, 1)
    for name in (fine, inner, long):
        load(source.bootstrap, name, json_rows(20, 50))
    topics = {"include": [fine, inner, long], "names": "prefix", "prefix": "_"}
    command = configured(tmp_path, source, target, fine, topics=topics)

    done = await twinsite(*command, "--once", "-o", "json", work_dir=tmp_path)

    assert (done.code, done.document["complete"]) == (3, False)
    assert {p["topic"]: (p["state"], p["reason"]) for p in done.document["partitions"]} == {
        fine: ("ACTIVE", None),
        inner: ("BLOCKED", "name_not_possible"),
        long: ("BLOCKED", "name_not_possible"),
    }
    assert len([line for line in done.stderr.splitlines() if "name_not_possible" in line]) == 2
    made = target.admin.list_topics(timeout=10).topics
    assert (f"_{fine}" in made, f"_{inner}" in made) == (True, False)
