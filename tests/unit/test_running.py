"""A mirror that runs, at its end."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock, Mock

import pytest

from checkpoint.flow_state import FlowState
from checkpoint.model import FlowRecord
from mirror.errors import ConnectionFailedError
from mirror.flow.goals import Goals
from mirror.flow.memory import FlowMemory
from mirror.flow.partition import PartitionCopy
from mirror.model import TopicPartition
from mirror.running import RunningMirror
from mirror.waiting import Waiting
from tests.harness.daemon import until
from tests.harness.memory_store import MemoryStore
from tests.unit.test_announcing import OURS, ClaimedOwner
from tests.unit.test_beginning import CLOSED_PORT, settings_for

ORDERS_0 = TopicPartition("orders", 0)


@pytest.mark.parametrize("how", ["a part of it fails", "it is cut off"])
async def test_a_mirror_takes_its_word_back_however_it_ends(how: str) -> None:
    """
    With nothing to copy those who stand by would wait for it for ever.
    """
    state = FlowState(MemoryStore({"flow": FlowRecord(4000, 5, "east", "west", 0).to_bytes()}))
    await state.load()
    memory = FlowMemory(state)
    broken = asyncio.Event()

    async def copy() -> None:
        await broken.wait()
        raise ConnectionFailedError("no broker answers")

    async def follow(**_: object) -> None:
        await asyncio.Event().wait()

    settings = settings_for(CLOSED_PORT)
    source, target = (Mock(connections=Mock(bytes_received=0, bytes_sent=0)) for _ in range(2))
    owner = ClaimedOwner(OURS, OURS)
    mirror = RunningMirror.of(settings, source, target, owner, memory, None, Waiting(settings))
    idle = {ORDERS_0: PartitionCopy(ORDERS_0, ORDERS_0, bytes(16), in_flight_max=5)}
    mirror.engine = cast(Any, SimpleNamespace(partitions=idle, run=copy, changed=Mock()))
    mirror.follower = cast(Any, SimpleNamespace(left_out=(), run=follow, patterns_matching_nothing=[]))

    running = asyncio.create_task(mirror.run(asyncio.Event(), once=False, ends_at=None, on_status=None))
    await until(lambda: memory.owner is not None, "it has said where it runs", 5)
    if how == "it is cut off":
        running.cancel()
    else:
        broken.set()
    await asyncio.wait({running}, timeout=5)

    assert memory.owner is None
    assert running.done()
    assert running.cancelled() == (how == "it is cut off")
    assert running.cancelled() or isinstance(running.exception(), ExceptionGroup)


async def test_a_run_whose_check_of_the_goals_fails_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    With ``once``. Nobody knows then whether the goals were reached.
    """
    settings = settings_for(CLOSED_PORT)
    source, target = (Mock(connections=Mock(bytes_received=0, bytes_sent=0)) for _ in range(2))
    state = FlowState(MemoryStore({"flow": FlowRecord(4000, 5, "east", "west", 0).to_bytes()}))
    await state.load()
    owner, memory = ClaimedOwner(OURS, OURS), FlowMemory(state)
    mirror = RunningMirror.of(settings, source, target, owner, memory, None, Waiting(settings))
    fault = KeyError("orders-0")

    async def for_ever(**_: object) -> None:
        await asyncio.Event().wait()

    async def fail(*_: object) -> None:
        await asyncio.sleep(0)
        raise fault

    idle = {ORDERS_0: PartitionCopy(ORDERS_0, ORDERS_0, bytes(16), in_flight_max=5)}
    mirror.engine = cast(
        Any, SimpleNamespace(partitions=idle, run=for_ever, changed=Mock(), drain=AsyncMock())
    )
    mirror.follower = cast(
        Any, SimpleNamespace(left_out=(), run=for_ever, finish=AsyncMock(), patterns_matching_nothing=[])
    )
    mirror.watch = cast(Any, SimpleNamespace(look=Mock(), run=AsyncMock()))
    monkeypatch.setattr(Goals, "reached", fail)

    with pytest.raises(ExceptionGroup) as failed:
        async with asyncio.timeout(5):
            await mirror.run(asyncio.Event(), once=True, ends_at=None, on_status=None)

    assert failed.value.exceptions == (fault,)


async def test_what_it_takes_to_end_is_no_lag() -> None:
    """
    The last status tells how far behind the copy was when all that was sent had been answered, and by then
    was concluded which partitions lag. While topics are left in order the status goes on as ever.
    """
    settings = settings_for(CLOSED_PORT)
    source, target = (Mock(connections=Mock(bytes_received=0, bytes_sent=0)) for _ in range(2))
    state = FlowState(MemoryStore({"flow": FlowRecord(4000, 5, "east", "west", 0).to_bytes()}))
    await state.load()
    memory = FlowMemory(state)
    owner = ClaimedOwner(OURS, OURS)
    mirror = RunningMirror.of(settings, source, target, owner, memory, None, Waiting(settings))
    stop = asyncio.Event()
    told: dict[str, Any] = {}

    async def for_ever(**_: object) -> None:
        await asyncio.Event().wait()

    async def watch(*_: object) -> None:
        try:
            await for_ever()
        finally:
            told["watched"] = time.monotonic()

    async def drain(_: float) -> None:
        await asyncio.sleep(0)  # the watch has begun, and goes on
        told["drained"], told["watched while draining"] = time.monotonic(), "watched" not in told

    async def finish() -> None:
        told["begun"], told["meanwhile"] = time.monotonic(), mirror.status()
        await until(lambda: "watched" in told, "nobody watches any more", 1)

    mirror.engine = cast(Any, SimpleNamespace(partitions={}, run=for_ever, changed=Mock(), drain=drain))
    follower = SimpleNamespace(left_out=(), topics_ignored=0, run=for_ever, finish=finish)
    follower.why_nothing = lambda: ("nothing", "nothing")
    mirror.follower = cast(Any, follower)
    mirror.watch = cast(Any, SimpleNamespace(look=Mock(), run=watch))
    mirror.snapshots = Mock(take=lambda *_, ended_seconds: ended_seconds)
    stop.set()
    await mirror.run(stop, once=False, ends_at=None, on_status=None)
    before, last, after = time.monotonic(), cast(Any, mirror.last_status()), time.monotonic()

    assert told["meanwhile"] == 0
    assert told["watched while draining"]
    assert before - told["begun"] <= last <= after - told["drained"]
