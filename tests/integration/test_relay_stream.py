"""Streams of frames, as a program sees them that knows docs/protocol.md and nothing else of ours.

Only the codecs of :mod:`mirror.link` are used, which have tests of their own.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from mirror.kafka.buffers import BufferPool
from mirror.kafka.fetch import Key
from mirror.kafka.record_batch import walk
from mirror.link import messages, protocol
from mirror.link.frames import HEADER_BYTES, Frames, Header, Opener
from mirror.link.messages import Messages
from mirror.link.parts import Part, decode_parts, restored
from mirror.link.protocol import Channel, Down, Position, Up
from tests.conftest import TopicFactory
from tests.faults.flows import configured, once
from tests.harness.checker import assert_exact
from tests.harness.data import json_rows
from tests.harness.jvm import FAST_JVM, java_command, logging_flag
from tests.harness.kafka import KafkaCluster
from tests.harness.loading import load
from tests.harness.process import twinsite
from tests.harness.relay import AS_IF_FAR, Relay, running_relay, through

HELLO: dict[str, Any] = {
    "flow": "by-hand",
    "producer_id": 7,
    "epoch": 3,
    "isolation": 1,
    "windows": [1 << 20, 1 << 20],
    "frame_bytes": 1 << 20,
    "level": 0,
    "recode": True,
}


@pytest.fixture(scope="module")
def relay(source: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Relay]:
    with running_relay(source, tmp_path_factory.mktemp("relay"), limits=AS_IF_FAR) as running:
        yield running


class Client:
    """The mirror's side of a stream, in a hundred lines."""

    def __init__(self, relay: Relay, *first: bytes, sock: socket.socket | None = None) -> None:
        host, _, port = relay.address.rpartition(":")
        self.sock = sock or socket.create_connection((host, int(port)), timeout=10)
        head = (
            "GET /v1/frames HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: twinsite-frames/1\r\n\r\n"
        )
        self.sock.sendall(head.encode())
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += self.sock.recv(1)
        assert answer.startswith(b"HTTP/1.1 101 ")
        self.messages = Messages(on_slice=self._slice)
        self.waiting: list[tuple[int, bytes]] = []
        self.frames = {channel: Frames(BufferPool(0)) for channel in Channel}
        self.openers: dict[Channel, Opener] = {}
        self.came = dict.fromkeys(Channel, 0)
        self.taken = dict.fromkeys(Channel, 0)
        self.sock.sendall(b"".join(first))

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def next(self) -> tuple[int, bytes] | None:
        """The next message; None at the end."""
        while not self.waiting:
            data = self.sock.recv(65536)
            if not data:
                return None
            for kind, payload in self.messages.received(data):
                if kind != Down.SLICE:
                    self.waiting.append((kind, bytes(payload)))
        return self.waiting.pop(0)

    def _slice(self, channel: int, at: int, data: memoryview) -> None:
        self.waiting.append((Down.SLICE, struct.pack(">BQ", channel, at) + data))

    def next_frame(self) -> tuple[Channel, Header, list[Part]]:
        """The next frame, opened; everything else is passed over."""
        while True:
            kind, payload = self.next() or (None, b"")
            assert kind is not None, "the stream has ended"
            if kind == Down.WELCOME:
                for channel, key in zip(Channel, json.loads(payload)["keys"], strict=True):
                    self.openers[channel] = Opener(bytes.fromhex(key), 27)
            if kind != Down.SLICE:
                continue
            number, at, data = read_slice(payload)
            channel = Channel(number)
            assert at == self.came[channel]
            self.came[channel] += len(data)
            for arrived in self.frames[channel].received(data):
                header, wire = arrived.header, arrived.wire
                body = memoryview(bytearray(header.body_bytes))
                parts = decode_parts(self.openers[channel].open(header, wire, body))
                room = memoryview(bytearray(sum(part.recoded_bytes for part in parts)))
                self.taken[channel] += HEADER_BYTES + header.wire_bytes
                return channel, header, restored(parts, room)[0]

    def took(self, channel: Channel) -> None:
        self.sock.sendall(protocol.taken(channel, self.taken[channel]))


