"""Several mirrors of one flow: the newest copies, the others cost next to nothing, and one follows."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import pytest

from tests.conftest import TopicFactory
from tests.faults.flows import complete, copied, mirror_of, owns, partitions
from tests.harness.checker import assert_exact, watermarks
from tests.harness.data import json_rows
from tests.harness.kafka import KafkaCluster
from tests.harness.loading import load, load_transactions
from tests.harness.process import Twinsite, events, twinsite
from tests.harness.relay import Relay, through

pytestmark = pytest.mark.timeout(180)

DATA_BYTES = 8_000_000


async def test_a_standby_reads_nothing_over_the_link_until_the_owner_is_killed(
    source: KafkaCluster, target: KafkaCluster, relay: Relay, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    It shows how far the owner is and which one that is. Then it goes on, and the copy is exact.
    """
    name = await topic(source, partitions=3)
    load(source.bootstrap, name, json_rows(100, 1_000))
    command = mirror_of(through(source, relay.address), target, name, name)
    with Twinsite.run(*command, work_dir=tmp_path) as standby:
        await standby.wait_for(partial(complete, standby, source, [name]), "the first one copies")
        with Twinsite.run(*command, work_dir=tmp_path) as owner:
            named = f"process {owner.process.pid}, since"
            await standby.wait_for(lambda: names(standby, named), "it stands by for the newer one")
            before = standby.status()["bytes_fetched"]
            load(source.bootstrap, name, json_rows(DATA_BYTES // 1_000, 1_000, seed=2), "none")
            load_transactions(source.bootstrap, name, json_rows(300, 100), per_transaction=20)
            for mirror in (owner, standby):
                await mirror.wait_for(partial(complete, mirror, source, [name]), "it knows all is there")
            read = standby.status()["bytes_fetched"] - before
            shown = states(standby), standby.status()["owner"], copied(standby)
            owner.kill()
        load_transactions(source.bootstrap, name, json_rows(300, 100, seed=3), per_transaction=20)
        await standby.wait_for(partial(complete, standby, source, [name]), "it goes on", 60)
        ended = states(standby), standby.status()["owner"]

    assert shown == ({"STANDBY"}, False, 100)
    assert read < DATA_BYTES / 20
    assert ended == ({"ACTIVE"}, True)
    assert_exact(source.bootstrap, target.bootstrap, [name])


async def test_an_owner_that_ends_is_followed_though_there_is_nothing_to_copy(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    A run with --once beside a mirror that stands by meanwhile, and a mirror that is told to stop.
    """
    name = await topic(source)
    load(source.bootstrap, name, json_rows(500, 100))
    command = mirror_of(source, target, name, name)
    with Twinsite.run(*command, work_dir=tmp_path) as last:
        await last.wait_for(partial(complete, last, source, [name]), "it copies")
        with Twinsite.run(*command, work_dir=tmp_path) as other:
            await last.wait_for(lambda: states(last) == {"STANDBY"}, "it stands by")
            await other.wait_for(
                lambda: bool(events(other.stderr, "owner_of_the_flow")), "the other one has it"
            )
            other.terminate()
            stopped = await other.finished()
        await last.wait_for(lambda: states(last) == {"ACTIVE"}, "it goes on", 30)
        single = await twinsite(*command, "--once", work_dir=tmp_path)
        load(source.bootstrap, name, json_rows(500, 100, seed=2))
        await last.wait_for(partial(complete, last, source, [name]), "it copies again", 30)
        owns = last.status()["owner"]

    assert (stopped.code, single.code, owns) == (0, 0, True)
    assert_exact(source.bootstrap, target.bootstrap, [name])


@pytest.mark.timeout(300)
async def test_an_owner_that_is_killed_is_followed_by_one_where_only_an_operator_ends_what_is_stopped(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    The loss that has stopped it here was accepted at the owner. It is not looked at here; but the owner says
    no more that it is there.
    """
    name = await topic(source)
    command = mirror_of(source, target, name, name)
    load(source.bootstrap, name, json_rows(20, 50))
    single = await twinsite(*command, "--once", work_dir=tmp_path)
    load(source.bootstrap, name, json_rows(30, 50, seed=2))
    source.delete_records(name, {0: 35})
    with Twinsite.run(*command, work_dir=tmp_path) as standby:
        await standby.wait_for(lambda: states(standby) == {"DATA_LOSS"}, "the loss is seen")
        with Twinsite.run(*command, work_dir=tmp_path) as owner:
            await owner.wait_for(
                lambda: bool(events(owner.stderr, "owner_of_the_flow")), "the other one has it"
            )
            await owner.wait_for(lambda: states(owner) == {"DATA_LOSS"}, "it sees the loss, too")
            url = f"http://127.0.0.1:{owner.port}"
            accepted = await twinsite("accept-loss", name, "--yes", "--url", url, work_dir=tmp_path)
            await owner.wait_for(partial(complete, owner, source, [name]), "the rest is copied")
            await standby.wait_for(partial(complete, standby, source, [name]), "it is known how far that is")
            shown = states(standby), owns(standby)
            owner.kill()
        load(source.bootstrap, name, json_rows(10, 50, seed=3))
        await standby.wait_for(partial(complete, standby, source, [name]), "it goes on", 150)
        ended = states(standby), owns(standby)

    assert (single.code, accepted.code) == (0, 0), single.stderr + accepted.stderr
    assert (shown, ended) == (({"DATA_LOSS"}, False), ({"ACTIVE"}, True))
    assert watermarks(target.bootstrap, name)[0] == (0, 60)


async def test_a_state_topic_that_is_deleted_is_written_again_by_the_owner_and_by_nobody_else(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    Whoever stands by, or starts just then, does not take the right from it before: nothing is forgotten.
    """
    name = await topic(source, partitions=3)
    command = mirror_of(source, target, name, name, "--offsets", "mapped")
    with Twinsite.run(*command, work_dir=tmp_path) as standby:
        await copies(standby, source, name, seed=1)
        with Twinsite.run(*command, work_dir=tmp_path) as owner:
            await standby.wait_for(lambda: names(standby, f"process {owner.process.pid}, since"), "it waits")
            await delete_state(target, name)
            await owner.wait_for(
                lambda: bool(events(owner.stderr, "state_lost_its_end")), "it is written", 20
            )
            await copies(owner, source, name, seed=2)
            await standby.wait_for(partial(complete, standby, source, [name]), "it knows all is there")
            shown = states(owner), states(standby), events(standby.stderr, "taking_over")
            await delete_state(target, name)
            single = await twinsite(*command, "--once", work_dir=tmp_path)

    assert shown == ({"ACTIVE"}, {"STANDBY"}, [])
    assert single.code == 0, single.stderr
    assert_exact(source.bootstrap, target.bootstrap, [name], offsets="mapped")


@pytest.mark.parametrize("idle", [False, True])
async def test_who_takes_the_place_of_a_dead_owner_writes_again_the_state_that_was_deleted(
    idle: bool, source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    From what it had read, whether there is something to copy or not: it goes on, and so does who starts then.
    """
    name = await topic(source, partitions=3)
    command = mirror_of(source, target, name, name, "--offsets", "mapped")
    with Twinsite.run(*command, work_dir=tmp_path) as standby:
        await copies(standby, source, name, seed=1)
        with Twinsite.run(*command, work_dir=tmp_path) as owner:
            await standby.wait_for(lambda: names(standby, f"process {owner.process.pid}, since"), "it waits")
            owner.kill()
        await delete_state(target, name)
        if idle:
            await standby.wait_for(lambda: states(standby) == {"ACTIVE"}, "it takes over", 60)
        await copies(standby, source, name, seed=2)
        said = events(standby.stderr, "state_written_again")
    again = await twinsite(*command, "--once", work_dir=tmp_path)

    assert said
    assert again.code == 0, again.stderr
    assert_exact(source.bootstrap, target.bootstrap, [name], offsets="mapped")


async def copies(mirror: Twinsite, source: KafkaCluster, name: str, *, seed: int) -> None:
    """Write transactions to the source, and wait until the mirror has copied them, maps and all."""
    load_transactions(source.bootstrap, name, json_rows(300, 100, seed=seed), per_transaction=20)
    await mirror.wait_for(partial(complete, mirror, source, [name]), "it copies", 60)


async def delete_state(target: KafkaCluster, flow: str) -> None:
    """Delete what a flow remembers; its mirrors make the topic again at once."""
    state = f"__twinsite_state.{flow}"
    await asyncio.wrap_future(target.admin.delete_topics([state])[state])


def names(mirror: Twinsite, words: str) -> bool:
    """Whether it says so of all that it does not copy, and copies nothing."""
    found = partitions(mirror)
    return bool(found) and all(p["state"] == "STANDBY" and words in p["detail"] for p in found)


def states(mirror: Twinsite) -> set[str]:
    """Of all its partitions."""
    return {p["state"] for p in partitions(mirror)}
