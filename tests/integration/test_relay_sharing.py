"""Several mirrors of one relay: what they have in common is made once, and each gets all of what it wants."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mirror.kafka.buffers import BufferPool
from mirror.kafka.fetch import Key
from mirror.link import messages, protocol
from mirror.link.frames import HEADER_BYTES, Frames, Opener
from mirror.link.parts import Part, decode_parts, restored
from mirror.link.protocol import Channel, Down, Position
from tests.conftest import TopicFactory
from tests.faults.flows import complete, mirror_of
from tests.harness.checker import assert_exact
from tests.harness.data import Row, json_rows
from tests.harness.kafka import KafkaCluster
from tests.harness.loading import load
from tests.harness.process import Twinsite, events
from tests.harness.relay import Relay, configured_relay, running_relay, through
from tests.integration.test_relay_stream import Client, hello, key_of, read_slice

MANY, FEW = 2_000, 100
"""Records of a kilobyte: beside them polls, and answers of nothing, are few bytes."""


@pytest.fixture(scope="module")
def relay(source: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Relay]:
    with running_relay(source, tmp_path_factory.mktemp("relay")) as running:
        yield running


class Mirror(Client):
    """The mirror's side of a stream that knows of shared channels.

    Attributes:
        at: Where each partition is, from what came.
        shared: Bytes of each shared channel, as they came.
    """

    def __init__(self, relay: Relay, wanted: dict[Key, int], **changes: Any) -> None:
        positions = [Position(key, number, 0, -1, True) for number, key in enumerate(wanted, 1)]
        super().__init__(relay, hello(**changes), protocol.want(positions))
        self.numbers = {key: number for number, key in enumerate(wanted, 1)}
        self.at = dict(wanted)
        self.shared: dict[int, bytearray] = {}
        self.moved: dict[int, dict[Key, int]] = {}
        self.ended: set[int] = set()
        self._state: dict[int, tuple[Frames, Opener]] = {}
        self._taken: dict[int, int] = {}

    def step(self) -> None:
        """Hear one message."""
        kind, payload = self.next() or (None, b"")
        assert kind not in {None, Down.BYE}, payload
        if kind == Down.WELCOME:
            keys = messages.document(payload)["keys"]
            self._state = {
                c: (Frames(BufferPool(0)), Opener(bytes.fromhex(key), 27)) for c, key in enumerate(keys)
            }
        elif kind == Down.SHARED:
            self._state[payload[0]] = Frames(BufferPool(0)), Opener(payload[1:], 27)
            self.shared[payload[0]], self.moved[payload[0]] = bytearray(), {}
            self._taken[payload[0]] = 0
        elif kind == Down.MOVED:
            channel, moved = protocol.read_moved(memoryview(payload))
            self.moved.setdefault(channel, {}).update(moved)
        elif kind == Down.ENDED:
            self.ended.add(payload[0])
        elif kind == Down.SLICE:
            channel, _, data = read_slice(payload)
            assert channel not in self.ended
            if channel in self.shared:
                self.shared[channel] += data
            frames, opener = self._state[channel]
            for arrived in frames.received(data):
                header, wire = arrived.header, arrived.wire
                body = memoryview(bytearray(header.body_bytes))
                parts = decode_parts(opener.open(header, wire, body))
                room = memoryview(bytearray(sum(part.recoded_bytes for part in parts)))
                self._take(channel, restored(parts, room)[0])
                self._taken[channel] = self._taken.get(channel, 0) + HEADER_BYTES + header.wire_bytes
                self.sock.sendall(protocol.taken(channel, self._taken[channel]))

    def _take(self, channel: int, parts: list[Part]) -> None:
        for part in parts:
            key = part.fetched.key
            number = part.number if channel in Channel.__members__.values() else self.moved[channel].get(key)
            if key not in self.at or number != self.numbers[key]:
                continue
            if part.offset > self.at[key]:
                self.numbers[key] += 1000
                position = Position(key, self.numbers[key], self.at[key], -1, True)
                self.sock.sendall(protocol.want([position]))
            else:
                self.at[key] = max(self.at[key], part.next_offset)

    def shares(self, keys: Sequence[Key]) -> bool:
        """All of these come by channels that are shared."""
        moved = {key for channel, those in self.moved.items() if channel in self.shared for key in those}
        return moved >= set(keys)

    def __enter__(self) -> Mirror:
        return self

    def until(self, done: Callable[[], bool]) -> None:
        give_up = time.monotonic() + 60
        while not done():
            assert time.monotonic() < give_up
            self.step()


def both(*steps: Callable[[], None]) -> None:
    """Let mirrors do something at the same time."""
    threads = [threading.Thread(target=step) for step in steps]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(90)
        assert not thread.is_alive()


def test_two_mirrors_get_the_same_frames_of_what_both_are_at_the_end_of(
    source: KafkaCluster, relay: Relay, topic: TopicFactory
) -> None:
    """
    Byte for byte: they were made once. What only one of them wants does not go to the other; and when one is
    gone the other has it for itself again.
    """
    common, alone = (asyncio.run(topic(source, partitions=2, prefix=name)) for name in ("common", "alone"))
    keys = [key_of(source, name, number) for name in (common, alone) for number in range(2)]
    for name in (common, alone):
        load(source.bootstrap, name, json_rows(1_000, 500))

    with Mirror(relay, dict.fromkeys(keys[:2], 0), flow="one") as one:
        with Mirror(relay, dict.fromkeys(keys, 0), flow="other") as other:
            both(*(lambda m=m: m.until(lambda: bool(m.shared)) for m in (one, other)))
            for seed in range(5):
                load(source.bootstrap, common, json_rows(200, 500, seed=seed))
                load(source.bootstrap, alone, json_rows(200, 500, seed=seed))
            both(
                lambda: one.until(lambda: sum(one.at.values()) >= 2_000),
                lambda: other.until(lambda: sum(other.at.values()) >= 4_000),
            )
            [channel], [others] = one.shared, other.shared
            shared = [bytes(one.shared[channel]), bytes(other.shared[others])]
        load(source.bootstrap, common, json_rows(400, 500, seed=9))
        one.until(lambda: sum(one.at.values()) >= 2_400 and channel in one.ended)

    length = min(map(len, shared))
    assert length > 5 * 64
    assert shared[0][:length] == shared[1][:length]
    assert set(other.moved[others]) == set(keys[:2])


def test_what_two_mirrors_are_at_the_end_of_is_read_once(
    source: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    The relay has read hardly more of its brokers for two than for one of them, by its own count. Little comes
    at a time: what falls behind each reads for itself.
    """
    name = asyncio.run(topic(source, partitions=2, prefix="read-once"))
    keys = [key_of(source, name, number) for number in range(2)]
    with configured_relay(source, tmp_path, {}) as relay, Mirror(relay, dict.fromkeys(keys, 0)) as one:

        def read_for(*mirrors: Mirror, seed: int) -> float:
            before, there = read_bytes(relay), seed * MANY
            for wanted in range(there + FEW, there + MANY + 1, FEW):
                load(source.bootstrap, name, json_rows(FEW, 1_000, seed=wanted))
                both(*(partial(have, m, wanted) for m in mirrors))
            return read_bytes(relay) - before

        for_one = read_for(one, seed=0)
        with Mirror(relay, dict.fromkeys(keys, 0), flow="other") as other:
            both(*(lambda m=m: m.until(lambda: m.shares(keys)) for m in (one, other)))
            for_two = read_for(one, other, seed=1)

    assert for_one > MANY * 1_000
    assert for_two < 1.5 * for_one