def read_slice(payload: bytes) -> tuple[int, int, bytes]:
    """Of a slice: its channel, how many bytes come before, and the bytes; as docs/protocol.md has it."""
    channel, at = struct.unpack_from(">BQ", payload)
    return channel, at, payload[9:]


def hello(**changes: Any) -> bytes:
    return messages.say(Up.HELLO, HELLO | changes)


def key_of(source: KafkaCluster, topic: str, partition: int = 0) -> Key:
    return Key(asyncio.run(source.topic_id(topic)).bytes, partition)


@pytest.mark.parametrize("codec", ["none", "lz4", "zstd"])
def test_everything_arrives_in_its_order(
    source: KafkaCluster, relay: Relay, topic: TopicFactory, codec: str
) -> None:
    """
    From the middle of the log on; first what is behind, then, on the other channel, what is new.
    """
    name = asyncio.run(topic(source, prefix="stream"))
    load(source.bootstrap, name, json_rows(20_000, 500), codec)
    wanted = protocol.want([Position(key_of(source, name), 7, 5_000, -1, True)])

    offset, channels, more = 5_000, [], True
    with Client(relay, hello(), wanted) as client:
        while offset < 21_000:
            channel, _, parts = client.next_frame()
            channels.append(channel)
            for part in parts:
                assert (part.number, part.offset) == (7, offset)
                assert part.fetched.high_watermark >= part.offset  # as it was before the broker read
                batches = [header for header, _ in walk(part.fetched.records)]
                ends = [header.next_offset for header in batches]
                assert [header.base_offset for header in batches[1:]] == ends[:-1]
                assert part.next_offset == (ends[-1] if ends else offset)
                offset = part.next_offset
            client.took(channel)
            if offset == 20_000 and more:
                more = False
                one_batch = {"batch_num_messages": 1_000}  # of two the second could be found to be behind
                load(source.bootstrap, name, json_rows(1_000, 500, seed=2), codec, **one_batch)

    assert offset == 21_000
    assert channels == sorted(channels, reverse=True)
    assert set(channels) == {Channel.LIVE, Channel.BULK}


def test_no_more_is_sent_than_the_mirror_takes(
    source: KafkaCluster, relay: Relay, topic: TopicFactory
) -> None:
    """
    A window of one byte: one frame, and the next one when that is taken. The relay answers all the same.
    """
    name = asyncio.run(topic(source, prefix="window"))
    load(source.bootstrap, name, json_rows(5_000, 1_000), batch_size=20_000)
    wanted = protocol.want([Position(key_of(source, name), 7, 0, -1, True)])

    with Client(relay, hello(windows=[1, 1]), wanted) as client:
        for number in range(3):
            channel, header, _ = client.next_frame()
            assert (channel, header.sequence) == (Channel.BULK, number)
            client.sock.sendall(protocol.ping(number))
            kind, payload = client.next() or (None, b"")
            assert kind == Down.PONG
            token, clock_ms, _ = protocol.read_pong(payload)
            assert token == number
            assert abs(clock_ms - time.time() * 1000) < 60_000
            client.took(channel)


