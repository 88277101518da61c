"""The mirror's end of a probe, against relays that are not as they should be."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict

import pytest

from mirror.errors import AnswerError, ConnectionFailedError, TwinsiteError, UnsupportedVersionError
from mirror.kafka.dial import Address, ConnectionOptions, Relays
from mirror.link import messages, protocol
from mirror.link.messages import Messages
from mirror.link.probe import Down, Echo, Load, Observed, Up
from mirror.link.probing import observe
from tests.unit.links import REPORT

SWITCHED = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: twinsite-probe/1\r\n\r\n"
LOAD = Load(seconds=0.2, settle_seconds=0.1)
Say = Callable[[bytes], Awaitable[None]]
Act = Callable[[int, memoryview, Say], Awaitable[None]]
"""What a relay does with a message: its kind, its payload, and a way to answer."""


@asynccontextmanager
async def relay(act: Act, head: bytes = SWITCHED) -> AsyncIterator[Address]:
    """A relay that does what a test says."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async def say(said: bytes) -> None:
            writer.write(said)
            await writer.drain()

        whole = Messages()
        try:
            await reader.readuntil(b"\r\n\r\n")
            await say(head)
            while data := await reader.read(1 << 16):
                for kind, payload in whole.received(data):
                    await act(kind, payload, say)
        except OSError:
            return
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield Address(*server.sockets[0].getsockname())


async def probe(address: Address, silence_seconds: float = 1.0) -> Observed:
    options = ConnectionOptions(
        relays=Relays([address]), request_timeout_seconds=silence_seconds, connect_timeout_seconds=5
    )
    return await observe(options, lambda _: LOAD)


def answering(then: Act, ahead_seconds: float = 0.0) -> Act:
    """Answers pings, by a clock that is ahead, and leaves the rest to another."""

    async def act(kind: int, payload: memoryview, say: Say) -> None:
        if kind == Up.PING:
            clock_ms = round((time.time() + ahead_seconds) * 1000)
            await say(protocol.pong(protocol.read_number(payload), clock_ms, 0))
        else:
            await then(kind, payload, say)

    return act


def saying(*said: bytes) -> Act:
    """Answers the load with the same."""

    async def act(_: int, __: memoryview, say: Say) -> None:
        for one in said:
            await say(one)

    return act


async def test_what_comes_is_noted_with_what_the_relay_reports() -> None:
    """
    The length of the link is known before it is said what to send.
    """
    fill = messages.message(Down.FILL, bytes(1_000))
    report = messages.say(Down.REPORT, asdict(REPORT))
    asked: list[tuple[Echo, ...]] = []

    async with relay(answering(saying(fill, fill, report), ahead_seconds=7.0)) as address:
        options = ConnectionOptions(relays=Relays([address]))

        def load_for(idle: tuple[Echo, ...]) -> Load:
            asked.append(idle)
            return LOAD

        seen = await observe(options, load_for)

    assert seen.report == REPORT
    assert seen.arrivals[-1].bytes == 2_000
    assert [seen.idle] == asked
    assert len(seen.idle) == 20
    assert [echo.clock_offset_seconds for echo in seen.idle] == pytest.approx([7.0] * 20, abs=0.5)
    assert (seen.relay, seen.tls, seen.load) == (str(address), None, LOAD)


@pytest.mark.parametrize(
    ("act", "kind", "words"),
    [
        (saying(b""), ConnectionFailedError, "silent for 1 s"),
        (answering(saying(b"")), ConnectionFailedError, "silent for 1 s"),
        (answering(saying(messages.say(Down.BYE, {"detail": "no"}))), ConnectionFailedError, ": no"),
        (answering(saying(messages.message(Down.FILL, b"") + b"\xff" * 9)), AnswerError, "4294967295 bytes"),
        (answering(saying(protocol.limit(1))), AnswerError, "unknown message kind 7"),
        (answering(saying(messages.say(Down.REPORT, {}))), AnswerError, "without the number of bytes"),
        (saying(protocol.pong(7, 0, 0)), AnswerError, "received PONG 7"),
        (saying(messages.message(Down.PONG, b"x")), AnswerError, "received 1 bytes, expected 24"),
    ],
)
async def test_a_relay_that_makes_no_sense_is_named_with_what_it_did(
    act: Act, kind: type[TwinsiteError], words: str
) -> None:
    """
    And nothing is measured by it.
    """
    async with relay(act) as address:
        with pytest.raises(kind) as refused:
            await probe(address)

    assert str(refused.value).startswith(f"relay {address}: ")
    assert words in str(refused.value)


async def test_what_the_relay_says_to_people_is_cut() -> None:
    """
    It becomes a line on a terminal: what ends a probe, and each text of a report.
    """
    names = {"congestion_available": [f"name{number}" for number in range(5_000)]}
    seen = []
    for changes in ({"relay": "x" * 60_000}, {"congestion": "y" * 60_000}, names):
        report = messages.say(Down.REPORT, asdict(REPORT) | changes)
        async with relay(answering(saying(report))) as address:
            seen.append((await probe(address)).report)
    async with relay(answering(saying(messages.say(Down.BYE, {"detail": "z" * 60_000})))) as address:
        with pytest.raises(ConnectionFailedError) as ended:
            await probe(address)

    version, congestion, listed = seen
    assert len(str(ended.value)) < 1_100
    assert len(version.relay) < 1_100
    assert len(congestion.congestion) < 1_100
    assert listed.congestion_available is not None
    assert listed.congestion_available[:2] == ("name0", "name1")
    assert len(" ".join(listed.congestion_available)) < 1_100


async def test_a_relay_that_never_ends_is_left() -> None:
    """
    However long it goes on sending.
    """

    async def for_ever(_: int, __: memoryview, say: Say) -> None:
        while True:
            await say(messages.message(Down.FILL, bytes(1 << 16)))

    async with relay(answering(for_ever)) as address:
        with pytest.raises(ConnectionFailedError, match=r"asked to send for 0.2 s, and has not stopped"):
            await probe(address)


@pytest.mark.parametrize(
    ("head", "kind", "words"),
    [
        (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", ConnectionFailedError, "is not a relay"),
        (b"HTTP/1.1 404 Not Found\r\n\r\n", ConnectionFailedError, "is not a relay"),
        (
            b'HTTP/1.1 404 Not Found\r\nContent-Length: 39\r\n\r\n{"code":"not_found","detail":"nothing"}',
            UnsupportedVersionError,
            "it is of an older version",
        ),
        (
            b'HTTP/1.1 503 -\r\nContent-Length: 41\r\n\r\n{"code":"probe_running","detail":"later"}',
            ConnectionFailedError,
            "later",
        ),
    ],
)
async def test_whoever_answers_with_something_else_is_named(
    head: bytes, kind: type[TwinsiteError], words: str
) -> None:
    """
    No relay, one of an older version, and one that is busy are different things.
    """
    async with relay(saying(b""), head) as address:
        with pytest.raises(kind) as refused:
            await probe(address)

    assert words in str(refused.value)
