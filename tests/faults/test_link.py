"""A link that cuts, spoils and lies: what is copied is exact, and what was refused is said."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import deque
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from mirror.link.messages import Messages
from mirror.link.protocol import PROTOCOL
from tests.conftest import TopicFactory
from tests.faults.flows import complete, configured, copied, once
from tests.harness.checker import assert_exact
from tests.harness.data import json_rows
from tests.harness.kafka import KafkaCluster
from tests.harness.loading import load
from tests.harness.process import Twinsite, events, twinsite
from tests.harness.proxy import Last, proxy
from tests.harness.relay import Relay, through

CUTS, MIRRORS, RECORDS = 1_000, 10, 30_000
"""Many mirrors at once: between two streams of one there are round trips, and a pause, as for operators."""
CONNECTIONS_AT_MOST = 9
"""For each cut: two of the stream, and those to brokers."""
SPOILED_AT_MOST = 60
"""Connections of which a byte is flipped, or bytes are left out; those after them are whole."""
SAID_FIRST_BYTES = 0, 350
"""Of a stream: who the mirror is, and what it wants."""
IMPATIENT = {"request_timeout_seconds": 5, "connect_timeout_seconds": 2}
TINY, LONGER_THAN_ANYTHING_THERE_IS = 1_000, 32
"""Messages below so many bytes have lengths of which only the last two bytes are not 0."""


def test_streams_are_cut_at_a_thousand_places(
    source: KafkaCluster, target: KafkaCluster, relay: Relay, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    Within the first bytes, in headers, at borders, mostly within a frame: after each cut it goes on where it
    was, and to the last one there is something to copy.
    """
    name = asyncio.run(topic(source, partitions=3, prefix="cuts"))
    load(source.bootstrap, name, json_rows(RECORDS, 1_000), "lz4", batch_size=20_000)
    dice = random.Random(2026)
    ends = [
        dice.choice((dice.randrange(1, 2_000), *dice.choices(range(1, 200_000), k=3)))
        for _ in range(CUTS * CONNECTIONS_AT_MOST)
    ]

    def cut(number: int, before: int, data: bytes) -> bytes:
        came = passing.setdefault(number, Passing())
        if number >= len(ends) or between.cuts >= CUTS or before + len(data) < ends[number]:
            came.take(data)
            return data
        last = Last(data[: ends[number] - before])
        came.take(last)
        torn.append(came.in_a_frame)
        return last

    passing: dict[int, Passing] = {}
    torn: list[bool] = []
    with ExitStack() as stack:
        between = stack.enter_context(proxy(relay.address, cut))
        relayed = through(source, between.address)
        mirrors = []
        for number in range(MIRRORS):
            topics = {"include": [name], "names": "prefix", "prefix": f"m{number}."}
            command = configured(tmp_path, relayed, target, f"{name}-{number}", topics=topics)
            mirrors.append(stack.enter_context(Twinsite.run(*command, work_dir=tmp_path)))
        asyncio.run(mirrors[0].wait_for(lambda: between.cuts >= CUTS, "all the cuts", 240))
        there = [copied(mirror) for mirror in mirrors]
        for mirror in mirrors:
            done = partial(complete, mirror, source, [name])
            asyncio.run(mirror.wait_for(done, "all is copied", 60))

    for number in range(MIRRORS):
        assert_exact(source.bootstrap, target.bootstrap, [name], rename=f"m{number}.{{}}".format)
    assert sum(torn) > CUTS / 2
    assert max(there) < RECORDS, "there was something to copy all the time"


class Passing:
    """What goes from a relay to a mirror over one connection, as far as it has passed."""

    def __init__(self) -> None:
        self._head: bytes | None = b""
        self._is_stream = False
        self._messages = Messages(on_slice=_heard)

    def take(self, data: bytes) -> None:
        """It goes on so."""
        if self._head is not None:
            self._head, end, data = (self._head + data).partition(b"\r\n\r\n")
            if not end:
                return
            self._is_stream, self._head = PROTOCOL.encode() in self._head, None
        if self._is_stream:
            deque(self._messages.received(data), maxlen=0)

    @property
    def in_a_frame(self) -> bool:
        """It ends within a slice of one, and more of that had come."""
        return self._messages.left > 0


