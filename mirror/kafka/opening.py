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
        self._limit = asyncio.timeout(None)
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
            async with self._limit:
                return await work
        except TimeoutError as error:
            if self._why_given_up is None:
                raise
            raise ConnectionFailedError(f"{self.address}: {self._why_given_up}") from error

    def give_up(self, why: str) -> None:
        """End :meth:`wait`, in which this must be called."""
        if self._why_given_up is None:
            self._why_given_up = why
            self._limit.reschedule(asyncio.get_running_loop().time())
