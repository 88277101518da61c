"""Clusters that stand still or fill up while the mirror writes to them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mirror.flow import judging
from mirror.flow.facts import TargetLook
from mirror.flow.looking import look_at_target
from mirror.flow.memory import FlowMemory
from mirror.kafka.offsets import Answers
from mirror.model import Reason, TopicPartition
from tests.faults import flows
from tests.harness.checker import assert_exact, watermarks
from tests.harness.data import json_rows
from tests.harness.disk import MAY_MOUNT, small_disk
from tests.harness.kafka import KafkaCluster
from tests.harness.loading import load, load_transactions
from tests.harness.mirror import flow_of, watching
from tests.harness.node import new_id
from tests.harness.process import Twinsite, twinsite
from tests.harness.relay import WayIn

pytestmark = pytest.mark.timeout(240)

FROZEN_SECONDS = 60
LONGER_THAN_A_REFUSAL_SECONDS = 15
TOLD_SECONDS = 30
"""Less than what a copy that ends asks the state of its flow for."""
BETWEEN = 60_000
"""Records written while a broker stands still."""


def mirror_of(source: KafkaCluster, target: KafkaCluster) -> tuple[str, ...]:
    """A mirror of the topic ``orders``."""
    return ("mirror", *source.source_options, "--target", target.bootstrap, "--topics", "orders")


def arrived(target: KafkaCluster) -> int:
    """Offsets of the target's copy that are there."""
    return sum(end for _, end in watermarks(target.bootstrap, "orders").values())


async def test_a_frozen_source_is_waited_for_and_nothing_comes_twice(tmp_path: Path, way_in: WayIn) -> None:
    """
    Connections stay open and no answer comes. Status, metrics and log say which side does not answer.
    """
    silent = await frozen_and_thawed("source", "LAGGING", tmp_path, way_in)

    assert "Look at the source brokers" in silent["hint"]
    assert silent["detail"]


async def test_a_frozen_target_is_waited_for_and_nothing_comes_twice(tmp_path: Path, way_in: WayIn) -> None:
    """
    Likewise; and the requests that were on their way may have been done or not.
    """
    silent = await frozen_and_thawed("target", "BLOCKED", tmp_path, way_in)

    assert "Look at the target brokers" in silent["hint"]
    assert silent["detail"]


async def frozen_and_thawed(victim: str, state: str, work_dir: Path, way_in: WayIn) -> dict[str, Any]:
    """Freeze a broker under a mirror until that is said; when it goes on, the copy becomes exact.

    Returns:
        What the status said of a partition meanwhile.
    """
    async with (
        KafkaCluster.start(version="3.9", name="source", work_dir=work_dir) as cluster,
        way_in(cluster, work_dir) as source,
        KafkaCluster.start(version="4.3", name="target", work_dir=work_dir) as target,
    ):
        await source.create_topic("orders", 2)
        await target.create_topic("orders", 2)
        broker = (source if victim == "source" else target).broker(1)

        with Twinsite.run(*impatient(work_dir, source, target), work_dir=work_dir) as mirror:
            async with flows.writing(source, "orders"):
                await mirror.wait_for(lambda: arrived(target) > 2000, "it is being copied")
                await broker.freeze()
                silent = await flows.says(mirror, "orders", state, f"{victim}_unavailable", 90)
                await broker.thaw()
            await mirror.wait_for(partial(flows.complete, mirror, source, ["orders"]), "all is copied", 90)

        assert assert_exact(source.bootstrap, target.bootstrap, ["orders"]) > 2000
    return silent


