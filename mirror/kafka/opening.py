"""A connection that is being opened: where to, for how long, and given up if that place no longer counts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any

from mirror.errors import ConnectionFailedError
from mirror.kafka.connection import Connection
from mirror.kafka.dial import Address


class Opening:
    """A connection that is being opened, once. Whoever knows better may give it up.

    Attributes:
        address: Where to.
    """

    def __init__(self, address: Address) -> None:
        self.address = address
        self._began_at = time.monotonic()
        self._limit: asyncio.Timeout | None = None
        """While :meth:`wait` runs."""
        self._why_given_up: str | None = None

    @property
    def seconds(self) -> float:
        """For how long it has been opened."""
        return time.monotonic() - self._began_at

    async def wait(self, work: Coroutine[Any, Any, Connection]) -> Connection:
        """Run what opens the connection, and return that.

        Raises:
            ConnectionFailedError: It was given up.
            TwinsiteError: Whatever ``work`` raises.
        """
        try:
            async with asyncio.timeout(0 if self.given_up else None) as self._limit:
                return await work
        except TimeoutError as error:
            if not self.given_up:
                raise
            raise ConnectionFailedError(f"{self.address}: {self._why_given_up}") from error
        finally:
            self._limit = None

    @property
    def given_up(self) -> bool:
        """Whether somebody has given it up."""
        return self._why_given_up is not None

    def give_up(self, why: str) -> None:
        """End :meth:`wait`, now or once it begins. When that has ended, this changes nothing."""
        if self.given_up:
            return
        self._why_given_up = why
        if self._limit is not None:
            self._limit.reschedule(asyncio.get_running_loop().time())
