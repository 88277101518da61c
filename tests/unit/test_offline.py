"""Offsets translated from what the target holds, also while a mirror goes on copying."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest

from checkpoint.errors import UntranslatableError
from checkpoint.flow_state import FlowState
from checkpoint.model import Insertion
from checkpoint.topic_store import TopicStore
from mirror import offline
from mirror.config import Settings, parse
from mirror.errors import ExitCode, StateConflictError, TwinsiteError
from mirror.flow.memory import FlowMemory
from mirror.flow.position import Register
from mirror.model import OffsetMode, TopicPartition
from tests.contract.memory_log import MemoryLog

ORDERS_0 = TopicPartition("orders", 0)
TOPIC_ID = "6f0f1ed8-0000-4000-8000-000000000001"
PRODUCER_ID = 4711


class Target:
    """A target cluster: the log of a flow's state, and a partition with records of the flow's.

    Attributes:
        end: Where the partition ends.
        meanwhile: What a mirror does between two questions, before the end is told.
    """

    def __init__(self) -> None:
        self.log = MemoryLog()
        self.end = 0
        self.meanwhile: Callable[[], Awaitable[None]] | None = None

    async def describe_topics(self, names: Iterable[str]) -> SimpleNamespace:
        return SimpleNamespace(topics=dict.fromkeys(names))

    def follow(self, _: object) -> None:
        return

    async def refresh(self) -> None:
        return

    async def ends(self, _: object, tps: Iterable[TopicPartition], __: int) -> dict[TopicPartition, int]:
        if self.meanwhile is not None:
            await self.meanwhile()
        return dict.fromkeys(tps, self.end)

    async def tails(self, _: object, tps: Iterable[TopicPartition]) -> dict[TopicPartition, SimpleNamespace]:
        return {tp: SimpleNamespace(producer_id=PRODUCER_ID) for tp in tps}


@pytest.fixture
def target(monkeypatch: pytest.MonkeyPatch) -> Target:
    """One that :mod:`mirror.offline` reaches."""
    target = Target()

    @asynccontextmanager
    async def connected(*_: object) -> AsyncIterator[Target]:
        yield target

    monkeypatch.setattr(offline, "connected", connected)
    monkeypatch.setattr(offline, "TopicLog", lambda *_: target.log)
    monkeypatch.setattr(offline, "offsets_of_all", target.ends)
    monkeypatch.setattr(offline, "last_batches", target.tails)
    return target


@pytest.fixture
async def mirror(target: Target) -> FlowMemory:
    """The memory of a mirror that has copied ten records from source offset 0 on, with a map."""
    state = FlowState(TopicStore(target.log))
    await state.load()
    mirror = FlowMemory(state)
    await mirror.introduce(PRODUCER_ID, "east", "west", "")
    await mirror.register(ORDERS_0, ORDERS_0, TOPIC_ID, Register(OffsetMode.MAPPED, 0, 0, prepared=True))
    target.end = 10
    return mirror


def settings() -> Settings:
    sides = {side: {"bootstrap_servers": f"{side}:1"} for side in ("source", "target")}
    return parse({**sides, "topics": {"include": ["orders"]}})


async def translate(offset: int, *, reverse: bool = False, committed: bool = False) -> int:
    return await offline.translate(settings(), ORDERS_0, offset, reverse=reverse, committed=committed)


async def test_a_gap_that_is_copied_over_while_the_target_is_asked_is_known(
    target: Target, mirror: FlowMemory
) -> None:
    """
    A transaction ends with a marker at source offset 10, and ten records behind it are appended after the
    state was read and before the end of the log is told.
    """

    async def copy_on() -> None:
        await mirror.note_runs({ORDERS_0: [(11, 10)]})
        target.end = 20

    target.meanwhile = copy_on
    there, back = await translate(12), await translate(15, reverse=True)
    with pytest.raises(UntranslatableError, match=r"in the gap \[10, 11\)"):
        await translate(10)

    assert (there, back) == (11, 16)


async def test_a_repair_that_begins_while_the_target_is_asked_is_seen(
    target: Target, mirror: FlowMemory
) -> None:
    """
    What it appends is no copy, and may stand below the end of the log by then.
    """

    async def repair() -> None:
        await mirror.begin_insertion(ORDERS_0, Insertion(10, 3, 7, b"batch"))
        target.end = 13

    target.meanwhile = repair
    with pytest.raises(StateConflictError, match="a repair of orders-0 was interrupted"):
        await translate(11, reverse=True)


@pytest.mark.usefixtures("target")
async def test_a_group_goes_on_with_the_next_record_or_at_the_end(mirror: FlowMemory) -> None:
    """
    Ten records and a marker at source offset 10, behind which nothing was written: a group that has read all
    has committed 10, or 11.
    """
    await mirror.note_runs({ORDERS_0: [(11, 10)]})

    there = [await translate(offset, committed=True) for offset in (0, 9, 10, 11)]
    back = [await translate(offset, committed=True, reverse=True) for offset in (0, 9, 10)]

    assert there == [0, 9, 10, 10]
    assert back == [0, 9, 11]
    with pytest.raises(
        UntranslatableError, match="committed source offset 12 is not copied yet: the copy has reached 11"
    ):
        await translate(12, committed=True)
    with pytest.raises(UntranslatableError, match="committed target offset 11 is beyond the log end 10"):
        await translate(11, committed=True, reverse=True)


@pytest.mark.usefixtures("target")
async def test_a_state_that_does_not_hold_the_record_of_its_flow_is_not_believed() -> None:
    """
    Somebody has deleted the topic, and a mirror has made it again: that is no flow that has copied nothing.
    """
    with pytest.raises(TwinsiteError, match="does not hold the record of flow default") as refused:
        await translate(5)

    assert "try again in a minute" in refused.value.hint
    assert refused.value.retriable
    assert refused.value.exit_code is ExitCode.FAULT
