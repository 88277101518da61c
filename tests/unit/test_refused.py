"""How often a broker or relay that refuses connections is tried, and how soon one that is back is noticed."""

from __future__ import annotations

import asyncio
import time
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from mirror.errors import AuthenticationError, ConnectionFailedError, TwinsiteError
from mirror.kafka.cluster import Cluster
from mirror.kafka.dial import Address, ConnectionOptions, Relays, dial_relay
from mirror.kafka.refused import Refused
from mirror.kafka.relayed import ask_for_broker
from tests.harness.daemon import until
from tests.unit.fake_relay import fake_relay, problem

EAST = Address("east", 1)
AWAY = ConnectionFailedError("it is away")
ANY_BROKER = partial(ask_for_broker, broker=None)
Way = Callable[[], Awaitable[object]]


@asynccontextmanager
async def hanging_up() -> AsyncIterator[tuple[Address, list[float]]]:
    """Where every connection is ended at once, and when each was made (monotonic seconds)."""
    made: list[float] = []

    async def end(_: StreamReader, writer: StreamWriter) -> None:
        made.append(time.monotonic())
        writer.close()

    async with await asyncio.start_server(end, "127.0.0.1", 0) as server:
        yield Address("127.0.0.1", server.sockets[0].getsockname()[1]), made


async def wanted(seconds: float, *ways: Way) -> None:
    """Each of these is wanted again and again, for so long."""

    async def want(way: Way) -> None:
        while True:
            with suppress(TwinsiteError):
                await way()
            await asyncio.sleep(0.01)

    wanting = [asyncio.create_task(want(way)) for way in ways]
    await asyncio.wait(wanting, timeout=seconds)
    for one in wanting:
        one.cancel()
    await asyncio.wait(wanting)


def after_a_second(made: list[float]) -> list[float]:
    """Those of the connections that were made more than a second after the first one; in seconds after it."""
    return [at - made[0] for at in made if at > made[0] + 1]


async def test_a_broker_that_refuses_is_tried_less_and_less_often_however_many_want_it() -> None:
    """
    Its log has a line for each login that it refuses. Lanes, looks and questions all want connections.
    """
    async with hanging_up() as (address, made):
        cluster = Cluster("source", [address], ConnectionOptions())
        cluster.info = replace(cluster.info, brokers={1: address})
        lanes = [partial(cluster.connection, 1, f"fetch-{number}") for number in range(4)]
        await wanted(4, cluster.refresh, cluster.any_connection, *lanes)
        left_alone_seconds = cluster.left_alone_seconds
        await cluster.close()

    assert len(after_a_second(made)) <= 3
    assert left_alone_seconds > 0


@pytest.mark.parametrize("brokers", [1, 5])
async def test_a_relay_that_does_not_answer_is_tried_less_and_less_often(brokers: int) -> None:
    """
    However many brokers are behind it, and whether one of them or a stream is wanted: the link may be paid by
    the byte.
    """

    async with hanging_up() as (relay, made):
        options = ConnectionOptions(relays=Relays([relay]))
        cluster = Cluster("source", [relay], options)
        known = {node: Address("east", node) for node in range(1, brokers + 1)}
        cluster.info = replace(cluster.info, brokers=known)
        lanes = [partial(cluster.connection, node) for node in known]
        await wanted(4, cluster.refresh, partial(dial_relay, ANY_BROKER, options), *lanes)
        left_alone_seconds = cluster.left_alone_seconds
        await cluster.close()

    assert len(after_a_second(made)) <= 3
    assert left_alone_seconds > 0


async def test_a_relay_that_answers_is_not_left_alone_whatever_it_answers() -> None:
    """
    It cannot reach one broker, or has no room for one more connection: that says nothing of other requests.
    """
    asked: list[str] = []

    def full(path: str) -> bytes:
        asked.append(path)
        return problem(503, "too_many_connections")

    async with fake_relay(full) as options:
        for _ in range(3):
            with pytest.raises(ConnectionFailedError):
                await dial_relay(ANY_BROKER, options)
        assert options.relays is not None
        left_alone_seconds = options.relays.left_alone_seconds

    assert (len(asked), left_alone_seconds) == (3, 0.0)