async def test_a_copy_that_ends_waits_for_a_broker_as_long_as_one_takes_to_come_back(
    tmp_path: Path, way_in: WayIn
) -> None:
    """
    Blocked, with nothing moving: not yet the end, for the broker may only be started again.
    """
    async with (
        KafkaCluster.start(version="3.9", name="source", work_dir=tmp_path) as cluster,
        way_in(cluster, tmp_path) as source,
        KafkaCluster.start(version="4.3", name="target", work_dir=tmp_path) as target,
    ):
        await source.create_topic("orders", 1)
        await target.create_topic("orders", 1)
        load(source.bootstrap, "orders", json_rows(300_000, 500))
        command = (*impatient(tmp_path, source, target), "--once", "-o", "json")

        with Twinsite.run(*command, work_dir=tmp_path) as mirror:
            await mirror.wait_for(lambda: arrived(target) > 0, "it is being copied")
            since = mirror.status()["uptime_seconds"]
            await target.broker(1).freeze()
            await flows.says(mirror, "orders", "BLOCKED", "target_unavailable", 50)
            waited = partial(running_since, mirror, since + LONGER_THAN_A_REFUSAL_SECONDS)
            await mirror.wait_for(waited, "it has waited for the broker", 60)
            await target.broker(1).thaw()
            done = await mirror.finished(120)

        assert done.code == 0, done.missing
        assert assert_exact(source.bootstrap, target.bootstrap, ["orders"]) == 300_000


def running_since(mirror: Twinsite, uptime_seconds: float) -> bool:
    """Whether it runs and has done so for at least so long."""
    return bool(mirror.status().get("uptime_seconds", 0.0) > uptime_seconds)


def impatient(work_dir: Path, source: KafkaCluster, target: KafkaCluster) -> tuple[str, ...]:
    """A mirror of the topic ``orders`` that gives a broker three seconds, not thirty."""
    waits = {"request_timeout_seconds": 3, "connect_timeout_seconds": 1}
    return flows.configured(
        work_dir,
        source,
        target,
        "orders",
        topics={"include": ["orders"]},
        lagging_after_seconds=1,
        **{section: how | waits for section, how in source.source_settings.items()},
        target={"bootstrap_servers": target.bootstrap, **waits},
    )


async def test_a_broker_frozen_for_a_minute_under_five_mirrors(tmp_path: Path) -> None:
    """
    It is the target of three mirrors of one flow and the source of two of another, and both sides are being
    written to: longer than any request, session or heartbeat waits.
    """
    async with (
        KafkaCluster.start(version="3.9", name="east", work_dir=tmp_path) as east,
        KafkaCluster.start(version="4.3", name="west", work_dir=tmp_path) as west,
    ):
        with ExitStack() as mirrors:
            ways = [Way(east, west, "orders", 3), Way(west, east, "payments", 2)]
            for way in ways:
                await way.source.create_topic(way.topic, 3)
                load_transactions(way.source.bootstrap, way.topic, json_rows(600, 300))
                way.mirrors.extend(
                    mirrors.enter_context(Twinsite.run(*way.command, work_dir=tmp_path))
                    for _ in range(way.count)
                )
            for way in ways:
                await way.wait_for_all()
            loading = [asyncio.create_task(asyncio.to_thread(way.load)) for way in ways]
            for way in ways:
                await way.mirrors[0].wait_for(way.moving, f"{way.topic} are being copied")

            await west.broker(1).freeze()
            await asyncio.sleep(FROZEN_SECONDS)
            await west.broker(1).thaw()
            await asyncio.gather(*loading)
            for way in ways:
                load_transactions(way.source.bootstrap, way.topic, json_rows(600, 300, seed=3))
                await way.wait_for_all()

        for way in ways:
            found = assert_exact(way.source.bootstrap, way.target.bootstrap, [way.topic])
            assert found == 600 + BETWEEN + 600


@dataclass
class Way:
    """One topic copied by several mirrors of one flow."""

    source: KafkaCluster
    target: KafkaCluster
    topic: str
    count: int
    mirrors: list[Twinsite] = field(default_factory=list)

    @property
    def command(self) -> tuple[str, ...]:
        return flows.mirror_of(self.source, self.target, self.topic, self.topic)

    def load(self) -> None:
        """Write a lot; over a freeze of the source if need be."""
        load(self.source.bootstrap, self.topic, json_rows(BETWEEN, 300, seed=2), batch_num_messages=200)

    def moving(self) -> bool:
        """Whether something of what :meth:`load` writes has arrived."""
        return sum(flows.reached(self.mirrors[0], self.topic, number) for number in range(3)) > 5000

    async def wait_for_all(self) -> None:
        """Wait until each of the mirrors knows that the copy is complete."""
        for mirror in self.mirrors:
            done = partial(flows.complete, mirror, self.source, [self.topic])
            await mirror.wait_for(done, f"{self.topic} are copied", 90)


