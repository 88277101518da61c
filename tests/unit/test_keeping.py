"""What the keeper does while control markers are on their way, and with an answer that comes too late."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from mirror.errors import ConnectionFailedError
from mirror.flow import keeping
from mirror.flow.engine import wants_look
from mirror.flow.keeping import Keeper
from mirror.flow.partition import PartitionCopy
from mirror.flow.position import Proceed
from mirror.kafka.offsets import Answers, Marking
from mirror.model import Gap, OffsetMode, State, TopicPartition
from tests.unit.target_model import Hooks, Mirror

NOW = 1_000.0


class Coordinator:
    """The owner is always we."""

    async def confirm(self) -> bool:
        return True


class Broker:
    """Takes markers and answers when it is told to."""

    def __init__(self) -> None:
        self.requests: list[dict[TopicPartition, Marking]] = []
        self.answers: list[asyncio.Future[Answers[None]]] = []

    async def write_markers(
        self, _cluster: object, markings: Mapping[TopicPartition, Marking], **_: int
    ) -> Answers[None]:
        self.requests.append(dict(markings))
        self.answers.append(asyncio.get_running_loop().create_future())
        return await self.answers[-1]

    def answer(self, error: ConnectionFailedError | None = None) -> None:
        """Answer the last request, for all partitions alike."""
        self.answers[-1].set_result(dict.fromkeys(self.requests[-1], error))


class Engaged(Hooks):
    """Offers partitions to the keeper as the engine does."""

    def __init__(self) -> None:
        super().__init__()
        self.keeper: Keeper | None = None

    def changed(self, partition: PartitionCopy) -> None:
        assert self.keeper is not None
        if partition.owner_work:
            self.keeper.offer(partition)
        else:
            self.keeper.forget(partition)


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    broker = Broker()
    monkeypatch.setattr(keeping, "write_markers", broker.write_markers)
    return broker


@asynccontextmanager
async def a_keeper() -> AsyncIterator[Keeper]:
    """A keeper at work."""
    hooks = Engaged()
    flow = Mirror().lane._flow
    flow.hooks = hooks
    hooks.keeper = keeper = Keeper(flow, cast(Any, Coordinator()), cast(Any, None), offsets="same")
    running = asyncio.create_task(keeper.run())
    yield keeper
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


def with_a_gap(offsets: int = 7, number: int = 0) -> PartitionCopy:
    """A partition at whose head the owner has something to write."""
    tp = TopicPartition("orders", number)
    copy = PartitionCopy(tp, tp, b"t" * 16, in_flight_max=5)
    copy.proceed(Proceed(100, 100, 0, 1, 100), OffsetMode.SAME, -1, NOW)
    copy.push([Gap(100, 100 + offsets)], [], None)
    return copy


async def turns() -> None:
    """Let everything happen that waits for nothing."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_markers_that_were_answered_count(broker: Broker) -> None:
    """
    The partition goes on behind the gap.
    """
    copy = with_a_gap(7)
    async with a_keeper() as keeper:
        keeper.offer(copy)
        await turns()

        broker.answer()
        await turns()

    assert (copy.next_offset, copy.acknowledged_target_offset) == (107, 107)
    assert not copy.unanswered


async def test_an_answer_to_markers_of_an_older_life_changes_nothing(broker: Broker) -> None:
    """
    The source said meanwhile that it is no leader: what was queued is gone, and a look sees what was written.
    """
    copy = with_a_gap(7)
    async with a_keeper() as keeper:
        keeper.offer(copy)
        await turns()
        copy.doubt(NOW)

        broker.answer()
        await turns()

    assert copy.next_offset == 100
    assert copy.look_due_at == NOW


async def test_nobody_is_looked_at_while_its_markers_are_on_their_way(broker: Broker) -> None:
    """
    The log end that a look would read may still move; paused and resumed by an operator makes no difference.
    """
    copy = with_a_gap(7)
    async with a_keeper() as keeper:
        keeper.offer(copy)
        await turns()
        copy.stop(State.PAUSED, cast(Any, None), "", None)
        copy.look_anew(NOW)

        due_before = wants_look(copy)
        broker.answer()
        await turns()

    assert not due_before
    assert wants_look(copy)


async def test_a_partition_whose_markers_are_on_their_way_asks_for_no_more(broker: Broker) -> None:
    """
    One request at a time: a marker lands wherever the log ends.
    """
    copy = with_a_gap(7)
    async with a_keeper() as keeper:
        keeper.offer(copy)
        await turns()

        keeper.offer(copy)
        await turns()

    assert len(broker.requests) == 1


async def test_no_markers_are_begun_while_the_mirror_drains(broker: Broker) -> None:
    """
    It waits for the answers to what was sent; there is to be an end to that.
    """
    async with a_keeper() as keeper:
        keeper._flow.draining = True

        keeper.offer(with_a_gap(7))
        await turns()

    assert not broker.requests
