"""Further connections of a stream, for which a relay has no room at first."""

from __future__ import annotations

import asyncio

import pytest
import structlog

from mirror.errors import ConnectionFailedError, FencedError, TwinsiteError
from mirror.kafka.buffers import BufferPool
from mirror.kafka.relayed import UnknownStreamError
from mirror.link import joining, messages
from mirror.link import stream as link_stream
from mirror.link.greeting import Hello
from mirror.link.joining import join_pause_seconds
from mirror.link.protocol import Down
from mirror.link.stream import LinkStream
from tests.harness.daemon import until
from tests.unit.fake_relay import SWITCHING, fake_relay, problem, welcome

HELLO = Hello("flow", 1, 0, 1, (1 << 20, 1 << 20), 1 << 20, 0, recode=True)


@pytest.mark.parametrize(
    "refusal", [problem(503, "too_many_connections"), problem(404, "unknown_stream")], ids=["full", "unknown"]
)
async def test_a_connection_is_tried_until_the_relay_has_room(
    refusal: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    However often it had none; that is said once, not for each of them.
    """
    monkeypatch.setattr(joining, "JOIN_PAUSE_SECONDS", 0.001)
    refused = 0

    def answer(path: str) -> bytes:
        nonlocal refused
        if "join=" not in path or refused == 16:
            return SWITCHING
        refused += 1
        return refusal

    with structlog.testing.capture_logs() as lines:
        async with fake_relay(answer, welcome()) as options:
            stream = await LinkStream.open(options, HELLO, BufferPool(0), connections=3)
            running = asyncio.create_task(stream.run())
            try:
                await until(lambda: stream.connections == 3, "both are joined", 10)
            finally:
                running.cancel()
                await asyncio.wait([running])
                stream.close()

    assert refused == 16
    assert [line["event"] for line in lines] == ["connection_not_joined"]


@pytest.mark.parametrize(
    ("asked", "fixed", "connections"), [(1, 0, 3), (4, 0, 6), (4, 3, 3), (2**40, 0, 34)], ids=str
)
async def test_a_relay_may_ask_for_more(asked: int, fixed: int, connections: int) -> None:
    """
    Unless the settings say how many there are, and not for as many as it likes.
    """
    choices = [
        messages.say(Down.CHOICE, {"level": 3, "recode": True, "why": "so", "connections": count})
        for count in (0, asked)
    ]
    async with fake_relay(lambda _: SWITCHING, welcome(), *choices) as options:
        stream = await LinkStream.open(options, HELLO, BufferPool(0), connections=fixed)
        running = asyncio.create_task(stream.run())
        try:
            await until(lambda: stream.connections >= connections, "all are joined", 10)
            assert not running.done()
        finally:
            running.cancel()
            await asyncio.wait([running])
            stream.close()

    assert stream.connections == connections


@pytest.mark.parametrize(
    ("code", "kind"), [("bad_message", ConnectionFailedError), ("old_epoch", FencedError)], ids=str
)
async def test_why_a_stream_ends_is_known_though_another_connection_has_ended_first(
    code: str, kind: type[TwinsiteError]
) -> None:
    """
    A relay says it over the first one and ends all of them: what it says may arrive last.
    """
    bye = messages.say(Down.BYE, {"code": code, "detail": "this is why"})
    async with fake_relay(lambda _: SWITCHING, welcome(), bye=bye) as options:
        stream = await LinkStream.open(options, HELLO, BufferPool(0), connections=3)
        try:
            async with asyncio.timeout(10):
                with pytest.raises(kind, match="this is why"):
                    await stream.run()
        finally:
            stream.close()


async def test_a_stream_ends_with_any_of_its_connections_even_if_nobody_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    The first one may never end: what is between may have ended the other alone.
    """
    monkeypatch.setattr(link_stream, "BYE_SECONDS", 0.01)
    async with fake_relay(lambda _: SWITCHING, welcome(), bye=b"") as options:
        stream = await LinkStream.open(options, HELLO, BufferPool(0), connections=3)
        try:
            async with asyncio.timeout(10):
                with pytest.raises(ConnectionFailedError, match="it has ended the stream"):
                    await stream.run()
        finally:
            stream.close()


def test_a_connection_is_tried_less_and_less_often() -> None:
    """
    At most every half a minute; where another relay has the stream every five minutes.
    """
    full, unknown = ConnectionFailedError("full"), UnknownStreamError("unknown")

    assert [join_pause_seconds(tries, full) for tries in (1, 2, 3, 8, 9, 10_000)] == pytest.approx(
        [0.2, 0.4, 0.8, 25.6, 30, 30]
    )
    assert [join_pause_seconds(tries, unknown) for tries in (1, 5, 10_000)] == pytest.approx([0.2, 3.2, 300])
