"""A line of readers and writers of one store, who go one after the other.

A request to a store that does not answer takes until its timeout. Each of those waiting in line would then
wait as long again, and the last one for all of them. So they fail at once with the error of the one before.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from checkpoint.errors import StateTakenOverError
from mirror.errors import TwinsiteError


class WaitingLine:
    """Lets one at a time read or write."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._failed: TwinsiteError | None = None
        """The error of the last block, if it was one that makes others wait; None otherwise."""

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """In the block nobody else reads or writes.

        A caller that waited for a block that failed without an answer gets the same error at once. One that
        comes later tries again.

        Raises:
            TwinsiteError: The error of the block waited for, if it is retriable and no StateTakenOverError.
        """
        before = self._failed
        async with self._lock:
            failed = self._failed
            if failed is not None and failed is not before:
                raise failed.with_traceback(None)  # kept without the frames that it passed through
            try:
                yield
            except TwinsiteError as error:
                waits = error.retriable and not isinstance(error, StateTakenOverError)
                self._failed = error if waits else None
                raise
            self._failed = None
