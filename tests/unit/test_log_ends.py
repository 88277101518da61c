"""Copies to which nothing comes: a log that was changed by others is looked at, and nothing else is."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mirror.flow import log_ends
from mirror.flow.log_ends import LogEnds
from mirror.flow.partition import PartitionCopy
from mirror.flow.position import Proceed
from mirror.flow.states import append_refusal
from mirror.model import OffsetMode, Reason, State, TopicPartition
from tests.harness.daemon import until
from tests.unit.target_side import Cluster, a_topic

END = 20
NOT_LEADER = 6


class Target(Cluster):
    """A cluster that may refuse to say where a log ends.

    Attributes:
        requests: How often it was asked.
        silent: The partitions of which it says nothing.
        frozen: A broker that does not answer; ``in_vain`` counts how often it was asked.
        meanwhile: What happens before its answer is there.
    """

    def __init__(self) -> None:
        super().__init__("target", orders={})
        self.requests = 0
        self.silent: set[int] = set()
        self.frozen: int | None = None
        self.in_vain = 0
        self.meanwhile: Callable[[], None] = lambda: None

    async def call(self, request: Any, **how: object) -> Any:
        self.requests += 1
        if how["node"] == self.frozen:
            self.in_vain += 1
            await asyncio.Event().wait()
        answer = await super().call(request, **how)
        for partition in answer.topics[0].partitions:
            if partition.partition_index in self.silent:
                partition.error_code = NOT_LEADER
        self.meanwhile()
        return answer


class Scene:
    """A flow whose copies are complete, and their logs.

    Attributes:
        looks: The partitions that asked to be looked at.
        stale_metadata: How often the target's metadata were called old.
    """

    def __init__(self, partitions: int) -> None:
        self.target = Target()
        self.target.topics["orders"] = a_topic("orders", partitions)
        self.right = SimpleNamespace(held=True)
        self.limits = SimpleNamespace(idle_look_seconds=60.0)
        self.looks: list[int] = []
        self.stale_metadata = 0
        self.copies = [self.copied(TopicPartition("orders", number)) for number in range(partitions)]
        flow = SimpleNamespace(target=self.target, hooks=self, limits=self.limits)
        self.log_ends = LogEnds(cast(Any, flow), cast(Any, self.right), lambda: self.copies)

    def copied(self, tp: TopicPartition) -> PartitionCopy:
        """One that is complete."""
        copy = PartitionCopy(tp, tp, b"t" * 16, in_flight_max=5)
        self.look(copy, END)
        return copy

    def look(self, copy: PartitionCopy, end: int) -> None:
        """A look has found that the copy goes on there."""
        found = Proceed(next_offset=end, target_next_offset=end, sequence=0, coordinator_epoch=0, skip_to=end)
        self.target.ends[copy.target] = end
        copy.proceed(found, OffsetMode.SAME, 0, time.monotonic())

    def changed(self, copy: PartitionCopy) -> None:
        if copy.look_due_at is not None:
            self.looks.append(copy.tp.partition)

    def stale(self, _: object) -> None:
        self.stale_metadata += 1


async def test_what_ends_elsewhere_is_looked_at_and_all_are_asked_of_with_one_question() -> None:
    """
    One was made again and is empty, one has lost records, one has got a foreign one; one is as it was left.
    """
    scene = Scene(4)
    scene.target.ends |= {TopicPartition("orders", n): end for n, end in ((0, 0), (1, END - 1), (2, END + 1))}

    await scene.log_ends.check()

    assert sorted(scene.looks) == [0, 1, 2]
    assert scene.target.requests == 1


async def test_it_is_done_again_and_again() -> None:
    """
    Also where the broker said nothing the first time.
    """
    scene = Scene(1)
    scene.limits.idle_look_seconds = 0.0
    scene.target.silent = {0}
    scene.target.ends[scene.copies[0].target] = 0

    running = asyncio.create_task(scene.log_ends.run())
    await until(lambda: scene.target.requests >= 2, "it was asked twice")
    looks = list(scene.looks)
    scene.target.silent = set()
    await until(lambda: bool(scene.looks), "the partition is looked at")
    running.cancel()

    assert looks == []


async def test_of_a_log_whose_end_is_not_told_nothing_is_concluded() -> None:
    """
    It may be a leader that has moved: the metadata are read again.
    """
    scene = Scene(2)
    scene.target.silent = {0}
    scene.target.ends[scene.copies[0].target] = 0

    await scene.log_ends.check()

    assert (scene.looks, scene.stale_metadata) == ([], 1)


async def test_a_broker_that_does_not_answer_holds_up_its_own_partitions_only() -> None:
    """
    What another one leads is looked at meanwhile.
    """
    scene = Scene(1)
    scene.target.topics["elsewhere"] = a_topic("elsewhere", leader=1)
    other = scene.copied(TopicPartition("elsewhere", 0))
    scene.target.frozen = 1
    scene.copies.insert(0, other)
    scene.target.ends |= {copy.target: 0 for copy in scene.copies}

    checking = asyncio.create_task(scene.log_ends.check())
    await until(lambda: bool(scene.looks), "the partition is looked at")
    checking.cancel()

    assert [other.copying, scene.copies[1].copying] == [True, False]


async def test_nor_does_it_hold_up_the_next_questions_to_others() -> None:
    """
    It is not asked once more before it has answered.
    """
    scene = Scene(1)
    scene.target.topics["elsewhere"] = a_topic("elsewhere", leader=1)
    scene.copies.append(scene.copied(TopicPartition("elsewhere", 0)))
    scene.target.frozen, scene.limits.idle_look_seconds = 1, 0.0

    running = asyncio.create_task(scene.log_ends.run())
    await until(lambda: scene.target.requests > 3, "the other one is asked again")
    scene.target.ends[scene.copies[0].target] = 0
    await until(lambda: bool(scene.looks), "its partition is looked at")
    running.cancel()

    assert set(scene.looks) == {0}
    assert scene.target.in_vain == 1


async def test_a_question_is_of_so_many_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Nothing else is done while it is written.
    """
    monkeypatch.setattr(log_ends, "PARTITIONS_AT_ONCE", 2)
    scene = Scene(5)
    scene.target.ends |= {copy.target: 0 for copy in scene.copies}

    await scene.log_ends.check()

    assert (sorted(scene.looks), scene.target.requests) == ([0, 1, 2, 3, 4], 3)


