"""Who gets what of a link: sites of different sizes, kernels without BBR, and queues on the way."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from tests.faults.flows import complete, configured
from tests.harness.checker import assert_exact
from tests.harness.data import Row, json_rows, load
from tests.harness.kafka import KafkaCluster
from tests.harness.node import Site, free_ports
from tests.harness.process import Twinsite
from tests.harness.relay import listens, through
from tests.harness.wan import Wan, wan, why_not

pytestmark = [pytest.mark.skipif(bool(why_not()), reason=why_not()), pytest.mark.timeout(300)]

MBIT = 1e6 / 8


@pytest.fixture
def link() -> Iterator[Wan]:
    with wan(seed=11) as one:
        yield one


async def test_sites_of_different_sizes_have_a_fair_share(
    link: Wan, target: KafkaCluster, tmp_path: Path
) -> None:
    """
    Fan-in: one with many busy partitions, one with a single partition, each with a relay and a mirror of its
    own. Neither has less than a sixth of what both have while both are behind.
    """
    sizes = {"large": 12, "small": 1}
    async with KafkaCluster.start(name="far", work_dir=tmp_path, site=Site(link.home)) as source:
        for name, count in sizes.items():
            await source.create_topic(name, count)
            await asyncio.to_thread(load, source.bootstrap, name, json_rows(100_000, 1_000, seed=count))
        link.both(rate=10 * MBIT, delay_seconds=0.03, queue_bytes=100_000)
        with ExitStack() as stack:
            mirrors = {}
            for name in sizes:
                address = f"{link.far}:{free_ports(1)[0]}"
                command = ("relay", "--cluster", source.bootstrap, "--listen", address)
                run = Twinsite.run(*command, work_dir=tmp_path, listen=False, inside=link.inside)
                await listens(stack.enter_context(run))
                topics = {"topics": {"include": [name]}}
                to_copy = configured(tmp_path, through(source, address), target, name, **topics)
                mirrors[name] = stack.enter_context(Twinsite.run(*to_copy, work_dir=tmp_path))
            large, small = mirrors["large"], mirrors["small"]
            await large.wait_for(
                lambda: min(fetched(large), fetched(small)) > 1_500_000, "both have begun", 60
            )
            before = fetched(large), fetched(small)
            enough = 18_000_000 + sum(before)
            await large.wait_for(lambda: fetched(large) + fetched(small) > enough, "both go on", 60)
            assert not complete(small, source, ["small"])
            shares = fetched(large) - before[0], fetched(small) - before[1]
            for name, mirror in mirrors.items():
                await mirror.wait_for(partial(complete, mirror, source, [name]), "all is copied", 90)

        assert_exact(source.bootstrap, target.bootstrap, list(sizes))
    assert min(shares) / sum(shares) > 1 / 6


def fetched(mirror: Twinsite) -> int:
    """Bytes that came over the link so far."""
    return int(mirror.status().get("bytes_fetched", 0))


async def test_without_bbr_many_connections_are_made(link: Wan, target: KafkaCluster, tmp_path: Path) -> None:
    """
    One packet of fifty is lost: one connection of that kind would take minutes. The status says which.
    """
    async with KafkaCluster.start(name="far", work_dir=tmp_path, site=Site(link.home)) as source:
        await source.create_topic("cubic", 3)
        await asyncio.to_thread(load, source.bootstrap, "cubic", json_rows(60_000, 1_000), "lz4")
        link.without_bbr()
        link.both(rate=20 * MBIT, delay_seconds=0.05, queue_bytes=250_000, loss=0.02)
        address = f"{link.far}:{free_ports(1)[0]}"
        command = ("relay", "--cluster", source.bootstrap, "--listen", address)
        with Twinsite.run(*command, work_dir=tmp_path, listen=False, inside=link.inside) as relay:
            await listens(relay)
            relayed = through(source, address)
            to_copy = configured(tmp_path, relayed, target, "cubic", topics={"include": ["cubic"]})
            with Twinsite.run(*to_copy, work_dir=tmp_path) as mirror:
                await mirror.wait_for(lambda: complete(mirror, source, ["cubic"]), "all is copied", 60)
                shown = mirror.status()["link"]

        assert_exact(source.bootstrap, target.bootstrap, ["cubic"])
    assert (shown["congestion"], shown["connections"]) == ("cubic", 16)


async def test_a_catch_up_leaves_queues_on_the_way_empty(
    link: Wan, target: KafkaCluster, tmp_path: Path
) -> None:
    """
    The far kernel has less room for a connection than BBR fills to begin with, so that it would never know
    what the link carries. After some seconds hardly anything is dropped by a full queue all the same.
    """
    async with KafkaCluster.start(name="far", work_dir=tmp_path, site=Site(link.home)) as source:
        await source.create_topic("behind", 1)
        noise = (Row(key=None, value=os.urandom(10_000)) for _ in range(6_000))
        await asyncio.to_thread(load, source.bootstrap, "behind", noise, batch_size=200_000)
        link.send_buffers_of(768 << 10)
        link.both(rate=40 * MBIT, delay_seconds=0.03, queue_bytes=300_000)
        address = f"{link.far}:{free_ports(1)[0]}"
        command = ("relay", "--cluster", source.bootstrap, "--listen", address)
        with Twinsite.run(*command, work_dir=tmp_path, listen=False, inside=link.inside) as relay:
            await listens(relay)
            to_copy = configured(
                tmp_path, through(source, address), target, "behind", topics={"include": ["behind"]}
            )
            with Twinsite.run(*to_copy, work_dir=tmp_path) as mirror:
                await mirror.wait_for(lambda: fetched(mirror) > 20_000_000, "it is under way", 60)
                before = link.counted()[0]
                await mirror.wait_for(lambda: fetched(mirror) > 45_000_000, "it goes on", 60)
                after = link.counted()[0]
                await mirror.wait_for(lambda: complete(mirror, source, ["behind"]), "all is copied", 60)

        assert_exact(source.bootstrap, target.bootstrap, ["behind"])
    assert after.packets - before.packets > 10_000
    assert after.dropped - before.dropped < (after.packets - before.packets) / 200
