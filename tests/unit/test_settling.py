"""Partitions looked at together: each goes its own way once decided, and what was decided since stands."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from checkpoint.model import Insertion, OwnerRecord
from mirror.errors import ConnectionFailedError, CorruptBatchError, PartitionError, TwinsiteError
from mirror.flow import engine as engine_module
from mirror.flow import judging, settling
from mirror.flow.engine import Engine
from mirror.flow.facts import Known, SourceLook, Tail, TargetLook
from mirror.flow.following import Ends, SideError
from mirror.flow.lagging import LagMeter
from mirror.flow.partition import PartitionCopy
from mirror.flow.position import Insert, Proceed, Stop
from mirror.flow.prepare import NotPreparableError
from mirror.flow.settling import PREPARING_AT_ONCE, Look, Settler
from mirror.flow.states import PATIENCE
from mirror.flow.taking import Claim
from mirror.flow.turn import Turn
from mirror.kafka.offsets import Answers
from mirror.kafka.transactions import Token
from mirror.model import OffsetMode, Reason, State, TopicPartition
from tests.harness.daemon import until
from tests.unit.target_model import Hooks, Mirror

TOPIC_ID = "t"
SOON = 5.0
NOW = 1_000.0


def partition(number: int = 0) -> PartitionCopy:
    tp = TopicPartition("orders", number)
    return PartitionCopy(tp, tp, b"t" * 16, in_flight_max=5)


class Right:
    """The right to copy the flow, ours since long ago unless a test says otherwise."""

    def __init__(self) -> None:
        self.held = True
        self.seen: Token | None = Token(4711, 0)
        self.transactional_id = "twinsite.orders"
        self.since = 0.0
        self.turn = Turn()

    @property
    def may_write(self) -> bool:
        return self.held

    async def confirm(self, *_: float) -> bool:
        return self.held

    async def ask(self, *_: float) -> bool:
        return self.held

    async def ask_the_state(self) -> None:
        return

    async def holder(self) -> Token | None:
        return self.seen


class Remembered:
    """The durable state of partitions that start at 0, prepared but for some."""

    owner: OwnerRecord | None = None
    mode = OffsetMode.SAME
    topic_id = stored_topic_id = TOPIC_ID
    loss_accepted = (0, 0)
    on_loss: Callable[[], None] = staticmethod(lambda: None)

    def __init__(self, unprepared: Collection[PartitionCopy] = ()) -> None:
        self.unprepared = {p.tp for p in unprepared}
        self.lost: list[tuple[int, int]] = []
        self.taken_back: list[TopicPartition] = []
        self.targets: dict[TopicPartition, str] = {}

    async def refresh(self, *, sole_writer: bool) -> None:
        """What this mirror alone writes need not be read."""
        if not sole_writer:
            self.topic_id = self.stored_topic_id

    def known(self, tp: TopicPartition) -> Known:
        prepared, target_topic_id = tp not in self.unprepared, self.targets.get(tp)
        return Known(
            self.topic_id,
            self.mode,
            0,
            prepared,
            lambda end: end,
            self.loss_accepted,
            target_topic_id=target_topic_id,
        )

    async def note_loss(self, _tp: TopicPartition, lost_from: int, lost_to: int) -> None:
        self.lost.append((lost_from, lost_to))
        self.on_loss()

    def epoch_at(self, _tp: TopicPartition, _next_offset: int) -> int:
        return -1

    def runs_after(self, _tp: TopicPartition, _target_offset: int) -> Sequence[tuple[int, int]]:
        return ()

    async def prepared(self, tp: TopicPartition) -> None:
        self.unprepared.discard(tp)

    async def take_back(self, tp: TopicPartition) -> None:
        self.taken_back.append(tp)

    async def note_targets(self, target_topic_ids: Mapping[TopicPartition, str]) -> None:
        self.targets.update(target_topic_ids)


class World:
    """Both clusters as a look sees them: ten records at the source, nothing at the target."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *partitions: PartitionCopy) -> None:
        self.memory = Remembered(partitions)
        self.hooks = Hooks()
        self.looked = asyncio.Event()
        self.seen = asyncio.Event()
        self.seen.set()
        self.padded: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.preparations = 0
        self.asked_for: list[set[TopicPartition]] = []
        self.objected: dict[TopicPartition, Claim | TwinsiteError] = {}
        self.source = SourceLook(TOPIC_ID, 0, 10)
        self.target = TargetLook(0, 0, None, None, 0, None)
        self.flow = flow = Mirror().lane._flow
        flow.hooks = self.hooks
        cast(Any, flow.target).info = SimpleNamespace(leader=lambda _: 1)
        self.right = Right()
        self.settler = Settler(
            flow, cast(Any, self.memory), self.right, self, offsets="same", continue_after_loss=False
        )
        self.settler.is_owner = True
        self.ends: Ends | SideError = Ends(10, 10, 0)
        for name in ("look_at_source", "look_at_target", "compare_ends"):
            monkeypatch.setattr(judging, name, getattr(self, name))
        for name in ("look_at_ends", "prepare"):
            monkeypatch.setattr(settling, name, getattr(self, name))

    async def look_at_source(self, _flow: object, tps: Collection[TopicPartition]) -> Answers[SourceLook]:
        self.looked.set()
        await self.seen.wait()
        return dict.fromkeys(tps, self.source)

    async def look_at_ends(
        self, _flow: object, partitions: Collection[PartitionCopy]
    ) -> dict[PartitionCopy, Ends | SideError]:
        self.looked.set()
        await self.seen.wait()
        return dict.fromkeys(partitions, self.ends)

    async def look_at_target(
        self, _flow: object, tps: Collection[TopicPartition], _: object
    ) -> Answers[TargetLook]:
        return dict.fromkeys(tps, self.target)

    async def compare_ends(
        self, _flow: object, ends: Collection[TopicPartition]
    ) -> dict[TopicPartition, Stop | None]:
        return dict.fromkeys(ends)

    async def objections(
        self, looks: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, Claim | TwinsiteError]:
        self.asked_for.append(set(looks))
        return self.objected

    async def prepare(self, *_: object) -> None:
        self.preparations += 1
        await asyncio.shield(self.padded)

    @asynccontextmanager
    async def looking(self, copy: PartitionCopy) -> AsyncIterator[None]:
        """In the block the questions of a look are asked; after it they were answered."""
        self.seen.clear()
        self.looked.clear()
        async with asyncio.TaskGroup() as group:
            group.create_task(self.settler.settle(self.settler.begin([copy], group)))
            await self.looked.wait()
            yield
            self.seen.set()