@pytest.mark.parametrize(
    ("said", "code", "words"),
    [
        ([protocol.ping(1)], "bad_message", "instead of HELLO"),
        ([hello(flow="Not a name")], "bad_message", "hello: flow"),
        ([hello(isolation=2)], "bad_message", "hello: isolation"),
        ([hello(windows=[-1, 1 << 40])], "bad_message", "hello: windows"),
        ([messages.message(Up.HELLO, b"[" * 50_000)], "bad_message", "not JSON"),
        ([messages.message(Up.HELLO, b"[" * 100_000)], "bad_message", "100000 bytes of JSON"),
        ([hello(), hello()], "bad_message", "received a second HELLO"),
        ([hello(), protocol.taken(Channel.BULK, 1)], "bad_message", "TAKEN for more than was sent"),
        ([hello(), messages.message(Up.WANT, b"x" * 7)], "bad_message", "7 bytes in entries of 38"),
        ([hello(), b"\xff\xff\xff\xff\x02"], "bad_message", "a message of 4294967295 bytes"),
        ([hello(flow="fenced", epoch=5), b""], "", ""),
        ([hello(flow="fenced", epoch=4)], "old_epoch", "flow fenced is at epoch 5"),
        ([hello(flow="fenced", producer_id=8, epoch=0), b""], "", ""),
    ],
)
def test_what_makes_no_sense_ends_the_stream(said: list[bytes], code: str, words: str, relay: Relay) -> None:
    """
    With the reason; others are served.
    """
    kinds: list[int] = []
    bye: dict[str, str] = {}
    with Client(relay, *said) as client:
        while (answer := client.next()) is not None:
            kinds.append(answer[0])
            bye = json.loads(answer[1])
            if not code and answer[0] == Down.WELCOME:
                break

    assert kinds[-1] == (Down.BYE if code else Down.WELCOME)
    assert bye.get("code", "") == code
    assert words in bye.get("detail", "")
    with Client(relay, hello()) as other:
        assert other.next() is not None


def test_a_stream_of_an_older_epoch_ends_when_a_newer_one_begins(
    source: KafkaCluster, relay: Relay, topic: TopicFactory
) -> None:
    """
    It was open and idle, and gets nothing of what is written from then on. The newer one does, and so do
    mirrors of its own epoch, of another flow, and of another producer.
    """
    name = asyncio.run(topic(source, prefix="promoted"))
    key = key_of(source, name)
    wanted = protocol.want([Position(key, 7, 0, -1, True)])
    alone = {"flow": "promoted", "frame_bytes": 32 << 10}  # nobody shares a channel with others
    older, newer = alone | {"epoch": 5}, alone | {"epoch": 6}

    with ExitStack() as stack:
        old, *live = [
            stack.enter_context(Client(relay, hello(**who), wanted))
            for who in (older, older | {"flow": "another"}, older | {"producer_id": 8})
        ]
        assert [reads_to(client, 0) for client in (old, *live)] == [0, 0, 0]
        live += [stack.enter_context(Client(relay, hello(**newer), wanted)) for _ in range(2)]
        came = list(iter(old.next, None))
        load(source.bootstrap, name, json_rows(100, 100))
        read = [reads_to(client, 100) for client in live]

    assert came[-1][0] == Down.BYE
    assert json.loads(came[-1][1]) == {
        "code": "old_epoch",
        "detail": "flow promoted is at epoch 6: a mirror of epoch 5 was fenced off",
    }
    assert read == [100] * 4


def reads_to(client: Client, end: int) -> int:
    """How far it comes, of one partition; a frame without parts says that nothing is new."""
    offset = -1
    while offset < end:
        channel, _, parts = client.next_frame()
        offset = max([offset, *(part.next_offset for part in parts)])
        client.took(channel)
    return offset


def test_a_mirror_that_asks_for_too_high_a_level_is_told(relay: Relay) -> None:
    """
    What it gets instead, and why.
    """
    with Client(relay, hello(level=19)) as client:
        said = dict(message for _ in range(2) if (message := client.next()) is not None)

    choice = json.loads(said[Down.CHOICE])
    assert choice["level"] == 9
    assert choice["why"] == (
        "level 19 was requested; listen.level_max of the relay is 9; batches inflated as configured"
    )


def test_a_topic_nobody_knows_is_refused_and_others_go_on(
    source: KafkaCluster, relay: Relay, topic: TopicFactory
) -> None:
    """
    Its part says so, in the Fetch API's words, once it was looked for.
    """
    name = asyncio.run(topic(source, prefix="known"))
    load(source.bootstrap, name, json_rows(100, 100))
    known, unknown = key_of(source, name), Key(bytes(range(16)), 0)
    wanted = protocol.want([Position(unknown, 1, 5, -1, True), Position(known, 2, 0, -1, True)])

    came: dict[Key, Part] = {}
    with Client(relay, hello(), wanted) as client:
        while len(came) < 2:
            channel, _, parts = client.next_frame()
            came |= {part.fetched.key: part for part in parts}
            client.took(channel)

    assert (came[unknown].fetched.error_code, came[unknown].offset) == (100, 5)
    assert came[known].fetched.error_code == 0


