"""Those who wait for one that gets no answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping

import pytest

from checkpoint.errors import StateUnavailableError
from tests.harness.memory_store import MemoryStore
from tests.unit.flow_states import ORDERS_1, begun, record, runs


class FrozenStore(MemoryStore):
    """A store that gives up a write only when it is told to.

    Attributes:
        gives_up: Set once it does; None: it answers.
    """

    def __init__(self) -> None:
        super().__init__({})
        self.gives_up: asyncio.Event | None = None
        self.puts = 0

    async def put(self, items: Mapping[str, bytes | None]) -> None:
        self.puts += 1
        if self.gives_up is not None:
            await self.gives_up.wait()
            raise StateUnavailableError("no answer within 10 s")
        await super().put(items)


async def test_who_waits_behind_a_write_that_gets_no_answer_does_not_wait_for_one_of_its_own() -> None:
    """
    Of a thousand partitions that begin at once, each would be tried for as long as the first, one after the
    other. Who comes later tries anew.
    """
    store = FrozenStore()
    state = await begun(store)
    store.gives_up, before = asyncio.Event(), store.puts

    async with asyncio.TaskGroup() as group:
        writes = [group.create_task(failing(state.begin(record(ORDERS_1), [(100, 0)]))) for _ in range(3)]
        reads = group.create_task(failing(state.load()))
        await asyncio.sleep(0)
        store.gives_up.set()
    puts = store.puts - before
    store.gives_up = None
    await state.begin(record(ORDERS_1), [(100, 0)])

    assert puts == 1
    assert {task.result() for task in (*writes, reads)} == {"no answer within 10 s"}
    assert runs(state, ORDERS_1) == [(100, 0)]


async def failing(work: Awaitable[None]) -> str:
    """Why it could not be done."""
    with pytest.raises(StateUnavailableError) as failed:
        await work
    return str(failed.value)
