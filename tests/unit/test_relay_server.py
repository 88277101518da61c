"""The port of a relay, where others than mirrors arrive too: each refusal says why, and is no mistake."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import socket
import struct
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mirror.config_relay import ListenSettings
from mirror.errors import ConnectionFailedError, TwinsiteError, UnsupportedVersionError
from mirror.kafka.buffers import BufferPool
from mirror.kafka.cluster import Cluster
from mirror.kafka.cluster_info import ClusterInfo
from mirror.kafka.dial import Address, ConnectionOptions, Relays
from mirror.kafka.relayed import _refusal
from mirror.link import messages, protocol
from mirror.link.greeting import Hello
from mirror.link.protocol import Down
from mirror.link.stream import LinkStream
from mirror.relay.line import BUSY_SECONDS, rest
from mirror.relay.server import RelayServer
from mirror.relay.stream import Stream
from tests.faults.hostile_peers import STREAM, asking, hello
from tests.harness.daemon import until


class NoCluster(Cluster):
    """A source without brokers."""

    def __init__(self) -> None:
        self.info = ClusterInfo("cluster", -1, {}, {})

    async def refresh(self, **_: float) -> ClusterInfo:
        return self.info


@asynccontextmanager
async def served() -> AsyncIterator[RelayServer]:
    server = RelayServer(NoCluster(), ListenSettings(), ())
    await server.take("127.0.0.1", 0, None)
    await server.start()
    try:
        yield server
    finally:
        await server.close()


async def answer(server: RelayServer, said: bytes) -> bytes:
    """All that comes back, to the end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(said)
    async with asyncio.timeout(10):
        came = await reader.read()
    writer.close()
    return came


def frames_asked(version: str, headers: list[str]) -> bytes:
    """A stream, with these headers."""
    return "\r\n".join([f"GET /v1/frames HTTP/{version}", "Host: x", *headers, "", ""]).encode()


@pytest.mark.parametrize(
    ("said", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\r\n\r\n", b"400"),
        (b"GET /v1/frames HTTP/1.1\r\nHo st: x\r\n\r\n", b"400"),
        (b"GET /v1/frames HTTP/9.1\r\nHost: x\r\n\r\n", b"400"),
        (b"GET /elsewhere HTTP/1.1\r\nHost: x\r\n\r\n", b"404"),
        (b"POST /v1/frames HTTP/1.1\r\nHost: x\r\n\r\n", b"405"),
        (asking("/v1/frames?join=x&carries=y", protocol.PROTOCOL), b"400"),
    ],
    ids=["a TLS greeting", "a bad header", "a version", "a path", "a method", "a parameter"],
)
async def test_what_is_no_request_is_refused_like_others(
    said: bytes, status: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """
    It is counted, and no library cries out about it.
    """
    caplog.set_level(logging.DEBUG)
    async with served() as server:
        came = await answer(server, said)
        refused = server.audit.refused["bad_request"]

    assert came.split(b" ")[1] == status
    assert refused == 1
    assert [record.name for record in caplog.records if record.name.startswith("aiohttp")] == []


@pytest.mark.parametrize(
    "headers",
    [
        ["Connection: Upgrade", "Upgrade: Twinsite-Frames/1"],
        ["Connection: keep-alive, upgrade", "Upgrade: h2c, twinsite-frames/1"],
        ["Connection: Upgrade", "Upgrade: h2c", "Upgrade: twinsite-frames/1"],
    ],
    ids=["capitals", "a list", "two headers"],
)
async def test_a_protocol_is_asked_for_as_http_has_it(headers: list[str]) -> None:
    """
    It may be one of several, and is meant for the next one on the way.
    """
    async with served() as server, asyncio.timeout(10):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(frames_asked("1.1", headers))
        head = await reader.readuntil(b"\r\n\r\n")
        writer.close()

    assert head.split(b" ")[1] == b"101"


@pytest.mark.parametrize(
    ("version", "headers", "code", "kind"),
    [
        (
            "1.1",
            ["Connection: Upgrade", "Upgrade: twinsite-frames/2"],
            "other_protocol",
            UnsupportedVersionError,
        ),
        ("1.1", ["Upgrade: twinsite-frames/1"], "no_upgrade", ConnectionFailedError),
        ("1.0", ["Connection: Upgrade", "Upgrade: twinsite-frames/1"], "no_upgrade", ConnectionFailedError),
        ("1.1", ["Connection: Upgrade"], "no_upgrade", ConnectionFailedError),
    ],
    ids=["another version", "not for us", "HTTP/1.0", "nothing"],
)
async def test_a_proxy_that_does_not_pass_on_what_is_asked_for_is_not_taken_for_another_version(
    version: str, headers: list[str], code: str, kind: type[TwinsiteError]
) -> None:
    """
    The mirror is told of the one or the other, and each time what it might have asked for.
    """
    async with served() as server:
        came = await answer(server, frames_asked(version, headers))
        refused = server.audit.refused[code]
    head, _, body = came.partition(b"\r\n\r\n")
    error = _refusal("relay-1:9650", 426, body)

    assert head.split(b" ")[1] == b"426"
    assert {b"Upgrade: twinsite-frames/1", b"Connection: Upgrade, close"} <= set(head.split(b"\r\n"))
    assert (type(error), "a proxy in between" in str(error)) == (kind, code == "no_upgrade")
    assert ("must forward" in error.hint) == (code == "no_upgrade")
    assert refused == 1


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (hello() + hello(), "received a second HELLO"),
        (hello(recode="yes"), "hello: recode: "),
        (hello(level=3.0), "hello: level: "),
        (hello(producer_id=10**30), "hello: producer_id: "),
    ],
    ids=["twice", "words for a truth", "a fraction", "a number without end"],
)
async def test_a_hello_that_is_not_as_it_should_be_is_refused(said: bytes, words: str) -> None:
    """
    The mirror is told what is wrong with it.
    """
    async with served() as server, asyncio.timeout(10):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(STREAM)
        await reader.readuntil(b"\r\n\r\n")
        writer.write(said)
        came = list(messages.Messages().received(await reader.read()))
        writer.close()

    kind, payload = came[-1]
    bye = messages.document(payload)
    assert (kind, bye["code"]) == (Down.BYE, "bad_message")
    assert bye["detail"].startswith(words)


