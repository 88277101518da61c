"""A mirror that starts where the flow's state knows nothing of the flow."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from checkpoint.flow_state import FlowState
from checkpoint.model import FlowRecord
from mirror.flow import introducing
from mirror.flow.introducing import written_again
from mirror.flow.memory import FlowMemory
from mirror.flow.owner import Owner
from mirror.kafka.transactions import Token
from tests.harness.memory_store import MemoryStore
from tests.harness.node import until

FLOW = FlowRecord(7, 0, "source-id", "target-id", 0).to_bytes()


class HeldBy(Owner):
    """The right to a flow, as somebody else has it; or nobody."""

    def __init__(self, holder: Token | None) -> None:
        super().__init__(cast(Any, None), "orders")
        self.holds = holder

    async def holder(self) -> Token | None:
        return self.holds


async def remembered(items: dict[str, bytes]) -> FlowMemory:
    state = FlowState(MemoryStore(items))
    await state.load()
    return FlowMemory(state)


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(introducing, "PAUSE_SECONDS", 0.0)


async def test_an_owner_is_given_the_time_to_write_again_a_state_that_was_deleted() -> None:
    """
    Who claims before that keeps it from doing so, and everything the flow remembered is lost.
    """
    items: dict[str, bytes] = {}
    memory = await remembered(items)

    with capture_logs() as logs:
        waiting = asyncio.create_task(written_again(memory, HeldBy(Token(7, 3))))
        await until(lambda: bool(logs), "it waits", 5)
        still_waits = not waiting.done()
        items["flow"] = FLOW
        await asyncio.wait_for(waiting, 5)

    assert still_waits
    assert memory.introduced
    assert [line["event"] for line in logs] == ["flow_record_missing"]


@pytest.mark.parametrize(
    ("items", "holder"), [({}, None), ({"flow": FLOW}, Token(7, 3))], ids=["new", "known"]
)
async def test_nothing_is_waited_for_where_nothing_is_missing(
    items: dict[str, bytes], holder: Token | None
) -> None:
    """
    A flow to which nobody ever had the right is new.
    """
    memory = await remembered(items)

    with capture_logs() as logs:
        await asyncio.wait_for(written_again(memory, HeldBy(holder)), 5)

    assert logs == []


async def test_a_mirror_that_died_before_it_wrote_the_record_is_not_waited_for_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(introducing, "WRITTEN_AGAIN_SECONDS", 0.05)
    memory = await remembered({})

    await asyncio.wait_for(written_again(memory, HeldBy(Token(7, 0))), 5)

    assert not memory.introduced
