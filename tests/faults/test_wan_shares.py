"""Who gets what of a link: sites of different sizes, kernels without BBR, and queues on the way."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import pytest

from tests.faults.flows import complete, configured
from tests.harness.checker import assert_exact
from tests.harness.daemon import Site
from tests.harness.data import Row, json_rows
from tests.harness.kafka import KafkaCluster
from tests.harness.loading import load
from tests.harness.process import Twinsite
from tests.harness.relay import through_its_far_relay
from tests.harness.wan import Wan, wan, why_not

pytestmark = [pytest.mark.skipif(bool(why_not()), reason=why_not()), pytest.mark.timeout(300)]

MBIT = 1e6 / 8
SITES = {"large": (24, 200_000), "small": (2, 80_000)}
"""Of each source cluster: partitions, and records of a kilobyte, of which a fifth crosses the link."""
STANDS_STILL_SECONDS = 8.0
"""On a busy machine: a mirror that is asked how it does may be slow to answer."""


@pytest.fixture
def link() -> Iterator[Wan]:
    with wan(seed=11) as one:
        yield one


async def test_sites_of_different_sizes_have_a_fair_share(
    link: Wan, source: KafkaCluster, target: KafkaCluster, tmp_path: Path
) -> None:
    """
    Fan-in of two clusters, each with a relay and a mirror of its own, over one link to one target. While both
    are behind neither has less than a sixth of what both have, nor stands still; in the end both are exact.
    """
    async with AsyncExitStack() as stack:
        mirrors = {}
        started = KafkaCluster.start(name="small", work_dir=tmp_path, site=Site(link.home))
        sites = {"large": source, "small": await stack.enter_async_context(started)}
        for name, (partitions, records) in SITES.items():
            await sites[name].create_topic(name, partitions)
            rows = json_rows(records, 1_000, seed=partitions)
            await asyncio.to_thread(load, sites[name].bootstrap, name, rows)
        link.both(rate=10 * MBIT, delay_seconds=0.03, queue_bytes=100_000)
        for name, site in sites.items():
            relayed = await stack.enter_async_context(through_its_far_relay(site, link, tmp_path))
            to_copy = configured(tmp_path, relayed, target, name, topics={"include": [name]})
            mirrors[name] = stack.enter_context(Twinsite.run(*to_copy, work_dir=tmp_path))
        large, small = mirrors["large"], mirrors["small"]
        await large.wait_for(lambda: min(fetched(large), fetched(small)) > 1_000_000, "both have begun", 60)
        progress = {name: Progress(mirror) for name, mirror in mirrors.items()}

        def enough() -> bool:
            return sum([one.look() for one in progress.values()]) > 12_000_000

        await large.wait_for(enough, "both go on", 60)
        assert not any(complete(mirrors[name], site, [name]) for name, site in sites.items())
        link.both(rate=100 * MBIT, delay_seconds=0.03, queue_bytes=500_000)
        for name, mirror in mirrors.items():
            await mirror.wait_for(partial(complete, mirror, sites[name], [name]), "all is copied", 90)
        for name, site in sites.items():
            assert_exact(site.bootstrap, target.bootstrap, [name])
        await source.delete_topic("large")

    shares = {name: one.bytes for name, one in progress.items()}
    assert min(shares.values()) > sum(shares.values()) / 6
    assert max(one.stood_still for one in progress.values()) < STANDS_STILL_SECONDS


class Progress:
    """What has come of one site since it was looked at first.

    Attributes:
        bytes: Over the link.
        stood_still: For so long nothing came, in seconds, the longest time.
    """

    def __init__(self, mirror: Twinsite) -> None:
        self.bytes = 0
        self.stood_still = 0.0
        self._mirror = mirror
        self._before, self._came_at = fetched(mirror), time.monotonic()

    def look(self) -> int:
        """Look again; answers how many bytes it is by now."""
        came, now = fetched(self._mirror) - self._before, time.monotonic()
        self.stood_still = max(self.stood_still, now - self._came_at)
        if came > self.bytes:
            self.bytes, self._came_at = came, now
        return self.bytes


def fetched(mirror: Twinsite) -> int:
    """Bytes that came over the link so far."""
    return int(mirror.status().get("bytes_fetched", 0))


async def test_without_bbr_many_connections_are_made(
    link: Wan, source: KafkaCluster, target: KafkaCluster, tmp_path: Path
) -> None:
    """
    One packet of fifty is lost: one connection of that kind would take minutes. The status says which.
    """
    await source.create_topic("cubic", 3)
    await asyncio.to_thread(load, source.bootstrap, "cubic", json_rows(60_000, 1_000), "lz4")
    link.without_bbr()
    link.both(rate=20 * MBIT, delay_seconds=0.05, queue_bytes=250_000, loss=0.02)
    async with through_its_far_relay(source, link, tmp_path) as relayed:
        to_copy = configured(tmp_path, relayed, target, "cubic", topics={"include": ["cubic"]})
        with Twinsite.run(*to_copy, work_dir=tmp_path) as mirror:
            await mirror.wait_for(lambda: complete(mirror, source, ["cubic"]), "all is copied", 60)
            shown = mirror.status()["link"]

    assert_exact(source.bootstrap, target.bootstrap, ["cubic"])
    await source.delete_topic("cubic")
    assert (shown["congestion"], shown["connections"]) == ("cubic", 16)


async def test_a_catch_up_leaves_queues_on_the_way_empty(
    link: Wan, source: KafkaCluster, target: KafkaCluster, tmp_path: Path
) -> None:
    """
    The far kernel has less room for a connection than BBR fills to begin with, so that it would never know
    what the link carries. After some seconds hardly anything is dropped by a full queue all the same.
    """
    await source.create_topic("behind", 1)
    noise = (Row(key=None, value=os.urandom(10_000)) for _ in range(6_000))
    await asyncio.to_thread(load, source.bootstrap, "behind", noise, batch_size=200_000)
    link.send_buffers_of(768 << 10)
    link.both(rate=40 * MBIT, delay_seconds=0.03, queue_bytes=300_000)
    async with through_its_far_relay(source, link, tmp_path) as relayed:
        to_copy = configured(tmp_path, relayed, target, "behind", topics={"include": ["behind"]})
        with Twinsite.run(*to_copy, work_dir=tmp_path) as mirror:
            await mirror.wait_for(lambda: fetched(mirror) > 20_000_000, "it is under way", 60)
            before = link.counted()[0]
            await mirror.wait_for(lambda: fetched(mirror) > 45_000_000, "it goes on", 60)
            after = link.counted()[0]
            await mirror.wait_for(lambda: complete(mirror, source, ["behind"]), "all is copied", 60)

    assert_exact(source.bootstrap, target.bootstrap, ["behind"])
    await source.delete_topic("behind")
    assert after.packets - before.packets > 10_000
    assert after.dropped - before.dropped < (after.packets - before.packets) / 200