def have(mirror: Mirror, records: int) -> None:
    """Wait until so many have come to it."""
    mirror.until(lambda: sum(mirror.at.values()) >= records)


def read_bytes(relay: Relay) -> float:
    """What the brokers have sent to a relay so far."""
    lines = relay.process.get("/metrics").decode().splitlines()
    (count,) = (line.split()[1] for line in lines if line.startswith("twinsite_relay_read_bytes_total "))
    return float(count)


def test_one_that_does_not_read_holds_up_nobody(
    source: KafkaCluster, relay: Relay, topic: TopicFactory
) -> None:
    """
    It has everything for itself then, and gets it when it reads again.
    """
    name = asyncio.run(topic(source, prefix="slow"))
    key = key_of(source, name)
    windows = [1 << 20, 1 << 20]
    before = len(events(relay.process.stderr, "mirror_reads_alone"))

    with (
        Mirror(relay, {key: 0}, flow="quick", windows=windows) as quick,
        Mirror(relay, {key: 0}, flow="slow", windows=[1, 1]) as slow,
    ):
        both(*(lambda m=m: m.until(lambda: bool(m.shared)) for m in (quick, slow)))
        for _ in range(8):
            load(source.bootstrap, name, (Row(key=None, value=os.urandom(50_000)) for _ in range(10)))
        quick.until(lambda: quick.at[key] >= 80)
        slow.until(lambda: slow.at[key] >= 80)

    assert len(events(relay.process.stderr, "mirror_reads_alone")) == before + 1
    assert events(relay.process.stderr, "sharing_broken") == []