async def test_a_target_that_dies_as_the_flows_state_is_written_is_told_of_like_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Whoever wants to know the state waits for that write, which is not tried as long as at a start of a copy
    that ends.
    """
    note, died = FlowMemory.note_epochs, asyncio.Event()
    async with (
        KafkaCluster.start(version="3.9", name="source", work_dir=tmp_path) as source,
        KafkaCluster.start(version="4.3", name="target", work_dir=tmp_path) as target,
    ):

        async def dies_first(
            memory: FlowMemory, epochs: Mapping[TopicPartition, Sequence[tuple[int, int]]]
        ) -> None:
            if not died.is_set():
                await target.broker(1).kill()
                died.set()
            await note(memory, epochs)

        monkeypatch.setattr(FlowMemory, "note_epochs", dies_first)
        await source.create_topic("orders", 2)
        load(source.bootstrap, "orders", json_rows(5_000, 100))
        async with watching(flow_of(source, target, "orders"), TOLD_SECONDS) as until_it_says:
            async with asyncio.timeout(TOLD_SECONDS):
                await died.wait()
            await until_it_says(
                lambda flow: any(p.reason is Reason.TARGET_UNAVAILABLE for p in flow.partitions)
            )
            await target.broker(1).start()
            await until_it_says(lambda flow: sum(p.next_offset or 0 for p in flow.partitions) == 5_000)

        assert assert_exact(source.bootstrap, target.bootstrap, ["orders"]) == 5_000


async def test_a_target_that_freezes_as_it_is_looked_at_is_told_of_like_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Its answers may take as long as any, and all partitions between the same brokers wait for them.
    """
    async with (
        KafkaCluster.start(version="3.9", name="source", work_dir=tmp_path) as source,
        KafkaCluster.start(version="4.3", name="target", work_dir=tmp_path) as target,
    ):

        async def frozen(*of: Any) -> Answers[TargetLook]:
            monkeypatch.setattr(judging, "look_at_target", look_at_target)
            await look_at_target(*of)  # over a connection that is open then
            await target.broker(1).freeze()
            return await look_at_target(*of)

        monkeypatch.setattr(judging, "look_at_target", frozen)
        await source.create_topic("orders", 2)
        load(source.bootstrap, "orders", json_rows(5_000, 100))
        async with watching(flow_of(source, target, "orders"), TOLD_SECONDS) as until_it_says:
            await until_it_says(
                lambda flow: [p.reason for p in flow.partitions] == [Reason.TARGET_UNAVAILABLE] * 2
            )
            await target.broker(1).thaw()
            await until_it_says(lambda flow: sum(p.next_offset or 0 for p in flow.partitions) == 5_000)

        assert assert_exact(source.bootstrap, target.bootstrap, ["orders"]) == 5_000


async def test_what_is_on_too_few_replicas_is_not_called_copied(tmp_path: Path, way_in: WayIn) -> None:
    """
    The leader has appended it and says that replicas are missing. It stands at the log's end, and may vanish.
    """
    async with (
        KafkaCluster.start(version="3.9", name="source", work_dir=tmp_path) as cluster,
        way_in(cluster, tmp_path) as source,
        KafkaCluster.start(version="4.3", nodes=3, name="target", work_dir=tmp_path) as target,
    ):
        await source.create_topic("orders", 1)
        await target.create_topic("orders", 1, replication=3, config={"min.insync.replicas": 3})
        load(source.bootstrap, "orders", json_rows(100, 300))
        with Twinsite.run(*impatient(tmp_path, source, target), work_dir=tmp_path) as mirror:
            await mirror.wait_for(lambda: flows.reached(mirror, "orders") == 100, "it is copied")
            follower = target.broker(min({1, 2, 3} - {await target.leader("orders")}))

            await follower.freeze()
            load(source.bootstrap, "orders", json_rows(50, 300, seed=2))
            seen: list[dict[str, Any]] = []

            def is_said() -> bool:
                seen.append(orders(mirror))
                return "not on all in-sync replicas" in seen[-1]["detail"]

            await mirror.wait_for(is_said, "it is said", 120)
            stuck = seen[-1]
            await follower.thaw()
            await mirror.wait_for(lambda: flows.reached(mirror, "orders") == 150, "all is copied", 90)

        assert (stuck["state"], stuck["reason"]) == ("BLOCKED", "not_enough_replicas")
        assert (stuck["next_offset"], stuck["target_log_end_offset"]) == (100, 100)
        assert assert_exact(source.bootstrap, target.bootstrap, ["orders"]) == 150


