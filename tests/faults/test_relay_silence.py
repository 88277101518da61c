"""One broker of the source says nothing any more: what others have crosses the link all the same."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mirror.kafka.fetch import Key
from mirror.link import protocol
from mirror.link.protocol import Position
from tests.harness.data import Row
from tests.harness.kafka import KafkaCluster
from tests.harness.loading import load
from tests.harness.relay import running_relay
from tests.integration.test_relay_stream import Client, hello, key_of

KEPT_LEADER = {"broker.session.timeout.ms": 120_000}
"""The controller does not notice: as where a broker is cut off from the relay only."""
RECORDS = 800
WAIT_SECONDS = 20
"""A request to a broker that does not answer is given up after thirty."""

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def source(tmp_path: Path) -> Iterator[KafkaCluster]:
    cluster = KafkaCluster.prepare("3.9", 2, "source", KEPT_LEADER, tmp_path)
    try:
        asyncio.run(cluster.launch())
        yield cluster
    finally:
        cluster.close()


def test_a_frozen_broker_holds_up_no_other_rank(source: KafkaCluster, tmp_path: Path) -> None:
    """
    What comes first is on it, and is behind; what is ranked behind that, on another broker, is all there long
    before anybody has given the first one up. When it goes on, so does its partition.
    """
    for name, node in {"first": 2, "second": 1}.items():
        asyncio.run(source.create_topic(name, assignment=[[node]]))
        load(source.bootstrap, name, (Row(key=None, value=os.urandom(10_000)) for _ in range(RECORDS)))
    first, second = key_of(source, "first"), key_of(source, "second")
    wanted = protocol.want([Position(first, 1, 0, -1, True, 0), Position(second, 1, 0, -1, True, 5)])
    ends = {first: 0, second: 0}

    def until(client: Client, key: Key, offset: int) -> None:
        give_up = time.monotonic() + WAIT_SECONDS
        while ends[key] < offset:
            assert time.monotonic() < give_up
            step(client)

    def step(client: Client) -> None:
        channel, _, parts = client.next_frame()
        ends.update({part.fetched.key: part.next_offset for part in parts})
        client.took(channel)

    with (
        running_relay(source, tmp_path) as relay,
        Client(relay, hello(windows=[1 << 20, 1]), wanted) as client,
    ):
        until(client, first, RECORDS // 4)
        asyncio.run(source.broker(2).freeze())
        until(client, second, RECORDS)
        held_at = ends[first]
        asyncio.run(source.broker(2).thaw())
        until(client, first, RECORDS)

    assert held_at < RECORDS
