"""A mirror as a whole: settings in, a running flow out, a status at the end.

Waits for what a mirror needs, in the order in which each step needs the one before. How a flow is claimed is
in :mod:`mirror.taking_part`, what runs after that in :mod:`mirror.running`.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from mirror.clusters import START_SECONDS, both_connected
from mirror.config import Settings
from mirror.errors import ConnectionFailedError, ExitCode, TwinsiteError
from mirror.flow.owner import ASKED_FOR_SECONDS
from mirror.kafka.log_port import PATIENCE_SECONDS
from mirror.model import FlowStatus
from mirror.patience import Patience
from mirror.running import RunningMirror
from mirror.taking_part import take_part
from mirror.waiting import Waiting, opened_port

T = TypeVar("T")


class NotBegunError(TwinsiteError):
    """A mirror was ended before it was under way: it has nothing in flight.

    Attributes:
        stopped: Whether it was told to stop; otherwise its time was up.
    """

    def __init__(self, waiting: Waiting, *, stopped: bool) -> None:
        self.stopped = stopped
        if stopped:
            super().__init__("stopped before the mirror was under way")
        else:
            hint = ConnectionFailedError.hint if waiting.unexplained else None
            super().__init__(f"timed out while the mirror waited for {waiting.waits_for}", hint=hint)
            self.exit_code = ExitCode.TIME_IS_UP


async def run(
    settings: Settings,
    *,
    stop: asyncio.Event,
    once: bool = False,
    timeout_seconds: float | None = None,
    time_is_up: asyncio.Event | None = None,
    on_status: Callable[[FlowStatus], None] | None = None,
) -> FlowStatus:
    """Mirror until ``stop`` is set; with ``once`` until the high watermarks seen at the start are reached.

    Args:
        timeout_seconds: With ``once``: give up after so long; the status says what is missing.
        time_is_up: Set if that has ended it; what is in flight by then still has time to arrive.
        on_status: Called a few times a second with a snapshot; less often if that takes long.

    Returns:
        The last snapshot, taken when everything sent was answered, or the time for that was over.

    Raises:
        NotBegunError: It was told to stop, or its time was up, before it was under way.
        TwinsiteError: A cluster cannot be reached or does not allow what is needed, or no topic matches.
    """
    ends_at = None if timeout_seconds is None else time.monotonic() + timeout_seconds
    waiting = Waiting(settings)
    async with contextlib.AsyncExitStack() as stack:
        mirror = await _unless_ended(_begin(settings, stack, waiting, once=once), waiting, stop, ends_at)
        try:
            timed_out = await mirror.run(stop, once=once, ends_at=ends_at, on_status=on_status)
        except* TwinsiteError as group:
            raise _first(group) from None
        if timed_out and time_is_up is not None:
            time_is_up.set()
        return mirror.last_status()


async def _begin(
    settings: Settings, stack: contextlib.AsyncExitStack, waiting: Waiting, *, once: bool
) -> RunningMirror:
    """Open the port, reach both clusters, claim the flow, find its topics.

    A mirror that runs for ever waits for all of them.
    """
    patience = START_SECONDS if once else math.inf
    port = await stack.enter_async_context(opened_port(settings, waiting))
    both = both_connected(
        settings, patience_seconds=patience, reached=waiting.reached.add, not_reached=waiting.not_reached
    )
    source, target = await stack.enter_async_context(both)
    begin = Patience(waiting.tell, once=once)
    state_patience = PATIENCE_SECONDS if once else ASKED_FOR_SECONDS
    owner, memory = await take_part(settings, source, target, begin, state_patience_seconds=state_patience)
    mirror = RunningMirror.of(settings, source, target, owner, memory, port, waiting)
    await begin.take("the topics of both clusters", mirror.follower.follow, source, target)
    return mirror


async def _unless_ended(
    work: Coroutine[Any, Any, T], waiting: Waiting, stop: asyncio.Event, ends_at: float | None
) -> T:
    """The result of the work, unless a stop, or the end of the time, comes first.

    Raises:
        NotBegunError: One of them did; the work was cancelled.
    """
    task, told = asyncio.create_task(work), asyncio.create_task(stop.wait())
    timeout = None if ends_at is None else max(0.0, ends_at - time.monotonic())
    try:
        await asyncio.wait({task, told}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise NotBegunError(waiting, stopped=stop.is_set())
        return task.result()
    finally:
        for one in (task, told):
            one.cancel()
        await asyncio.wait({task, told})


def _first(group: BaseExceptionGroup[TwinsiteError]) -> TwinsiteError:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, TwinsiteError)
    return error
