"""The relay's end of a probe: what it sends, when it ends, and whom it does not wait for."""

from __future__ import annotations

import asyncio
import itertools
import json
import struct
import time
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from mirror.link import messages, protocol
from mirror.link.messages import Messages
from mirror.link.probe import Down, Up
from mirror.relay import line, probe
from mirror.relay.audit import Audit
from mirror.relay.probe import Probe
from tests.harness.daemon import until

LOAD: dict[str, Any] = {"seconds": 0.3, "settle_seconds": 0.1, "bytes_max": 1 << 30, "rate_max": None}


@asynccontextmanager
async def probing(
    rate_now: float | None = None, audit: Audit | None = None
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter, Probe]]:
    """A connection to a probe of this process."""
    made: list[Probe] = []

    def one() -> Probe:
        made.append(Probe("a test", audit or Audit(), lambda: rate_now))
        return made[-1]

    server = await asyncio.get_running_loop().create_server(one, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    try:
        await asyncio.sleep(0)
        writer.write(protocol.ping(1))
        assert await reader.readexactly(33)
        yield reader, writer, made[0]
    finally:
        writer.close()
        server.close()
        made[0].close()


def load(**changes: Any) -> bytes:
    return messages.say(Up.LOAD, LOAD | changes)


async def to_report(reader: asyncio.StreamReader) -> tuple[int, dict[str, Any], list[int]]:
    """The bytes that came, the report behind them, and the kinds of the other messages."""
    came, whole = 0, Messages()
    kinds: list[int] = []
    while True:
        data = await asyncio.wait_for(reader.read(1 << 20), 10)
        assert data, "it has ended without a report"
        for kind, payload in whole.received(data):
            if kind == Down.FILL:
                came += len(payload)
            elif kind == Down.REPORT:
                return came, messages.document(payload), kinds
            else:
                kinds.append(kind)


async def test_it_sends_for_as_long_as_it_is_told_and_says_what_it_did() -> None:
    """
    To the byte; a question is answered meanwhile, and the kernel is asked.
    """
    async with probing() as (reader, writer, _):
        began = time.monotonic()
        writer.write(load() + protocol.ping(2))
        came, report, others = await to_report(reader)
        seconds = time.monotonic() - began

    assert came == report["bytes"] > 0
    assert 0.3 <= seconds < 5
    assert others == [Down.PONG]
    assert report["kernel"]["segments_sent"] > 0
    assert report["send_buffer_full"] is None or 0 <= report["send_buffer_full"] <= 1
    assert report["congestion"]


async def test_it_ends_after_as_many_bytes_as_it_is_told() -> None:
    """
    Long before the time is over; nothing is known of what comes after it has settled then.
    """
    async with probing() as (reader, writer, _):
        writer.write(load(seconds=60, settle_seconds=30, bytes_max=1_000_000))
        came, report, _ = await to_report(reader)

    assert 1_000_000 <= came < 1_000_000 + (64 << 10)
    assert report["kernel"] is None


async def test_what_a_later_mirror_asks_for_beside_it_is_passed_over() -> None:
    """
    By what is known it sends as ever.
    """
    async with probing() as (reader, writer, _):
        writer.write(load(bytes_max=1_000_000, colour="red"))
        came, report, _ = await to_report(reader)

    assert came == report["bytes"] >= 1_000_000


async def test_it_keeps_to_a_rate() -> None:
    """
    The kernel does it, so that what is sent is spread evenly; what it hands over at first is on top. Where
    the machine is busy less comes.
    """
    async with probing() as (reader, writer, _):
        began = time.monotonic()
        writer.write(load(seconds=1, settle_seconds=0, rate_max=2_000_000))
        came, _, _ = await to_report(reader)

    assert 0 < came / (time.monotonic() - began) < 1.3 * 2_000_000


@pytest.mark.parametrize("asked", [None, 50_000_000])
async def test_it_sends_no_more_than_the_limits_of_its_relay(asked: int | None) -> None:
    """
    Whatever was asked for: a contract holds for a test, too. It says so, as the link may carry more.
    """
    async with probing(rate_now=2_000_000.0) as (reader, writer, _):
        began = time.monotonic()
        writer.write(load(seconds=1, settle_seconds=0, rate_max=asked))
        came, report, _ = await to_report(reader)

    assert 0 < came / (time.monotonic() - began) < 1.3 * 2_000_000
    assert report["rate_limit"] == 2_000_000


async def test_what_it_sends_cannot_be_compressed() -> None:
    """
    Not by what looks at a few megabytes of it.
    """
    async with probing() as (reader, writer, _):
        writer.write(load(bytes_max=2 << 20))
        sent = await asyncio.wait_for(reader.readexactly(2 << 20), 10)

    assert len(zlib.compress(sent, 1)) > 0.999 * len(sent)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (load(seconds=61), "load: seconds: Input should be less than or equal to 60"),
        (load(seconds=0), "load: seconds"),
        (load(seconds="nan"), "load: seconds"),
        (load(seconds="5"), "load: seconds: Input should be a valid number"),
        (load(bytes_max=5 << 30), "load: bytes_max"),
        (load(rate_max=1), "load: rate_max"),
        (messages.say(Up.LOAD, {}), "load: seconds: Field required"),
        (load() + load(), "a probe has one LOAD"),
        (messages.message(Up.LOAD, b"[]"), "expected a JSON object"),
        (messages.message(Up.PING, b"x"), "received 1 bytes, expected 8"),
        (struct.pack(">IB", 5000, Up.LOAD), "a message of 5000 bytes"),
        (protocol.limit(1), "unexpected message of kind 7"),
    ],
)
async def test_what_makes_no_sense_ends_it(said: bytes, words: str) -> None:
    """
    With the reason, as the last thing that is said, and counted by it.
    """
    whole, heard, audit = Messages(), [(0, b"{}")], Audit()
    async with probing(audit=audit) as (reader, writer, one):
        writer.write(said)
        while data := await asyncio.wait_for(reader.read(1 << 20), 10):
            heard += [(kind, bytes(payload)) for kind, payload in whole.received(data)]
        assert one.ended.done()

    kind, last = heard[-1]
    assert kind == Down.BYE
    assert json.loads(last)["code"] == "bad_message"
    assert words in json.loads(last)["detail"]
    assert +audit.refused == {"bad_message": 1}


