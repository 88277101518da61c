"""A mirror's connection to a broker, as the relay passes it on: what is held back, and what is ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import cast

import pytest

from mirror.errors import ConnectionFailedError
from mirror.kafka.connection import Connection
from mirror.kafka.dial import Address
from mirror.relay import tunnel as tunnels
from mirror.relay.access import Visitor
from mirror.relay.audit import Audit
from mirror.relay.guarding import Asked, Guard, Passed
from mirror.relay.tunnel import REQUESTS_IN_FLIGHT_MAX, GuardedTunnel, Tunnel
from tests.harness.daemon import until

OnAnswer = Callable[[memoryview | ConnectionFailedError], None]


class Broker:
    """Takes requests, and answers when a test says so."""

    def __init__(self) -> None:
        self.address = Address("kafka-1", 9092)
        self.waiting: list[tuple[bytes, OnAnswer]] = []
        self.closed = self.paused = False
        self.on_closed: Callable[[], None] | None = None

    def forward(self, request: bytes, on_answer: OnAnswer) -> None:
        self.waiting.append((request, on_answer))

    def answer(self) -> None:
        """The oldest request."""
        request, on_answer = self.waiting.pop(0)
        on_answer(memoryview(request[4:8]))

    def pause(self, paused: bool) -> None:
        self.paused = paused

    def close(self, _: str) -> None:
        self.closed = True


class Guards:
    """Lets everything pass; the first answer is of a topic that nobody knows yet."""

    def __init__(self) -> None:
        self._unknown = True

    def asked(self, request: bytes) -> Asked:
        return Asked(18, 2, request=request)

    def answered(self, _: Asked, answer: memoryview) -> Passed:
        unknown, self._unknown = self._unknown, False
        return Passed([answer], unknown=unknown)


class Line:
    """A tunnel, and the mirror's end of it.

    Attributes:
        known: Set when the picture of the cluster has been read anew; for a mirror of which a guard looks at
            everything.
    """

    def __init__(self, broker: Broker, audit: Audit, *, guarded: bool = False) -> None:
        self.broker, self.audit = broker, audit
        self.known = asyncio.Event()
        connection, visitor = cast(Connection, broker), Visitor("peer:1")
        self.tunnel: Tunnel = (
            GuardedTunnel(
                connection,
                visitor,
                audit,
                greeting_seconds=5,
                guard=cast(Guard, Guards()),
                look_again=self.known.wait,
            )
            if guarded
            else Tunnel(connection, visitor, audit, greeting_seconds=5)
        )

    async def seen(self, condition: Callable[[], bool]) -> None:
        await until(condition, "it is seen", 5)


@asynccontextmanager
async def line(
    *, guarded: bool = False
) -> AsyncIterator[tuple[Line, asyncio.StreamReader, asyncio.StreamWriter]]:
    made = Line(Broker(), Audit(), guarded=guarded)
    server = await asyncio.get_running_loop().create_server(lambda: made.tunnel, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    try:
        yield made, reader, writer
    finally:
        writer.close()
        made.tunnel.close()
        server.close()
        await server.wait_closed()


def request(number: int) -> bytes:
    """One for the versions of all, as far as the tunnel looks at it."""
    body = (18).to_bytes(2) + (2).to_bytes(2) + number.to_bytes(4)
    return len(body).to_bytes(4) + body


async def test_so_many_requests_are_at_the_broker_and_no_more() -> None:
    """
    Each answer lets another one go, in their order, whatever came in one piece.
    """
    count = REQUESTS_IN_FLIGHT_MAX * 3
    async with line() as (made, reader, writer):
        writer.write(b"".join(request(number) for number in range(count)))
        await made.seen(lambda: len(made.broker.waiting) == REQUESTS_IN_FLIGHT_MAX)
        numbers = []
        for _ in range(count):
            assert len(made.broker.waiting) <= REQUESTS_IN_FLIGHT_MAX
            made.broker.answer()
            assert int.from_bytes(await reader.readexactly(4)) == 4
            numbers.append(int.from_bytes(await reader.readexactly(4)))
            if numbers[-1] < count - 1:
                await made.seen(lambda: bool(made.broker.waiting))

    assert numbers == list(range(count))
    assert made.tunnel.bytes_sent == count * 8


async def test_the_rest_of_a_request_has_to_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Half of one, after whole ones: it is waited for a while, and counted.
    """
    monkeypatch.setattr(tunnels, "TORN_SECONDS_MAX", 0.05)
    async with line() as (made, reader, writer):
        writer.write(request(1) + request(2)[:7])
        await made.seen(lambda: len(made.broker.waiting) == 1)
        async with asyncio.timeout(5):
            assert await reader.read() == b""

    assert made.broker.closed
    assert made.audit.refused["too_slow"] == 1


async def test_a_quiet_mirror_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Between its requests, and while it waits for an answer.
    """
    monkeypatch.setattr(tunnels, "TORN_SECONDS_MAX", 0.05)
    async with line() as (made, reader, writer):
        writer.write(request(1))
        await made.seen(lambda: len(made.broker.waiting) == 1)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(1), 0.3)
        made.broker.answer()
        assert len(await reader.readexactly(8)) == 8
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(1), 0.3)

    assert made.audit.refused["too_slow"] == 0


@pytest.mark.parametrize("guarded", [False, True])
async def test_a_broker_is_not_read_either_while_the_mirror_does_not_read(guarded: bool) -> None:
    """
    Its answers would wait here, sixteen of them, each as large as there may be.
    """
    async with line(guarded=guarded) as (made, reader, writer):
        made.known.set()
        writer.write(request(1))
        await made.seen(lambda: len(made.broker.waiting) == 1)
        made.broker.waiting.pop(0)[1](memoryview(bytes(20 << 20)))
        await made.seen(lambda: made.tunnel.bytes_sent > 20 << 20)
        paused = made.broker.paused
        assert int.from_bytes(await reader.readexactly(4)) == 20 << 20
        await reader.readexactly(20 << 20)
        await made.seen(lambda: not made.broker.paused)

    assert paused


async def test_a_broker_is_not_read_while_an_answer_of_it_is_looked_at() -> None:
    """
    That lasts until the picture of the cluster is read anew; the next answer waits at the broker.
    """
    async with line(guarded=True) as (made, reader, writer):
        writer.write(request(1) + request(2))
        await made.seen(lambda: len(made.broker.waiting) == 2)
        made.broker.answer()
        paused = made.broker.paused
        made.known.set()
        assert (await reader.readexactly(8))[4:] == (1).to_bytes(4)
        await made.seen(lambda: not made.broker.paused)

    assert paused


async def test_what_was_asked_is_answered_before_a_relay_ends() -> None:
    """
    What comes later is not.
    """
    async with line() as (made, reader, writer):
        writer.write(request(1) + request(2))
        await made.seen(lambda: len(made.broker.waiting) == 2)
        made.tunnel.drain()
        writer.write(request(3))
        made.broker.answer()
        first = await reader.readexactly(8)
        ended_before = made.tunnel.ended.done()
        made.broker.answer()
        await made.tunnel.ended

    assert first[4:] == (1).to_bytes(4)
    assert not ended_before
    assert made.tunnel.bytes_sent == 16
    assert made.broker.waiting == []


async def test_with_nothing_under_way_it_ends_at_once() -> None:
    """
    A connection on which nobody waits for anything holds nothing up.
    """
    async with line() as (made, reader, _):
        await made.seen(lambda: made.tunnel._transport is not None)
        made.tunnel.drain()
        assert await reader.read() == b""

    assert made.tunnel.ended.done()
