"""Kill, race, freeze and restart: whatever happens, the copy ends exact."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import NewPartitions

from tests.conftest import TopicFactory
from tests.faults import flows, steps
from tests.harness.checker import assert_exact, read_partition, watermarks
from tests.harness.daemon import free_ports
from tests.harness.data import json_rows
from tests.harness.judging import OffsetMode
from tests.harness.kafka import KafkaCluster
from tests.harness.loading import load, load_interleaved
from tests.harness.process import Finished, Twinsite, events, twinsite
from tests.harness.relay import listens, through

KILLED = -9
RACED_RECORDS = 5_000

Unharmed = dict[OffsetMode, dict[str, object]]


@pytest.fixture(scope="module")
def unharmed() -> Unharmed:
    """What a flow remembers of an odd topic if nobody is killed; the first test of an offset mode adds it."""
    return {}


async def run_once(
    source: KafkaCluster,
    target: KafkaCluster,
    topics: str,
    flow: str,
    work_dir: Path,
    *more: str,
    **keywords: str,
) -> Finished:
    arguments = flows.once(source, target, topics, flow, *more)
    return await twinsite(*arguments, work_dir=work_dir, seconds=90, **keywords)  # type: ignore[arg-type]


async def odd_topic(source: KafkaCluster, topic: TopicFactory) -> str:
    """A topic that makes the mirror do everything: a late start, transactions, aborted ones."""
    name = await topic(source, partitions=2)
    load(source.bootstrap, name, json_rows(300, 100))
    source.delete_records(name, {0: 60})
    load_interleaved(source.bootstrap, name, json_rows(300, 100, seed=2))
    return name


@pytest.mark.parametrize(("failpoint", "offsets"), steps.OF_MIRRORS)
async def test_a_mirror_killed_at_a_durable_step_leaves_nothing_lost_or_doubled(
    source: KafkaCluster,
    target: KafkaCluster,
    topic: TopicFactory,
    tmp_path: Path,
    unharmed: Unharmed,
    failpoint: str,
    offsets: OffsetMode,
) -> None:
    """
    SIGKILL at the step, then a run to the end: every record once, in order, where it belongs. The flow
    remembers what it would if nobody had died.
    """
    name = await odd_topic(source, topic)
    if offsets not in unharmed:
        unharmed[offsets] = await flows.never_killed(source, target, name, tmp_path, offsets)

    first = await run_once(
        source, target, re.escape(name), name, tmp_path, "--offsets", offsets, failpoints=failpoint
    )
    second = await run_once(source, target, re.escape(name), name, tmp_path, "--offsets", offsets)

    assert first.code == KILLED, first.stderr
    assert second.code == 0, second.stderr
    assert [len(events(one.stderr, "failpoints_armed")) for one in (first, second)] == [1, 0]
    assert_exact(source.bootstrap, target.bootstrap, [name], offsets=offsets)
    assert flows.remembered(target, name) == unharmed[offsets]


@pytest.mark.parametrize("failpoint", steps.AS_IT_TURNS_TO_MAPPED)
async def test_a_mirror_killed_while_it_turns_to_mapped_knows_every_offset_afterwards(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path, failpoint: str
) -> None:
    """
    With ``auto`` a gap above the limit ends the same offsets; SIGKILL after each of the writes around that.
    """
    name = await topic(source)
    load_interleaved(source.bootstrap, name, json_rows(300, 100))
    offsets = {"mode": "auto", "gap_limit": 5}
    arguments = flows.configured(tmp_path, source, target, name, topics={"include": [name]}, offsets=offsets)

    first = await twinsite(*arguments, "--once", work_dir=tmp_path, failpoints=failpoint)
    second = await twinsite(*arguments, "--once", "-o", "json", work_dir=tmp_path)

    assert first.code == KILLED, first.stderr
    assert second.code == 0, second.stderr
    assert [one["offset_mode"] for one in second.document["partitions"]] == ["mapped"]
    assert_exact(source.bootstrap, target.bootstrap, [name], offsets="mapped")


@pytest.mark.parametrize("failpoint", [steps.PARTITIONS_ADDED, steps.SETTINGS_CHANGED])
async def test_a_mirror_killed_while_a_topic_is_brought_in_step_ends_that_the_next_time(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path, failpoint: str
) -> None:
    """
    The target has the new partitions already, and nothing is known of them yet; or it has the new settings of
    a first topic and not of a second. In the end it has what the source has, and no setting more.
    """
    names = sorted([await topic(source, retention_ms=864_000_000), await topic(source)])
    topics = "|".join(map(re.escape, names))
    for name in names:
        load(source.bootstrap, name, json_rows(300, 100))
    assert (await run_once(source, target, topics, names[0], tmp_path)).code == 0
    for name in names:
        source.admin.create_partitions([NewPartitions(name, 3)])[name].result()
        await source.alter_topic(name, {"retention.ms": None, "cleanup.policy": "compact"})
        load(source.bootstrap, name, json_rows(300, 100, seed=2))

    first = await run_once(source, target, topics, names[0], tmp_path, failpoints=failpoint)
    second = await run_once(source, target, topics, names[0], tmp_path)

    assert (first.code, second.code) == (KILLED, 0), first.stderr + second.stderr
    for name in names:
        there, here = source.topic_config(name), target.topic_config(name)
        assert len(watermarks(target.bootstrap, name)) == 3
        assert here["cleanup.policy"] == "compact"
        assert here["retention.ms"] == there["retention.ms"]
    assert_exact(source.bootstrap, target.bootstrap, names)


@pytest.mark.parametrize("failpoint", steps.AS_A_LOSS_IS_ACCEPTED)
async def test_a_mirror_killed_while_a_loss_is_accepted_goes_on_behind_it(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path, failpoint: str
) -> None:
    """
    SIGKILL when the operator's word is written down, and when the loss is in the ledger: nobody is asked
    twice.
    """
    name = await topic(source)
    load(source.bootstrap, name, json_rows(300, 100))
    assert (await run_once(source, target, re.escape(name), name, tmp_path)).code == 0
    load(source.bootstrap, name, json_rows(200, 100, seed=2))
    had = list(read_partition(source.bootstrap, name, 0))
    source.delete_records(name, {0: 400})

    arguments = flows.mirror_of(source, target, re.escape(name), name)
    with Twinsite.run(*arguments, work_dir=tmp_path, failpoints=failpoint) as mirror:
        await mirror.wait_for(lambda: flows.state(mirror, name) == "DATA_LOSS", "the loss is stated")
        url = f"http://127.0.0.1:{mirror.port}"
        await twinsite("accept-loss", name, "--yes", "--url", url, work_dir=tmp_path)
        first = await mirror.finished()
    second = await run_once(source, target, re.escape(name), name, tmp_path)

    assert first.code == KILLED, first.stderr
    assert second.code == 0, second.stderr
    left = [record for record in had if not 300 <= record.offset < 400]
    assert list(read_partition(target.bootstrap, name, 0)) == left


async def test_three_mirrors_racing_on_one_flow_do_no_harm(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    Three mirrors of the same flow at once by mistake, which take it from each other while the source is
    written: nothing doubled, lost or reordered, gaps filled once. In the end one of them has it: the newest,
    unless it moved nothing for so long that another one took it back.
    """
    plain, odd = await topic(source, partitions=4), await odd_topic(source, topic)
    arguments = flows.mirror_of(source, target, f"{plain}|{odd}", plain)
    with ExitStack() as stack:
        racing: list[Twinsite] = []
        async with flows.writing(source, plain):
            for seed in range(3):
                newest = stack.enter_context(Twinsite.run(*arguments, work_dir=tmp_path))
                racing.append(newest)
                load_interleaved(source.bootstrap, odd, json_rows(300, 100, seed=seed))
                await newest.wait_for(partial(_has_taken_the_right, newest), "the newest has it")
                wanted = sum(map(_copied, racing)) + RACED_RECORDS
                await newest.wait_for(partial(_have_copied, racing, wanted), "one of them copies", 60)
        for mirror in racing:
            await mirror.wait_for(partial(flows.complete, mirror, source, [plain, odd]), "all is copied", 60)
        await newest.wait_for(lambda: sum(map(flows.owns, racing)) == 1, "one of them has it")

    assert_exact(source.bootstrap, target.bootstrap, [plain, odd])


