"""Relays killed at every step, and mirrors killed while they copy through one: the copy ends exact."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from mirror.failpoints import OF_RELAY
from tests.conftest import TopicFactory
from tests.faults.flows import complete, mirror_of, once
from tests.faults.test_crashes import odd_topic
from tests.harness.checker import OffsetMode, assert_exact
from tests.harness.data import json_rows, load
from tests.harness.kafka import KafkaCluster
from tests.harness.node import Site
from tests.harness.process import Twinsite, twinsite
from tests.harness.relay import Relay, running_relay, through

KILLED = -9
LATER = {
    "connection_taken": 3,
    "request_forwarded": 8,
    "answer_forwarded": 8,
    "source_read": 6,
    "frame_sealed": 5,
    "slice_sent": 20,
    "frame_sent": 4,
    "frame_taken": 3,
}
"""The first time a step is reached is not always the one with most under way."""


@pytest.fixture(scope="module")
def relay(
    source: KafkaCluster, relay_site: Site, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Relay]:
    with running_relay(source, tmp_path_factory.mktemp("relay"), site=relay_site) as running:
        yield running


@pytest.mark.parametrize("step", sorted(OF_RELAY))
def test_a_relay_killed_at_a_step_leaves_nothing_lost_or_doubled(
    source: KafkaCluster,
    target: KafkaCluster,
    relay: Relay,
    relay_site: Site,
    topic: TopicFactory,
    tmp_path: Path,
    step: str,
) -> None:
    """
    SIGKILL in the middle of the copy; the mirror goes on with another relay, that has known nothing of it.
    """
    name = asyncio.run(topic(source, partitions=3, prefix="relay-killed"))
    load(source.bootstrap, name, json_rows(20_000, 500), "lz4", batch_size=50_000)
    failpoints = f"{step}:{LATER.get(step, 1)}"
    with running_relay(source, tmp_path, failpoints=failpoints, site=relay_site) as doomed:
        command = mirror_of(through(source, doomed.address, relay.address), target, name, name)
        with Twinsite.run(*command, work_dir=tmp_path) as mirror:
            asyncio.run(mirror.wait_for(lambda: not doomed.process.running, "the relay is dead"))
            load(source.bootstrap, name, json_rows(1_000, 500, seed=2), "lz4")
            asyncio.run(mirror.wait_for(lambda: complete(mirror, source, [name]), "all is copied", 60))

    assert doomed.process.process.returncode == KILLED
    assert_exact(source.bootstrap, target.bootstrap, [name])


@pytest.mark.parametrize(
    ("failpoint", "offsets"),
    [
        ("fetched", "same"),
        ("fetched:2", "same"),
        ("produce_sent:3", "same"),
        ("produce_answered:4", "same"),
        ("epoch_noted", "same"),
        ("markers_written", "same"),
        ("state_written:4", "same"),
        ("map_written", "mapped"),
    ],
)
async def test_a_mirror_killed_while_it_copies_through_a_relay_leaves_nothing_lost_or_doubled(
    source: KafkaCluster,
    target: KafkaCluster,
    relay: Relay,
    topic: TopicFactory,
    tmp_path: Path,
    failpoint: str,
    offsets: OffsetMode,
) -> None:
    """
    The relay has read ahead and sent what was never written: the next mirror begins at the target's end.
    """
    name = await odd_topic(source, topic)
    command = once(through(source, relay.address), target, re.escape(name), name, "--offsets", offsets)

    first = await twinsite(*command, work_dir=tmp_path, failpoints=failpoint)
    second = await twinsite(*command, work_dir=tmp_path)

    assert first.code == KILLED, first.stderr
    assert second.code == 0, second.missing
    assert_exact(source.bootstrap, target.bootstrap, [name], offsets=offsets)
