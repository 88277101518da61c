"""Where the owner of a flow runs: it writes that to the flow's state, and withdraws it when it ends.

What only the owner may write, an operator can ask only of the owner. The record counts
as long as it carries the epoch that the coordinator gave out last. A standby takes over
when it is withdrawn (:mod:`mirror.flow.succession`).
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Self

import structlog

from checkpoint.model import OwnerRecord
from mirror.errors import ExitCode, TwinsiteError
from mirror.flow.memory import FlowMemory
from mirror.flow.owner import Owner
from mirror.kafka.transactions import Token
from mirror.link.loops import beside
from mirror.logs import Repeats, warn_repeated
from mirror.model import TopicPartition, only_on, owned_by

log = structlog.get_logger(__name__)

LOOK_SECONDS = 2.0
REPEAT_SECONDS = 30.0
"""How often the record is repeated. It is repeated at once when the state is seen to have lost its end, or
its topic: what is gone is rewritten only ahead of the next write. An idle flow would otherwise write nothing,
and would not detect the loss once the state is as long again as it was.
"""
WITHDRAW_SECONDS = 3.0


class NotOwnerError(TwinsiteError):
    """Only the owner of the flow may do this, and another mirror is the owner; nothing was done."""

    exit_code = ExitCode.REFUSED


class Announcer:
    """Writes down where the owner runs, each time this mirror becomes the owner and every ``REPEAT_SECONDS``.

    Used with ``async with``, it withdraws the record when the block ends, for whatever reason. A cancelled
    task withdraws it too; a second cancellation, while it does, leaves the record in place.

    Args:
        url: Where people reach this mirror; empty when it has no port.
    """

    def __init__(self, owner: Owner, memory: FlowMemory, url: str) -> None:
        self._owner = owner
        self._memory = memory
        self._url = url
        self._announced: Token | None = None
        self._begun: Token | None = None
        """The token under which a record was sent last: it may be there although no answer said so."""
        self._record: OwnerRecord | None = None
        self._writing: asyncio.Task[None] | None = None
        """The last write of a record. It goes on if :meth:`announce` is cancelled: what was sent may land at
        any moment, between what a later write has read and what it writes.
        """
        self._repeat_at = 0.0
        self._repeats = Repeats()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.withdraw()

    async def run(self) -> None:
        """Announce until cancelled. Copying does not depend on it: failures are logged and retried."""
        while True:
            try:
                await self.announce()
            except TwinsiteError as error:
                warn_repeated(log, self._repeats, "announce", "owner_not_announced", error=str(error))
            await asyncio.sleep(LOOK_SECONDS)

    async def announce(self) -> None:
        """Check that we are still the owner; write the record after each claim of the right, and repeat it.

        Raises:
            TwinsiteError: Neither the coordinator nor the flow's state can be asked, or the record could not
                be written.
        """
        token = self._owner.token
        if token is None or not await self._owner.confirm():
            return
        if token != self._announced or self._record is None:
            now_ms = int(time.time() * 1000)
            self._record = OwnerRecord(token.epoch, socket.gethostname(), os.getpid(), self._url, now_ms)
            self._begun = token
            await self._write(self._record)
            self._announced = token
            log.info("owner_of_the_flow", producer_epoch=token.epoch)
        elif time.monotonic() >= self._repeat_at or self._memory.cut_short():
            await self._write(self._record)
        else:
            return
        self._repeat_at = time.monotonic() + REPEAT_SECONDS

    async def _write(self, record: OwnerRecord) -> None:
        self._writing = asyncio.create_task(self._memory.note_owner(record))
        await asyncio.shield(self._writing)

    async def _written(self) -> None:
        """Wait for a write that is still under way; a cancellation ends it."""
        if self._writing is not None and not self._writing.done():
            with suppress(TwinsiteError):
                await self._writing

    async def withdraw(self) -> None:
        """Withdraw the record at the end. A failure is logged, and the next owner waits a little longer."""
        if self._begun is None:
            return
        try:
            async with asyncio.timeout(WITHDRAW_SECONDS):
                await self._written()
                if await self._owner.confirm() and self._owner.token == self._begun:
                    await self._memory.note_owner(None)
        except (TwinsiteError, TimeoutError) as error:
            log.warning("owner_not_withdrawn", error=str(error) or "no answer")


@asynccontextmanager
async def announced(owner: Owner, memory: FlowMemory, url: str) -> AsyncIterator[None]:
    """In the block this mirror records where it runs whenever it is the owner; the end withdraws that."""
    async with Announcer(owner, memory, url) as announcer, beside(announcer.run()):
        yield


def word_of(word: OwnerRecord | None, holder: Token | None) -> OwnerRecord | None:
    """The owner record if it was written by the holder of the right; else None."""
    return word if word is not None and holder is not None and word.producer_epoch == holder.epoch else None


def copied_by(word: OwnerRecord | None, holder: Token | None) -> str:
    """Who copies what this mirror does not, in words."""
    its_own = word_of(word, holder)
    return owned_by(its_own.place if its_own else None)


async def require_owner(owner: Owner, memory: FlowMemory, tp: TopicPartition) -> None:
    """Return only if this mirror is the owner of the flow. The memory must have been read just now.

    The caller may write to the state at once, even right after a takeover: the broker refuses the former
    owner.

    Raises:
        NotOwnerError: It is not the owner; the error says who is and what to do.
        TwinsiteError: The coordinator cannot be asked.
    """
    holder = await owner.holder()
    if holder == owner.token:
        return
    word = word_of(memory.owner, holder)
    if word is None:
        raise NotOwnerError(
            f"{tp}: {owned_by(None)}, and has not reported where it runs",
            hint="ask the mirror whose status says owner: true; if no mirror does, restart this one",
        )
    way = f"{only_on(word.url, word.host)} with --url {word.url}" if word.url else ""
    raise NotOwnerError(
        f"{tp}: {owned_by(word.place)}",
        hint=f"ask the owner{way}; if it is gone for good, restart this mirror: it becomes the owner",
    )
