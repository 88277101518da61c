"""What people may ask a running mirror of one partition."""

from __future__ import annotations

import time
from typing import cast

import pytest

from checkpoint.errors import UntranslatableError
from checkpoint.flow_state import FlowState
from checkpoint.model import OwnerRecord
from mirror.errors import StateConflictError
from mirror.flow.engine import Engine
from mirror.flow.memory import FlowMemory
from mirror.flow.owner import Owner
from mirror.flow.partition import PartitionCopy
from mirror.flow.position import Proceed, Register
from mirror.kafka.cluster import Cluster
from mirror.kafka.dial import ConnectionOptions
from mirror.kafka.transactions import Token
from mirror.model import OffsetMode, Reason, State, TopicPartition
from mirror.operating import Operator
from mirror.sync.follow import Follower
from tests.harness.memory_store import MemoryStore

ORDERS_0 = TopicPartition("orders", 0)
TOPIC_ID = "6f0f1ed8-0000-4000-8000-000000000001"


class Scene:
    """A mirror that owns its flow and has copied source offsets 0 to 999 of a partition."""

    def __init__(self, memory: FlowMemory) -> None:
        self.memory = memory
        self.owner = Owner(Cluster("target", [], ConnectionOptions()), "orders")
        self.owner.token, self.owner.held = Token(4000, 5), True
        self.copy = PartitionCopy(ORDERS_0, ORDERS_0, b"t" * 16, in_flight_max=5)
        self.copy.heard(0, 1000, 1000)
        self.copy.proceed(Proceed(1000, 1000, 0, 0, 1000), OffsetMode.MAPPED, -1, time.monotonic())
        engine = Engine()
        engine.partitions[ORDERS_0] = self.copy
        self._operator = Operator(engine, cast(Follower, None), self.owner, memory)

    async def translate(self, offset: int, *, reverse: bool = False, committed: bool = False) -> int:
        return await self._operator.translate(ORDERS_0, offset, reverse=reverse, committed=committed)

    async def accept_loss(self, shown: tuple[int, int] | None) -> None:
        await self._operator.accept_loss(ORDERS_0, shown)

    async def lose_the_right(self) -> None:
        """Another mirror takes it, and says where it runs."""
        self.owner.held, self.owner.seen = False, Token(4000, 6)
        await self.memory.note_owner(OwnerRecord(6, "west-2", 7, "", 0))


@pytest.fixture
async def scene() -> Scene:
    state = FlowState(MemoryStore())
    await state.load()
    memory = FlowMemory(state)
    await memory.register(ORDERS_0, ORDERS_0, TOPIC_ID, Register(OffsetMode.MAPPED, 0, 0, prepared=True))
    return Scene(memory)


async def test_what_the_owner_has_copied_is_translated(scene: Scene) -> None:
    """
    Up to what the target has acknowledged.
    """
    assert await scene.translate(950) == 950
    with pytest.raises(UntranslatableError, match="not copied yet: the copy has reached 1000"):
        await scene.translate(3000)


async def test_where_a_group_goes_on_is_told_up_to_the_end_of_the_copy(scene: Scene) -> None:
    """
    There too, where there is no record yet; a group that was further along cannot be told.
    """
    there = [await scene.translate(offset, committed=True) for offset in (0, 999, 1000)]
    back = await scene.translate(1000, reverse=True, committed=True)

    assert (there, back) == ([0, 999, 1000], 1000)
    with pytest.raises(
        UntranslatableError, match="committed source offset 1001 is not copied yet: the copy has reached 1000"
    ):
        await scene.translate(1001, committed=True)


async def test_a_mirror_that_was_the_owner_once_says_who_copies_now(scene: Scene) -> None:
    """
    It knows how far it came itself, and not which of what has been copied since is acknowledged.
    """
    await scene.lose_the_right()
    scene.copy.follow(5000, 5000, OffsetMode.MAPPED)
    scene.copy.stand_by(time.monotonic(), 1.0, "the owner of the flow is another mirror")

    for offset in (950, 3000):
        with pytest.raises(
            StateConflictError, match="orders-0: the owner of the flow is the mirror on west-2, "
        ) as refused:
            await scene.translate(offset)
        assert refused.value.hint == "ask the owner, or the target itself with --config"


async def test_a_paused_partition_that_another_mirror_copies_by_now_is_refused(scene: Scene) -> None:
    """
    It stays paused here, and is not looked at any more.
    """
    scene.copy.stop(State.PAUSED, Reason.OPERATOR, "paused", None)

    paused = await scene.translate(950)
    await scene.lose_the_right()

    assert paused == 950
    with pytest.raises(StateConflictError, match="orders-0: the owner of the flow is the mirror on west-2, "):
        await scene.translate(3000)


@pytest.mark.parametrize(
    ("state", "reason", "seen"),
    [
        (State.TOPIC_RECREATED, Reason.TOPIC_ID_CHANGED, "the source topic had id 1 and now has 2"),
        (State.DIVERGED, Reason.SOURCE_TRUNCATED, "copied up to 1000, but the source ends at 900"),
        (State.DIVERGED, Reason.TARGET_TRUNCATED, "acknowledged up to 1000, but the target ends at 800"),
    ],
)
async def test_where_the_sides_are_known_to_differ_nothing_is_translated(
    scene: Scene, state: State, reason: Reason, seen: str
) -> None:
    """
    The record that was at an offset may be another one by now, or none.
    """
    scene.copy.stop(state, reason, seen, None)

    with pytest.raises(StateConflictError, match=f"orders-0: {seen}"):
        await scene.translate(850)


@pytest.mark.parametrize("shown", [(1_000, 1_050), (990, 1_060)])
async def test_another_loss_than_the_one_that_was_shown_is_not_given_up(
    scene: Scene, shown: tuple[int, int]
) -> None:
    """
    The source may have removed more meanwhile, or another mirror have copied some of it.
    """
    scene.copy.stop(State.DATA_LOSS, Reason.LOG_START_MOVED, "removed", None)
    scene.copy.lost = 1_000, 1_060

    with pytest.raises(
        StateConflictError, match=rf"orders-0: offsets 1000 to 1060 are lost, not {shown[0]} to {shown[1]};"
    ):
        await scene.accept_loss(shown)

    known = scene.memory.known(ORDERS_0)
    assert known is not None
    assert not known.may_lose(1_000, 1_060)
    assert scene.copy.state is State.DATA_LOSS
