"""The SASL session of a connection: authenticated at the start, and again before it expires.

The broker closes a connection on which anything else arrives during re-authentication: other requests wait
here until that is done.

Sources: KIP-368 (re-authentication).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import structlog

from mirror.errors import AuthenticationError, ConnectionFailedError
from mirror.kafka.answers import Due, Ended
from mirror.kafka.greeting import authenticate
from mirror.kafka.outgoing import Buffers
from mirror.kafka.security import Security, reauthenticate_after_seconds

log = structlog.get_logger(__name__)


class Way(NamedTuple):
    """What a connection does for its session; nothing of it is kept once the connection has ended.

    Attributes:
        ask: Sends a request at once, ahead of those that wait, and returns its answer.
        submit: Sends a request that has waited.
        lost: Called with the error for which the session could not be renewed.
    """

    ask: Callable[[Any], Awaitable[Any]]
    submit: Callable[[Due, Buffers], None]
    lost: Callable[[Ended], None]


class Session:
    """The session of one connection.

    Attributes:
        held: Requests that wait, in order; None while none has to wait.

    Args:
        where: The broker, for messages.
    """

    def __init__(self, security: Security, where: str) -> None:
        self.held: list[tuple[Due, Buffers]] | None = None
        self._security = security
        self._where = where
        self._ended = False
        self._proven = False
        self._timer: asyncio.TimerHandle | None = None
        self._renewing: set[asyncio.Task[None]] = set()

    async def begin(self, way: Way) -> None:
        """Authenticate, where the settings ask for it, and schedule the next time.

        Call :meth:`mirror.kafka.security.Security.prepare` first. A session too short to be renewed ends with
        its connection; the next caller opens another one.

        Raises:
            AuthenticationError, ConnectionFailedError: As :func:`mirror.kafka.greeting.authenticate`.
        """
        lifetime_ms = await authenticate(way.ask, self._security, self._where, again=self._proven)
        self._proven = True
        delay = reauthenticate_after_seconds(lifetime_ms)
        if delay is not None and not self._ended:
            self._timer = asyncio.get_running_loop().call_later(delay, self._renew, way)

    def end(self) -> None:
        """The connection has ended: renew nothing any more."""
        self._ended = True
        if self._timer is not None:
            self._timer.cancel()

    def _renew(self, way: Way) -> None:
        task = asyncio.get_running_loop().create_task(self._renewed_or_lost(way))
        self._renewing.add(task)
        task.add_done_callback(self._renewing.discard)

    async def _renewed_or_lost(self, way: Way) -> None:
        try:
            await self._security.prepare()
            self.held = []
            await self.begin(way)
            log.debug("session_renewed", broker=self._where)
        except (AuthenticationError, ConnectionFailedError) as error:
            way.lost(error)
        finally:
            held, self.held = self.held or [], None
            for due, buffers in held:
                due.sent_at = time.monotonic()
                way.submit(due, buffers)
