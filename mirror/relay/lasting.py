"""What goes on as long as a relay does.

A mistake of ours ends none of it in silence: it is logged, and the work begins again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

log = structlog.get_logger(__name__)

PAUSE_SECONDS = 1.0
"""After so long what has ended begins again."""


async def lasting(name: str, work: Callable[[], Awaitable[None]]) -> None:
    """Do this until cancelled.

    Args:
        name: For people.
        work: Done again when it has failed, or has come to an end.
    """
    while True:
        try:
            await work()
        except Exception as error:
            log.exception("work_broken", work=name, error=repr(error))
        await asyncio.sleep(PAUSE_SECONDS)