def orders(mirror: Twinsite) -> dict[str, Any]:
    """What the status says of the topic's only partition."""
    return {"detail": "", **flows.partition(flows.partitions(mirror), "orders")}


@pytest.mark.skipif(not MAY_MOUNT, reason="only root can make a small disk")
async def test_a_full_target_disk_stops_the_copy_and_loses_nothing(tmp_path: Path, way_in: WayIn) -> None:
    """
    The target's only broker dies of a full disk in the middle of a batch, and comes back with a larger one.
    Meanwhile status, metrics and log say that the target is away.
    """
    with small_disk(tmp_path / "disk", 48) as disk:
        async with (
            KafkaCluster.start(version="3.9", name="source", work_dir=tmp_path) as cluster,
            way_in(cluster, tmp_path) as source,
            KafkaCluster.start(version="4.3", name="target", work_dir=disk.folder) as target,
        ):
            await source.create_topic("orders", 2)
            await target.create_topic("orders", 2)
            load(source.bootstrap, "orders", json_rows(80_000, 1000))

            with Twinsite.run(*mirror_of(source, target), work_dir=tmp_path) as mirror:
                await mirror.wait_for(lambda: not target.broker(1).running, "the broker dies of its disk", 60)
                full = await flows.says(mirror, "orders", "BLOCKED", "target_unavailable")
                disk.resize(400)
                await target.broker(1).start()
                await mirror.wait_for(lambda: arrived(target) == 80_000, "all is copied", 90)

            assert "Look at the target brokers" in full["hint"]
            assert assert_exact(source.bootstrap, target.bootstrap, ["orders"]) == 80_000


@pytest.mark.skipif(not MAY_MOUNT, reason="only root can make a small disk")
async def test_a_disk_of_the_target_that_fails_is_told_and_the_rest_goes_on(
    tmp_path: Path, way_in: WayIn
) -> None:
    """
    A broker with two disks goes on when one of them is full; what lies on that one says so, and comes back
    with a larger disk.
    """
    with small_disk(tmp_path / "disk", 24) as disk:
        async with (
            KafkaCluster.start(version="3.9", name="source", work_dir=tmp_path) as cluster,
            way_in(cluster, tmp_path) as source,
            KafkaCluster.start(version="4.3", name="target", work_dir=tmp_path) as target,
        ):
            for name in ("orders", "payments"):
                await source.create_topic(name, 1)
            load(source.bootstrap, "payments", json_rows(100, 300))
            once = flows.once(source, target, "payments", "f")
            assert (await twinsite(*once, work_dir=tmp_path)).code == 0
            await with_another_disk(target, disk.folder)
            await target.create_topic("orders", 1)  # it goes where least is
            load(source.bootstrap, "orders", json_rows(40_000, 1000))

            both = flows.mirror_of(source, target, "orders|payments", "f")
            with Twinsite.run(*both, work_dir=tmp_path) as mirror:
                full = await flows.says(mirror, "orders", "BLOCKED", "storage_error")
                load(source.bootstrap, "payments", json_rows(100, 300, seed=2))
                await mirror.wait_for(lambda: flows.reached(mirror, "payments") == 200, "the rest goes on")
                disk.resize(400)
                await target.broker(1).restart()
                await mirror.wait_for(lambda: flows.reached(mirror, "orders") == 40_000, "all is copied", 90)

            assert "Look at the disks of the broker" in full["hint"]
            assert_exact(source.bootstrap, target.bootstrap, ["orders", "payments"])


async def with_another_disk(cluster: KafkaCluster, folder: Path) -> None:
    """Start the only node again with one more folder for partitions."""
    node = cluster.broker(1)
    await node.stop()
    identity = (cluster.log_dir() / "meta.properties").read_text()
    (folder / "meta.properties").write_text(re.sub("directory.id=.*", f"directory.id={new_id()}", identity))
    with (node.folder / "server.properties").open("a") as settings:
        settings.write(f"log.dirs={cluster.log_dir()},{folder}\n")
    await node.start()
