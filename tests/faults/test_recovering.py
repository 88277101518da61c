"""A mirror that is started while its target recovers: one broker answers, the others are not back yet."""

from __future__ import annotations

import urllib.error
from functools import partial
from pathlib import Path

import pytest

from tests.faults import flows
from tests.harness.checker import assert_exact
from tests.harness.data import json_rows
from tests.harness.kafka import KafkaCluster
from tests.harness.loading import load
from tests.harness.process import Twinsite, events, twinsite

pytestmark = pytest.mark.timeout(240)

STATE_TOPIC = "__twinsite_state.orders"
TRANSACTIONS = "__transaction_state"


def not_ready(mirror: Twinsite) -> str:
    """What it says that it still waits for; nothing when it is ready."""
    try:
        mirror.get("/readyz")
    except urllib.error.HTTPError as refused:
        return refused.read().decode()
    return ""


def says_that_it(waits: str, mirror: Twinsite) -> bool:
    """Whether it says so: a broker that is only slow to answer is named, too, for a while."""
    return not_ready(mirror).startswith(f"[-] flow: not running, {waits}")


def settings(work_dir: Path, source: KafkaCluster, target: KafkaCluster) -> tuple[str, ...]:
    """A mirror of the topic ``orders`` that gives a broker two seconds, not thirty."""
    waits = {"request_timeout_seconds": 2, "connect_timeout_seconds": 1}
    sides = {"source": source, "target": target}
    clusters = {
        name: {"bootstrap_servers": side.bootstrap.split(","), **waits} for name, side in sides.items()
    }
    return flows.configured(work_dir, source, target, "orders", topics={"include": ["orders"]}, **clusters)


async def test_the_state_of_the_flow_is_waited_for_while_its_leader_is_down(tmp_path: Path) -> None:
    """
    After a power cut: nobody can say who leads instead, for the controllers are down as well.
    """
    async with (
        KafkaCluster.start(version="3.9", name="source", work_dir=tmp_path) as source,
        KafkaCluster.start(version="4.3", nodes=3, name="target", work_dir=tmp_path) as target,
    ):
        await source.create_topic("orders", 2)
        load(source.bootstrap, "orders", json_rows(100, 300))
        command = settings(tmp_path, source, target)
        first = await twinsite(*command, "--once", work_dir=tmp_path)
        load(source.bootstrap, "orders", json_rows(50, 300, seed=2))
        await target.move_leader(STATE_TOPIC, 0, 2)
        await target.broker(3).kill()
        await target.broker(2).kill()

        with Twinsite.run(*command, work_dir=tmp_path) as mirror:
            await mirror.wait_for(lambda: "flow_not_begun" in mirror.stderr, "it is not ready", 90)
            waits = f"waits for the flow's state at the target: {target.broker(2).address}: "
            await mirror.wait_for(lambda: says_that_it(waits, mirror), "it says what it waits for")
            target.broker(2).launch()
            target.broker(3).launch()
            await mirror.wait_for(lambda: not not_ready(mirror), "it is ready", 90)
            await mirror.wait_for(partial(flows.complete, mirror, source, ["orders"]), "all is copied", 60)

        assert first.code == 0, first.stderr
        assert "state_topic_has_few_replicas" not in mirror.stderr
        assert "state_topic_not_flushed" not in mirror.stderr
        assert assert_exact(source.bootstrap, target.bootstrap, ["orders"]) == 150


async def test_the_coordinator_is_waited_for_while_it_does_not_answer(tmp_path: Path) -> None:
    """
    The state can be read: it is on one broker only, as it was made when the others were away; that is said.
    """
    async with (
        KafkaCluster.start(version="3.9", name="source", work_dir=tmp_path) as source,
        KafkaCluster.start(
            version="4.3",
            nodes=3,
            name="target",
            properties={"transaction.state.log.num.partitions": 1},
            work_dir=tmp_path,
        ) as target,
    ):
        await source.create_topic("orders", 2)
        await target.create_topic(STATE_TOPIC, config={"cleanup.policy": "compact"}, assignment=[[1]])
        load(source.bootstrap, "orders", json_rows(100, 300))
        command = settings(tmp_path, source, target)
        first = await twinsite(*command, "--once", work_dir=tmp_path)
        load(source.bootstrap, "orders", json_rows(50, 300, seed=2))
        await target.move_leader(TRANSACTIONS, 0, 2)
        for node in (2, 3):
            await target.broker(node).freeze()

        with Twinsite.run(*command, work_dir=tmp_path) as mirror:
            await mirror.wait_for(lambda: "flow_not_begun" in mirror.stderr, "it is not ready", 90)
            waits = f"waits for the transaction coordinator of the target: {target.broker(2).address}: "
            await mirror.wait_for(lambda: says_that_it(waits, mirror), "it says what it waits for")
            for node in (2, 3):
                await target.broker(node).thaw()
            await mirror.wait_for(lambda: not not_ready(mirror), "it is ready", 90)
            await mirror.wait_for(partial(flows.complete, mirror, source, ["orders"]), "all is copied", 60)

        [few] = events(mirror.stderr, "state_topic_has_few_replicas")
        assert len(events(mirror.stderr, "state_topic_not_flushed")) == 1
        assert first.code == 0, first.stderr
        assert '"replicas": 1, "wanted": 3' in few
        assert assert_exact(source.bootstrap, target.bootstrap, ["orders"]) == 150
