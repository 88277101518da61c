"""Who sends next, and how fast."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

import pytest

from mirror.link.messages import Channel
from mirror.relay.pacing import BURST_SECONDS, Pace, Turnstile

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
