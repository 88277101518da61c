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
"""What was not sent in so long a time may follow at once: a timer is no more exact than this."""


class Pace:
    """A rate, and what was sent of it. Pure."""

    def __init__(self) -> None:
        self.rate: float | None = None
        self._free_at = 0.0

    def change(self, rate: float | None) -> None:
        """Another rate from now on; None: as fast as it goes."""
        self.rate = rate
        self._free_at = 0.0

    def wait(self, now: float) -> float:
        """Seconds until the next bytes may go; not positive where they may."""
        return self._free_at - now if self.rate else 0.0

    def spent(self, size: int, now: float) -> None:
        """So many bytes went."""
        if self.rate:
            self._free_at = max(self._free_at, now - BURST_SECONDS) + size / self.rate


class Sends(Protocol):
    """Somebody with something to send."""

    def send_slice(self, channel: Channel, now: float) -> int:
        """Send the next bytes of a channel; answers how many, 0 where nothing may go."""


class Turnstile:
    """Through it goes all that a relay sends of frames."""

    def __init__(self) -> None:
        self.pace = Pace()
        self._waiting: dict[Channel, deque[Sends]] = {channel: deque() for channel in sorted(Channel)}
        self._turning = False
        self._timer: asyncio.TimerHandle | None = None

    def change(self, rate: float | None) -> None:
        """Send no more than this to all mirrors together."""
        self.pace.change(rate)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._turn()

    def wants(self, sender: Sends, channel: Channel) -> None:
        """Somebody has something to send, of this channel."""
        waiting = self._waiting[channel]
        if sender not in waiting:
            waiting.append(sender)
        self._turn()

    def _turn(self) -> None:
        if self._turning or self._timer is not None:
            return  # what waits has its turn already
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
    """Let through as much as a timetable says, until cancelled.

    Args:
        clock: What time it is, of any zone, but with one.
    """
    before: float | None = None
    while True:
        rate = rate_at(periods, clock())
        if rate != before:
            log.info("rate_limited", bytes_per_second=rate)
            turnstile.change(rate)
            before = rate
        await asyncio.sleep(TIMETABLE_SECONDS)
