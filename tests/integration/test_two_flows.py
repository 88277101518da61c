"""Two flows that would copy into one topic of the target: one of them does, and the other one says so."""

from __future__ import annotations

import asyncio
import re
from contextlib import AsyncExitStack
from functools import partial

import pytest

from mirror.model import PartitionStatus, Reason, State
from tests.conftest import TopicFactory
from tests.harness.checker import assert_exact, watermarks
from tests.harness.data import json_rows
from tests.harness.kafka import KafkaCluster
from tests.harness.loading import load
from tests.harness.mirror import flow_of, mirror_once, running, states

pytestmark = pytest.mark.timeout(180)

LEFT = [(State.BLOCKED, Reason.ANOTHER_FLOW)]


@pytest.mark.parametrize("offsets", ["same", "auto"])
async def test_a_flow_of_another_name_does_not_double_the_copy(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, offsets: str
) -> None:
    """
    Whatever the offsets may be, and it says whose the copy is, also when it is begun again. Once the old copy
    was deleted the topic is copied anew; to another name it is at once.
    """
    name, settings = await topic(source), {"offsets": {"mode": offsets}}
    load(source.bootstrap, name, json_rows(50, 50))
    await mirror_once(flow_of(source, target, name, flow=f"{name}-old", **settings))
    renamed = flow_of(source, target, name, flow=f"{name}-new", **settings)

    refused = [(await mirror_once(renamed)).partitions[0] for _ in range(2)]
    prefix = {"include": [re.escape(name)], "names": "prefix", "prefix": "anew."}
    beside = (await mirror_once(flow_of(source, target, name, prefix, flow=f"{name}-beside"))).partitions[0]
    end = watermarks(target.bootstrap, name)[0]
    await target.delete_topic(name)
    anew = (await mirror_once(renamed)).partitions[0]

    assert [states({0: one}) for one in refused] == [LEFT, LEFT]
    assert all(f"flow {name}-old copies {name}-0 into the target partition" in one.detail for one in refused)
    assert end == (0, 50)
    assert states({0: beside}) == states({0: anew}) == [(State.ACTIVE, None)]
    assert_exact(source.bootstrap, target.bootstrap, [name])


async def test_of_two_flows_whose_lists_overlap_one_copies(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory
) -> None:
    """
    Also a topic that is still empty when both begin, in the same moment.
    """
    name = await topic(source)
    flows = [flow_of(source, target, name, flow=f"{name}-{which}") for which in "ab"]
    told: list[dict[int, PartitionStatus]] = [{}, {}]

    def one_copies(which: int, partitions: dict[int, PartitionStatus]) -> bool:
        told[which] = partitions
        now = [states(one) for one in told]
        return sorted(now, key=str) == sorted([LEFT, [(State.ACTIVE, None)]], key=str)

    async def until_one_copies() -> None:
        await asyncio.gather(*(until(partial(one_copies, which)) for which, until in enumerate(untils)))

    async with AsyncExitStack() as both:
        untils = [await both.enter_async_context(running(flow)) for flow in flows]
        await until_one_copies()
        load(source.bootstrap, name, json_rows(20, 50))
        copying = [one[0].state is State.ACTIVE for one in told].index(True)
        await untils[copying](lambda partitions: partitions[0].next_offset == 20)
        await until_one_copies()

    assert_exact(source.bootstrap, target.bootstrap, [name])
