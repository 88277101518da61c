"""Who sends next, and how fast."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from datetime import UTC, datetime
from unittest.mock import Mock

import pytest
from structlog.testing import capture_logs

from mirror.link.protocol import Channel
from mirror.relay import pacing
from mirror.relay.pacing import BURST_SECONDS, Pace, Turnstile, follow
from mirror.timetable import Period, days_of, hours_of

SLICE = 1000


class Somebody:
    """Has so many slices of each channel left."""

    def __init__(self, log: list[tuple[str, Channel]], name: str, **left: int) -> None:
        self._log = log
        self._name = name
        self.left = Counter({Channel[channel]: count for channel, count in left.items()})
        self._more = asyncio.Event()
        self._count = 0

    def send_slice(self, channel: Channel, _: float) -> int:
        if not self.left[channel]:
            return 0
        self.left[channel] -= 1
        self._log.append((self._name, channel))
        self._count += 1
        self._more.set()
        return SLICE

    async def sent(self, count: int) -> None:
        """Wait until it has sent so many slices."""
        while self._count < count:
            self._more.clear()
            await self._more.wait()


def test_a_pace_is_kept_over_time() -> None:
    """
    A pause saves up no more than a moment's worth.
    """
    pace, now = Pace(), 100.0
    pace.change(1000.0)
    waits = []
    for _ in range(5):
        waits.append(max(pace.wait(now), 0.0))
        now += waits[-1]
        pace.spent(100, now)

    assert waits[2:] == pytest.approx([0.1] * 3)
    assert sum(waits) >= 0.4 - BURST_SECONDS - 0.001
    assert pace.wait(now + 1000) < 0


def test_without_a_rate_nothing_waits() -> None:
    """
    Also after there was one.
    """
    pace = Pace()
    pace.change(1.0)
    pace.spent(1_000_000, 0.0)
    assert pace.wait(0.0) > 1000

    pace.change(None)

    assert pace.wait(0.0) <= 0


async def test_the_urgent_of_all_goes_before_what_is_behind_and_each_in_turn() -> None:
    """
    Three mirrors: nobody has two slices while another of the same urgency waits for one.
    """
    log: list[tuple[str, Channel]] = []
    turnstile = held_up()
    for name in "abc":
        turnstile.wants(somebody := Somebody(log, name, BULK=6, LIVE=1), Channel.BULK)
        turnstile.wants(somebody, Channel.LIVE)

    turnstile.change(None)

    urgent, behind = log[:3], [name for name, _ in log[3:]]
    assert sorted(urgent) == [(name, Channel.LIVE) for name in "abc"]
    assert behind == list("abc") * 6


class AsksAgain(Somebody):
    """Says with each slice that there is more, as one whose frame was sent to its end does."""

    def __init__(self, turnstile: Turnstile, log: list[tuple[str, Channel]], name: str, **left: int) -> None:
        super().__init__(log, name, **left)
        self._turnstile = turnstile

    def send_slice(self, channel: Channel, now: float) -> int:
        if sent := super().send_slice(channel, now):
            self._turnstile.wants(self, channel)
        return sent


async def test_who_asks_more_often_has_no_more_turns() -> None:
    """
    Neither by asking while others wait, nor with each slice; and a long row of slices is no deep one.
    """
    log: list[tuple[str, Channel]] = []
    turnstile, count = held_up(), 2 * sys.getrecursionlimit()
    one = AsksAgain(turnstile, log, "one", BULK=count)
    other = Somebody(log, "other", BULK=count)
    for somebody in (one, one, one, other):
        turnstile.wants(somebody, Channel.BULK)

    turnstile.change(None)

    assert [name for name, _ in log] == ["one", "other"] * count


async def test_however_many_ask_while_a_limit_holds_them_back_one_timer_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    Each of them would come back with another one, as long as anything waits.
    """
    timers = Mock()
    monkeypatch.setattr(asyncio.get_running_loop(), "call_later", timers)
    turnstile = held_up()

    for name in "abc":
        turnstile.wants(Somebody([], name, BULK=1), Channel.BULK)

    assert timers.call_count == 1


async def test_all_together_are_no_faster_than_allowed() -> None:
    """
    And as soon as the limit is lifted, what waits goes at once.
    """
    log: list[tuple[str, Channel]] = []
    turnstile = held_up()
    one, other = Somebody(log, "one", BULK=1000), Somebody(log, "other", BULK=1000)
    turnstile.wants(one, Channel.BULK)
    turnstile.wants(other, Channel.BULK)

    began = time.monotonic()
    turnstile.change(20 * SLICE)
    async with asyncio.timeout(10):
        await one.sent(5)
        await other.sent(5)
    seconds = time.monotonic() - began
    turnstile.change(None)

    assert seconds >= (10 - 1) / 20 - BURST_SECONDS
    assert one.left.total() == other.left.total() == 0


def held_up() -> Turnstile:
    """Nobody gets through before the pace is another one."""
    turnstile = Turnstile()
    turnstile.change(1.0)
    turnstile.pace.spent(SLICE, time.monotonic())
    return turnstile


class Clock:
    """Stands where a test has put it."""

    def __init__(self, at: str) -> None:
        self._now = datetime.fromisoformat(at)
        self._asked = asyncio.Event()

    def __call__(self) -> datetime:
        self._asked.set()
        return self._now

    async def turned_to(self, at: str) -> None:
        """It is so late now, and somebody has looked."""
        self._now = datetime.fromisoformat(at)
        self._asked.clear()
        async with asyncio.timeout(5):
            await self._asked.wait()


async def test_a_limit_begins_and_ends_when_the_calendar_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Under what is waiting to be sent, which goes on at the new rate at once; each change is told once.
    """
    monkeypatch.setattr(pacing, "TIMETABLE_SECONDS", 0.001)
    by_day = Period(2.0 * SLICE, days_of("mon-fri"), *hours_of("08:00-18:00"), zone=UTC)
    by_night = Period(1e9, days_of("mon-fri"), *hours_of("22:00-06:00"), zone=UTC)
    clock, turnstile, rates = Clock("2026-11-20T07:59:59Z"), Turnstile(), []
    somebody = Somebody([], "one", BULK=1000)

    with capture_logs() as logged:
        following = asyncio.create_task(follow(turnstile, [by_day, by_night], clock))
        for hours in ("20T07:59", "20T08:00", "20T17:59", "20T18:00", "20T22:00", "21T05:59", "21T06:00"):
            await clock.turned_to(f"2026-11-{hours}:59Z")
            rates.append(turnstile.pace.rate)
            if hours == "20T17:59":
                turnstile.wants(somebody, Channel.BULK)
                held = somebody.left.total()
        following.cancel()

    assert rates == [None, 2.0 * SLICE, 2.0 * SLICE, None, 1e9, 1e9, None]
    assert held > 990
    assert somebody.left.total() == 0
    assert [line["bytes_per_second"] for line in logged] == [2.0 * SLICE, None, 1e9, None]