async def test_who_does_not_hold_the_right_asks_nothing() -> None:
    """
    Another mirror writes there.
    """
    scene = Scene(1)
    scene.right.held = False

    await scene.log_ends.check()

    assert scene.target.requests == 0


def pause(copy: PartitionCopy) -> None:
    copy.stop(State.PAUSED, Reason.OPERATOR, "paused", None)


def block(copy: PartitionCopy) -> None:
    copy.refused(append_refusal(10), "too large", time.monotonic())


def stand_by(copy: PartitionCopy) -> None:
    copy.stand_by(time.monotonic(), 1.0, "another mirror copies")


def begin_to_look(copy: PartitionCopy) -> None:
    copy.look_first(time.monotonic())


@pytest.mark.parametrize("happens", [pause, block, stand_by, begin_to_look])
@pytest.mark.parametrize("late", [False, True])
async def test_a_copy_that_does_not_go_on_is_left_as_it_is(
    happens: Callable[[PartitionCopy], None], late: bool
) -> None:
    """
    Also when it stops while the target is asked: what it waits for is a look anyway, or an operator.
    """
    scene = Scene(1)
    (copy,) = scene.copies
    scene.target.ends[copy.target] = 0
    if late:
        scene.target.meanwhile = lambda: happens(copy)
    else:
        happens(copy)

    await scene.log_ends.check()

    assert (scene.looks, scene.target.requests) == ([], int(late))


async def test_what_is_on_its_way_makes_no_difference() -> None:
    """
    Markers that stand there already, and are not counted yet; and what was sent and counted meanwhile.
    """
    scene = Scene(3)
    before, sent, counted = scene.copies
    before.markers_under_way = True
    scene.target.ends |= {before.target: END + 3, sent.target: END + 3, counted.target: END + 3}

    def go_on() -> None:
        sent.markers_under_way = True
        counted.acknowledged_target_offset = END + 3

    scene.target.meanwhile = go_on
    await scene.log_ends.check()

    assert scene.looks == []