# -- what takes long is nobody else's business ---------------------------------------------------


async def test_nobody_waits_while_a_partition_is_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Padding may take minutes; who was looked at with it is read at once, and not only shown as active.
    """
    long, other = partition(0), partition(1)
    world = World(monkeypatch, long)
    async with asyncio.TaskGroup() as group:
        async with asyncio.timeout(SOON):
            await world.settler.settle(world.settler.begin([long, other], group))

        told, busy = list(world.hooks.changes), set(world.settler.busy)
        world.padded.set_result(None)

    assert (other.state, told) == (State.ACTIVE, [other])
    assert busy == {long}
    assert world.hooks.changes == [other, long]
    assert long.look_due_at is not None
    assert not world.settler.busy


async def test_a_partition_is_known_as_of_when_its_look_began(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    An owner that has taken the right since has to look again.
    """
    copy = partition()
    world = World(monkeypatch)
    async with world.looking(copy):
        meanwhile = time.monotonic()

    assert copy.copying
    assert copy.looked_at is not None
    assert copy.looked_at < meanwhile


async def test_a_preparation_that_fails_stops_its_partition_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A refusal blocks it with the reason; a broker that is away is a passing fault.
    """
    refused, away = partition(0), partition(1)
    errors: list[TwinsiteError] = [
        PartitionError(refused.tp, "no", reason=Reason.PREPARATION_REFUSED),
        ConnectionFailedError("away"),
    ]
    for copy, error in zip((refused, away), errors, strict=True):
        world = World(monkeypatch, copy)
        world.padded.set_exception(error)

        async with asyncio.TaskGroup() as group:
            await world.settler.settle(world.settler.begin([copy], group))

        assert not world.settler.busy

    assert (refused.state, refused.reason) == (State.BLOCKED, Reason.PREPARATION_REFUSED)
    assert (away.state, away.attempts) == (State.UNKNOWN, 1)


async def test_a_partition_paused_while_it_is_prepared_stays_paused(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    What was prepared is noted all the same.
    """
    copy = partition()
    world = World(monkeypatch, copy)
    async with asyncio.TaskGroup() as group:
        await world.settler.settle(world.settler.begin([copy], group))
        await until(lambda: world.preparations == 1, "it is being prepared", SOON)
        copy.stop(State.PAUSED, Reason.OPERATOR, "paused", None)
        world.padded.set_result(None)

    assert (copy.state, copy.look_due_at) == (State.PAUSED, None)
    assert not world.memory.unprepared


