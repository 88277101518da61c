"""A link that cuts, spoils and lies: what is copied is exact, and what was refused is said."""

from __future__ import annotations

import asyncio
import random
import threading
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from mirror.link.messages import SLICE, Messages
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
LOOK_AFTER, MORE = 50, 10_000
"""So many of them: it is looked at how many records are left, and where those are fewer there are more."""
ANYWHERE_SHARE = 0.1
"""Of connections: they are cut within their first bytes, wherever that is, and mostly do not count."""
FIRST_BYTES, BYTES = (1, 2_000), (25_000, 75_000)
"""Of a connection. A stream that has brought a frame is followed by another at once, and others are not."""
SAID_SHARE = 0.9
"""Of these cuts, streams that mirrors say to have lost; one has several connections, and may be cut twice."""
SPOILED_AT_MOST = 60
"""Connections of which a byte is flipped, or bytes are left out; those after them are whole."""
SAID_FIRST_BYTES = 0, 350
"""Of a stream: who the mirror is, and what it wants."""
IMPATIENT = {"request_timeout_seconds": 5, "connect_timeout_seconds": 2}
TINY, LONGER_THAN_ANYTHING_THERE_IS = 1_000, 32
"""Messages below so many bytes have lengths of which only the last two bytes are not 0."""


def test_streams_are_cut_at_a_thousand_places_in_the_middle_of_a_frame(
    source: KafkaCluster, target: KafkaCluster, relay: Relay, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    Of a frame something has come each time, and something has not; other connections are cut within their
    first bytes, in headers, at borders. After each it goes on where it was, and to the last one there is
    something to copy.
    """
    name = asyncio.run(topic(source, partitions=3, prefix="cuts"))
    cuts = Cuts(random.Random(2026))

    def more(records: int, seed: int) -> None:
        load(source.bootstrap, name, json_rows(records, 1_000, seed=seed), "lz4", batch_size=20_000)

    async def until_all_are_torn() -> None:
        there = RECORDS
        for wanted in range(LOOK_AFTER, CUTS + 1, LOOK_AFTER):
            if there - max(map(copied, mirrors)) < MORE:
                await asyncio.to_thread(more, MORE, there)
                there += MORE
            done = partial(cuts.enough, wanted)
            await mirrors[0].wait_for(done, f"{wanted} frames are torn", 120)

    more(RECORDS, 0)
    with ExitStack() as stack:
        between = stack.enter_context(proxy(relay.address, cuts.passed))
        cuts.made = between.cut
        relayed = through(source, between.address)
        mirrors = []
        for number in range(MIRRORS):
            topics = {"include": [name], "names": "prefix", "prefix": f"m{number}."}
            sections = {"topics": topics, "link": {"relays": [between.address], "connections": 3}}
            command = configured(tmp_path, relayed, target, f"{name}-{number}", **sections)
            mirrors.append(stack.enter_context(Twinsite.run(*command, work_dir=tmp_path)))
        asyncio.run(until_all_are_torn())
        for mirror in mirrors:
            done = partial(complete, mirror, source, [name])
            asyncio.run(mirror.wait_for(done, "all is copied", 120))
        lost = sum(len(events(mirror.stderr, "stream_lost")) for mirror in mirrors)

    for number in range(MIRRORS):
        assert_exact(source.bootstrap, target.bootstrap, [name], rename=f"m{number}.{{}}".format)
    assert cuts.torn >= CUTS
    assert len(between.cut) > cuts.torn, "some are cut elsewhere, too"
    assert lost > CUTS * SAID_SHARE, "streams end by it"


class Cuts:
    """Where connections are cut: in the middle of a frame, and some anywhere.

    Attributes:
        made: Numbers of those that were cut, as their proxy says.
    """

    def __init__(self, dice: random.Random) -> None:
        self.made: list[int] = []
        self._dice = dice
        self._one = threading.Lock()
        self._connections: dict[int, Passing] = {}

    @property
    def torn(self) -> int:
        """So many were made in the middle of a frame."""
        return sum(self._connections[number].in_a_frame for number in list(self.made))

    def enough(self, wanted: int = CUTS) -> bool:
        return len(self.made) >= wanted and self.torn >= wanted

    def passed(self, number: int, before: int, data: bytes) -> bytes:
        """What a proxy passes on of a connection; see :data:`tests.harness.proxy.Spoil`."""
        with self._one:
            if number not in self._connections:
                self._connections[number] = self._new()
            size = None if self.enough() else self._connections[number].passes_of(before, data)
            return data if size is None else Last(data[:size])

    def _new(self) -> Passing:
        anywhere = self._dice.random() < ANYWHERE_SHARE
        return Passing(self._dice.randrange(*(FIRST_BYTES if anywhere else BYTES)), anywhere)


class Passing:
    """What goes from a relay to a mirror over one connection, as far as it has passed.

    Args:
        end: So many bytes are to pass.
        anywhere: It ends there, wherever that is, and not only where it is in the middle of a frame.
    """

    def __init__(self, end: int, anywhere: bool) -> None:
        self._end = end
        self._anywhere = anywhere
        self._head: bytes | None = b""
        self._is_stream = False
        self._messages = Messages(on_slice=self._heard)
        self._some_of_a_slice = False

    def passes_of(self, before: int, data: bytes) -> int | None:
        """How many bytes of that are the last, where ``before`` of them came before; None: it goes on."""
        size = min(max(self._end - before, 1), len(data))
        self._take(data[:size])
        while size < len(data) and self._is_stream and not self._may_end:
            self._take(data[size : size + 1])
            size += 1
        return size if before + size >= self._end and self._may_end else None

    @property
    def in_a_frame(self) -> bool:
        """Something of a slice has come, and more of it had come; in a slice there is only one frame."""
        return self._some_of_a_slice and self._messages.left > 0

    @property
    def _may_end(self) -> bool:
        return self._anywhere or self.in_a_frame

    def _take(self, data: bytes) -> None:
        """It goes on so."""
        if self._head is not None:
            self._head, end, data = (self._head + data).partition(b"\r\n\r\n")
            if not end:
                return
            self._is_stream, self._head = PROTOCOL.encode() in self._head, None
        if self._is_stream:
            for kind, _ in self._messages.received(data):
                self._some_of_a_slice &= kind != SLICE

    def _heard(self, _: int, __: int, ___: memoryview) -> None:
        self._some_of_a_slice = True


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
