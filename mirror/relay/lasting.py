"""Work that goes on as long as a relay does.

A bug does not end it in silence: the error is logged, and the work begins again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

log = structlog.get_logger(__name__)

PAUSE_SECONDS = 1.0
"""The pause before work that has ended begins again."""


async def lasting(name: str, work: Callable[[], Awaitable[None]]) -> None:
    """Do ``work`` until cancelled.

    Args:
        name: For people.
        work: Done again after it has failed or ended.
    """
    while True:
        try:
            await work()
        except Exception as error:
            log.exception("work_broken", work=name, error=repr(error))
        await asyncio.sleep(PAUSE_SECONDS)
