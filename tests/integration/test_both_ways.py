"""Two flows in opposite directions: every topic is copied once, and no copy."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from mirror import service
from mirror.config import Settings
from mirror.model import FlowStatus, State
from mirror.topic_names import STATE_TOPIC_PREFIX
from tests.conftest import TopicFactory
from tests.harness.checker import watermarks
from tests.harness.data import json_rows
from tests.harness.kafka import KafkaCluster
from tests.harness.loading import load
from tests.harness.mirror import flow_of, mirror_once
from tests.harness.process import WAIT_SECONDS

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(autouse=True)
async def nothing_left_behind(source: KafkaCluster) -> AsyncIterator[None]:
    """What a flow to the source remembers there is looked at by all who read there, in other tests, too."""
    yield
    for name in source.admin.list_topics(timeout=10).topics:
        if name.startswith(STATE_TOPIC_PREFIX) and name.endswith("-back"):
            await source.delete_topic(name)


def copied(status: FlowStatus) -> set[str]:
    """The source topics whose records are all there."""
    there = (p for p in status.partitions if p.state is State.ACTIVE and p.next_offset == 10)
    return {p.topic for p in there}


def left_out(status: FlowStatus) -> dict[str, str]:
    return {one.topic: one.reason for one in status.topics_left_out}


@asynccontextmanager
async def flowing(wanted: Settings) -> AsyncIterator[Callable[[set[str], set[str]], Any]]:
    """A mirror that runs; what is given waits until these topics are copied, and those left out as copies."""
    stop, heard = asyncio.Event(), asyncio.Event()
    statuses: list[FlowStatus] = []

    def hear(status: FlowStatus) -> None:
        statuses[:] = [status]
        heard.set()

    async def until(all_copied: set[str], copies: set[str]) -> None:
        out = dict.fromkeys(copies, "copy_of_target")
        async with asyncio.timeout(WAIT_SECONDS):
            while not statuses or (copied(statuses[0]), left_out(statuses[0])) != (all_copied, out):
                heard.clear()
                await heard.wait()

    mirror = asyncio.create_task(service.run(wanted, stop=stop, on_status=hear))
    try:
        yield until
    finally:
        stop.set()
        await mirror


@pytest.mark.parametrize("back", ["west.", ""])
async def test_two_flows_in_opposite_directions_copy_no_copies(
    back: str, source: KafkaCluster, target: KafkaCluster, topic: TopicFactory
) -> None:
    """
    Also after a restart. A topic of one's own that is called like a copy goes over like any other.
    """
    here = await topic(source)
    there, own = f"{here}.there", f"{back}{here}.own"
    await target.create_topic(there, 1)
    await source.create_topic(own, 1)
    for cluster, name in ((source, here), (source, own), (target, there)):
        load(cluster.bootstrap, name, json_rows(10, 50))
    include = {"include": [rf"((east|west)\.)*{here}(\.(there|own))?"], "refresh_seconds": 1}
    names = {"names": "prefix", "prefix": back} if back else {}
    out_flow = flow_of(
        source, target, here, include | {"names": "prefix", "prefix": "east."}, flow=f"{here}-out"
    )
    back_flow = flow_of(target, source, here, include | names, flow=f"{here}-back")

    async with AsyncExitStack() as both:
        out_until = await both.enter_async_context(flowing(out_flow))
        back_until = await both.enter_async_context(flowing(back_flow))
        await out_until({here, own}, {f"{back}{there}"})
        await back_until({there}, {f"east.{here}", f"east.{own}"})
    again = await mirror_once(out_flow)

    def topics(cluster: KafkaCluster) -> set[str]:
        return {
            name for name in cluster.admin.list_topics(timeout=10).topics if here in name and "_" not in name
        }

    assert left_out(again) == {f"{back}{there}": "copy_of_target"}
    assert topics(source) == {here, own, f"{back}{there}"}
    assert topics(target) == {there, f"east.{here}", f"east.{own}"}


async def test_flows_that_keep_names_both_ways_copy_each_record_once(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory
) -> None:
    """
    With offsets that may be mapped they went round for ever. Once the original is gone its copy goes home.
    """
    name = await topic(source)
    load(source.bootstrap, name, json_rows(10, 50))
    mapped = {"offsets": {"mode": "auto"}}
    out_flow = flow_of(source, target, name, flow=f"{name}-out", **mapped)
    back_flow = flow_of(target, source, name, flow=f"{name}-back", **mapped)

    async with AsyncExitStack() as both:
        out_until = await both.enter_async_context(flowing(out_flow))
        back_until = await both.enter_async_context(flowing(back_flow))
        await out_until({name}, set())
        await back_until(set(), {name})
    ends = [watermarks(cluster.bootstrap, name)[0] for cluster in (source, target)]

    await source.delete_topic(name)
    back = await mirror_once(back_flow)

    assert ends == [(0, 10), (0, 10)]
    assert (copied(back), left_out(back)) == ({name}, {})
    assert watermarks(source.bootstrap, name)[0] == (0, 10)
