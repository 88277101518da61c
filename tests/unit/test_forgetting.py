"""Offset maps forget what the target has deleted: of whom, when, and what happens if it cannot be written."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Any, cast

import pytest
import structlog.testing

from checkpoint.errors import StateUnavailableError, UntranslatableError
from checkpoint.flow_state import FlowState
from checkpoint.map_chunk import CHUNK_RUNS
from mirror.errors import ConnectionFailedError
from mirror.flow import forgetting
from mirror.flow.forgetting import Forgetter
from mirror.flow.memory import FlowMemory
from mirror.flow.partition import PartitionCopy
from mirror.flow.position import Proceed, Register
from mirror.kafka.offsets import EARLIEST, Answers
from mirror.model import OffsetMode, Reason, State, TopicPartition
from tests.harness.daemon import until
from tests.harness.memory_store import MemoryStore
from tests.unit.target_model import Mirror
from tests.unit.test_announcing import OURS, THEIRS, ClaimedOwner

TOPIC_ID = "8c9ad3c1-0000-0000-0000-000000000001"
RUNS = 3 * CHUNK_RUNS + 10
"""Every second offset of the source holds a record: a run each."""


class Target:
    """A cluster that says where its logs begin.

    Attributes:
        starts: By partition at the target.
        asked: How often it was asked.
        meanwhile: What happens while it is asked.
    """

    def __init__(self) -> None:
        self.starts: Answers[int] = {}
        self.asked = 0
        self.meanwhile: Callable[[], None] = lambda: None

    async def list_offsets(self, _: object, tps: Collection[TopicPartition], timestamp: int) -> Answers[int]:
        assert timestamp == EARLIEST
        self.asked += 1
        self.meanwhile()
        return {tp: self.starts[tp] for tp in tps}


class Scene:
    """A flow that is copied, its owner, and the target."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.store = MemoryStore()
        self.state = FlowState(self.store)
        self.memory = FlowMemory(self.state)
        self.owner = ClaimedOwner(OURS, OURS)
        self.partitions: list[PartitionCopy] = []
        self.forgetter = Forgetter(
            cast(Any, Mirror().lane._flow), self.owner, self.memory, lambda: self.partitions
        )

    async def copied(
        self, number: int, mode: OffsetMode = OffsetMode.MAPPED, runs: int = RUNS
    ) -> PartitionCopy:
        """A partition of which so many runs are copied, and 1500 records are deleted at the target."""
        tp, there = TopicPartition("orders", number), TopicPartition("east.orders", number)
        await self.state.load()
        await self.memory.register(tp, there, TOPIC_ID, Register(mode, 0, 0, prepared=True))
        if mode is OffsetMode.MAPPED:
            await self.memory.note_runs({tp: [(2 * n, n) for n in range(1, runs)]})
        copy = PartitionCopy(tp, there, b"t" * 16, in_flight_max=5)
        copy.proceed(Proceed(2 * runs, runs, 0, 1, 2 * runs), mode, -1, 1_000.0)
        self.partitions.append(copy)
        self.target.starts[there] = 1500
        return copy

    def runs(self, copy: PartitionCopy) -> int:
        offsets = self.state.map(copy.tp)
        assert offsets is not None
        return len(offsets)


@pytest.fixture
async def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    target = Target()
    monkeypatch.setattr(forgetting, "list_offsets", target.list_offsets)
    return Scene(target)


async def test_maps_forget_what_the_target_has_deleted(scene: Scene) -> None:
    """
    All of them with one question; what is left is translated as before, the rest refused.
    """
    first, second = await scene.copied(0), await scene.copied(1)
    scene.target.starts[second.target] = 600

    await scene.forgetter.forget()

    assert scene.target.asked == 1
    assert [scene.runs(copy) for copy in (first, second)] == [RUNS - 2 * CHUNK_RUNS, RUNS - CHUNK_RUNS]
    assert scene.memory.translate(first.tp, 3000, reverse=False, target_log_end=RUNS) == 1500
    with pytest.raises(UntranslatableError, match="the offset map begins at source offset 2048, target"):
        scene.memory.translate(first.tp, 2046, reverse=False, target_log_end=RUNS)
    with pytest.raises(UntranslatableError, match="the offset map begins at source offset 2048, target"):
        scene.memory.translate(first.tp, 1023, reverse=True, target_log_end=RUNS)


