"""A mirror that starts where the flow's state knows nothing of the flow."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from checkpoint import flow_state
from checkpoint.flow_state import FlowState
from checkpoint.model import FlowRecord, OwnerRecord, PartitionRecord
from mirror.flow import introducing
from mirror.flow.introducing import open_memory, written_again
from mirror.flow.memory import FlowMemory
from mirror.flow.owner import Owner
from mirror.kafka.log_port import StateTopic
from mirror.kafka.transactions import Token
from mirror.model import OffsetMode
from tests.harness.daemon import until
from tests.harness.memory_store import MemoryStore

FLOW = FlowRecord(7, 0, "source-id", "target-id", 0).to_bytes()
WORD = OwnerRecord(3, "west-3", 4711, "", 0).to_bytes()
TOPIC_ID = "8c9ad3c1-0000-0000-0000-000000000001"
RECORDS = [
    (one.key, one.to_bytes())
    for one in (
        PartitionRecord("orders", n, TOPIC_ID, "orders", OffsetMode.SAME, True, 0, 0) for n in range(20)
    )
]


class HeldBy(Owner):
    """The right to a flow, as somebody else has it; or nobody."""

    def __init__(self, holder: Token | None) -> None:
        super().__init__(cast(Any, None), "orders")
        self.holds = holder

    async def holder(self) -> Token | None:
        return self.holds


@dataclass
class Clock:
    """Where an hour passes at once."""

    now: float = 1_000.0

    def monotonic(self) -> float:
        return self.now


class Growing(MemoryStore):
    """A store that somebody else writes to: one key each time it is read, three seconds after the last.

    Args:
        coming: What is written, in this order.
    """

    def __init__(self, clock: Clock, coming: list[tuple[str, bytes]]) -> None:
        self._clock, self._coming, self._there = clock, iter(coming), {"owner": WORD}
        super().__init__(self._there)

    async def load(self) -> dict[str, bytes]:
        self._clock.now += 3
        self._there |= dict([come] if (come := next(self._coming, None)) else [])
        return await super().load()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    for module in (introducing, flow_state):
        monkeypatch.setattr(module, "time", found)
    return found


async def remembered(items: dict[str, bytes]) -> FlowMemory:
    state = FlowState(MemoryStore(items))
    await state.load()
    return FlowMemory(state)


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(introducing, "PAUSE_SECONDS", 0.0)


async def test_an_owner_is_given_the_time_to_write_again_a_state_that_was_deleted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    Who claims before that keeps it from doing so, and everything the flow remembered is lost.
    """
    monkeypatch.setattr(introducing, "UNUSUAL_SECONDS", 0.0)
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


async def test_an_owner_that_writes_its_state_for_long_is_waited_for_as_long_as_it_does(clock: Clock) -> None:
    """
    A minute here: who claims meanwhile makes everybody believe the part that is there.
    """
    state = FlowState(Growing(clock, [*RECORDS, ("flow", FLOW)]))
    await state.load()

    await written_again(FlowMemory(state), HeldBy(Token(7, 3)))

    assert state.flow is not None
    assert len(state.partitions) == len(RECORDS)


async def test_an_owner_that_writes_no_more_of_its_state_is_given_up_on(clock: Clock) -> None:
    """
    It has died, and nobody stands by who would take its place by then.
    """
    state = FlowState(Growing(clock, RECORDS[:10]))
    await state.load()
    began = clock.now

    await written_again(FlowMemory(state), HeldBy(Token(7, 3)))

    written = 9 * 3
    assert state.flow is None
    assert 20 <= clock.now - began - written <= 23


@pytest.mark.parametrize(("pieces", "events"), [(0, []), (3, ["flow_record_missing"])])
async def test_that_the_record_is_missing_is_said_where_it_is_not_just_being_written(
    clock: Clock, pieces: int, events: list[str]
) -> None:
    """
    As by another mirror of a new flow, which has started a moment before.
    """
    state = FlowState(Growing(clock, [*RECORDS[: pieces + 1], ("flow", FLOW)]))
    await state.load()

    with capture_logs() as logs:
        await written_again(FlowMemory(state), HeldBy(Token(7, 0)))

    assert [line["event"] for line in logs] == events


@pytest.mark.parametrize(("brokers", "replicas"), [(1, 2), (2, 2), (3, 3), (5, 3)])
async def test_a_state_topic_that_is_made_again_gets_a_replica_on_brokers_that_have_come(
    monkeypatch: pytest.MonkeyPatch, brokers: int, replicas: int
) -> None:
    """
    Two were there at the start. If one of them is missing it is waited for.
    """
    target = SimpleNamespace(info=SimpleNamespace(brokers=range(2)))
    wanted, makers = list[int](), list[Callable[[], Awaitable[StateTopic]]]()

    async def ensure(_: object, __: object, replicas: int) -> StateTopic:
        wanted.append(replicas)
        return StateTopic(True, replicas, True)

    class Store(MemoryStore):
        async def taken_over(self) -> bool:
            return False

    monkeypatch.setattr(introducing, "ensure_state_topic", ensure)
    monkeypatch.setattr(introducing, "TopicLog", lambda *_, make, **__: makers.append(make))
    monkeypatch.setattr(introducing, "TopicStore", lambda *_, **__: Store())
    await open_memory("orders", cast(Any, target), HeldBy(None), 1.0)

    target.info.brokers = range(brokers)
    await makers[0]()

    assert wanted == [2, replicas]
