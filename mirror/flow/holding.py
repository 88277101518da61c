"""Ask every second whether the right to copy is still ours.

While the coordinator does not answer the right is neither proven nor lost, and we go on; but after we have
stood still it has to be proven (:mod:`mirror.flow.turn`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import structlog

from mirror.errors import TwinsiteError
from mirror.flow.owner import Owner
from mirror.logs import Repeats, warn_repeated

log = structlog.get_logger(__name__)

HOLD_SECONDS = 1.0
"""Between two questions."""
TOUCH_SECONDS = 0.75
"""For so long we are not known to go on while a question is on its way."""
ASKED_SECONDS = 1.5
"""Then the coordinator is looked for anew: another broker may be it by now."""


async def hold(owner: Owner, on_news: Callable[[], None] = lambda: None) -> None:
    """Ask until cancelled.

    Args:
        on_news: Called after each question, when it is known whose turn it is, or that nobody can say.
    """
    repeats = Repeats()
    while True:
        asked_at = time.monotonic()
        question = asyncio.create_task(_answered(owner, repeats))
        try:
            while not question.done():
                await asyncio.wait({question}, timeout=TOUCH_SECONDS)
                if not (question.done() and question.result()):
                    owner.turn.unproven()
                on_news()
        finally:
            question.cancel()
        await asyncio.sleep(max(0.0, HOLD_SECONDS - (time.monotonic() - asked_at)))


async def _answered(owner: Owner, repeats: Repeats) -> bool:
    try:
        await owner.ask(ASKED_SECONDS)
    except TwinsiteError as error:
        warn_repeated(log, repeats, "hold", "right_not_confirmed", error=str(error))
        return False
    repeats.forget("hold")
    return True


@asynccontextmanager
async def holding(owner: Owner) -> AsyncIterator[None]:
    """In the block the coordinator is asked; for those who write now and then."""
    task = asyncio.create_task(hold(owner))
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
