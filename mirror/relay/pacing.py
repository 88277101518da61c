"""Who sends the next slice: what is urgent before what is behind, mirrors in turn, no faster than allowed.

Moments are monotonic seconds, rates bytes a second.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Protocol

import structlog

from mirror.link.protocol import Channel
from mirror.timetable import TIMETABLE_SECONDS, Period, rate_at

log = structlog.get_logger(__name__)

BURST_SECONDS = 0.02
"""What was not sent within this time may follow at once: timers are no more exact than this."""


class Pace:
    """A rate, and when it allows the next bytes. Pure."""

    def __init__(self) -> None:
        self.rate: float | None = None
        self._free_at = 0.0

    def change(self, rate: float | None) -> None:
        """Set another rate; None: no limit."""
        self.rate = rate
        self._free_at = 0.0

    def wait(self, now: float) -> float:
        """Seconds until the next bytes may go; 0 or less: now."""
        return self._free_at - now if self.rate else 0.0

    def spent(self, size: int, now: float) -> None:
        """Count bytes that were sent."""
        if self.rate:
            self._free_at = max(self._free_at, now - BURST_SECONDS) + size / self.rate


class Sends(Protocol):
    """Has something to send."""

    def send_slice(self, channel: Channel, now: float) -> int:
        """Send the next bytes that are as urgent as ``channel``; returns how many, 0 if none may go now."""


class Turnstile:
    """Everything that a relay sends of frames goes through it."""

    def __init__(self) -> None:
        self.pace = Pace()
        self._waiting: dict[Channel, deque[Sends]] = {channel: deque() for channel in sorted(Channel)}
        self._turning = False
        self._timer: asyncio.TimerHandle | None = None

    def change(self, rate: float | None) -> None:
        """Send no more than this to all mirrors together, in bytes a second; None: no limit."""
        self.pace.change(rate)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._turn()

    def wants(self, sender: Sends, channel: Channel) -> None:
        """``sender`` has something to send that is as urgent as ``channel``."""
        waiting = self._waiting[channel]
        if sender not in waiting:
            waiting.append(sender)
        self._turn()

    def _turn(self) -> None:
        if self._turning or self._timer is not None:
            return  # a turn is under way, or a timer will begin one
        self._turning = True
        try:
            while (channel := self._most_urgent()) is not None:
                now = time.monotonic()
                wait = self.pace.wait(now)
                if wait > 0:
                    self._timer = asyncio.get_running_loop().call_later(wait, self._again)
                    return
                self._let_one_through(channel, now)
        finally:
            self._turning = False

    def _most_urgent(self) -> Channel | None:
        return next((channel for channel, waiting in self._waiting.items() if waiting), None)

    def _let_one_through(self, channel: Channel, now: float) -> None:
        waiting = self._waiting[channel]
        sender = waiting.popleft()
        sent = sender.send_slice(channel, now)
        if sent:
            self.pace.spent(sent, now)
            if sender not in waiting:
                waiting.append(sender)

    def _again(self) -> None:
        self._timer = None
        self._turn()


async def follow(turnstile: Turnstile, periods: Sequence[Period], clock: Callable[[], datetime]) -> None:
    """Apply the rates of a timetable until cancelled.

    Args:
        clock: Returns the time, in any zone, but with one.
    """
    before: float | None = None
    while True:
        rate = rate_at(periods, clock())
        if rate != before:
            log.info("rate_limited", bytes_per_second=rate)
            turnstile.change(rate)
            before = rate
        await asyncio.sleep(TIMETABLE_SECONDS)