async def test_nobody_is_asked_while_no_map_is_long(scene: Scene) -> None:
    """
    Partitions with the same offsets have none, and a short one costs little.
    """
    await scene.copied(0, OffsetMode.SAME)
    await scene.copied(1, runs=CHUNK_RUNS)

    await scene.forgetter.forget()

    assert scene.target.asked == 0


async def test_only_the_owner_shortens_maps(scene: Scene) -> None:
    """
    Whether it still is, is asked again before anything is written.
    """
    copy = await scene.copied(0)

    scene.owner.now_held_by = THEIRS
    await scene.forgetter.forget()
    asked = scene.target.asked
    scene.owner.now_held_by = OURS
    scene.target.meanwhile = lambda: setattr(scene.owner, "now_held_by", THEIRS)
    await scene.forgetter.forget()

    assert (asked, scene.target.asked) == (0, 1)
    assert scene.runs(copy) == RUNS


@pytest.mark.parametrize("state", [State.DIVERGED, State.DATA_LOSS, State.BLOCKED, State.PAUSED])
@pytest.mark.parametrize("late", [False, True])
async def test_a_partition_that_stopped_keeps_its_map(scene: Scene, state: State, late: bool) -> None:
    """
    Also when it stops while the target is asked: what it says may be of another log.
    """
    copy = await scene.copied(0)

    def stop() -> None:
        copy.stop(state, Reason.OPERATOR, "stopped", None)

    if late:
        scene.target.meanwhile = stop
    else:
        stop()
    await scene.forgetter.forget()

    assert scene.runs(copy) == RUNS


async def test_a_log_start_beyond_what_was_acknowledged_takes_no_more_than_that(scene: Scene) -> None:
    """
    What was noted ahead of the log end stays, and so does the run the position is in.
    """
    copy = await scene.copied(0)
    copy.doubt(1_000.0)
    copy.proceed(Proceed(1400, 700, 0, 1, 1400), OffsetMode.MAPPED, -1, 1_000.0)

    await scene.forgetter.forget()

    assert scene.runs(copy) == RUNS - CHUNK_RUNS


async def test_a_broker_that_does_not_answer_holds_up_its_own_partitions_only(scene: Scene) -> None:
    """
    Theirs are shortened another time.
    """
    silent, other = await scene.copied(0), await scene.copied(1)
    scene.target.starts[silent.target] = ConnectionFailedError("no answer")

    await scene.forgetter.forget()

    assert [scene.runs(copy) for copy in (silent, other)] == [RUNS, RUNS - 2 * CHUNK_RUNS]


async def test_a_write_that_fails_is_said_and_tried_again(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Copying does not depend on it.
    """
    copy = await scene.copied(0)
    monkeypatch.setattr(forgetting, "PAUSE_SECONDS", 0.0)
    refusals = [StateUnavailableError("the broker is gone")] * 2
    put = scene.store.put

    async def failing(items: dict[str, bytes | None]) -> None:
        if refusals:
            raise refusals.pop()
        await put(items)

    monkeypatch.setattr(scene.store, "put", failing)
    with structlog.testing.capture_logs() as lines:
        running = asyncio.create_task(scene.forgetter.run())
        await until(lambda: scene.runs(copy) < RUNS, "the map is shortened")
        running.cancel()

    assert scene.runs(copy) == RUNS - 2 * CHUNK_RUNS
    assert [line["event"] for line in lines] == ["offset_maps_not_shortened"]


async def test_a_mirror_that_ends_does_not_wait_long_for_it(scene: Scene) -> None:
    """
    A run with --once shortens its maps at the end, if that is soon done.
    """
    slow, copy = asyncio.Event(), await scene.copied(0)
    answer = scene.owner.confirm

    async def confirm(*_: float) -> bool:
        await slow.wait()
        return await answer()

    scene.owner.confirm = confirm  # type: ignore[method-assign]
    await scene.forgetter.forget_at_last(0.01)
    waited_for = scene.runs(copy)
    slow.set()
    await scene.forgetter.forget_at_last(5)

    assert (waited_for, scene.runs(copy)) == (RUNS, RUNS - 2 * CHUNK_RUNS)