@pytest.mark.timeout(300)
def test_mirrors_that_share_come_and_go_and_every_copy_is_exact(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    Three mirrors of overlapping topics, all the while that the source is written; one is killed, and again.
    """
    names = [asyncio.run(topic(source, partitions=2, prefix=name)) for name in ("first", "second", "third")]
    enough = threading.Event()
    written = threading.Thread(target=write, args=(source, names, enough))
    prefixes = {"a": names[:2], "b": names[1:], "c": names}

    with running_relay(source, tmp_path) as relay:
        relayed = through(source, relay.address)
        written.start()
        running = {}
        try:
            with (
                start(relayed, target, "a", prefixes["a"], tmp_path) as running["a"],
                start(relayed, target, "b", prefixes["b"], tmp_path) as running["b"],
            ):
                with start(relayed, target, "c", prefixes["c"], tmp_path) as c:
                    asyncio.run(
                        c.wait_for(
                            lambda: any('"mirrors": 3' in line for line in shares(relay)), "all share", 60
                        )
                    )
                    c.kill()
                with start(relayed, target, "c", prefixes["c"], tmp_path) as running["c"]:
                    before = len(shares(relay))
                    c = running["c"]
                    asyncio.run(
                        c.wait_for(
                            lambda: any('"mirrors": 3' in line for line in shares(relay)[before:]),
                            "again",
                            60,
                        )
                    )
                    enough.set()
                    written.join()
                    for name, mirror in running.items():
                        asyncio.run(
                            mirror.wait_for(
                                lambda m=mirror, n=name: complete(m, source, prefixes[n]), "all is copied", 60
                            )
                        )
                    lost = [events(mirror.stderr, "stream_lost") for mirror in running.values()]
        finally:
            enough.set()
            written.join()

    assert lost == [[], [], []]
    for name, topics in prefixes.items():
        assert_exact(source.bootstrap, target.bootstrap, topics, rename=f"{name}.{{}}".format)


def shares(relay: Relay) -> list[str]:
    return events(relay.process.stderr, "partitions_shared")


def start(relayed: KafkaCluster, target: KafkaCluster, name: str, topics: list[str], work_dir: Path) -> Any:
    """A mirror with a prefix of its own."""
    command = mirror_of(relayed, target, ",".join(topics), f"share-{name}", "--prefix", f"{name}.")
    return Twinsite.run(*command, work_dir=work_dir)


def write(source: KafkaCluster, topics: list[str], enough: threading.Event) -> None:
    seed = 0
    while not enough.is_set():
        seed += 1
        for name in topics:
            load(source.bootstrap, name, json_rows(100, 500, seed=seed), batch_num_messages=20)