async def test_a_login_that_a_relay_refuses_is_counted_as_often_as_it_was_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    Not as often as a connection was wanted.
    """

    async def reach(*_: Any) -> None:
        raise AuthenticationError("its certificate is not signed by any authority that we know")

    monkeypatch.setattr("mirror.kafka.dial._reach", reach)
    relay, refused = Address("relay", 1), list[AuthenticationError]()
    cluster = Cluster("source", [relay], ConnectionOptions(relays=Relays([relay])))
    cluster.on_auth_failure = refused.append

    for _ in range(10):
        with pytest.raises(AuthenticationError, match="not signed by any authority"):
            await cluster.any_connection()

    assert len(refused) == 1


async def test_who_was_away_for_a_second_is_noticed_within_another() -> None:
    refused, began = Refused(), time.monotonic()

    async def open_one() -> str:
        if time.monotonic() - began < 1:
            raise AWAY
        return "open"

    opened = ""
    while not opened:
        with suppress(ConnectionFailedError):
            opened = await refused.attempt(EAST, open_one)
        await asyncio.sleep(0.01)

    assert time.monotonic() - began < 2


class Door:
    """An address that was refused before, and where an attempt ends when a test says so."""

    def __init__(self) -> None:
        self.refused = Refused()
        self.refused.failed(EAST, AWAY, time.monotonic())
        self.refused.try_now()
        self.tries = 0
        self.ends: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def open_one(self) -> str:
        self.tries += 1
        return await asyncio.shield(self.ends)

    def wanted_by(self, count: int) -> list[asyncio.Task[str]]:
        return [asyncio.create_task(self.refused.attempt(EAST, self.open_one)) for _ in range(count)]


async def test_who_gives_up_waiting_keeps_nobody_else_from_trying() -> None:
    """
    A broker whose answer takes a second is of use to those who wait longer. It is only tried after others.
    """
    answers = asyncio.Event()

    async def answer_late(_: StreamReader, writer: StreamWriter) -> None:
        await answers.wait()
        writer.close()

    async with await asyncio.start_server(answer_late, "127.0.0.1", 0) as server:
        address = Address("127.0.0.1", server.sockets[0].getsockname()[1])
        cluster = Cluster("source", [address], ConnectionOptions())
        cluster.info = replace(cluster.info, brokers={1: address})
        for _ in range(3):
            with suppress(TimeoutError):
                async with asyncio.timeout(0.05):
                    await cluster.connection(1, "prompt")
        left_alone_seconds = cluster.left_alone_seconds_of(1)
        answers.set()
        await cluster.close()

    assert left_alone_seconds == 0.0
    assert address in cluster._refused.addresses


@pytest.mark.parametrize("opens", [True, False])
async def test_one_tries_and_the_others_wait_for_how_that_ends(opens: bool) -> None:
    """
    If the address is of use again each opens its own; else all have the same error.
    """
    door = Door()
    wanting = door.wanted_by(5)
    await asyncio.sleep(0.01)
    tries = door.tries
    if opens:
        door.ends.set_result("open")
    else:
        door.ends.set_exception(ConnectionFailedError("it is still away"))

    ends = await asyncio.wait_for(asyncio.gather(*wanting, return_exceptions=True), 5)

    assert (tries, door.tries) == (1, 5 if opens else 1)
    assert {str(end) for end in ends} == {"open" if opens else "it is still away"}
    assert (EAST in door.refused.addresses) is not opens


async def test_an_attempt_that_takes_long_holds_up_nobody_for_longer_than_a_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    Nobody may be left there to end it, and the next one may be about something else.
    """
    monkeypatch.setattr("mirror.kafka.refused.FIRST_PAUSE_SECONDS", 0.05)
    door = Door()
    wanting = door.wanted_by(2)

    await until(lambda: door.tries == 2, "both try", 5)
    for one in wanting:
        one.cancel()
    await asyncio.wait(wanting)


async def test_an_attempt_that_is_cancelled_says_nothing() -> None:
    """
    Who waited for it tries at once.
    """
    door = Door()
    first, second = door.wanted_by(2)
    await asyncio.sleep(0.01)

    first.cancel()
    await asyncio.sleep(0.01)
    tries = door.tries
    door.ends.set_result("open")

    assert await asyncio.wait_for(second, 5) == "open"
    assert tries == 2
