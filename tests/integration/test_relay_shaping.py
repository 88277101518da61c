"""Who gets how much of a link, and who first: seen from the mirror's end of real streams."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest

from mirror.link import protocol
from mirror.link.protocol import Channel, Down, Position
from tests.conftest import TopicFactory
from tests.faults.flows import complete, configured, partitions
from tests.harness.checker import assert_exact, watermarks
from tests.harness.clock import LIBRARY, clock_at
from tests.harness.daemon import until
from tests.harness.data import Row, json_rows
from tests.harness.kafka import KafkaCluster
from tests.harness.loading import load
from tests.harness.process import Twinsite, events
from tests.harness.proxy import Last, Proxy, proxy
from tests.harness.relay import Relay, running_relay, through
from tests.integration.test_relay_stream import Client, hello, key_of

RATE = 1_000_000
"""Bytes a second: of the relay that has a limit."""
LEADS_SECONDS = 8, 16, 32
"""So long before a limit begins a relay is started."""
BEHIND_MEGABYTES, LIVE_RECORDS, STOOD_STILL_RECORDS = 30, 8, 2
"""A catch-up, records beside it, and of these as many as may be late where the machine stands still."""
RANKED_MEGABYTES, RANKED_RECORDS = 10, 1_000
"""For ten seconds each: five pass before ranks are known, and what the relay has read by then goes on."""
RANKED_MINUTES = 10
"""So old are they: what lags less than two minutes goes before all others."""


@pytest.fixture(scope="module")
def relay(source: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Relay]:
    with running_relay(source, tmp_path_factory.mktemp("relay")) as running:
        yield running


@pytest.fixture(scope="module")
def slow_relay(source: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Relay]:
    limits = [{"rate": None, "hours": "00:00-24:00", "days": day_before()}, {"rate": RATE}]
    with running_relay(source, tmp_path_factory.mktemp("slow"), limits=limits) as running:
        yield running


def day_before() -> str:
    """Some day that it is not; a limit for that day must not hold."""
    return ("mon", "tue", "wed", "thu", "fri", "sat", "sun")[(time.gmtime().tm_wday + 3) % 7]


def noise(count: int, size: int = 10_000, minutes_ago: int = 0) -> Iterator[Row]:
    """Records that cannot be compressed, written so long ago by their timestamps."""
    at_ms = int((time.time() - minutes_ago * 60) * 1000)
    return (Row(key=b"%d" % number, value=os.urandom(size), timestamp_ms=at_ms) for number in range(count))


def filled(
    source: KafkaCluster,
    topic: TopicFactory,
    name: str,
    megabytes: int,
    minutes_ago: int = 0,
    **config: object,
) -> str:
    made = asyncio.run(topic(source, 1, name, None, **{"retention_ms": -1, **config}))
    load(source.bootstrap, made, noise(megabytes * 100, minutes_ago=minutes_ago), batch_size=200_000)
    return made


@pytest.mark.parametrize(
    ("which", "level", "why"),
    [
        ("relay", 0, "the mirror is near; batches not inflated, as nothing is compressed"),
        ("slow_relay", 2, "not measured yet; batches inflated as configured"),
    ],
)
def test_for_a_mirror_next_door_nothing_is_compressed_unless_bytes_are_counted(
    request: pytest.FixtureRequest, which: str, level: int, why: str
) -> None:
    """
    It is told so when it begins.
    """
    with Client(request.getfixturevalue(which), hello(level=0)) as client:
        said = dict(message for _ in range(2) if (message := client.next()) is not None)

    choice = json.loads(said[Down.CHOICE])
    assert (choice["level"], choice["why"]) == (level, why)


def test_of_what_is_behind_the_lowest_rank_comes_first(
    source: KafkaCluster, relay: Relay, topic: TopicFactory
) -> None:
    """
    Once it is known who is behind, nothing of a higher rank comes before the lower one is done; and ranks
    change on the way.
    """
    names = [filled(source, topic, name, 8) for name in ("last", "first", "second")]
    keys = [key_of(source, name) for name in names]
    wanted = [Position(key, 1, 0, -1, True, rank) for key, rank in zip(keys, (9, 1, 5), strict=True)]
    ends, order = dict.fromkeys(keys, 0), []

    with Client(relay, hello(windows=[1 << 20, 1]), protocol.want(wanted)) as client:
        while min(ends.values()) < 800:
            channel, _, parts = client.next_frame()
            for part in parts:
                if part.fetched.records:
                    order.append(part.fetched.key)
                ends[part.fetched.key] = part.next_offset
            if len(order) == 6:
                client.sock.sendall(protocol.rank([(keys[0], 2)]))
            client.took(channel)

    settled = order[9:]
    changes = [key for at, key in enumerate(settled) if at == 0 or settled[at - 1] != key]
    assert changes == [keys[1], keys[0], keys[2]]


def test_no_more_is_sent_than_a_limit_allows(
    source: KafkaCluster, slow_relay: Relay, relay: Relay, topic: TopicFactory
) -> None:
    """
    The relay's own, which is shared by all mirrors in turns; and the one that a mirror has asked for.
    """
    name = filled(source, topic, "limited", 5)
    wanted = protocol.want([Position(key_of(source, name), 1, 0, -1, True)])

    began = time.monotonic()
    with Client(slow_relay, hello(), wanted) as one, Client(slow_relay, hello(), wanted) as other:
        came = Counter({client: arrived(client, 1_500_000) for client in (one, other)})
        shared = time.monotonic() - began
    began = time.monotonic()
    with Client(relay, hello(), protocol.limit(RATE), wanted) as client:
        arrived(client, 2_000_000)
        alone = time.monotonic() - began

    assert shared > came.total() / RATE * 0.9
    assert alone > 2 * 0.9


@pytest.mark.skipif(LIBRARY is None, reason="Debian's faketime is not installed")
def test_a_limit_begins_under_a_stream_that_goes_on(
    source: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    At eight, by the relay's clock: until then a catch-up is as fast as it goes, from then on no faster than
    allowed, without another connection. It is begun earlier where a busy machine took too long to begin.
    """
    name = filled(source, topic, "calendar", 12)
    wanted = protocol.want([Position(key_of(source, name), 1, 0, -1, True)])
    limits = [{"rate": RATE, "hours": "08:00-09:00"}]
    before = after = 0.0

    for lead_seconds in LEADS_SECONDS:
        environment = clock_at(datetime(2026, 3, 2, 8, tzinfo=UTC) - timedelta(seconds=lead_seconds))
        with (
            running_relay(source, tmp_path, environment=environment, limits=limits) as relay,
            Client(relay, hello(), wanted) as client,
        ):
            before = seconds_for(client, 4_000_000)
            if before > 2:
                continue
            asyncio.run(until(partial(is_limited, relay), "the limit holds", 60))
            after = seconds_for(client, 4_000_000)
            break

    assert before < 2
    assert after > 2


