"""Leaders that move or die while they are read and written: the copy goes on with the next one by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from tests.conftest import TopicFactory
from tests.faults import flows
from tests.faults.flows import configured, copied, partition, partitions, reached
from tests.harness.checker import assert_exact
from tests.harness.daemon import free_ports, until
from tests.harness.data import json_rows
from tests.harness.kafka import KafkaCluster
from tests.harness.loading import load
from tests.harness.process import Twinsite, events
from tests.harness.relay import listens, through

pytestmark = pytest.mark.timeout(240)

REPLICATED = {"min.insync.replicas": 2}
UNTRUE = ("DIVERGED", "DATA_LOSS", "TOPIC_RECREATED", "FENCED")
"""States that would claim what has not happened: two replicas have every record that was acknowledged."""


@pytest.fixture(scope="module")
def trio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """Three nodes, shared: leave all of them running."""
    cluster = KafkaCluster.prepare("4.3", 3, "trio", {}, tmp_path_factory.mktemp("kafka"))
    try:
        asyncio.run(cluster.launch())
        yield cluster
    finally:
        cluster.close()


async def test_a_target_leader_that_is_killed_is_followed_by_another(
    source: KafkaCluster, trio: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    SIGKILL in the middle of the copy; what it had not replicated is written to the next one. Then it is back.
    """
    name = await topic(source, partitions=2)
    await trio.create_topic(name, 2, replication=3, config=REPLICATED)
    command = configured(tmp_path, source, trio, name, topics={"include": [name]})

    with Twinsite.run(*command, work_dir=tmp_path) as mirror:
        async with flows.writing(source, name):
            await kill_leader_and_bring_it_back(trio, name, [mirror])
        await mirror.wait_for(partial(flows.complete, mirror, source, [name]), "all is copied", 60)
        states = [p["state"] for p in partitions(mirror)]

    assert states == ["ACTIVE"] * 2
    assert [word for word in UNTRUE if word in mirror.stderr] == []
    assert_exact(source.bootstrap, trio.bootstrap, [name])


async def test_a_source_leader_that_is_killed_is_followed_by_another(
    trio: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    What it had not replicated was not committed, and nobody has read it. One mirror reads from the brokers
    and one through a relay.
    """
    name = await topic(target, partitions=2)
    await target.create_topic(f"relayed.{name}", 2)
    await trio.create_topic(name, 2, replication=3, config=REPLICATED)
    address = f"127.0.0.1:{free_ports(1)[0]}"
    listen = ("relay", "--cluster", trio.bootstrap, "--listen", address)
    topics = {"include": [name]}
    direct = configured(tmp_path, trio, target, name, topics=topics)
    renamed = {"names": "prefix", "prefix": "relayed."}
    relayed = configured(tmp_path, through(trio, address), target, f"relayed-{name}", topics=topics | renamed)

    with ExitStack() as stack:
        relay = stack.enter_context(Twinsite.run(*listen, work_dir=tmp_path, listen=False))
        await listens(relay)
        mirrors = [stack.enter_context(Twinsite.run(*one, work_dir=tmp_path)) for one in (direct, relayed)]
        async with flows.writing(trio, name):
            await kill_leader_and_bring_it_back(trio, name, mirrors)
        for mirror in mirrors:
            await mirror.wait_for(partial(flows.complete, mirror, trio, [name]), "all is copied", 60)
        states = [p["state"] for mirror in mirrors for p in partitions(mirror)]

    assert states == ["ACTIVE"] * 4
    said = mirrors[0].stderr + mirrors[1].stderr
    assert [word for word in UNTRUE if word in said] == []
    assert events(mirrors[1].stderr, "stream_lost") == []
    assert_exact(trio.bootstrap, target.bootstrap, [name])
    assert_exact(trio.bootstrap, target.bootstrap, [name], rename="relayed.{}".format)


async def kill_leader_and_bring_it_back(trio: KafkaCluster, topic: str, mirrors: Sequence[Twinsite]) -> None:
    """Kill who leads partition 0; it comes back when the copy has gone on without it, and is followed again.

    All the while every mirror goes on, and nobody tells it to.
    """
    await go_on(mirrors, topic)
    killed = await trio.leader(topic)
    await trio.broker(killed).kill()
    try:
        await until(lambda: leader(trio, topic) not in {killed, -1}, "another node leads")
        await go_on(mirrors, topic)
    finally:
        await trio.broker(killed).start()
    await until(lambda: in_sync(trio, topic) == {1, 2, 3}, "the killed node has caught up", 60)
    await trio.move_leader(topic, 0, killed)
    await go_on(mirrors, topic)


def leader(cluster: KafkaCluster, topic: str) -> int:
    """Of partition 0; -1 where none is known."""
    return int(cluster.admin.list_topics(topic, 10).topics[topic].partitions[0].leader)


def in_sync(cluster: KafkaCluster, topic: str) -> set[int]:
    """The nodes that have all of partition 0."""
    return set(cluster.admin.list_topics(topic, 10).topics[topic].partitions[0].isrs)


async def go_on(mirrors: Sequence[Twinsite], topic: str) -> None:
    """Wait until each of them has copied hundreds of records more than now."""
    await asyncio.gather(*(_goes_on(mirror, topic) for mirror in mirrors))


async def _goes_on(mirror: Twinsite, topic: str) -> None:
    wanted = reached(mirror, topic) + 500
    await mirror.wait_for(lambda: reached(mirror, topic) > wanted, "it goes on", 60)


async def test_a_leader_that_moves_and_replicas_that_are_missing(
    source: KafkaCluster, trio: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    A leader of the target moves during copying; with too few replicas in sync the partition says so while
    another one goes on, and both end exact.
    """
    safe, single = await topic(source, prefix="safe"), await topic(source, prefix="single")
    await trio.create_topic(safe, 1, replication=3, config={"min.insync.replicas": 3})
    await trio.create_topic(single, 1, replication=3, config={"min.insync.replicas": 1})
    load(source.bootstrap, safe, json_rows(20_000, 500))
    command = configured(tmp_path, source, trio, safe, topics={"include": [safe, single]})
    with Twinsite.run(*command, work_dir=tmp_path) as mirror:
        await mirror.wait_for(lambda: copied(mirror) > 0, "something is copied")
        await trio.move_leader(safe, 0, await trio.leader(safe) % 3 + 1)
        await mirror.wait_for(partial(flows.complete, mirror, source, [safe, single]), "all is copied", 60)
        gone = min({1, 2, 3} - {await trio.leader(safe), await trio.leader(single)})
        await trio.broker(gone).stop()
        try:
            load(source.bootstrap, safe, json_rows(500, 500, seed=3))
            load(source.bootstrap, single, json_rows(500, 500, seed=4))
            await mirror.wait_for(
                lambda: partition(partitions(mirror), safe).get("reason") == "not_enough_replicas",
                "it is said",
                60,
            )
            await mirror.wait_for(lambda: reached(mirror, single) == 500, "the other goes on", 60)
        finally:
            await trio.broker(gone).start()
        complete = partial(flows.complete, mirror, source, [safe, single])
        await mirror.wait_for(complete, "it recovers by itself", 90)

    assert_exact(source.bootstrap, trio.bootstrap, [safe, single])