async def test_who_says_very_much_is_read_again_later() -> None:
    """
    Others have most of the time, however small what he says is.
    """
    heard: list[str] = []
    transport = SimpleNamespace(
        pause_reading=lambda: heard.append("paused"), resume_reading=lambda: heard.append("resumed")
    )

    rest(cast(asyncio.Transport, transport), BUSY_SECONDS / 2)
    rest(None, 1.0)
    assert heard == []
    rest(cast(asyncio.Transport, transport), 0.02)
    assert heard == ["paused"]
    await until(lambda: heard == ["paused", "resumed"], "he is read again", 5)


async def test_who_asks_very_much_and_is_gone_fills_no_log(caplog: pytest.LogCaptureFixture) -> None:
    """
    Nothing is said to him any more: else the event loop complains of each answer.
    """
    async with served() as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(STREAM)
        await reader.readuntil(b"\r\n\r\n")
        writer.write(hello())
        await reader.readexactly(1)
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.write(protocol.ping(1) * 3_000)
        writer.transport.abort()
        await until(lambda: not server.tally.open, "he is gone", 10)

    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []


async def test_who_says_something_on_a_joined_connection_ends_the_stream() -> None:
    """
    The mirror is told why, over the first one.
    """
    async with served() as server, asyncio.timeout(10):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(STREAM)
        await reader.readuntil(b"\r\n\r\n")
        writer.write(hello())
        size = int.from_bytes(await reader.readexactly(4))
        token = json.loads((await reader.readexactly(size))[1:-4])["token"]
        joining, joined = await asyncio.open_connection("127.0.0.1", server.port)
        joined.write(asking(f"{protocol.PATH}?join={token}", protocol.PROTOCOL))
        await joining.readuntil(b"\r\n\r\n")

        joined.write(b"x")
        said = [(kind, bytes(payload)) for kind, payload in messages.Messages().received(await reader.read())]
        refused = server.audit.refused["bad_message"]
        for one in (writer, joined):
            one.close()

    kind, payload = said[-1]
    assert kind == Down.BYE
    assert json.loads(payload)["detail"] == "unexpected data on a joined connection"
    assert refused == 1


async def test_a_stream_that_has_just_ended_is_not_joined() -> None:
    """
    Nobody would end that connection: those of the stream have been ended.
    """

    class Ending(dict[str, Stream]):
        """Streams, each of which ends just before a connection joins it."""

        def get(self, token: str, default: Any = None) -> Any:
            if token in self:
                self[token].close()
            return super().get(token, default)

    async with served() as server, asyncio.timeout(10):
        server._streams = Ending()
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(STREAM)
        await reader.readuntil(b"\r\n\r\n")
        writer.write(hello())
        await reader.readexactly(1)
        [token] = server._streams

        came = await answer(server, asking(f"{protocol.PATH}?join={token}", protocol.PROTOCOL))
        writer.close()

    assert came.split(b" ")[1] == b"404"
    assert b"unknown_stream" in came


