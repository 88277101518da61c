"""A line of those who read or write the same store, one after the other.

A store that does not answer keeps whoever asks it as long as a question may take. Those who
have waited behind it would wait as long again, each of them, and the last one for all: so
they are told what it was told.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from checkpoint.errors import StateTakenOverError
from mirror.errors import TwinsiteError


class WaitingLine:
    """Lets one in at a time."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._failed: TwinsiteError | None = None
        """Why the last of those who were alone could not read or write; None where it could."""

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """In the block nobody else reads or writes.

        Whoever has waited for one that got no answer is told the same at once: it would wait as long itself,
        and so would all behind it, one after the other. Who comes later tries anew.

        Raises:
            TwinsiteError: As of the block before, where that failed meanwhile and may be tried again.
        """
        before = self._failed
        async with self._lock:
            failed = self._failed
            if failed is not None and failed is not before:
                raise failed.with_traceback(None)  # it is kept: not with what it passed by
            try:
                yield
            except TwinsiteError as error:
                waits = error.retriable and not isinstance(error, StateTakenOverError)
                self._failed = error if waits else None
                raise
            self._failed = None
