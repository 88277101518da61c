"""It is asked whose right it is; what that means for us when one who can tell hangs, errs or says another."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from mirror.errors import ConnectionFailedError
from mirror.flow import holding, turn
from mirror.flow.holding import hold
from mirror.flow.turn import Turn
from tests.harness.daemon import until

COUNTS_FOR_SECONDS = 1.0


class Witness:
    """Can tell whose right it is, and answers as it is told."""

    def __init__(self) -> None:
        self.asked = self.hanging = 0
        self.taken = False
        self.answers = asyncio.Event()
        self.answers.set()
        self.error: ConnectionFailedError | None = None

    async def answer(self) -> None:
        self.asked += 1
        self.hanging += 1
        try:
            await self.answers.wait()
        finally:
            self.hanging -= 1
        if self.error is not None:
            raise self.error


class Right:
    """The right of a mirror; what is lost stays lost."""

    def __init__(self) -> None:
        self.turn = Turn()
        self.held = True
        self.coordinator, self.state = Witness(), Witness()

    async def ask(self, _: float) -> None:
        await self._ask(self.coordinator)

    async def ask_the_state(self) -> None:
        await self._ask(self.state)

    async def _ask(self, witness: Witness) -> None:
        asked_at = time.monotonic()
        await witness.answer()
        self.held = self.held and not witness.taken
        if self.held:
            self.turn.proven(asked_at)
        else:
            self.turn.lost()


@asynccontextmanager
async def at_work(
    monkeypatch: pytest.MonkeyPatch, *, late_seconds: float = 0.1
) -> AsyncIterator[tuple[Right, Turn, list[bool]]]:
    """The right, the turn that follows from it, and whose turn it was whenever there was news."""
    monkeypatch.setattr(holding, "HOLD_SECONDS", 0.1)
    monkeypatch.setattr(holding, "LATE_SECONDS", late_seconds)
    monkeypatch.setattr(holding, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(turn, "COUNTS_FOR_SECONDS", COUNTS_FOR_SECONDS)
    right, news = Right(), list[bool]()
    task = asyncio.create_task(hold(cast(Any, right), lambda: news.append(right.turn.is_ours())))
    try:
        await until(lambda: bool(news), "it was asked", 5)
        yield right, right.turn, news
    finally:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def next_news(news: list[bool], count: int) -> list[bool]:
    """What is told from now on."""
    begin = len(news)
    await until(lambda: len(news) >= begin + count, "there is news", 5)
    return news[begin:]


def hang(witness: Witness) -> None:
    witness.answers.clear()


def err(witness: Witness) -> None:
    witness.error = ConnectionFailedError("nobody there")


@pytest.mark.parametrize("who", ["coordinator", "state"])
async def test_either_may_say_that_it_is_anothers(monkeypatch: pytest.MonkeyPatch, who: str) -> None:
    """
    A coordinator that is cut off from its cluster, and not from us, says for ever that it is ours.
    """
    async with at_work(monkeypatch) as (right, ours, news):
        told = await next_news(news, 10)
        getattr(right, who).taken = True
        await until(lambda: not ours.is_ours(), "the right is lost", COUNTS_FOR_SECONDS / 2)
        afterwards = await next_news(news, 10)

    assert (set(told), set(afterwards)) == ({True}, {False})


@pytest.mark.parametrize("trouble", [hang, err])
async def test_while_the_coordinator_cannot_be_asked_we_go_on_by_what_the_state_says(
    monkeypatch: pytest.MonkeyPatch, trouble: Callable[[Witness], None]
) -> None:
    """
    Also that it is another's, at once.
    """
    async with at_work(monkeypatch) as (right, ours, news):
        trouble(right.coordinator)
        await until(lambda: right.state.asked > 0, "the state is asked", 5)
        told = await next_news(news, 20)
        right.state.taken = True
        await until(lambda: not ours.is_ours(), "the right is lost", COUNTS_FOR_SECONDS / 2)

    assert set(told) == {True}


@pytest.mark.parametrize("trouble", [hang, err])
async def test_while_nobody_can_tell_it_is_not_our_turn_for_long(
    monkeypatch: pytest.MonkeyPatch, trouble: Callable[[Witness], None]
) -> None:
    """
    Who has taken the right may have begun by then. The first who answers gives it back.
    """
    async with at_work(monkeypatch) as (right, ours, _):
        trouble(right.coordinator)
        trouble(right.state)
        await until(lambda: not ours.is_ours(), "the proof is too old", 5)
        right.state.error = None
        right.state.answers.set()
        await until(ours.is_ours, "it is proven again", 5)
        asked = right.state.asked
        right.coordinator.error = None
        right.coordinator.answers.set()
        await until(lambda: right.coordinator.hanging == 0, "the coordinator answers", 5)

    assert asked > 0


async def test_who_has_stood_still_while_the_question_hung_has_to_ask_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    The answer was there all the time, and is old when it is read.
    """
    async with at_work(monkeypatch) as (right, ours, news):
        hang(right.coordinator)
        hang(right.state)
        await until(lambda: right.coordinator.hanging > 0, "it is asked again", 5)
        right.coordinator.answers.set()
        time.sleep(1.5 * COUNTS_FOR_SECONDS)  # noqa: ASYNC251 - the whole process stands still
        woken = ours.is_ours()
        told = await next_news(news, 1)
        await until(ours.is_ours, "it was asked again", 5)

    assert (woken, told[0]) == (False, False)
