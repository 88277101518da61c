"""Kill, race, freeze and restart: whatever happens, the copy ends exact."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition

from tests.conftest import TopicFactory
from tests.harness.checker import assert_exact
from tests.harness.data import json_rows, load, load_interleaved
from tests.harness.kafka import KafkaCluster
from tests.harness.process import Finished, Twinsite, twinsite

KILLED = -9


def command(source: str, target: str, topics: str, flow: str, *more: str) -> tuple[str, ...]:
    return ("mirror", "--source", source, "--target", target, "--topics", topics, "--flow", flow, *more)


async def run_once(
    source: KafkaCluster,
    target: KafkaCluster,
    topics: str,
    flow: str,
    work_dir: Path,
    *more: str,
    **keywords: str,
) -> Finished:
    arguments = command(source.bootstrap, target.bootstrap, topics, flow, "--once", "-o", "json", *more)
    return await twinsite(*arguments, work_dir=work_dir, seconds=90, **keywords)  # type: ignore[arg-type]


async def odd_topic(source: KafkaCluster, topic: TopicFactory) -> str:
    """A topic that makes the mirror do everything: a late start, transactions, aborted ones."""
    name = await topic(source, partitions=2)
    load(source.bootstrap, name, json_rows(300, 100))
    source.admin.delete_records([TopicPartition(name, 0, 60)])[TopicPartition(name, 0)].result()
    load_interleaved(source.bootstrap, name, json_rows(300, 100, seed=2))
    return name


@pytest.mark.parametrize(
    ("failpoint", "offsets"),
    [
        ("claimed", "same"),
        ("topic_created", "same"),
        ("registered:2", "same"),
        ("padding_sent", "same"),
        ("padded", "same"),
        ("trimmed", "same"),
        ("fetched:2", "same"),
        ("epoch_noted", "same"),
        ("produce_sent:3", "same"),
        ("produce_answered:4", "same"),
        ("markers_written", "same"),
        ("markers_written:5", "same"),
        ("registered", "mapped"),
        ("map_written", "mapped"),
        ("produce_sent", "mapped"),
        ("produce_answered", "mapped"),
    ],
)
async def test_a_mirror_killed_at_a_durable_step_leaves_nothing_lost_or_doubled(
    source: KafkaCluster,
    target: KafkaCluster,
    topic: TopicFactory,
    tmp_path: Path,
    failpoint: str,
    offsets: str,
) -> None:
    """
    SIGKILL at the step, then a run to the end: every record once, in order, where it belongs.
    """
    name = await odd_topic(source, topic)

    first = await run_once(
        source, target, re.escape(name), name, tmp_path, "--offsets", offsets, failpoints=failpoint
    )
    second = await run_once(source, target, re.escape(name), name, tmp_path, "--offsets", offsets)

    assert first.code == KILLED, first.stderr
    assert second.code == 0, second.stderr
    assert_exact(
        source.bootstrap, target.bootstrap, [name], offsets="same" if offsets == "same" else "mapped"
    )


async def test_three_mirrors_racing_on_one_flow_do_no_harm(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    Three mirrors of the same flow at once by mistake: nothing doubled, lost or reordered, gaps filled once.
    """
    plain = await topic(source, partitions=4)
    load(source.bootstrap, plain, json_rows(40_000, 300), "lz4")
    odd = await odd_topic(source, topic)
    arguments = command(source.bootstrap, target.bootstrap, f"{plain}|{odd}", plain, "--once", "-o", "json")

    with (
        Twinsite.run(*arguments, work_dir=tmp_path, listen=False) as one,
        Twinsite.run(*arguments, work_dir=tmp_path, listen=False) as two,
        Twinsite.run(*arguments, work_dir=tmp_path, listen=False) as three,
    ):
        ended = [await mirror.finished(90) for mirror in (one, two, three)]

    assert [mirror.code for mirror in ended] == [0, 0, 0], "\n".join(m.stderr[-800:] for m in ended)
    assert_exact(source.bootstrap, target.bootstrap, [plain, odd])


