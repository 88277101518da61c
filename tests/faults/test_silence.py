"""Nothing is said for a long time, by producers or by one broker of several: nobody else waits for that."""

from __future__ import annotations

import asyncio
import itertools
import re
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from mirror import taking_part
from mirror.flow.context import Limits
from mirror.flow.turn import COUNTS_FOR_SECONDS
from tests.conftest import TopicFactory
from tests.faults.flows import complete, configured, partitions, reached
from tests.harness.checker import assert_exact, watermarks
from tests.harness.data import json_rows
from tests.harness.kafka import KafkaCluster
from tests.harness.loading import load
from tests.harness.mirror import flow_of, running
from tests.harness.node import Broker
from tests.harness.process import Twinsite, events
from tests.harness.proxy import proxy
from tests.harness.relay import WayIn

pytestmark = pytest.mark.timeout(240)

STATE_TOPIC = "__twinsite_state.f"
IDLE_SECONDS, SILENT_SECONDS = 2.0, 2.5
"""After so long without a write this mirror looks before it writes; others do after a minute."""
AT_ONCE_SECONDS = 10
"""Far below the 30 seconds after which a partition that is not looked at is found to lag."""
MOVED_SECONDS, WAITED_SECONDS = 20, 120.0
"""Far below the time for which a broker that has moved would be waited for at its old address, be it for a
connection or for an answer.
"""
FROZEN_SECONDS, GO_ON_SECONDS = 150, 60
"""So long a broker that says nothing is waited for, and far less takes what does not wait for it."""


