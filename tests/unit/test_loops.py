"""Things done at the same time: what comes of them, and that none is left behind."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from contextlib import suppress

import pytest

from mirror.errors import AnswerError
from mirror.link.loops import Pause, beside, both, first_to_end, in_thread


async def answer(text: str, after: asyncio.Event | None = None) -> str:
    if after is not None:
        await after.wait()
    return text


async def fail(after: asyncio.Event) -> str:
    await after.wait()
    raise ConnectionError("no answer")


class Large:
    """Something that a loop has."""


async def test_what_loops_had_goes_with_what_ended_them() -> None:
    """
    At once, of the one that failed and of the others: no circle holds it until Python looks for such.
    """
    had: list[weakref.ref[Large]] = []
    now, never = asyncio.Event(), asyncio.Event()

    async def loop(until: asyncio.Event) -> None:
        large = Large()
        had.append(weakref.ref(large))
        await until.wait()
        raise AnswerError(f"after {len(had)}, of {large}")

    gc.collect()
    gc.disable()
    try:
        now.set()
        with suppress(AnswerError):
            await first_to_end(loop(never), loop(now), loop(never))
        await asyncio.sleep(0)
        left = [one() for one in had]
    finally:
        gc.enable()

    assert left == [None] * 3


async def test_both_go_on_at_the_same_time() -> None:
    """
    The first waits for what the second does.
    """
    heard = asyncio.Event()

    async def speak() -> int:
        heard.set()
        return 7

    assert await both(answer("heard", heard), speak()) == ("heard", 7)


@pytest.mark.parametrize("is_first", [True, False])
async def test_a_failure_of_one_ends_the_other(is_first: bool) -> None:
    """
    Whichever fails: nothing goes on behind the back of who asked.
    """
    now, never, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def wait() -> str:
        now.set()
        try:
            return await answer("", never)
        finally:
            ended.set()

    with pytest.raises(ConnectionError, match="no answer"):
        await (both(fail(now), wait()) if is_first else both(wait(), fail(now)))

    assert ended.is_set()


async def test_who_is_cancelled_leaves_nothing_behind() -> None:
    """
    A mirror that is told to stop while it asks both clusters.
    """
    never, asking = asyncio.Event(), asyncio.all_tasks()
    task = asyncio.create_task(both(answer("", never), answer("", never)))
    await asyncio.sleep(0)

    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert asyncio.all_tasks() == asking


async def test_work_that_fails_when_nobody_waits_any_more_is_not_complained_of() -> None:
    """
    The stream has ended for another reason meanwhile; the memory is free when the cancelled call returns.
    """
    complaints: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    begun, may_end = threading.Event(), threading.Event()
    ended: list[bool] = []

    def fail() -> None:
        begun.set()
        assert may_end.wait(10)
        ended.append(True)
        raise AnswerError("its digest is another")

    work = asyncio.ensure_future(in_thread(fail))
    assert await asyncio.to_thread(begun.wait, 10)
    work.cancel()
    may_end.set()
    await asyncio.wait([work])
    cancelled = work.cancelled()
    del work
    gc.collect()

    assert cancelled
    assert ended == [True]
    assert complaints == []


async def test_the_first_loop_to_end_ends_the_others_and_says_why() -> None:
    """
    Whichever it is.
    """
    cancelled = asyncio.Event()

    async def goes_on() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async def fails() -> None:
        await asyncio.sleep(0)
        raise AnswerError("lost")

    with pytest.raises(AnswerError, match="lost"):
        await first_to_end(goes_on(), fails())

    assert cancelled.is_set()


async def test_what_runs_beside_a_block_ends_with_it() -> None:
    """
    Not before, and not later.
    """
    begun, ended = asyncio.Event(), asyncio.Event()

    async def goes_on() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with beside(goes_on()):
        await begun.wait()
        meanwhile = ended.is_set()

    assert not meanwhile
    assert ended.is_set()


async def test_who_is_cancelled_while_what_ran_beside_it_ends_does_not_go_on() -> None:
    """
    Also where that takes long, or was cancelled once before.
    """
    begun, ending, may_end = asyncio.Event(), asyncio.Event(), asyncio.Event()
    went_on: list[str] = []

    async def ends_slowly() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ending.set()
            await may_end.wait()

    async def work() -> None:
        async with beside(ends_slowly()):
            await begun.wait()
        went_on.append("as if nobody had cancelled it")

    working = asyncio.create_task(work())
    await ending.wait()
    working.cancel()
    await asyncio.wait([working], timeout=5)
    may_end.set()

    assert working.cancelled()
    assert went_on == []


async def test_the_failure_of_what_ran_beside_a_block_is_raised_at_its_end() -> None:
    failed = asyncio.Event()
    failed.set()

    with pytest.raises(ConnectionError, match="no answer"):
        async with beside(fail(failed)):
            await asyncio.sleep(0)


@pytest.mark.parametrize("how", [AnswerError, asyncio.CancelledError])
async def test_a_block_that_fails_says_why_and_no_failure_beside_it_is_lost(how: type[BaseException]) -> None:
    """
    One that is cancelled has ended because of that, whatever has become of what ran beside it.
    """
    complaints: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    failed = asyncio.Event()
    failed.set()

    async def work() -> None:
        async with beside(fail(failed)):
            await asyncio.sleep(0)
            raise how("of its own")

    with pytest.raises(how, match="of its own"):
        await work()

    assert [str(one["exception"]) for one in complaints] == ["no answer"]


async def test_a_pause_is_cut_short_by_what_was_told_during_the_attempt_before_it() -> None:
    """
    Not by what was told before that: the attempt was in vain nevertheless.
    """
    pause = Pause()
    pause.forget()
    pause.end()

    async with asyncio.timeout(5):
        cut_short = await pause.take(3_600.0)
    pause.forget()

    assert cut_short
    assert not await pause.take(0.01)