async def test_a_mirror_killed_over_and_over_while_the_source_is_written(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    Six kills in the middle of copying, more records between them: the copy is exact in the end.
    """
    name = await topic(source, partitions=3)
    for turn in range(6):
        load(source.bootstrap, name, json_rows(4_000, 300, seed=turn), batch_num_messages=100)
        arguments = command(source.bootstrap, target.bootstrap, re.escape(name), name)
        with Twinsite.run(*arguments, work_dir=tmp_path, failpoints=f"produce_answered:{turn + 1}") as mirror:
            await mirror.finished(30)

    done = await run_once(source, target, re.escape(name), name, tmp_path)

    assert done.code == 0, done.stderr
    assert_exact(source.bootstrap, target.bootstrap, [name])


@pytest.mark.parametrize("victim", ["source", "target"])
async def test_a_broker_that_dies_and_comes_back_is_waited_for(tmp_path: Path, victim: str) -> None:
    """
    SIGKILL of the only broker of a side in the middle of copying; the mirror goes on when it is back.
    """
    async with (
        KafkaCluster.start(version="3.9", name="a", work_dir=tmp_path / "a") as source,
        KafkaCluster.start(version="4.3", name="b", work_dir=tmp_path / "b") as target,
    ):
        await source.create_topic("t", 3)
        load(source.bootstrap, "t", json_rows(60_000, 500))
        arguments = command(source.bootstrap, target.bootstrap, "t", "f")
        with Twinsite.run(*arguments, work_dir=tmp_path) as mirror:
            await mirror.wait_for(lambda: _copied(mirror) > 0, "something is copied")
            broker = (source if victim == "source" else target).broker(1)
            await broker.kill()
            await broker.start()
            load(source.bootstrap, "t", json_rows(3_000, 500, seed=2))
            await mirror.wait_for(lambda: _complete(mirror, 63_000), "all is copied", 60)

        assert_exact(source.bootstrap, target.bootstrap, ["t"])


async def test_leaders_that_move_and_replicas_that_are_missing(tmp_path: Path) -> None:
    """
    Three nodes at the target: a leader moves during copying; with too few replicas in sync the partition
    says so while another one goes on, and both end exact.
    """
    async with (
        KafkaCluster.start(version="3.9", name="a", work_dir=tmp_path / "a") as source,
        KafkaCluster.start(version="4.3", nodes=3, name="b", work_dir=tmp_path / "b") as target,
    ):
        for name in ("safe", "single"):
            await source.create_topic(name, 1)
        await target.create_topic("safe", 1, replication=3, config={"min.insync.replicas": 3})
        await target.create_topic("single", 1, replication=3, config={"min.insync.replicas": 1})
        load(source.bootstrap, "safe", json_rows(20_000, 500))
        arguments = command(source.bootstrap, target.bootstrap, "safe|single", "f")
        with Twinsite.run(*arguments, work_dir=tmp_path) as mirror:
            await mirror.wait_for(lambda: _copied(mirror) > 0, "something is copied")
            leader = await target.leader("safe", 0)
            await target.move_leader("safe", 0, leader % 3 + 1)
            await mirror.wait_for(lambda: _complete(mirror, 20_000), "all is copied", 60)
            leaders = {await target.leader("safe"), await target.leader("single")}
            gone = min({1, 2, 3} - leaders)
            await target.broker(gone).stop()
            load(source.bootstrap, "safe", json_rows(500, 500, seed=3))
            load(source.bootstrap, "single", json_rows(500, 500, seed=4))
            await mirror.wait_for(lambda: _reason(mirror, "safe") == "not_enough_replicas", "it is said", 60)
            await mirror.wait_for(lambda: _next(mirror, "single") == 500, "the other goes on", 60)
            await target.broker(gone).start()
            await mirror.wait_for(lambda: _complete(mirror, 21_000), "it recovers by itself", 90)

        assert_exact(source.bootstrap, target.bootstrap, ["safe", "single"])


def _copied(mirror: Twinsite) -> int:
    return sum(p["records"] for p in mirror.status().get("partitions", []))


def _complete(mirror: Twinsite, records: int) -> bool:
    found = mirror.status().get("partitions", [])
    return sum(p["next_offset"] or 0 for p in found) == records


def _reason(mirror: Twinsite, topic: str) -> str | None:
    return next((p["reason"] for p in mirror.status().get("partitions", []) if p["topic"] == topic), None)


def _next(mirror: Twinsite, topic: str) -> int:
    return sum(p["next_offset"] or 0 for p in mirror.status().get("partitions", []) if p["topic"] == topic)
