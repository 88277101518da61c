"""Clusters that stand still or fill up while the mirror writes to them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.checker import assert_exact, watermarks
from tests.harness.data import json_rows, load
from tests.harness.disk import MAY_MOUNT, small_disk
from tests.harness.kafka import KafkaCluster
from tests.harness.process import Twinsite

pytestmark = pytest.mark.timeout(240)


def mirror_of(source: KafkaCluster, target: KafkaCluster) -> tuple[str, ...]:
    """A mirror of the topic ``orders``."""
    return ("mirror", "--source", source.bootstrap, "--target", target.bootstrap, "--topics", "orders")


def arrived(target: KafkaCluster) -> int:
    """Offsets of the target's copy that are there."""
    return sum(end for _, end in watermarks(target.bootstrap, "orders").values())


@pytest.mark.parametrize("victim", ["source", "target"])
async def test_a_frozen_broker_is_waited_for_and_nothing_comes_twice(tmp_path: Path, victim: str) -> None:
    """
    Connections stay open and no answer comes; requests that were on their way may have been done or not.
    """
    async with (
        KafkaCluster.start(version="3.9", name="source", work_dir=tmp_path) as source,
        KafkaCluster.start(version="4.3", name="target", work_dir=tmp_path) as target,
    ):
        await source.create_topic("orders", 2)
        await target.create_topic("orders", 2)
        load(source.bootstrap, "orders", json_rows(30_000, 500))
        broker = (source if victim == "source" else target).broker(1)

        with Twinsite.run(*mirror_of(source, target), work_dir=tmp_path) as mirror:
            await mirror.wait_for(lambda: arrived(target) > 0, "something is copied")
            await broker.freeze()
            await frozen_long_enough(mirror)
            await broker.thaw()
            load(source.bootstrap, "orders", json_rows(1000, 500, seed=2))
            await mirror.wait_for(lambda: arrived(target) == 31_000, "all is copied", 90)

        assert assert_exact(source.bootstrap, target.bootstrap, ["orders"]) == 31_000


async def frozen_long_enough(mirror: Twinsite) -> None:
    """Wait until the mirror has noticed: it logs that requests are not answered."""
    seen = len(mirror.stderr)
    await mirror.wait_for(lambda: len(mirror.stderr) > seen, "the mirror says that something is wrong", 90)


@pytest.mark.skipif(not MAY_MOUNT, reason="only root can make a small disk")
async def test_a_full_target_disk_stops_the_copy_and_loses_nothing(tmp_path: Path) -> None:
    """
    The target's only broker dies of a full disk in the middle of a batch, and comes back with a larger one.
    """
    with small_disk(tmp_path / "disk", 48) as disk:
        async with (
            KafkaCluster.start(version="3.9", name="source", work_dir=tmp_path) as source,
            KafkaCluster.start(version="4.3", name="target", work_dir=disk.folder) as target,
        ):
            await source.create_topic("orders", 2)
            await target.create_topic("orders", 2)
            load(source.bootstrap, "orders", json_rows(80_000, 1000))

            with Twinsite.run(*mirror_of(source, target), work_dir=tmp_path) as mirror:
                await mirror.wait_for(lambda: not target.broker(1).running, "the broker dies of its disk", 60)
                disk.resize(400)
                await target.broker(1).start()
                await mirror.wait_for(lambda: arrived(target) == 80_000, "all is copied", 90)

            assert assert_exact(source.bootstrap, target.bootstrap, ["orders"]) == 80_000