async def test_the_first_record_after_a_long_silence_is_copied_at_once(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    The broker may have forgotten the producer by then: the mirror looks first, and then goes on by itself.
    """
    name = await topic(source)
    load(source.bootstrap, name, json_rows(10, 100))
    monkeypatch.setattr(taking_part, "Limits", partial(Limits, idle_look_seconds=IDLE_SECONDS))

    async with running(flow_of(source, target, name)) as until:
        await until(lambda p: p[0].next_offset == 10)
        await asyncio.sleep(SILENT_SECONDS)
        await asyncio.to_thread(load, source.bootstrap, name, json_rows(1, 100, seed=2))
        async with asyncio.timeout(AT_ONCE_SECONDS):
            await until(lambda p: p[0].next_offset == 11)

    assert assert_exact(source.bootstrap, target.bootstrap, [name]) == 11


async def test_a_frozen_broker_of_the_target_holds_up_its_own_partitions_only(
    tmp_path: Path, way_in: WayIn
) -> None:
    """
    Records that wait for it fill the buffers; partitions of the other brokers are copied all the same.
    """
    async with (
        KafkaCluster.start(version="3.9", name="source", work_dir=tmp_path) as cluster,
        way_in(cluster, tmp_path) as source,
        KafkaCluster.start(version="4.3", nodes=3, name="target", work_dir=tmp_path) as target,
    ):
        await source.create_topic("orders", 6)
        load(source.bootstrap, "orders", json_rows(600, 100))
        waits = {"bootstrap_servers": target.bootstrap.split(","), "request_timeout_seconds": FROZEN_SECONDS}
        command = configured(
            tmp_path, source, target, "f",
            target=waits, topics={"include": ["orders"]}, limits={"buffer_bytes_max": 12 << 20},
        )  # fmt: skip
        with Twinsite.run(*command, work_dir=tmp_path) as mirror:
            await mirror.wait_for(lambda: complete(mirror, source, ["orders"]), "all is copied")
            leaders = [await target.leader("orders", number) for number in range(6)]
            held = [number for number in range(6) if leaders[number] == leaders[0]]
            free = [number for number in range(6) if number not in held]

            await target.broker(leaders[0]).freeze()
            for seed in range(20):
                load_into(source, held, 1, seed)
            load_into(source, free, 400, 99)
            await mirror.wait_for(lambda: there(mirror, source, free), "the others go on", GO_ON_SECONDS)
            assert not there(mirror, source, held)

            await target.broker(leaders[0]).thaw()
            await mirror.wait_for(lambda: complete(mirror, source, ["orders"]), "all is copied", 90)

        assert assert_exact(source.bootstrap, target.bootstrap, ["orders"]) == 600 + 20 * len(
            held
        ) + 400 * len(free)


async def test_a_frozen_coordinator_of_the_flow_holds_up_nothing_but_its_own_partitions(
    tmp_path: Path,
) -> None:
    """
    Whose right it is to copy says the flow's state, which another broker has.
    """
    properties = {"transaction.state.log.num.partitions": 1, "broker.session.timeout.ms": 60_000}
    async with (
        KafkaCluster.start(version="3.9", name="source", work_dir=tmp_path) as source,
        KafkaCluster.start(
            version="4.3", nodes=3, name="target", properties=properties, work_dir=tmp_path
        ) as target,
    ):
        await source.create_topic("orders", 1)
        await target.create_topic("orders", config={}, assignment=[[1]])
        await target.create_topic(STATE_TOPIC, config={"cleanup.policy": "compact"}, assignment=[[1]])
        command = configured(tmp_path, source, target, "f", topics={"include": ["orders"]})
        load(source.bootstrap, "orders", json_rows(100, 100))
        with Twinsite.run(*command, work_dir=tmp_path) as mirror:
            await mirror.wait_for(lambda: complete(mirror, source, ["orders"]), "all is copied")
            await target.move_leader("__transaction_state", 0, 2)
            await target.broker(2).freeze()

            began = time.monotonic()
            seeds = itertools.count(2)
            while time.monotonic() - began < 3 * COUNTS_FOR_SECONDS:
                load(source.bootstrap, "orders", json_rows(10, 100, seed=next(seeds)))
                await mirror.wait_for(lambda: complete(mirror, source, ["orders"]), "it goes on", 10)

            assert events(mirror.stderr, "right_not_confirmed")
            await target.broker(2).thaw()
        assert assert_exact(source.bootstrap, target.bootstrap, ["orders"]) == 100 + 10 * (next(seeds) - 2)


def load_into(source: KafkaCluster, numbers: Sequence[int], count: int, seed: int) -> None:
    """So many records into each of these partitions."""
    for number in numbers:
        rows = [replace(row, partition=number) for row in json_rows(count, 100, seed=seed)]
        load(source.bootstrap, "orders", rows)


def there(mirror: Twinsite, source: KafkaCluster, numbers: Sequence[int]) -> bool:
    """Whether these partitions are copied as far as the source goes."""
    ends = watermarks(source.bootstrap, "orders")
    return bool(partitions(mirror)) and all(
        reached(mirror, "orders", number) == ends[number][1] for number in numbers
    )


async def test_a_broker_that_comes_back_at_another_address_is_not_waited_for_at_the_old_one(
    source: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    Nobody is left there, not even to say so: as where a pod is moved and its address is not given away.
    """
    name = await topic(source)
    load(source.bootstrap, name, json_rows(20, 100))
    target = KafkaCluster.prepare("4.3", 1, "target", {}, tmp_path)
    broker = target.broker(1)
    wanted = flow_of(source, target, name)
    waits = {"request_timeout_seconds": WAITED_SECONDS, "connect_timeout_seconds": WAITED_SECONDS}
    looks = {"metadata_refresh_seconds": 1.0, **waits}
    often = wanted.target.model_copy(update=looks)
    with closing(target), proxy(broker.address) as before:
        advertise(broker, before.address)
        await target.launch()
        async with running(wanted.model_copy(update={"target": often})) as until:
            await until(lambda p: p[0].next_offset == 20)
            before.go_dark()
            load(source.bootstrap, name, json_rows(20, 100))
            await asyncio.sleep(1)
            await broker.kill()
            advertise(broker, broker.address)
            await broker.start()
            async with asyncio.timeout(MOVED_SECONDS):
                await until(lambda p: p[0].next_offset == 40)

        assert assert_exact(source.bootstrap, target.bootstrap, [name]) == 40


def advertise(broker: Broker, address: str) -> None:
    """From its next start on a broker says that clients reach it there."""
    file = broker.folder / "server.properties"
    listeners = f"advertised.listeners=PLAINTEXT://{address}"
    file.write_text(re.sub(r"^advertised\.listeners=.*", listeners, file.read_text(), flags=re.M))
