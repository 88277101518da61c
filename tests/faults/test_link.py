"""A link that cuts, spoils and lies: what is copied is exact, and what was refused is said."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import TopicFactory
from tests.faults.flows import complete, configured, mirror_of, once
from tests.harness.checker import assert_exact
from tests.harness.data import json_rows, load
from tests.harness.kafka import KafkaCluster
from tests.harness.process import Twinsite, events, twinsite
from tests.harness.proxy import proxy
from tests.harness.relay import Relay, running_relay, through

CUTS = 200
SPOILED_AT_MOST = 60
"""Connections of which a byte is flipped; those after them are whole."""


@pytest.fixture(scope="module")
def relay(source: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Relay]:
    with running_relay(source, tmp_path_factory.mktemp("relay")) as running:
        yield running


def test_a_stream_is_cut_again_and_again(
    source: KafkaCluster, target: KafkaCluster, relay: Relay, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    Within its first bytes, in headers, in frames, at their borders: after each cut it goes on where it was.
    """
    name = asyncio.run(topic(source, partitions=3, prefix="cuts"))
    load(source.bootstrap, name, json_rows(60_000, 1_000), "lz4", batch_size=20_000)
    dice = random.Random(2026)
    ends = [
        dice.choice((dice.randrange(1, 2_000), *dice.choices(range(1, 200_000), k=3))) for _ in range(CUTS)
    ]

    def cut(number: int, before: int, data: bytes) -> bytes | None:
        if number >= len(ends) or before + len(data) < ends[number]:
            return data
        return None

    with proxy(relay.address, cut) as between:
        command = mirror_of(through(source, between.address), target, name, name)
        with Twinsite.run(*command, work_dir=tmp_path) as mirror:
            asyncio.run(mirror.wait_for(lambda: between.connections > CUTS, "all the cuts", 200))
            asyncio.run(mirror.wait_for(lambda: complete(mirror, source, [name]), "all is copied", 60))

    assert between.cuts > CUTS * 0.9
    assert_exact(source.bootstrap, target.bootstrap, [name])


def test_flipped_bits_are_refused_and_sent_again(
    source: KafkaCluster, target: KafkaCluster, relay: Relay, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    One bit of each of many connections, that TCP knows nothing of: nothing of it is ever written.
    """
    name = asyncio.run(topic(source, partitions=3, prefix="bits"))
    load(source.bootstrap, name, json_rows(40_000, 1_000), "zstd", batch_size=100_000)
    dice = random.Random(1126)
    spoiled = []

    def flip(number: int, before: int, data: bytes) -> bytes:
        at = places.setdefault(number, dice.randrange(500, 300_000)) - before
        if number >= SPOILED_AT_MOST or not 0 <= at < len(data):
            return data
        spoiled.append(number)
        return data[:at] + bytes([data[at] ^ 1 << dice.randrange(8)]) + data[at + 1 :]

    places: dict[int, int] = {}
    with proxy(relay.address, flip) as between:
        topics = {"topics": {"include": [name]}}
        command = configured(tmp_path, through(source, between.address), target, name, **topics)
        with Twinsite.run(*command, work_dir=tmp_path) as mirror:
            asyncio.run(mirror.wait_for(lambda: complete(mirror, source, [name]), "all is copied", 120))
            said = events(mirror.stderr, "stream_lost")

    assert_exact(source.bootstrap, target.bootstrap, [name])
    assert len(spoiled) > 3
    assert said, "what is refused is said"


def test_through_a_relay_that_knows_no_streams_brokers_are_asked(
    source: KafkaCluster, target: KafkaCluster, relay: Relay, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    As one of an older version: it answers that there is nothing at the path of streams.
    """
    name = asyncio.run(topic(source, partitions=3, prefix="older"))
    load(source.bootstrap, name, json_rows(20_000, 500), "lz4")

    def older(_: int, before: int, data: bytes) -> bytes:
        return data if before else data.replace(b"GET /v1/frames", b"GET /v1/nobody", 1)

    with proxy(relay.address, spoil_there=older) as between:
        command = once(through(source, between.address), target, name, name)
        done = asyncio.run(twinsite(*command, work_dir=tmp_path))

    assert done.code == 0
    assert len(events(done.stderr, "relay_without_streams")) == 1
    assert events(done.stderr, "stream_begun") == []
    assert_exact(source.bootstrap, target.bootstrap, [name])
