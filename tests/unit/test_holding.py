"""The coordinator is asked whose right it is; what that means for us when it hangs, errs or says another."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from mirror.errors import ConnectionFailedError
from mirror.flow import holding, turn
from mirror.flow.holding import hold
from mirror.flow.turn import Turn
from tests.harness.node import until

COUNTS_FOR_SECONDS = 1.0


class Right:
    """The right of a mirror whose coordinator answers as it is told."""

    def __init__(self) -> None:
        self.turn = Turn()
        self.held = True
        self.asked = self.hanging = 0
        self.answers = asyncio.Event()
        self.answers.set()
        self.error: ConnectionFailedError | None = None

    async def ask(self, _: float) -> bool:
        asked_at = time.monotonic()
        self.asked += 1
        self.hanging += 1
        await self.answers.wait()
        self.hanging -= 1
        if self.error is not None:
            raise self.error
        if self.held:
            self.turn.proven(asked_at)
        else:
            self.turn.lost()
        return self.held


@asynccontextmanager
async def at_work(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Right, Turn, list[bool]]]:
    """The right, the turn that follows from it, and whose turn it was whenever there was news."""
    monkeypatch.setattr(holding, "HOLD_SECONDS", 0.1)
    monkeypatch.setattr(holding, "TOUCH_SECONDS", 0.1)
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


async def test_while_the_coordinator_hangs_we_go_on_and_its_answer_still_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    One question is on its way, however long. That another mirror has the right is heard when it comes.
    """
    async with at_work(monkeypatch) as (right, ours, news):
        right.answers.clear()
        await until(lambda: right.hanging > 0, "it is asked again", 5)
        asked = right.asked
        hanging = await next_news(news, 10)
        still_asked = right.asked
        right.held = False
        right.answers.set()
        await until(lambda: not ours.is_ours(), "the right is lost", 5)

    assert set(hanging) == {True}
    assert still_asked == asked


async def test_who_cannot_ask_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    The question fails at once, again and again.
    """
    async with at_work(monkeypatch) as (right, _, news):
        right.error = ConnectionFailedError("nobody there")
        failing = await next_news(news, 10)

    assert set(failing) == {True}


async def test_who_has_stood_still_while_the_question_hung_has_to_ask_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    The answer was there all the time, and is old when it is read.
    """
    async with at_work(monkeypatch) as (right, ours, news):
        right.answers.clear()
        await until(lambda: right.hanging > 0, "it is asked again", 5)
        right.answers.set()
        time.sleep(1.5 * COUNTS_FOR_SECONDS)  # noqa: ASYNC251 - the whole process stands still
        woken = ours.is_ours()
        told = await next_news(news, 1)
        await until(ours.is_ours, "it was asked again", 5)

    assert (woken, told[0]) == (False, False)


async def test_a_coordinator_that_always_takes_longer_than_we_wait_is_no_reason_to_stop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    Its answers are old when they come, and say all the same that nobody has taken the right.
    """
    async with at_work(monkeypatch) as (right, _, news):
        begin = len(news)
        for _round in range(5):
            right.answers.clear()
            await until(lambda: right.hanging > 0, "it is asked again", 5)
            await next_news(news, 3)
            right.answers.set()
            await until(lambda: right.hanging == 0, "it has answered", 5)

    assert set(news[begin:]) == {True}