async def test_who_is_slow_is_not_another_one_behind_the_same_address() -> None:
    """
    Mirrors of several targets may call their flows alike; each flow has a producer of its own. Whoever comes
    back is known again.
    """
    async with served() as server, asyncio.timeout(10):
        writers = []
        for producer_id in (4_000, 4_000, 5_000):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(STREAM)
            await reader.readuntil(b"\r\n\r\n")
            writer.write(hello(producer_id=producer_id))
            await reader.readexactly(1)
            writers.append(writer)
        members = server._sharing._members

        server._sharing._alone(members[0])
        alone = [not server._sharing._may_share(member, time.monotonic()) for member in members]
        for writer in writers:
            writer.close()

    assert alone == [True, True, False]


async def test_only_streams_that_are_open_are_fenced_off() -> None:
    """
    One that its mirror has ended before is not counted among those.
    """
    async with served() as server, asyncio.timeout(10):
        refused = []
        for epochs in ((1, 2), (3,)):
            writers = []
            for epoch in epochs:
                reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
                writer.write(STREAM)
                await reader.readuntil(b"\r\n\r\n")
                writer.write(hello(epoch=epoch))
                await reader.readexactly(1)
                writers.append(writer)
            refused.append(server.audit.refused["old_epoch"])
            for writer in writers:
                writer.close()
            await until(lambda: not server.tally.open, "they have ended", 10)

    assert refused == [1, 1]


async def test_no_connection_of_a_stream_is_silent_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    While nothing is behind: a proxy ends those over which no bytes go, and with one of them the stream. What
    is said is no answer to anything, and a mirror goes on.
    """
    monkeypatch.setattr("mirror.relay.joined.IDLE_SECONDS_MAX", 0.02)
    heard: list[int] = []

    async with served() as server, asyncio.timeout(10):
        options = ConnectionOptions(relays=Relays([Address("127.0.0.1", server.port)]))
        who = Hello("flow", 1, 0, 1, (1 << 20, 1 << 20), 1 << 20, 0, recode=True)
        stream = await LinkStream.open(options, who, BufferPool(0), connections=3)
        heard_pong = stream._heard_pong

        def hear(pong: protocol.Pong) -> None:
            heard.append(pong.token)
            heard_pong(pong)

        monkeypatch.setattr(stream, "_heard_pong", hear)
        running = asyncio.create_task(stream.run())
        await until(lambda: heard.count(protocol.NOT_ASKED) >= 6, "they are said", 10)
        ended = running.done()
        running.cancel()
        await asyncio.wait([running])
        stream.close()

    assert not ended
    assert stream.round_trip_seconds is None or stream.round_trip_seconds < 10


async def test_the_kernel_looks_after_every_connection_of_a_stream() -> None:
    """
    At both ends: what is idle may be dead, and nobody would notice.
    """
    async with served() as server, asyncio.timeout(10):
        options = ConnectionOptions(relays=Relays([Address("127.0.0.1", server.port)]))
        who = Hello("flow", 1, 0, 1, (1 << 20, 1 << 20), 1 << 20, 0, recode=True)
        stream = await LinkStream.open(options, who, BufferPool(0), connections=3)
        running = asyncio.create_task(stream.run())
        await until(lambda: stream.connections == 3, "both are joined", 10)
        [theirs] = server._streams.values()
        await until(lambda: len(theirs._joined) == 2, "both are there", 10)
        socks = [stream._sock, *stream._more, theirs.sock, *(one.sock for one in theirs._joined)]
        seconds = {dead_after(sock) for sock in socks if sock is not None}
        running.cancel()
        await asyncio.wait([running])
        stream.close()

    assert len(socks) == 6
    assert seconds == {(30, 30)}


def dead_after(sock: socket.socket) -> tuple[float, float]:
    """Seconds after which the kernel ends a connection that is dead: one that is idle, and another."""
    idle, between, count, sent = (
        sock.getsockopt(socket.IPPROTO_TCP, option)
        for option in (
            socket.TCP_KEEPIDLE,
            socket.TCP_KEEPINTVL,
            socket.TCP_KEEPCNT,
            socket.TCP_USER_TIMEOUT,
        )
    )
    on = sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    return (idle + between * count if on else math.inf), sent / 1000 or math.inf
