"""What an operator asks of a mirror that is not the owner of its flow."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mirror.flow.memory import AnotherClusterError
from mirror.kafka.transactions import current_token
from tests.conftest import TopicFactory
from tests.contract.connected import connected
from tests.faults.flows import complete
from tests.harness.checker import watermarks
from tests.harness.data import json_rows
from tests.harness.kafka import KafkaCluster
from tests.harness.loading import load
from tests.harness.process import Finished, Twinsite, events, twinsite

pytestmark = pytest.mark.timeout(120)


def mirror_of(source: KafkaCluster, target: KafkaCluster, topic: str) -> tuple[str, ...]:
    """A mirror of one topic in a flow of its name."""
    return (
        "mirror",
        f"--source={source.bootstrap}",
        f"--target={target.bootstrap}",
        f"--topics={re.escape(topic)}",
        f"--flow={topic}",
    )


async def accept_loss(topic: str, url: str, folder: Path) -> Finished:
    """Ask the mirror at this address."""
    return await twinsite("accept-loss", topic, "--yes", "--url", url, work_dir=folder)


def state(mirror: Twinsite) -> str:
    """Of its only partition."""
    found = mirror.status().get("partitions", [])
    return str(found[0]["state"]) if found else "UNKNOWN"


async def test_a_mirror_of_another_source_is_refused_before_it_takes_the_right(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    Its supervisor starts it again and again, and the mirror that copies would stand still each time.
    """
    name = await topic(source)
    load(source.bootstrap, name, json_rows(20, 50))
    assert (await twinsite(*mirror_of(source, target, name), "--once", work_dir=tmp_path)).code == 0

    async with connected(target) as cluster:
        before = await current_token(cluster, f"twinsite.{name}")
        _, _, *rest = mirror_of(source, target, name)
        elsewhere = target.bootstrap.replace("127.0.0.1", "localhost")
        other = await twinsite("mirror", f"--source={elsewhere}", *rest, work_dir=tmp_path)
        after = await current_token(cluster, f"twinsite.{name}")

    assert other.code == AnotherClusterError.exit_code
    assert "the flow was created for source cluster" in other.stderr
    assert before is not None
    assert after == before


async def test_a_standby_names_the_owner_when_asked_to_accept_a_loss(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    The refusal is an address: asked there, the same command is done. Then the standby is asked no more: it
    waits for its turn.
    """
    name = await topic(source)
    command = mirror_of(source, target, name)
    load(source.bootstrap, name, json_rows(20, 50))
    assert (await twinsite(*command, "--once", work_dir=tmp_path)).code == 0
    load(source.bootstrap, name, json_rows(30, 50, seed=2))
    source.delete_records(name, {0: 35})

    with Twinsite.run(*command, work_dir=tmp_path) as standby:
        await standby.wait_for(lambda: state(standby) == "DATA_LOSS", "the loss is seen")
        with Twinsite.run(*command, work_dir=tmp_path) as owner:
            await owner.wait_for(lambda: bool(events(owner.stderr, "owner_of_the_flow")), "it owns the flow")
            await standby.wait_for(lambda: standby.status().get("owner") is False, "the other one knows")
            await owner.wait_for(lambda: state(owner) == "DATA_LOSS", "it sees the loss, too")
            owned = owner.status()["owner"]
            refused = await accept_loss(name, f"http://127.0.0.1:{standby.port}", tmp_path)
            address = re.search(r"--url (\S+);", refused.stderr)
            assert address is not None, refused.stderr
            accepted = await accept_loss(name, address[1], tmp_path)
            await owner.wait_for(lambda: state(owner) == "ACTIVE", "it goes on")
            again = await accept_loss(name, f"http://127.0.0.1:{standby.port}", tmp_path)
            await standby.wait_for(lambda: state(standby) == "STANDBY", "this one waits for its turn")
            await owner.wait_for(lambda: complete(owner, source, [name]), "the rest is copied")

    assert refused.code == 4
    assert f"process {owner.process.pid}, since " in refused.stderr
    assert (address[1], owned) == (f"http://127.0.0.1:{owner.port}", True)
    assert (accepted.code, again.code) == (0, 0), accepted.stderr + again.stderr
    assert watermarks(target.bootstrap, name)[0] == (0, 50)


@pytest.mark.parametrize("partitions", [1, 2])
async def test_a_loss_that_was_accepted_at_another_mirror_stops_nobody_who_takes_over_from_it(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path, partitions: int
) -> None:
    """
    It stopped there itself before, also where that was its only partition; meanwhile more was copied than it
    knows of.
    """
    name = await topic(source, partitions=partitions)
    command = mirror_of(source, target, name)
    load(source.bootstrap, name, json_rows(20, 50))
    assert (await twinsite(*command, "--once", work_dir=tmp_path)).code == 0
    _, end = watermarks(target.bootstrap, name)[0]
    load(source.bootstrap, name, json_rows(30, 50, seed=2))
    source.delete_records(name, {0: end + 2})

    with Twinsite.run(*command, work_dir=tmp_path) as standby:
        await standby.wait_for(lambda: state(standby) == "DATA_LOSS", "the loss is seen")
        with Twinsite.run(*command, work_dir=tmp_path) as owner:
            await owner.wait_for(lambda: bool(events(owner.stderr, "owner_of_the_flow")), "it owns the flow")
            await owner.wait_for(lambda: state(owner) == "DATA_LOSS", "it sees the loss, too")
            accepted = await accept_loss(name, f"http://127.0.0.1:{owner.port}", tmp_path)
            await owner.wait_for(lambda: complete(owner, source, [name]), "the rest is copied")
            before = state(standby)
            owner.terminate()
            await owner.finished()
        load(source.bootstrap, name, json_rows(10, 50, seed=3))
        await standby.wait_for(lambda: complete(standby, source, [name]), "this one goes on")

    assert (accepted.code, before) == (0, "DATA_LOSS"), accepted.stderr
    assert watermarks(target.bootstrap, name)[0][1] == watermarks(source.bootstrap, name)[0][1]