def _heard(_: int, __: int, ___: memoryview) -> None:
    return


def test_flipped_bits_are_refused_and_sent_again(
    source: KafkaCluster, target: KafkaCluster, relay: Relay, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    One bit of each of many connections, that TCP knows nothing of: nothing of it is ever written, and nothing
    that a mirror has said is taken for something else. Of the first stream and the third it is one of what
    goes there, and no other.
    """
    name = asyncio.run(topic(source, partitions=3, prefix="bits"))
    load(source.bootstrap, name, json_rows(40_000, 1_000), "zstd", batch_size=100_000)
    dice = random.Random(1126)
    spoiled, spoiled_there = list[int](), list[int]()

    def flip(number: int, before: int, data: bytes) -> bytes:
        at = places.setdefault(number, dice.randrange(500, 300_000)) - before
        last = streams[-1] if streams else number
        if last in places_there or number >= SPOILED_AT_MOST or not 0 <= at < len(data):
            return data
        spoiled.append(number)
        return _flipped(data, at, dice)

    def flip_there(number: int, before: int, data: bytes) -> bytes:
        if not before and data.startswith(b"GET /v1/frames HTTP"):
            streams.append(number)
            if len(streams) in {1, 3}:
                places_there[number] = len(data) + dice_there.randrange(*SAID_FIRST_BYTES)
        at = places_there.get(number, -1) - before
        if not 0 <= at < len(data):
            return data
        spoiled_there.append(number)
        return _flipped(data, at, dice_there)

    places: dict[int, int] = {}
    places_there: dict[int, int] = {}
    streams: list[int] = []
    dice_there = random.Random(1122)
    with proxy(relay.address, flip, flip_there) as between:
        topics = {"topics": {"include": [name]}}
        command = configured(tmp_path, through(source, between.address), target, name, **topics)
        with Twinsite.run(*command, work_dir=tmp_path) as mirror:
            asyncio.run(mirror.wait_for(lambda: complete(mirror, source, [name]), "all is copied", 120))
            said = events(mirror.stderr, "stream_lost")
            odd = events(mirror.stderr, "library_message")

    assert_exact(source.bootstrap, target.bootstrap, [name])
    assert len(spoiled) > 3
    assert spoiled_there
    assert said, "what is refused is said"
    assert odd == []


def _flipped(data: bytes, at: int, dice: random.Random) -> bytes:
    return data[:at] + bytes([data[at] ^ 1 << dice.randrange(8)]) + data[at + 1 :]


def test_bytes_that_are_missing_from_the_middle_are_noticed(
    source: KafkaCluster, target: KafkaCluster, relay: Relay, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    One byte or thousands are left out of each of many connections, and it goes on behind them: nothing that
    stood around them is ever written.
    """
    name = asyncio.run(topic(source, partitions=3, prefix="holes"))
    load(source.bootstrap, name, json_rows(40_000, 1_000), "zstd", batch_size=100_000)
    dice = random.Random(2311)
    torn = []

    def leave_out(number: int, before: int, data: bytes) -> bytes:
        at = places.setdefault(number, dice.randrange(500, 300_000)) - before
        if number >= SPOILED_AT_MOST or not 0 <= at < len(data):
            return data
        torn.append(number)
        return data[:at] + data[at + dice.choice((1, 4, 61, 5_000)) :]

    places: dict[int, int] = {}
    with proxy(relay.address, leave_out) as between:
        relayed = through(source, between.address)
        topics = {"topics": {"include": [name]}, "link": {"relays": [between.address], **IMPATIENT}}
        command = configured(tmp_path, relayed, target, name, **topics)
        with Twinsite.run(*command, work_dir=tmp_path) as mirror:
            asyncio.run(mirror.wait_for(lambda: complete(mirror, source, [name]), "all is copied", 120))
            said = events(mirror.stderr, "stream_lost")
            odd = events(mirror.stderr, "library_message")

    assert_exact(source.bootstrap, target.bootstrap, [name])
    assert len(torn) > 3
    assert said, "what is refused is said"
    assert odd == []


async def test_lengths_that_were_spoiled_swallow_what_follows_for_seconds_only(
    source: KafkaCluster, target: KafkaCluster, relay: Relay, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    Whoever waits for the end of a message of two megabytes hears bytes all the time, and nothing in them: a
    mirror, and a relay.
    """
    back, there = [await topic(source, prefix="swallowed") for _ in range(2)]

    async with asyncio.TaskGroup() as both:
        both.create_task(swallowed(source, target, relay, back, tmp_path, is_there=False))
        both.create_task(swallowed(source, target, relay, there, tmp_path, is_there=True))

    assert_exact(source.bootstrap, target.bootstrap, [back, there])


async def swallowed(
    source: KafkaCluster, target: KafkaCluster, relay: Relay, topic: str, folder: Path, *, is_there: bool
) -> None:
    """Copy, have one length spoiled of what goes there or comes back, and copy on by another stream."""
    await asyncio.to_thread(load, source.bootstrap, topic, json_rows(100, 100))
    swallowing = threading.Event()
    spoiled: list[int] = []
    streams: list[int] = []

    def swallow(number: int, _: int, data: bytes) -> bytes:
        tiny = len(data) < TINY and 4 + int.from_bytes(data[:4]) == len(data)
        if number in spoiled or not (swallowing.is_set() and tiny and streams[-1] == number):
            return data
        spoiled.append(number)
        return data[:1] + bytes([data[1] | LONGER_THAN_ANYTHING_THERE_IS]) + data[2:]

    def look(number: int, before: int, data: bytes) -> bytes:
        if not before and data.startswith(b"GET /v1/frames HTTP"):
            streams.append(number)
        return swallow(number, before, data) if is_there else data

    with proxy(relay.address, _untouched if is_there else swallow, look) as between:
        topics = {"topics": {"include": [topic]}, "link": {"relays": [between.address], **IMPATIENT}}
        command = configured(folder, through(source, between.address), target, topic, **topics)
        with Twinsite.run(*command, work_dir=folder) as mirror:
            await mirror.wait_for(lambda: complete(mirror, source, [topic]), "all is copied", 60)
            swallowing.set()
            await mirror.wait_for(lambda: bool(spoiled), "a length is spoiled")
            swallowing.clear()
            await mirror.wait_for(lambda: len(streams) > 1, "another stream", 45)
            await asyncio.to_thread(load, source.bootstrap, topic, json_rows(100, 100, seed=2))
            await mirror.wait_for(lambda: complete(mirror, source, [topic]), "all is copied", 60)


def _untouched(_: int, __: int, data: bytes) -> bytes:
    return data


def test_what_answers_in_a_relays_place_for_a_moment_ends_no_streams(
    source: KafkaCluster, target: KafkaCluster, relay: Relay, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    A page of what stands before it, and one bit of its own answer; then it comes by a stream as ever.
    """
    name = asyncio.run(topic(source, prefix="in-its-place"))
    load(source.bootstrap, name, json_rows(1_000, 100))
    streams: list[int] = []

    def look(number: int, before: int, data: bytes) -> bytes:
        if not before and data.startswith(b"GET /v1/frames HTTP"):
            streams.append(number)
        return data

    def answer(number: int, before: int, data: bytes) -> bytes:
        if not before and number in streams[:1]:
            return Last(b"HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\nnone")
        return data.replace(b"HTTP", b"HTTQ", 1) if not before and number in streams[1:2] else data

    with proxy(relay.address, answer, look) as between:
        command = once(through(source, between.address), target, name, name)
        done = asyncio.run(twinsite(*command, work_dir=tmp_path))

    assert done.code == 0
    assert len(streams) == 3
    assert events(done.stderr, "relay_without_streams") == []
    assert len(events(done.stderr, "stream_begun")) == 1
    assert_exact(source.bootstrap, target.bootstrap, [name])


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