def _has_taken_the_right(mirror: Twinsite) -> bool:
    return bool(events(mirror.stderr, "owner_of_the_flow"))


def _have_copied(mirrors: Sequence[Twinsite], records: int) -> bool:
    return sum(map(_copied, mirrors)) > records


async def test_a_mirror_killed_over_and_over_with_more_to_copy_each_time(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    Six kills in the middle of copying, more records between them: the copy is exact in the end.
    """
    name = await topic(source, partitions=3)
    for turn in range(6):
        load(source.bootstrap, name, json_rows(4_000, 300, seed=turn), batch_num_messages=100)
        arguments = flows.mirror_of(source, target, re.escape(name), name)
        with Twinsite.run(*arguments, work_dir=tmp_path, failpoints=f"produce_answered:{turn + 1}") as mirror:
            assert (await mirror.finished(30)).code == KILLED

    done = await run_once(source, target, re.escape(name), name, tmp_path)

    assert done.code == 0, done.stderr
    assert_exact(source.bootstrap, target.bootstrap, [name])


@pytest.mark.parametrize(("victim", "state"), [("source", "LAGGING"), ("target", "BLOCKED")])
async def test_a_broker_that_dies_and_comes_back_is_waited_for(
    tmp_path: Path, victim: str, state: str
) -> None:
    """
    SIGKILL of the only broker of a side in the middle of copying: status, metrics and log name the side, and
    do not repeat themselves; the mirror goes on when it is back.
    """
    async with (
        KafkaCluster.start(version="3.9", name="a", work_dir=tmp_path / "a") as source,
        KafkaCluster.start(version="4.3", name="b", work_dir=tmp_path / "b") as target,
    ):
        await source.create_topic("t", 3)
        load(source.bootstrap, "t", json_rows(60_000, 500))
        more = partial(load, source.bootstrap, "t", json_rows(3_000, 500, seed=2))
        topics = {"include": ["t"]}
        arguments = flows.configured(tmp_path, source, target, "f", topics=topics, lagging_after_seconds=1)
        with Twinsite.run(*arguments, work_dir=tmp_path) as mirror:
            await mirror.wait_for(lambda: _copied(mirror) > 0, "something is copied")
            broker = (source if victim == "source" else target).broker(1)
            await broker.kill()
            if victim == "target":
                more()  # that a target is away shows only when there is something to write
            away = await flows.says(mirror, "t", state, f"{victim}_unavailable")
            up_meanwhile = _up(mirror)
            await broker.start()
            if victim == "source":
                more()
            await mirror.wait_for(lambda: _complete(mirror, 63_000), "all is copied", 60)
            up_again = _up(mirror)

        assert up_meanwhile == {"source": 1.0, "target": 1.0} | {victim: 0.0}
        assert up_again == {"source": 1.0, "target": 1.0}
        assert f"Look at the {victim} brokers" in away["hint"]
        assert len(events(mirror.stderr, "metadata_refresh_failed")) < 5
        assert re.search(f":{broker.port}: |has not answered (since|within|for) ", away["detail"])
        assert_exact(source.bootstrap, target.bootstrap, ["t"])


async def test_a_source_leader_that_moves_twice_while_it_is_read(tmp_path: Path) -> None:
    """
    Three nodes at the source, and records arrive all the while: the copy is exact over three leader epochs,
    nothing is taken for lost or diverged. So it is with a mirror that reads through a relay, over one stream.
    """
    async with (
        KafkaCluster.start(version="3.9", nodes=3, name="a", work_dir=tmp_path / "a") as source,
        KafkaCluster.start(version="4.3", name="b", work_dir=tmp_path / "b") as target,
    ):
        await source.create_topic("t", 2, replication=3)
        for name in ("t", "relayed.t"):
            await target.create_topic(name, 2)
        address = f"127.0.0.1:{free_ports(1)[0]}"
        listen = ("relay", "--cluster", source.bootstrap, "--listen", address)
        direct = flows.mirror_of(source, target, "t", "f")
        topics = {"include": ["t"], "names": "prefix", "prefix": "relayed."}
        relayed = flows.configured(tmp_path, through(source, address), target, "relayed", topics=topics)
        with ExitStack() as stack:
            relay = stack.enter_context(Twinsite.run(*listen, work_dir=tmp_path, listen=False))
            await listens(relay)
            mirrors = [
                stack.enter_context(Twinsite.run(*one, work_dir=tmp_path)) for one in (direct, relayed)
            ]
            async with flows.writing(source, "t"):
                for _ in range(2):
                    await _go_on(mirrors)
                    leader = await source.leader("t")
                    await source.move_leader("t", 0, leader % 3 + 1)
                await _go_on(mirrors)
            for mirror in mirrors:
                await mirror.wait_for(partial(flows.complete, mirror, source, ["t"]), "all is copied", 60)
            states = [p["state"] for mirror in mirrors for p in flows.partitions(mirror)]

        assert states == ["ACTIVE"] * 4
        said = mirrors[0].stderr + mirrors[1].stderr
        assert [word for word in ("DIVERGED", "DATA_LOSS", "broker_not_written") if word in said] == []
        assert events(mirrors[1].stderr, "stream_lost") == []
        assert len(_leader_epochs(source, "t")) >= 3
        assert_exact(source.bootstrap, target.bootstrap, ["t"])
        assert_exact(source.bootstrap, target.bootstrap, ["t"], rename="relayed.{}".format)


async def _go_on(mirrors: Sequence[Twinsite]) -> None:
    """Wait until each of them goes on."""
    await asyncio.gather(*map(_goes_on, mirrors))


async def _goes_on(mirror: Twinsite) -> None:
    """Wait until hundreds of records more are copied than now."""
    wanted = flows.reached(mirror, "t") + 500
    await mirror.wait_for(lambda: flows.reached(mirror, "t") > wanted, "it goes on", 60)


def _leader_epochs(cluster: KafkaCluster, topic: str) -> set[int]:
    """Under how many leaders the records of partition 0 were written."""
    _, end = watermarks(cluster.bootstrap, topic)[0]
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "epochs"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    epochs: set[int] = set()
    try:
        while True:
            record = consumer.poll(10)
            assert record is not None
            assert record.error() is None
            epochs.add(record.leader_epoch())
            if record.offset() + 1 == end:
                return epochs
    finally:
        consumer.close()


def _up(mirror: Twinsite) -> dict[str, float]:
    """What the metrics say of each cluster."""
    lines = re.findall(
        r'^twinsite_peer_up\{cluster="(\w+)",.*\} (.*)$', mirror.get("/metrics").decode(), re.M
    )
    return {cluster: float(value) for cluster, value in lines}


def _copied(mirror: Twinsite) -> int:
    return sum(p["records"] for p in mirror.status().get("partitions", []))


def _complete(mirror: Twinsite, records: int) -> bool:
    found = mirror.status().get("partitions", [])
    return sum(p["next_offset"] or 0 for p in found) == records
