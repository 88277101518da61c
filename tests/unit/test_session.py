"""When a session is renewed, and what waits meanwhile, without a broker."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from mirror.errors import AuthenticationError, ConnectionFailedError, UnsupportedVersionError
from mirror.kafka import session
from mirror.kafka.answers import Due, Ended
from mirror.kafka.outgoing import Buffers
from mirror.kafka.security import Security
from mirror.kafka.session import Session, Way

LIFETIME_MS = 20
WAITING = (1, 2)
"""The requests that wait."""


class Broker:
    """Believes us for a moment, again and again.

    Attributes:
        asked: How often it was asked to.
        asked_again: How often as one that has believed us before.
        believes: While this is not set, it has not made up its mind.
        refusal: Why it does not.
        told: What its connection was, in order: what waited, by its number, and why it is not believed.
        sent: All that waited was.
    """

    def __init__(self) -> None:
        self.asked = self.asked_again = 0
        self.again = asyncio.Event()
        self.believes = asyncio.Event()
        self.believes.set()
        self.refusal: Exception | None = None
        self.told: list[int | Ended] = []
        self.sent = asyncio.Event()
        self.way = Way(self.ask, self.submit, self.told.append)

    async def ask(self, _: Any) -> None:
        """Nothing is asked but what :meth:`authenticate` stands for."""

    def submit(self, due: Due, _: Buffers) -> None:
        self.told.append(due.correlation_id)
        if due.correlation_id == WAITING[-1]:
            self.sent.set()

    async def authenticate(
        self, _: Callable[[Any], Awaitable[Any]], __: Security, ___: str, *, again: bool
    ) -> int:
        self.asked += 1
        self.asked_again += again
        if self.asked > 1:
            self.again.set()
        await self.believes.wait()
        if self.refusal is not None:
            raise self.refusal
        return LIFETIME_MS if self.asked == 1 else 0


@pytest.fixture
async def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    broker = Broker()
    monkeypatch.setattr(session, "authenticate", broker.authenticate)
    monkeypatch.setattr(session, "reauthenticate_after_seconds", lambda ms: ms / 1000 or None)
    return broker


def due(number: int) -> Due:
    return Due(number, lambda _: None, 0.0, lambda size: memoryview(bytearray(size)), 5)


async def renewing(broker: Broker) -> Session:
    """A session that is being renewed, and for which two requests wait."""
    ours = Session(Security(), "broker:9092")
    await ours.begin(broker.way)
    broker.believes.clear()
    await asyncio.wait_for(broker.again.wait(), 5)
    assert ours.held is not None
    ours.held += [(due(number), []) for number in WAITING]
    return ours


async def test_what_waited_for_a_session_to_be_renewed_is_sent_in_its_order(broker: Broker) -> None:
    """
    Nothing has to wait afterwards.
    """
    ours = await renewing(broker)

    broker.believes.set()
    await asyncio.wait_for(broker.sent.wait(), 5)

    assert broker.told == [*WAITING]
    assert ours.held is None
    assert (broker.asked, broker.asked_again) == (2, 1)


async def test_who_is_not_believed_any_more_is_told_before_what_waited(broker: Broker) -> None:
    """
    The connection has ended by then: what waited gets its error there.
    """
    ours = await renewing(broker)
    broker.refusal = AuthenticationError("the password was changed")

    broker.believes.set()
    await asyncio.wait_for(broker.sent.wait(), 5)

    assert broker.told == [broker.refusal, *WAITING]
    assert ours.held is None


@pytest.mark.parametrize("fault", [UnsupportedVersionError("no version in common"), KeyError("nonce")])
async def test_a_connection_whose_session_is_not_renewed_ends_whatever_the_error(
    broker: Broker, fault: Exception
) -> None:
    """
    Its session would expire, and the broker would close it with requests in flight.
    """
    ours = await renewing(broker)
    broker.refusal = fault

    broker.believes.set()
    await asyncio.wait_for(broker.sent.wait(), 5)

    ended, *waited = broker.told
    assert isinstance(ended, ConnectionFailedError)
    assert str(ended) == f"broker:9092: the session could not be renewed: {fault!r}"
    assert waited == [*WAITING]
    assert ours.held is None


async def test_nothing_is_renewed_on_a_connection_that_has_ended(broker: Broker) -> None:
    """
    Whether it ended before or after its broker believed us.
    """
    before, after = Session(Security(), "broker:9092"), Session(Security(), "broker:9092")
    before.end()
    await before.begin(broker.way)
    broker.asked = 0
    await after.begin(broker.way)
    after.end()

    await asyncio.sleep(3 * LIFETIME_MS / 1000)

    assert broker.asked == 1
