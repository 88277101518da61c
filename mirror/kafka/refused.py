"""Addresses where no connection could be opened: each is left alone for a while, longer with each failure.

Whoever comes meanwhile gets the last error at once. When the pause is over one tries, and the others wait for
how that ends. So however many want a connection there, the other side sees one attempt for each pause: the
way there may be paid by the byte, and a broker logs each login that it refuses.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from mirror.errors import TwinsiteError
from mirror.kafka.failures import growing_seconds

if TYPE_CHECKING:
    from mirror.kafka.dial import Address

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.2, 5.0
"""The pause doubles from the one to the other: who was away for a second is noticed about a second later, and
who is away for days is tried every few seconds.
"""
SPREAD = 0.2
"""Each pause is longer or shorter by up to this share: many that lost the same broker at the same moment are
not to come back at the same moment.
"""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Failure:
    """How the last attempt at an address has failed. Times are monotonic seconds.

    Attributes:
        times: How many have failed in a row.
        until: Until when the address is left alone.
        attempt: Set once the attempt that is under way has ended; None while there is none.
    """

    error: TwinsiteError
    at: float
    times: int
    until: float
    attempt: asyncio.Event | None = None

    @property
    def seconds(self) -> float:
        return max(self.until - time.monotonic(), 0.0)

    def pause(self) -> float:
        """Until when to leave the address alone from now on."""
        spread = random.uniform(1 - SPREAD, 1 + SPREAD)  # noqa: S311 - no secret
        seconds = growing_seconds(FIRST_PAUSE_SECONDS, self.times, LONGEST_PAUSE_SECONDS)
        return time.monotonic() + seconds * spread


class Refused:
    """The addresses that are left alone, or that the next attempt has to show to be of use again.

    Attributes:
        attempts: How many were made so far, wherever.
    """

    def __init__(self) -> None:
        self.attempts = 0
        self._failures: dict[Address, _Failure] = {}

    @property
    def addresses(self) -> Set[Address]:
        """Where the last attempt has failed."""
        return self._failures.keys()

    def seconds(self, address: Address) -> float:
        """For how much longer the address is left alone; 0: it may be tried, or is being tried."""
        failure = self._failures.get(address)
        return 0.0 if failure is None or failure.attempt is not None else failure.seconds

    async def attempt(self, address: Address, work: Callable[[], Awaitable[T]]) -> T:
        """Open a connection there, unless the address is left alone.

        Args:
            work: Opens it.

        Raises:
            TwinsiteError: What ``work`` raises, or what it raised last.
        """
        while (failure := self._failures.get(address)) is not None and failure.seconds:
            if failure.attempt is None:
                raise copy_of(failure.error)
            with suppress(TimeoutError):
                async with asyncio.timeout(failure.seconds):
                    await failure.attempt.wait()
        return await self._tried(address, work)

    async def _tried(self, address: Address, work: Callable[[], Awaitable[T]]) -> T:
        """Others wait for how this ends, but no longer than for a pause: it may take long."""
        self.attempts += 1
        began_at, ended, before = time.monotonic(), asyncio.Event(), self._failures.get(address)
        under_way = None
        if before is not None:
            under_way = self._failures[address] = replace(before, until=before.pause(), attempt=ended)
        try:
            done = await work()
        except TwinsiteError as error:
            self.failed(address, error, began_at)
            raise
        else:
            self.forget(address)
            return done
        finally:
            if before is not None and self._failures.get(address) is under_way:
                self._failures[address] = before  # it was cancelled, which says nothing
            ended.set()

    def failed(self, address: Address, error: TwinsiteError, began_at: float) -> None:
        """Note that an attempt has failed. Of several at once the first one counts.

        Args:
            began_at: When it was begun, in monotonic seconds.
        """
        before = self._failures.get(address)
        if before is not None and before.at > began_at:
            return
        failure = _Failure(copy_of(error), time.monotonic(), before.times + 1 if before else 1, 0.0)
        self._failures[address] = replace(failure, until=failure.pause())

    def given_up(self, address: Address, error: TwinsiteError) -> None:
        """Note that somebody has given up an attempt, where nothing is known yet: the address may be of use
        to those with more time.
        """
        self._failures.setdefault(address, _Failure(error, 0.0, 1, 0.0))

    def forget(self, address: Address) -> None:
        """The address is of use, or another broker has it now."""
        self._failures.pop(address, None)

    def try_now(self, addresses: Iterable[Address] | None = None) -> None:
        """Let whoever comes next try these addresses, or all: there is news, or somebody asks for it."""
        for address in list(self._failures if addresses is None else addresses):
            if address in self._failures:
                self._failures[address] = replace(self._failures[address], until=0.0)


def copy_of(error: TwinsiteError) -> TwinsiteError:
    """The same error, without the stack frames that it has passed through."""
    return type(error)(str(error), hint=error.hint)
