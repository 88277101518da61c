"""Loops that belong together, and work that takes too long for the loop they run on."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any, ParamSpec, TypeVar

T = TypeVar("T")
U = TypeVar("U")
P = ParamSpec("P")


async def first_to_end(*loops: Coroutine[Any, Any, None]) -> None:
    """Run them until one of them ends, cancel the others, and raise what has ended it.

    What is raised holds what it came through, this too. So neither it nor its task is held here any more: in
    a circle all that the loops had would stay until Python looks for such.
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
    """Cancel them and wait until they have ended; what the first of them has failed with that has."""
    for task in tasks:
        task.cancel()
    ends = await asyncio.gather(*tasks, return_exceptions=True)
    return [end for end in ends if isinstance(end, Exception)][:1]


async def both(one: Coroutine[Any, Any, T], other: Coroutine[Any, Any, U]) -> tuple[T, U]:
    """What comes of two things done at the same time; if one fails the other has ended when this raises."""
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
    """Run it while the block lasts, at whose end it is cancelled and waited for. Who is cancelled meanwhile
    does not wait.

    Raises:
        Exception: It has failed. Where the block has failed, or is cancelled, too, that is what is raised,
            and the event loop is told of the other failure.
    """
    task = asyncio.ensure_future(work)
    try:
        yield
    except BaseException:
        if (failure := await _end(task)) is not None:
            words = "what ran beside something that has failed had failed, too"
            asyncio.get_running_loop().call_exception_handler({"message": words, "exception": failure})
        raise
    if (failure := await _end(task)) is not None:
        raise failure


async def _end(task: asyncio.Future[object]) -> BaseException | None:
    """Cancel it and wait until it has ended; what has ended it, unless that was this."""
    task.cancel()
    await asyncio.wait([task])
    return None if task.cancelled() else task.exception()


async def in_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Do work in another thread. It has ended when this returns, also by a cancellation: so the memory it
    works on may be used for something else.
    """
    task = asyncio.ensure_future(asyncio.to_thread(work, *args, **kwargs))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([task])
        task.exception()  # nobody waits for it any more, and asyncio would complain of that
        raise