@pytest.mark.parametrize(
    ("odd", "usual", "share_max"),
    [(0, 40_000, 0.75), (20_000, 0, 3.0), (10, 40_000, 0.75)],
    ids=["none", "all", "the first"],
)
async def test_lz4_is_recoded_where_it_comes_out_the_same(
    source: KafkaCluster,
    target: KafkaCluster,
    relay: Relay,
    topic: TopicFactory,
    tmp_path: Path,
    odd: int,
    usual: int,
    share_max: float,
) -> None:
    """
    Nearly half of its bytes do not cross the link. What another encoder has made crosses as it is, and is
    copied as exactly, and what stands behind it crosses inflated again. Twice in each partition what is on
    its way is sent in vain, and so are frames that are ready: small ones keep that below all there is.
    """
    name = await topic(source, partitions=2, prefix="recode")
    at_once = {"compression_level": 9, "linger_ms": 500}
    for rows, settings in ((odd, at_once), (usual, {"batch_num_messages": 200})):
        await asyncio.to_thread(load, source.bootstrap, name, json_rows(rows, 1_000), "lz4", **settings)

    sections = {
        "topics": {"include": [name]},
        "link": {"relays": [relay.address], "window_bytes": 256 << 10},
        "limits": {"buffer_bytes_max": 4 << 20},
    }
    command = configured(tmp_path, through(source, relay.address), target, name, **sections)
    done = await twinsite(*command, "--once", "-o", "json", work_dir=tmp_path)

    assert done.code == 0
    totals = json.loads(done.stdout)["totals"]
    assert totals["bytes_fetched"] < totals["bytes"] * share_max
    assert totals["batches"] > 4
    assert_exact(source.bootstrap, target.bootstrap, [name])


def produced_by_java(cluster: KafkaCluster, name: str, codec: str, folder: Path) -> None:
    """JSON records, by Kafka's own producer."""
    payload = folder / "payload"
    payload.write_bytes(b"\n".join(row.value or b"" for row in json_rows(5_000, 1_000)))
    command = java_command(
        "3.9", "org.apache.kafka.tools.ProducerPerformance",
        "--topic", name, "--num-records", "8000", "--throughput", "-1", "--payload-file", str(payload),
        "--producer-props", f"bootstrap.servers={cluster.bootstrap}", f"compression.type={codec}",
        "batch.size=65536", "linger.ms=50", jvm=(*FAST_JVM, logging_flag("3.9", folder)),
    )  # fmt: skip
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=60)


def produced_by_librdkafka(cluster: KafkaCluster, name: str, codec: str, _: Path) -> None:
    """The same records."""
    load(cluster.bootstrap, name, json_rows(8_000, 1_000), codec, batch_size=65_536, linger_ms=50)


@pytest.mark.parametrize(
    ("codec", "produce", "share_max"),
    [
        ("gzip", produced_by_java, 0.6),
        ("gzip", produced_by_librdkafka, 0.6),
        ("snappy", produced_by_java, 0.3),
        ("lz4", produced_by_java, 0.45),
        ("lz4", produced_by_librdkafka, 0.45),
    ],
)
async def test_what_clients_have_compressed_is_recoded(
    source: KafkaCluster,
    target: KafkaCluster,
    relay: Relay,
    topic: TopicFactory,
    tmp_path: Path,
    codec: str,
    produce: Callable[[KafkaCluster, str, str, Path], None],
    share_max: float,
) -> None:
    """
    Far fewer bytes cross the link than stand in the log, and the batches arrive with every byte.
    """
    name = await topic(source, prefix="packed")
    await asyncio.to_thread(produce, source, name, codec, tmp_path)

    done = await twinsite(*once(through(source, relay.address), target, name, name), work_dir=tmp_path)

    assert done.code == 0
    totals = json.loads(done.stdout)["totals"]
    assert totals["bytes_fetched"] < totals["bytes"] * share_max
    assert_exact(source.bootstrap, target.bootstrap, [name])
