"""Ask every second whether the right to copy is still ours: the coordinator, and the flow's state.

Either proves it, so one that hangs stops nobody. Either may also say that the right is another's: a
coordinator that is cut off from its cluster, but not from us, does not know what the next one has given away.
While neither answers nothing is proven, and soon nothing is sent (:mod:`mirror.flow.turn`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import structlog

from mirror.errors import TwinsiteError
from mirror.flow.owner import Owner
from mirror.flow.turn import COUNTS_FOR_SECONDS
from mirror.logs import Repeats, warn_repeated

log = structlog.get_logger(__name__)

HOLD_SECONDS = 1.0
"""Between two questions to the coordinator, and between two to the state."""
LATE_SECONDS = 0.25
"""When proof is this much later than usual, it is logged why the state gives none."""
LOOK_SECONDS = 0.1


async def hold(owner: Owner, on_news: Callable[[], None] = lambda: None) -> None:
    """Ask until cancelled.

    Args:
        on_news: Called after each question, whether it was answered or not.
    """

    def is_late() -> bool:
        return owner.held and owner.turn.proof_age_seconds > HOLD_SECONDS + LATE_SECONDS

    async with asyncio.TaskGroup() as group:
        group.create_task(_ask(lambda: owner.ask(COUNTS_FOR_SECONDS), on_news))
        group.create_task(_ask(owner.ask_the_state, on_news, is_late))
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            owner.turn.withdraw()


async def _ask(
    question: Callable[[], Awaitable[object]],
    on_news: Callable[[], None],
    matters: Callable[[], bool] = lambda: True,
) -> None:
    """Ask every ``HOLD_SECONDS``.

    Args:
        matters: Whether to log that there was no answer.
    """
    repeats = Repeats()
    while True:
        asked_at = time.monotonic()
        try:
            await question()
        except TwinsiteError as error:
            if matters():
                warn_repeated(log, repeats, "hold", "right_not_confirmed", error=str(error))
        else:
            repeats.forget("hold")
        on_news()
        await asyncio.sleep(max(0.0, HOLD_SECONDS - (time.monotonic() - asked_at)))
