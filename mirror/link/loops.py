"""Coroutines that run together, pauses of loops, and work that takes too long for the event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any, ParamSpec, TypeVar

T = TypeVar("T")
U = TypeVar("U")
P = ParamSpec("P")


async def first_to_end(*loops: Coroutine[Any, Any, None]) -> None:
    """Run the loops until one of them ends, then cancel the others and wait until they have ended.

    An error holds the stack frames that it passed through, this one too. So neither the error nor the tasks
    are kept here: in a reference cycle all that the loops held would stay until Python collects garbage.

    Raises:
        Exception: A loop has failed. If several have, the error of the first one in the order of ``loops``.
    """
    tasks = [asyncio.ensure_future(loop) for loop in loops]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        errors = await _end_all(tasks)
        tasks.clear()
    if errors:
        raise errors.pop()


async def _end_all(tasks: Sequence[asyncio.Future[None]]) -> list[Exception]:
    """Cancel the tasks and wait until they have ended; returns the error of the first that failed, if any."""
    for task in tasks:
        task.cancel()
    ends = await asyncio.gather(*tasks, return_exceptions=True)
    return [end for end in ends if isinstance(end, Exception)][:1]


async def both(one: Coroutine[Any, Any, T], other: Coroutine[Any, Any, U]) -> tuple[T, U]:
    """The results of two coroutines that run in parallel; if one fails, both have ended when this raises."""
    tasks = asyncio.ensure_future(one), asyncio.ensure_future(other)
    try:
        came, other_came = await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    return came, other_came


@contextlib.asynccontextmanager
async def beside(work: Coroutine[Any, Any, object]) -> AsyncIterator[None]:
    """Run ``work`` in parallel with the block. At the end of the block ``work`` is cancelled and waited for;
    a cancellation ends that wait.

    Raises:
        Exception: ``work`` has failed; raised at the end of the block. If the block has failed or is
            cancelled, that is raised instead, and the event loop's exception handler gets this error.
    """
    task = asyncio.ensure_future(work)
    try:
        yield
    except BaseException:
        if (failure := await _end(task)) is not None:
            words = "a task that ran in parallel with a failed one failed, too"
            asyncio.get_running_loop().call_exception_handler({"message": words, "exception": failure})
        raise
    if (failure := await _end(task)) is not None:
        raise failure


async def _end(task: asyncio.Future[object]) -> BaseException | None:
    """Cancel a task and wait until it has ended; returns its error, None if it has not failed."""
    task.cancel()
    await asyncio.wait([task])
    return None if task.cancelled() else task.exception()


class Pause:
    """The pauses of one loop; each can be cut short, also during the attempt before it."""

    def __init__(self) -> None:
        self._over = asyncio.Event()

    async def take(self, seconds: float) -> bool:
        """Return after this time, or once :meth:`end` was called since :meth:`forget`; whether it was."""
        try:
            async with asyncio.timeout(seconds):
                await self._over.wait()
        except TimeoutError:
            return False
        return True

    def forget(self) -> None:
        """An attempt begins: it knows what was told before."""
        self._over.clear()

    def end(self) -> None:
        """End the pause that is being taken, or that follows the attempt under way."""
        self._over.set()


async def in_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Do ``work`` in another thread. It has ended when this returns or raises, even on cancellation: so the
    memory that it works on may be used for something else.
    """
    task = asyncio.ensure_future(asyncio.to_thread(work, *args, **kwargs))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([task])
        task.exception()  # else asyncio logs that nobody retrieved it
        raise