@pytest.mark.parametrize("said", [b"", load(seconds=0.1)], ids=["asks for nothing", "reads nothing"])
async def test_a_mirror_that_does_not_go_on_is_not_waited_for(
    said: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Whether it says nothing, or takes nothing of what it has asked for: others want to probe, too. It counts.
    """
    audit = Audit()
    monkeypatch.setattr(probe, "PATIENCE_SECONDS", 0.2)
    async with probing(audit=audit) as (_, writer, one):
        writer.write(said)

        await asyncio.wait_for(one.ended, 10)

    assert +audit.refused == {"too_slow": 1}


async def test_what_it_says_at_last_may_be_read_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    It all arrives before there is an end to patience, which then finds nothing to end any more.
    """
    monkeypatch.setattr(line, "CLOSE_SECONDS_MAX", 1.0)
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, complaint: complaints.append(complaint))
    async with probing() as (reader, writer, end):
        writer.write(load(seconds=60))
        await until(lambda: end.full, "nothing more can be sent")
        writer.write(load())
        await until(lambda: end.ended.done(), "it is refused")
        *_, last = Messages().received(await asyncio.wait_for(reader.read(), 10))
        ended = time.monotonic()
        await until(lambda: time.monotonic() > ended + 1.0, "there would be no patience")

    assert messages.document(last[1])["code"] == "bad_message"
    assert complaints == []


async def test_a_mirror_that_only_asks_is_not_waited_for() -> None:
    """
    Answers that nobody reads do not pile up.
    """
    async with probing() as (_, writer, one):
        for number in itertools.count():
            if one.ended.done():
                break
            writer.write(protocol.ping(number) * 1_000)
            await asyncio.sleep(0)

    assert one.ended.done()


async def test_others_have_their_turn_however_fast_it_sends(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A connection that takes everything at once: after some slices the loop turns, again and again.
    """
    loop, reported = asyncio.get_running_loop(), asyncio.Event()
    turns, slices = 0, 0

    def take(_: Probe, data: bytes) -> None:
        nonlocal slices
        slices += len(data) > 64 << 10
        if len(data) < 64 << 10:
            reported.set()

    def turn() -> None:
        nonlocal turns
        turns += 1
        if not reported.is_set():
            loop.call_soon(turn)

    async with probing() as (_, writer, _):
        monkeypatch.setattr(Probe, "write", take)
        loop.call_soon(turn)
        writer.write(load(seconds=0.3))
        await asyncio.wait_for(reported.wait(), 10)

    assert slices > 0
    assert turns >= slices / 8