async def test_what_waits_for_other_preparations_is_prepared_by_who_may_write_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    The right was another's meanwhile, who has begun to copy there, perhaps: it is looked at again.
    """
    copies = [partition(number) for number in range(PREPARING_AT_ONCE + 1)]
    world = World(monkeypatch, *copies)
    async with asyncio.TaskGroup() as group:
        await world.settler.settle(world.settler.begin(copies, group))
        await until(lambda: world.preparations == PREPARING_AT_ONCE, "they are being prepared", SOON)
        world.right.since = time.monotonic()
        world.padded.set_result(None)

    assert world.preparations == PREPARING_AT_ONCE
    assert {copy.state for copy in copies} == {State.UNKNOWN}
    assert None not in {copy.look_due_at for copy in copies}


async def test_what_is_prepared_at_a_broker_that_does_not_answer_holds_up_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    More partitions than may be prepared at once are led by that one; another is led by a broker that answers.
    """
    hung, copies = PREPARING_AT_ONCE + 1, [partition(number) for number in range(PREPARING_AT_ONCE + 2)]
    world = World(monkeypatch, *copies)
    cast(Any, world.flow.target).info = SimpleNamespace(leader=lambda tp: tp.partition // hung)
    async with asyncio.TaskGroup() as group:
        await world.settler.settle(world.settler.begin(copies, group))
        await until(lambda: world.preparations == PREPARING_AT_ONCE + 1, "each broker has its own", SOON)
        world.padded.set_result(None)

    assert world.preparations == len(copies)


async def test_a_target_that_takes_no_padding_is_not_mapped_by_who_has_lost_the_right_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    Who has it has begun an offset map there, perhaps, that would be begun anew.
    """
    copy = partition()
    world = World(monkeypatch, copy)
    async with asyncio.TaskGroup() as group:
        await world.settler.settle(world.settler.begin([copy], group))
        await until(lambda: world.preparations == 1, "it is being prepared", SOON)
        world.right.since = time.monotonic()
        world.padded.set_exception(NotPreparableError(copy.target, ConnectionFailedError("no"), 0))

    assert (copy.state, copy.reason) == (State.UNKNOWN, Reason.STARTING)
    assert copy.look_due_at is not None


# -- what has changed since the look began -------------------------------------------------------


async def test_a_partition_paused_during_a_look_stays_paused(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    The operator spoke last.
    """
    copy = partition()
    world = World(monkeypatch)

    async with world.looking(copy):
        copy.stop(State.PAUSED, Reason.OPERATOR, "paused", None)

    assert (copy.state, copy.look_due_at) == (State.PAUSED, None)
    assert world.hooks.changes == [copy]


async def test_a_partition_paused_while_an_insertion_is_finished_stays_paused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    What a repair has begun is ended first, which writes to the flow's state.
    """
    copy = partition()
    world = World(monkeypatch)

    async def finish(*_: object) -> None:
        copy.stop(State.PAUSED, Reason.OPERATOR, "paused", None)

    monkeypatch.setattr(judging, "decide", lambda *_, **__: Insert(Insertion(10, 1, 1, b"")))
    monkeypatch.setattr(settling, "finish", finish)
    async with world.looking(copy):
        pass

    assert (copy.state, copy.look_due_at) == (State.PAUSED, None)


async def test_a_partition_resumed_during_a_look_is_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    What an operator's word changes in the durable state may not be in what the look has read.
    """
    copy = partition()
    world = World(monkeypatch)

    async with world.looking(copy):
        copy.look_anew(7.0)

    assert (copy.state, copy.look_due_at) == (State.UNKNOWN, 7.0)


async def test_a_look_begins_when_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    What changes before its task gets its turn is not taken for what the look began with.
    """
    copy = partition()
    world = World(monkeypatch)
    async with asyncio.TaskGroup() as group:
        look = world.settler.begin([copy], group)
        copy.stop(State.PAUSED, Reason.OPERATOR, "paused", None)

        await world.settler.settle(look)

    assert copy.state is State.PAUSED


async def test_a_look_that_failed_refuses_nobody_who_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A partition that has gone on since is not stopped by a broker's silence to an older question.
    """
    copy = partition()
    world = World(monkeypatch)

    async def no_answer(_flow: object, tps: Collection[TopicPartition], _: object) -> Answers[TargetLook]:
        await world.seen.wait()
        return {tp: ConnectionFailedError("no answer for 30 s") for tp in tps}

    monkeypatch.setattr(judging, "look_at_target", no_answer)
    async with world.looking(copy):
        copy.look_anew(7.0)

    assert (copy.attempts, copy.look_due_at) == (0, 7.0)


async def test_what_an_operator_is_to_decide_is_judged_by_the_state_as_it_is_stored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    Whoever has stood still only believes to be the one who writes it: another mirror may have begun the topic
    that was made anew.
    """
    copy, world = partition(), World(monkeypatch)
    world.memory.topic_id = "before"

    async with world.looking(copy):
        pass
    goes_on = copy.copying
    world.memory.topic_id = world.memory.stored_topic_id = "before"
    copy.look_anew(NOW)
    async with world.looking(copy):
        pass

    assert goes_on
    assert copy.state is State.TOPIC_RECREATED


# -- a loss that was accepted --------------------------------------------------------------------


async def test_what_is_left_out_is_in_the_ledger_before_the_copy_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    Once it has gone on nothing would tell that anything is missing.
    """
    copy, world, began = partition(), World(monkeypatch), list[bool]()
    world.source, world.memory.loss_accepted = SourceLook(TOPIC_ID, 4, 10), (0, 4)
    world.memory.on_loss = lambda: began.append(copy.copying)

    async with world.looking(copy):
        pass

    assert (world.memory.lost, began) == ([(0, 4)], [False])
    assert (copy.copying, copy.fetch_offset) == (True, 4)


@pytest.mark.parametrize("lost", ["the right", "all it knew"])
async def test_one_that_is_not_the_owner_any_more_once_a_loss_is_noted_does_not_go_on(
    monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    """
    That took a moment; another mirror may have begun to write meanwhile.
    """
    copy, world = partition(), World(monkeypatch)
    world.source, world.memory.loss_accepted = SourceLook(TOPIC_ID, 4, 10), (0, 4)

    def noted() -> None:
        if lost == "the right":
            world.right.held = False
        else:
            world.right.since = time.monotonic()

    world.memory.on_loss = noted
    async with world.looking(copy):
        pass

    assert not copy.copying
    assert copy.look_due_at is not None


async def test_who_did_not_read_the_state_as_its_only_writer_looks_again_before_it_writes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    It has become the owner during the look: what it has judged by may have been an earlier owner's.
    """
    copy, world = partition(), World(monkeypatch)
    world.settler.is_owner = False

    async with world.looking(copy):
        world.settler.is_owner = True
    began = copy.copying
    async with world.looking(copy):
        pass

    assert (began, copy.copying) == (False, True)


async def test_where_the_last_record_cannot_be_compared_nothing_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    It is tried again.
    """
    copy, world = partition(), World(monkeypatch)
    world.target = replace(ends_at(5), tail=Tail(4711, 4, 1, 0, 0, control=False))

    async def no_answer(_flow: object, ends: Collection[TopicPartition]) -> Answers[Stop | None]:
        return dict.fromkeys(ends, ConnectionFailedError("source: gone"))

    monkeypatch.setattr(judging, "compare_ends", no_answer)
    async with world.looking(copy):
        pass

    assert (copy.copying, copy.attempts) == (False, 1)
    assert copy.look_due_at is not None


# -- an end that is not acknowledged -------------------------------------------------------------


class Overtaken(World):
    """A mirror of the same flow that copies meanwhile: what is seen first is not what is so then."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(monkeypatch)
        self.sources = [SourceLook(TOPIC_ID, 0, 10)]
        self.targets = [TargetLook(0, 0, None, None, 0, None)]
        self.stops: list[Stop | None] = [None]
        self.unreachable = False

    async def look_at_source(self, _flow: object, tps: Collection[TopicPartition]) -> Answers[SourceLook]:
        return dict.fromkeys(tps, self._next(self.sources))

    async def look_at_target(
        self, _flow: object, tps: Collection[TopicPartition], _: object
    ) -> Answers[TargetLook]:
        if self.unreachable and len(self.targets) == 1:
            raise ConnectionFailedError("target: gone")
        return dict.fromkeys(tps, self._next(self.targets))

    async def compare_ends(
        self, _flow: object, ends: Collection[TopicPartition]
    ) -> dict[TopicPartition, Stop | None]:
        return dict.fromkeys(ends, self._next(self.stops))

    @staticmethod
    def _next(told: list[Any]) -> Any:
        return told.pop(0) if len(told) > 1 else told[0]

    async def settle(self, copy: PartitionCopy) -> None:
        async with asyncio.TaskGroup() as group:
            await self.settler.settle(self.settler.begin([copy], group))


def ends_at(offset: int) -> TargetLook:
    """A target that ends there, with the last batch before it."""
    return TargetLook(0, offset, None, None, 0, None, Tail(1, offset - 1, 1, 0, 0, False))


async def test_a_copy_is_not_ahead_of_a_source_that_was_written_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    Another mirror has copied what the source got after we had asked it for its end.
    """
    copy, world = partition(), Overtaken(monkeypatch)
    world.sources = [SourceLook(TOPIC_ID, 0, 10), SourceLook(TOPIC_ID, 0, 13)]
    world.targets = [ends_at(12), ends_at(13)]

    await world.settle(copy)

    assert (copy.state, copy.next_offset) == (State.ACTIVE, 13)


async def test_what_another_mirror_has_copied_before_it_was_removed_is_not_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    The source has removed more since; and what is gone now was there when the target was looked at.
    """
    copy, world = partition(), Overtaken(monkeypatch)
    world.sources = [SourceLook(TOPIC_ID, 6, 10), SourceLook(TOPIC_ID, 9, 10)]
    world.targets = [ends_at(5), ends_at(8)]

    await world.settle(copy)

    assert (copy.state, copy.next_offset) == (State.ACTIVE, 8)


async def test_a_record_is_not_another_because_the_map_was_read_too_early(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    The owner has noted a gap and copied what is behind it: by the older map its end is another record's.
    """
    copy, world = partition(), Overtaken(monkeypatch)
    world.targets = [ends_at(5)]
    world.stops = [Stop(State.DIVERGED, Reason.OFFSETS_DIFFER, "another record"), None]

    await world.settle(copy)

    assert copy.state is State.ACTIVE


async def test_what_is_so_when_it_is_looked_at_again_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    copy, world = partition(), Overtaken(monkeypatch)
    world.targets = [ends_at(5)]
    world.stops = [Stop(State.DIVERGED, Reason.OFFSETS_DIFFER, "another record")]

    await world.settle(copy)

    assert (copy.state, copy.reason, copy.detail) == (
        State.DIVERGED,
        Reason.OFFSETS_DIFFER,
        "another record",
    )
    assert not world.settler.busy


async def test_what_cannot_be_looked_at_again_is_not_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    An operator is not woken up for what nobody has seen in order.
    """
    copy, world = partition(), Overtaken(monkeypatch)
    world.targets = [ends_at(12), ends_at(12)]
    world.unreachable = True

    await world.settle(copy)

    assert copy.state is State.UNKNOWN
    assert copy.look_due_at is not None
    assert not world.settler.busy


async def test_what_is_on_too_few_replicas_does_not_count_as_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    It is looked at again and again, and after some tries the partition is blocked with the reason.
    """
    copy = partition()
    world = World(monkeypatch)
    world.target = replace(world.target, target_log_end_offset=10, unreplicated=10)
    async with world.looking(copy):
        pass
    passing = (copy.state, copy.next_offset, copy.acknowledged_target_offset)

    for _ in range(PATIENCE - 1):
        async with world.looking(copy):
            pass

    assert passing == (State.UNKNOWN, None, None)
    assert (copy.state, copy.reason) == (State.BLOCKED, Reason.NOT_ENOUGH_REPLICAS)
    assert copy.look_due_at is not None


@pytest.mark.parametrize("before", [None, "deleted"])
async def test_a_copy_goes_on_in_a_topic_that_is_written_down(
    monkeypatch: pytest.MonkeyPatch, before: str | None
) -> None:
    """
    Where the target's topic was made anew, or was never written down, that is done before records follow.
    """
    copy, world = partition(), World(monkeypatch)
    world.memory.targets = {copy.tp: before} if before else {}
    world.target = replace(world.target, topic_id="anew")

    async with world.looking(copy):
        pass
    first = copy.copying, copy.look_due_at is not None, dict(world.memory.targets)
    async with world.looking(copy):
        pass

    assert first == (False, True, {copy.tp: "anew"})
    assert copy.copying


# -- other flows ---------------------------------------------------------------------------------

ANOTHERS = Claim("another", TopicPartition("orders", 0))


@pytest.mark.parametrize("name", ["a", "z"])
async def test_what_another_flow_copies_into_is_left_to_it(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """
    Of two that have begun at once one takes its word back, and the other goes on once that is done.
    """
    copy, world = partition(), World(monkeypatch)
    world.flow.name, world.objected = name, {copy.target: ANOTHERS}

    async with world.looking(copy):
        pass

    assert (copy.state, copy.reason) == (State.BLOCKED, Reason.ANOTHER_FLOW)
    assert copy.detail.startswith("flow another copies orders-0 into the target partition")
    assert copy.look_due_at is not None
    assert world.memory.taken_back == ([copy.tp] if name == "z" else [])

    world.objected = {}
    async with world.looking(copy):
        pass
    assert copy.copying


async def test_what_is_copied_into_already_asks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    So a copy that goes on costs no question.
    """
    copy, world = partition(), World(monkeypatch)
    world.target = replace(world.target, target_log_end_offset=5)
    world.objected = {copy.target: ANOTHERS}

    async with world.looking(copy):
        pass

    assert (copy.copying, world.asked_for) == (True, [])


async def test_nobody_waits_while_it_is_looked_up_what_other_flows_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    A state topic without a leader is waited for half a minute, by who takes a partition only.
    """
    copy, other, world = partition(0), partition(1), World(monkeypatch)
    look_at_target, answered = world.look_at_target, asyncio.Event()

    async def look(_flow: object, tps: Collection[TopicPartition], _: object) -> Answers[TargetLook]:
        return await look_at_target(_flow, tps, _) | {
            other.target: replace(world.target, target_log_end_offset=5)
        }

    async def objections(_: object) -> Mapping[TopicPartition, Claim | TwinsiteError]:
        await answered.wait()
        return {copy.target: ConnectionFailedError("away")}

    monkeypatch.setattr(judging, "look_at_target", look)
    world.settler._claims = cast(Any, SimpleNamespace(objections=objections))
    async with asyncio.TaskGroup() as group:
        async with asyncio.timeout(SOON):
            await world.settler.settle(world.settler.begin([copy, other], group))
        told = list(world.hooks.changes)
        answered.set()

    assert (other.state, told) == (State.ACTIVE, [other])
    assert (copy.copying, copy.look_due_at is not None) == (False, True)
    assert not world.settler.busy


# -- whose turn it is ----------------------------------------------------------------------------

LONG_AGO_MS = 1_700_000_000_000


async def test_what_another_mirror_copies_is_looked_at_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    It is shown how far that one is, and which one it is.
    """
    copy, world = partition(), World(monkeypatch)
    world.right.held, world.right.seen = False, Token(4711, 6)
    world.memory.owner = OwnerRecord(6, "west-4", 17, "", LONG_AGO_MS)
    world.settler.standby_look_seconds = 2.5
    world.ends = Ends(10, 10, 5)

    async with world.looking(copy):
        began = time.monotonic()
    first = world.settler.moved_at
    world.ends = Ends(10, 10, 8)
    async with world.looking(copy):
        pass

    assert (copy.state, copy.reason, copy.next_offset) == (State.STANDBY, Reason.ANOTHER_MIRROR, 8)
    assert "west-4, process 17, since 2023-11-14" in copy.detail
    assert copy.look_due_at is not None
    assert copy.look_due_at >= began + 2.5
    assert (first, world.settler.moved_at >= began) == (0.0, True)


async def test_nothing_is_begun_for_another_mirror(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Where the copy is to begin is not known before that one has prepared it.
    """
    copy = partition()
    world = World(monkeypatch, copy)
    world.right.held = world.settler.is_owner = False

    async with world.looking(copy):
        pass

    assert (copy.state, copy.next_offset, world.preparations) == (State.STANDBY, None, 0)


async def test_a_side_that_does_not_answer_one_that_stands_by_is_told_after_some_tries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    copy, world = partition(), World(monkeypatch)
    world.right.held = False
    world.ends = SideError(cast(Any, world.settler)._flow.source, ConnectionFailedError("it is away"))

    for _ in range(PATIENCE):
        async with world.looking(copy):
            pass

    assert (copy.state, copy.reason) == (State.BLOCKED, Reason.SOURCE_UNAVAILABLE)
    assert copy.look_due_at is not None


@pytest.mark.parametrize("mode", OffsetMode)
@pytest.mark.parametrize("owned_before", [True, False])
@pytest.mark.parametrize(
    ("missing", "held_back", "late_seconds"),
    [
        pytest.param(0, 0, 7.0, id="complete at each look"),
        pytest.param(50, 0, 12.0, id="never complete"),
        pytest.param(50, 50, 12.0, id="behind open transactions"),
    ],
)
async def test_one_that_takes_over_is_as_late_as_the_owner_was(
    monkeypatch: pytest.MonkeyPatch,
    mode: OffsetMode,
    owned_before: bool,
    missing: int,
    held_back: int,
    late_seconds: float,
) -> None:
    """
    It has seen each time how far that one was; when it was the owner itself, a day ago, says nothing. The
    source goes on by a hundred between two looks.
    """
    copy, world = partition(), World(monkeypatch)
    world.memory.mode = mode
    world.right.held = world.settler.is_owner = False
    meter = LagMeter(world.flow, lambda _: None, lambda _: None)
    began_at, looks = 1_000.0, 86_400 // 5
    looked_at = began_at
    monkeypatch.setattr(settling, "time", SimpleNamespace(monotonic=lambda: looked_at))
    if owned_before:
        copy.proceed(Proceed(0, 0, 0, 0, 0), mode, 0, began_at)
        copy.heard(0, 0, 0, at=began_at)
        copy.doubt(began_at)

    for look in range(looks + 1):
        looked_at, end = began_at + 5 * look, 100 * look
        world.ends = Ends(end, end - held_back, max(end - missing, 0))
        async with asyncio.TaskGroup() as group:
            await world.settler.settle(world.settler.begin([copy], group))
    meanwhile = meter.measure(copy, now=looked_at, now_ms=0)
    copy.heard(0, end + 10_000, -1)
    copy.proceed(Proceed(end - missing, end - missing, 0, 0, end - missing), mode, 0, looked_at + 6)
    taken_over = meter.measure(copy, now=looked_at + 7, now_ms=0)

    assert (meanwhile.seconds, meanwhile.records) == (None, None)
    assert taken_over.seconds == pytest.approx(late_seconds)


@pytest.mark.parametrize("mode", OffsetMode)
@pytest.mark.parametrize("remembered", [True, False])
async def test_a_new_owner_waits_until_who_had_the_right_before_does_not_write_any_more(
    monkeypatch: pytest.MonkeyPatch, mode: OffsetMode, *, remembered: bool
) -> None:
    """
    Also where the broker remembers who wrote last: with the next old record it may have forgotten.
    """
    copy, world = partition(), World(monkeypatch)
    world.memory.mode = mode
    world.target = replace(ends_at(5), last_sequence=4 if remembered else None, producer_epoch=0)
    world.settler.is_owner = False
    world.right.since = time.monotonic() + 60

    async with world.looking(copy):
        pass
    began_at_once, due_at, wait_until = copy.copying, copy.look_due_at, world.right.since
    world.settler.is_owner, world.right.since = True, time.monotonic()
    async with world.looking(copy):
        pass

    assert not began_at_once
    assert due_at == pytest.approx(wait_until)
    assert copy.copying


async def test_what_was_seen_in_an_earlier_time_of_ours_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    The right was another's for a moment while one side was slow to answer, and is ours again.
    """
    copy, world = partition(), World(monkeypatch)

    async with world.looking(copy):
        world.right.since = time.monotonic()
    began = copy.copying
    async with world.looking(copy):
        pass

    assert not began
    assert copy.copying


async def test_one_that_has_lost_the_right_during_a_look_does_not_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    copy, world = partition(), World(monkeypatch)

    async with world.looking(copy):
        world.right.held = False

    assert copy.state is State.STANDBY


async def test_an_engine_that_has_lost_the_right_looks_at_what_it_copies() -> None:
    """
    Whoever has noticed it. What only an operator can end stays as it is.
    """
    settler, right = Patient(), Right()
    engine = engine_of(settler, lambda tp: tp.partition, right)
    copying, stopped = partition(1), partition(2)
    for copy in (copying, stopped):
        copy.proceed(Proceed(5, 5, 5, 0, 5), OffsetMode.SAME, 0, 0.0)
        engine.partitions[copy.tp] = copy
    stopped.stop(State.DIVERGED, Reason.FOREIGN_WRITE, "somebody", None)

    right.held = False
    await eventually(lambda: bool(settler.looks), engine.run())

    assert set(settler.looks) == {1}


@pytest.mark.parametrize(("unwritten_seconds", "claims"), [(None, 0), (3, 0), (6, 1)])
async def test_an_owner_that_does_not_write_again_a_state_that_was_deleted_is_taken_for_gone(
    unwritten_seconds: float | None, claims: int
) -> None:
    """
    Though nothing is to be copied, and it has said where it runs: nobody else knows what who stands by knows.
    """
    settler, right = Patient(), Claimable()
    since = None if unwritten_seconds is None else time.monotonic() - unwritten_seconds
    engine = engine_of(settler, lambda tp: tp.partition, right, since)
    engine.add(partition(1))

    await eventually(lambda: len(settler.looks) > 3, engine.run())

    assert right.claims == claims
    assert settler.is_owner is bool(claims)


class Claimable(Right):
    """The right to copy the flow, another's until it is claimed."""

    def __init__(self) -> None:
        super().__init__()
        self.held = False
        self.claims = 0

    async def claim(self) -> None:
        self.held, self.claims = True, self.claims + 1


# -- brokers that do not answer ------------------------------------------------------------------


class Patient:
    """A settler: the looks at partition 0 never end, the others find them active."""

    def __init__(self) -> None:
        self.is_owner = False
        self.standby_look_seconds, self.moved_at = 1.0, 0.0
        self.busy: set[PartitionCopy] = set()
        self.looks: list[int] = []

    def begin(self, partitions: Collection[PartitionCopy], group: asyncio.TaskGroup) -> Look:
        self.busy.update(partitions)
        return Look({p: p.generation for p in partitions}, True, self.is_owner, group, time.monotonic())

    async def settle(self, look: Look) -> None:
        self.looks += [p.tp.partition for p in look.generations]
        if any(p.tp.partition == 0 for p in look.generations):
            await asyncio.Event().wait()
        again = time.monotonic() + 0.01
        for copy in look.generations:
            copy.stop(State.BLOCKED, Reason.TARGET_NOT_EMPTY, "", again)
            self.busy.discard(copy)


def engine_of(
    settler: Patient,
    leaders: Callable[[TopicPartition], int],
    right: Right | None = None,
    unwritten_since: float | None = None,
) -> Engine:
    """An engine whose partitions are led by these target brokers, and by one at the source.

    Where the right is another's, that one has said where it runs.
    """

    async def refresh(_sole_writer: bool) -> None: ...

    async def forever() -> None:
        await asyncio.Event().wait()

    async def refreshed() -> None:
        engine.add(partition(1))

    def info(leader: Callable[[TopicPartition], int]) -> SimpleNamespace:
        return SimpleNamespace(leader=leader)

    engine = Engine()
    flow = Mirror().lane._flow
    flow.hooks = engine
    seldom = {"refresh_seconds": 3_600.0}
    flow.source = cast(Any, SimpleNamespace(name="source", info=info(lambda _: 1), refresh=forever, **seldom))
    flow.target = cast(Any, SimpleNamespace(name="target", info=info(leaders), refresh=refreshed, **seldom))
    keeper = SimpleNamespace(run=forever, forget=lambda _: None, leaders_moved=lambda: None)
    right = right or Right()
    engine.wire(
        flow,
        cast(Any, right),
        cast(Any, settler),
        cast(Any, keeper),
        refresh,
        lambda: right.seen.epoch if right.seen else None,
        lambda: unwritten_since,
    )
    return engine


async def eventually(condition: Callable[[], bool], running: Awaitable[None]) -> None:
    """Run until the condition holds."""
    task = asyncio.ensure_future(running)
    try:
        await until(condition, "it comes true", SOON)
    finally:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_a_broker_that_does_not_answer_holds_up_its_own_partitions_only() -> None:
    """
    Those on another leader are looked at again and again meanwhile.
    """
    settler = Patient()
    engine = engine_of(settler, lambda tp: tp.partition)
    for number in (0, 1):
        engine.add(partition(number))

    await eventually(lambda: settler.looks.count(1) > 3, engine.run())

    assert settler.looks.count(0) == 1


async def test_partitions_between_the_same_brokers_are_looked_at_together() -> None:
    """
    One question for all of them; who comes late waits for the next one.
    """
    settler = Patient()
    engine = engine_of(settler, lambda tp: tp.partition // 2)
    for number in (0, 1, 2, 3):
        engine.add(partition(number))

    await eventually(lambda: settler.looks.count(3) > 3, engine.run())

    assert settler.looks.count(0) == settler.looks.count(1) == 1
    assert settler.looks.count(2) == settler.looks.count(3)


async def test_who_becomes_due_while_the_coordinator_is_asked_in_vain_need_not_ask_again() -> None:
    """
    Each question takes seconds: two groups that ask in turns would each take twice as long to say that the
    target is away.
    """

    class Away(Right):
        def __init__(self) -> None:
            super().__init__()
            self.asked, self.gives_up = asyncio.Event(), asyncio.Event()

        async def confirm(self, *_: float) -> bool:
            self.asked.set()
            await self.gives_up.wait()
            self.gives_up.clear()  # the next question is not given up any more
            raise ConnectionFailedError("no answer within 3 s")

    right, early, late = Away(), partition(0), partition(1)
    engine = engine_of(Patient(), lambda tp: tp.partition, right)
    engine.add(early)
    running = asyncio.create_task(engine.run())
    async with asyncio.timeout(SOON):
        await right.asked.wait()

    engine.add(late)
    right.gives_up.set()

    await eventually(lambda: bool(early.attempts and late.attempts), running)
    assert (early.attempts, late.attempts) == (1, 1)


async def test_the_metadata_of_one_cluster_does_not_wait_for_the_other() -> None:
    """
    The source does not answer; what the target looks like now is read all the same.
    """
    settler = Patient()
    engine = engine_of(settler, lambda tp: tp.partition)
    engine.stale(engine._flow.source)
    engine.stale(engine._flow.target)

    await eventually(lambda: bool(engine.partitions), engine.run())

    assert not engine._stale["target"].is_set()


async def test_the_metadata_of_a_cluster_is_read_again_though_nobody_complains() -> None:
    """
    A leader that was cut off still answers that nothing is new; only the metadata tells of the one after it.
    """
    engine = engine_of(Patient(), lambda tp: tp.partition)
    cast(Any, engine._flow.target).refresh_seconds = 0.01
    heard: list[str] = []
    cast(Any, engine._keeper).leaders_moved = lambda: heard.append("moved")

    await eventually(lambda: bool(engine.partitions and heard), engine.run())

    assert not engine._stale["target"].is_set()


async def test_a_mistake_of_ours_while_other_replicas_are_asked_is_not_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    It ends the mirror, as one in any other loop does; else the partition would wait for ever.
    """

    async def mistaken(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(engine_module, "reread", mistaken)
    engine = engine_of(Patient(), lambda _: 1)
    running = asyncio.create_task(engine.run())

    engine.reread(partition(), CorruptBatchError(0, "its CRC is another one"))

    with pytest.raises(ExceptionGroup) as ended:
        async with asyncio.timeout(SOON):
            await running
    assert ended.value.subgroup(ZeroDivisionError)
