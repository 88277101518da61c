"""Relays killed at every step, and mirrors killed while they copy through one: the copy ends exact."""

from __future__ import annotations

import asyncio
import re
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka.admin import NewPartitions

from mirror.failpoints import OF_RELAY
from tests.conftest import TopicFactory
from tests.faults import steps
from tests.faults.flows import complete, configured, mirror_of
from tests.faults.test_crashes import odd_topic
from tests.harness.checker import assert_exact
from tests.harness.daemon import Site
from tests.harness.data import json_rows
from tests.harness.judging import OffsetMode
from tests.harness.kafka import KafkaCluster
from tests.harness.loading import load
from tests.harness.process import Twinsite, twinsite
from tests.harness.relay import Relay, running_relay, through

KILLED = -9
AT_ONCE = 4
"""Mirrors that run beside each other."""
RUN_SECONDS = 120.0
"""Much longer than it takes one of them."""


@pytest.mark.parametrize("step", sorted(OF_RELAY))
def test_a_relay_killed_at_a_step_leaves_nothing_lost_or_doubled(
    source: KafkaCluster,
    target: KafkaCluster,
    relay: Relay,
    relay_site: Site,
    topic: TopicFactory,
    tmp_path: Path,
    step: str,
) -> None:
    """
    SIGKILL in the middle of the copy; the mirror goes on with another relay, that has known nothing of it.
    """
    name = asyncio.run(topic(source, partitions=3, prefix="relay-killed"))
    load(source.bootstrap, name, json_rows(20_000, 500), "lz4", batch_size=50_000)
    failpoints = f"{step}:{steps.LATER.get(step, 1)}"
    with running_relay(source, tmp_path, failpoints=failpoints, site=relay_site) as doomed:
        command = mirror_of(through(source, doomed.address, relay.address), target, name, name)
        with Twinsite.run(*command, work_dir=tmp_path) as mirror:
            asyncio.run(mirror.wait_for(lambda: not doomed.process.running, "the relay is dead"))
            load(source.bootstrap, name, json_rows(1_000, 500, seed=2), "lz4")
            asyncio.run(mirror.wait_for(lambda: complete(mirror, source, [name]), "all is copied", 60))

    assert doomed.process.process.returncode == KILLED
    assert_exact(source.bootstrap, target.bootstrap, [name])


async def test_mirrors_killed_at_every_step_through_a_relay_leave_nothing_lost_or_doubled(
    source: KafkaCluster, target: KafkaCluster, relay: Relay, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    Copies of one topic by flows of their own, each killed at another step and run to its end. The relay has
    read ahead and sent what was never written: the next mirror begins at the target's end.
    """
    name, grown = await odd_topic(source, topic), await topic(source)
    load(source.bootstrap, grown, json_rows(300, 100))
    relayed, at_once = through(source, relay.address), asyncio.Semaphore(AT_ONCE)

    async def copy(failpoint: str, copied: str, offsets: OffsetMode) -> int:
        """Exit code of a run that is killed there; the next one gets to the end, and the copy is exact."""
        flow = re.sub("[_:]", "-", f"{copied}-{failpoint}")
        folder = tmp_path / flow
        folder.mkdir(exist_ok=True)
        topics = {"include": [copied], "names": "prefix", "prefix": f"{flow}."}
        more = {"topics": topics, "offsets": {"mode": offsets}}
        command = (*configured(folder, relayed, target, flow, **more), "--once", "-o", "json")
        async with at_once:
            killed = await twinsite(*command, work_dir=folder, failpoints=failpoint, seconds=RUN_SECONDS)
            ended = await twinsite(*command, work_dir=folder, seconds=RUN_SECONDS)
            copies = partial(assert_exact, offsets=offsets, rename=f"{flow}.{{}}".format)
            assert ended.code == 0, f"{failpoint}: {ended.missing}"
            await asyncio.to_thread(copies, source.bootstrap, target.bootstrap, [copied])
        return killed.code

    async def copy_and_grow() -> int:
        """The same where the source gets partitions after a first copy."""
        assert await copy(steps.PARTITIONS_ADDED, grown, "same") == 0, "nothing was added yet"
        source.admin.create_partitions([NewPartitions(grown, 3)])[grown].result()
        load(source.bootstrap, grown, json_rows(300, 100, seed=2))
        return await copy(steps.PARTITIONS_ADDED, grown, "same")

    async with asyncio.TaskGroup() as group:
        begun = {
            failpoint: group.create_task(copy(failpoint, name, offsets))
            for failpoint, offsets in steps.OF_RELAYED_MIRRORS
        }
        begun[steps.PARTITIONS_ADDED] = group.create_task(copy_and_grow())

    codes = {failpoint: task.result() for failpoint, task in begun.items()}
    assert codes == dict.fromkeys(begun, KILLED)