def is_limited(relay: Relay) -> bool:
    """Whether it has said that a limit begins."""
    return bool(events(relay.process.stderr, "rate_limited"))


def seconds_for(client: Client, size: int) -> float:
    """How long it takes to get so many bytes."""
    began = time.monotonic()
    arrived(client, size)
    return time.monotonic() - began


def arrived(client: Client, size: int) -> int:
    """Take frames until they have so many bytes; answers how many they have."""
    before = sum(client.taken.values())
    while (found := sum(client.taken.values()) - before) < size:
        client.took(client.next_frame()[0])
    return found


def test_what_is_up_to_date_waits_for_no_catch_up(
    source: KafkaCluster, slow_relay: Relay, topic: TopicFactory
) -> None:
    """
    The link is full for half a minute to come; a new record overtakes all but the slices that are on their
    way. A few are longer under way where the machine stands still.
    """
    behind = filled(source, topic, "behind", BEHIND_MEGABYTES)
    live = asyncio.run(topic(source, prefix="live"))
    keys = [key_of(source, name) for name in (behind, live)]
    wanted = protocol.want([Position(key, 1, 0, -1, True) for key in keys])
    waited = []

    with Client(slow_relay, hello(frame_bytes=50_000), wanted) as client:
        while client.came[Channel.BULK] < 500_000 or not client.came[Channel.LIVE]:
            client.took(client.next_frame()[0])
        for seed in range(LIVE_RECORDS):
            writer = threading.Thread(
                target=load, args=(source.bootstrap, live, json_rows(1, 100, seed=seed))
            )
            writer.start()
            written_at, here = None, False
            while not here:
                channel, _, parts = client.next_frame()
                client.took(channel)
                here = any(part.fetched.key == keys[1] and part.fetched.records for part in parts)
                if written_at is None and not writer.is_alive():
                    written_at = client.came[Channel.BULK]
            assert channel is Channel.LIVE
            waited.append((client.came[Channel.BULK] - (written_at or client.came[Channel.BULK])) / RATE)
            writer.join()

    assert client.came[Channel.BULK] < BEHIND_MEGABYTES * 1_000_000
    assert sorted(waited)[LIVE_RECORDS - 1 - STOOD_STILL_RECORDS] < 1.0
    assert sorted(waited)[LIVE_RECORDS // 2] < 0.3


def over(
    between: Proxy, connections: int, source: KafkaCluster, target: KafkaCluster, name: str, folder: Path
) -> tuple[str, ...]:
    """A mirror of one topic whose stream takes so many connections through a stretch of our own."""
    link = {"relays": [between.address], "connections": connections}
    relayed = through(source, between.address)
    return configured(folder, relayed, target, name, topics={"include": [name]}, link=link)


def connections(mirror: Twinsite) -> int:
    """Over how many its stream goes; none while nobody answers."""
    return int((mirror.status().get("link") or {}).get("connections", 0))


def test_a_stream_goes_over_several_connections(
    source: KafkaCluster, target: KafkaCluster, relay: Relay, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    As where BBR is not there. One of them is cut in the middle: it begins anew, and the copy is exact.
    """
    name = filled(source, topic, "several", 20)
    streams: list[int] = []
    behind: list[int] = []

    def ask(number: int, _: int, data: bytes) -> bytes:
        if b"Upgrade: twinsite-frames/1" in data:
            streams.append(number)
        if b"&carries=bulk " in data:
            behind.append(number)
        return data

    def cut(number: int, before: int, data: bytes) -> bytes | Last:
        done = len(streams) == 4 and number == behind[1] and before > 1_000_000
        return Last(data[:1000]) if done else data

    with proxy(relay.address, cut, ask) as between:
        command = over(between, 4, source, target, name, tmp_path)
        with Twinsite.run(*command, work_dir=tmp_path) as mirror:
            asyncio.run(mirror.wait_for(lambda: complete(mirror, source, [name]), "all is copied", 60))
            shown = mirror.status()["link"]
            begun = events(mirror.stderr, "stream_begun")

    assert shown["connections"] == 4
    assert len(between.cut) == 1
    assert len(begun) == 2
    assert len(streams) == 8
    assert_exact(source.bootstrap, target.bootstrap, [name])


def test_what_is_urgent_waits_for_no_packet(
    source: KafkaCluster, target: KafkaCluster, relay: Relay, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    Nothing comes any more over the connection that carries it, as after a packet that was lost: it comes over
    another one, and the stream goes on when the packet is there.
    """
    name = filled(source, topic, "urgent", 1)
    first: list[int] = []
    held, arrived = threading.Event(), threading.Event()

    def ask(number: int, _: int, data: bytes) -> bytes:
        if data.startswith(b"GET /v1/frames HTTP"):
            first.append(number)
        return data

    def hold(number: int, _: int, data: bytes) -> bytes:
        if held.is_set() and number in first:
            assert arrived.wait(60)
        return data

    with proxy(relay.address, hold, ask) as between:
        command = over(between, 3, source, target, name, tmp_path)
        with Twinsite.run(*command, work_dir=tmp_path) as mirror:
            asyncio.run(mirror.wait_for(lambda: complete(mirror, source, [name]), "all is copied", 60))
            asyncio.run(mirror.wait_for(lambda: connections(mirror) == 3, "all joined"))
            held.set()
            for _ in range(3):
                load(source.bootstrap, name, noise(1, 300))
                asyncio.run(mirror.wait_for(lambda: complete(mirror, source, [name]), "it is copied", 20))
            arrived.set()
            load(source.bootstrap, name, noise(100))
            asyncio.run(mirror.wait_for(lambda: complete(mirror, source, [name]), "all is copied", 60))
            begun = events(mirror.stderr, "stream_begun")

    assert len(begun) == 1
    assert_exact(source.bootstrap, target.bootstrap, [name])


def joined(relay: Relay, query: bytes) -> tuple[bytes, dict[str, str]]:
    """The answer to a connection that asks to join a stream: its first line, and its document."""
    host, _, port = relay.address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=10) as sock:
        sock.sendall(
            b"GET /v1/frames?" + query + b" HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\n"
            b"Upgrade: twinsite-frames/1\r\n\r\n"
        )
        head, _, content = sock.recv(65536).partition(b"\r\n\r\n")
    return head.splitlines()[0], json.loads(content)


@pytest.mark.parametrize("query", [b"join=00", b"join=00&carries=live"])
def test_nobody_joins_a_stream_that_is_not_there(relay: Relay, query: bytes) -> None:
    """
    As when an address leads to several relays: the answer says so, and the mirror goes on with one.
    """
    status, document = joined(relay, query)

    assert status.startswith(b"HTTP/1.1 404 ")
    assert document["code"] == "unknown_stream"


def test_nobody_joins_for_what_there_is_not(relay: Relay) -> None:
    """
    The answer names the value, and those there are.
    """
    status, document = joined(relay, b"join=00&carries=mail")

    assert status.startswith(b"HTTP/1.1 400 ")
    assert document["code"] == "bad_request"
    assert document["detail"] == "carries='mail': a connection carries live or bulk"


def test_a_mirror_keeps_to_its_own_limit(
    source: KafkaCluster, target: KafkaCluster, relay: Relay, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    It says so in its status, and no more comes than that, from before anything of the topic can have come.
    """
    name = filled(source, topic, "own", 3)
    link = {"relays": [relay.address], "limits": [{"rate": "8 Mbit/s"}], "topics_last": [name]}
    relayed = through(source, relay.address)
    command = configured(tmp_path, relayed, target, name, topics={"include": [name]}, link=link)
    began, before = time.monotonic(), 0

    with Twinsite.run(*command, work_dir=tmp_path) as mirror:

        def comes() -> bool:
            nonlocal began, before
            asked = time.monotonic()
            fetched = int(mirror.status().get("bytes_fetched", 0))
            if fetched < RATE / 10:
                began, before = asked, fetched
            return fetched >= RATE / 10

        asyncio.run(mirror.wait_for(comes, "something comes"))
        asyncio.run(mirror.wait_for(lambda: complete(mirror, source, [name]), "all is copied", 60))
        after = mirror.status()
        seconds = time.monotonic() - began

    assert after["link"]["rate_limit_bytes_per_second"] == RATE
    assert after["bytes_fetched"] - before > 2_900_000
    assert after["bytes_fetched"] - before < (seconds + 1) * RATE
    assert_exact(source.bootstrap, target.bootstrap, [name])


def test_catch_ups_end_in_the_order_that_retention_and_settings_say(
    source: KafkaCluster, target: KafkaCluster, slow_relay: Relay, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    First what retention would remove within the hour, and what may miss deletes by then, then what nothing is
    said of, then what is to be last, which has less time left than that: beyond an hour it is settings that
    count. No age is known before something has come, so that one of each begins together; nothing is removed
    while the test runs.
    """
    last, other, soonest = [
        filled(source, topic, name, RANKED_MEGABYTES, RANKED_MINUTES, retention_ms=minutes * 60_000)
        for name, minutes in (("last", 120), ("other", 600), ("soonest", 30))
    ]
    compacted = {"cleanup_policy": "compact", "delete_retention_ms": 45 * 60_000}
    deletes = filled(source, topic, "deletes", RANKED_MEGABYTES, RANKED_MINUTES, **compacted)
    names = [last, other, soonest, deletes]
    link = {"relays": [slow_relay.address], "topics_last": [last, deletes]}
    sections = {"topics": {"include": names}, "link": link}
    command = configured(tmp_path, through(source, slow_relay.address), target, soonest, **sections)
    done: dict[str, dict[str, int]] = {}

    def all_are_done() -> bool:
        """Notes of each that is, in their order, how far the others are."""
        reached = {one["topic"]: one["next_offset"] or 0 for one in partitions(mirror)}
        for name, offset in reached.items():
            if offset == RANKED_RECORDS:
                done.setdefault(name, reached)
        return len(done) == len(names)

    with Twinsite.run(*command, work_dir=tmp_path) as mirror:
        asyncio.run(mirror.wait_for(all_are_done, "all is copied", 90))

    assert list(done) == [soonest, deletes, other, last]
    assert done[soonest][deletes] < RANKED_RECORDS
    assert done[deletes][other] < RANKED_RECORDS
    assert done[other][last] < RANKED_RECORDS / 2
    assert [watermarks(source.bootstrap, name)[0] for name in names] == [(0, RANKED_RECORDS)] * 4
    assert_exact(source.bootstrap, target.bootstrap, names)
