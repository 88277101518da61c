"""Ask every second whether the right to copy is still ours; where the coordinator is late, the flow's state.

Either proves it. While neither answers nothing is proven, and soon nothing is sent (:mod:`mirror.flow.turn`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import structlog

from mirror.errors import TwinsiteError
from mirror.flow.owner import Owner
from mirror.flow.turn import COUNTS_FOR_SECONDS
from mirror.logs import Repeats, warn_repeated

log = structlog.get_logger(__name__)

HOLD_SECONDS = 1.0
"""Between two questions to the coordinator."""
LATE_SECONDS = 0.25
"""So much later than usual, and the state is asked."""
LOOK_SECONDS = 0.1


async def hold(owner: Owner, on_news: Callable[[], None] = lambda: None) -> None:
    """Ask until cancelled.

    Args:
        on_news: Called after each question: it is known whose turn it is, or nobody can say.
    """
    async with asyncio.TaskGroup() as group:
        group.create_task(_ask_the_coordinator(owner, on_news))
        await _keep_time(owner, on_news, group)


async def _ask_the_coordinator(owner: Owner, on_news: Callable[[], None]) -> None:
    repeats = Repeats()
    while True:
        asked_at = time.monotonic()
        await _asked(lambda: owner.ask(COUNTS_FOR_SECONDS), repeats, on_news)
        await asyncio.sleep(max(0.0, HOLD_SECONDS - (time.monotonic() - asked_at)))


async def _keep_time(owner: Owner, on_news: Callable[[], None], group: asyncio.TaskGroup) -> None:
    """Ask the state where the coordinator is late, and see when the last proof is too old."""
    repeats = Repeats()
    asking: asyncio.Task[None] | None = None
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        owner.turn.withdraw()
        late = owner.held and owner.turn.proof_age_seconds > HOLD_SECONDS + LATE_SECONDS
        if late and (asking is None or asking.done()):
            asking = group.create_task(_asked(owner.ask_the_state, repeats, on_news))


async def _asked(
    question: Callable[[], Awaitable[object]], repeats: Repeats, on_news: Callable[[], None]
) -> None:
    try:
        await question()
    except TwinsiteError as error:
        warn_repeated(log, repeats, "hold", "right_not_confirmed", error=str(error))
    else:
        repeats.forget("hold")
    on_news()


@asynccontextmanager
async def holding(owner: Owner) -> AsyncIterator[None]:
    """In the block it is asked; for those who write now and then."""
    task = asyncio.create_task(hold(owner))
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
