"""Partitions looked at together: each goes its own way once decided, and what was decided since stands."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from checkpoint.model import Insertion, OwnerRecord
from mirror.errors import ConnectionFailedError, NotAuthorizedError, PartitionError, TwinsiteError
from mirror.flow import judging, settling
from mirror.flow.context import Flow
from mirror.flow.ends import Compared, Seam
from mirror.flow.facts import SourceLook, Tail, TargetLook
from mirror.flow.following import Ends, SideError
from mirror.flow.lagging import LagMeter
from mirror.flow.outlook import Outlooks
from mirror.flow.partition import PartitionCopy
from mirror.flow.position import Insert, Proceed, Register, Stop
from mirror.flow.prepare import NotPreparableError
from mirror.flow.settling import PREPARING_AT_ONCE
from mirror.flow.states import PATIENCE
from mirror.flow.taking import Claim
from mirror.kafka.offsets import Answers
from mirror.kafka.transactions import Token
from mirror.model import OffsetMode, Reason, State, TopicPartition
from monitoring.outlook import Retention
from tests.harness.daemon import until
from tests.unit.looked_at import NOW, SOON, TOPIC_ID, World, partition

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


async def test_the_owner_says_that_records_are_lost_after_a_takeover_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    Another mirror had the right for a while, and did not go on either.
    """
    copy, world = partition(), World(monkeypatch)
    world.source = SourceLook(TOPIC_ID, 4, 10)
    outlooks = Outlooks(lambda _: Retention(), fresh_seconds=SOON)

    said = []
    for copied_elsewhere in (False, True):
        copy.copied_elsewhere = copied_elsewhere
        copy.look_anew(time.monotonic())
        async with world.looking(copy):
            pass
        lag = LagMeter(world.flow, lambda _: None, lambda _: None).measure(copy, now=NOW, now_ms=0)
        said.append(outlooks.project(copy, copy.state, lag.progress, lag, now=NOW, now_ms=0))

    assert (copy.state, copy.lost) == (State.DATA_LOSS, (0, 4))
    assert [(one.retention_loss_seconds, one.headroom_seconds) for one in said] == [(0.0, 0.0)] * 2


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


@pytest.mark.parametrize("side", ["source", "target"])
async def test_where_the_last_record_cannot_be_compared_nothing_goes_on(
    monkeypatch: pytest.MonkeyPatch, side: str
) -> None:
    """
    It is tried again. Who refused is named.
    """
    copy, world = partition(), World(monkeypatch)
    world.target = replace(ends_at(5), tail=Tail(4711, 4, 1, 0, 0, control=False))

    async def no_answer(flow: Flow, ends: Collection[TopicPartition]) -> Compared:
        return dict.fromkeys(ends, SideError(getattr(flow, side), NotAuthorizedError("may not be read")))

    monkeypatch.setattr(judging, "compare_ends", no_answer)
    async with world.looking(copy):
        pass

    assert (copy.copying, copy.attempts) == (False, 1)
    assert copy.look_due_at is not None
    assert (copy.state, copy.reason) == (State.BLOCKED, Reason(f"{side}_not_authorized"))


# -- an end that is not acknowledged -------------------------------------------------------------


class Overtaken(World):
    """A mirror of the same flow that copies meanwhile: what is seen first is not what is so then."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(monkeypatch)
        self.sources = [SourceLook(TOPIC_ID, 0, 10)]
        self.targets = [TargetLook(0, 0, None, None, 0, None)]
        self.stops: list[Stop | Seam | None] = [None]
        self.unreachable = False

    async def look_at_source(self, _flow: object, tps: Collection[TopicPartition]) -> Answers[SourceLook]:
        return dict.fromkeys(tps, self._next(self.sources))

    async def look_at_target(
        self, _flow: object, tps: Collection[TopicPartition], _: object
    ) -> Answers[TargetLook]:
        if self.unreachable and len(self.targets) == 1:
            raise ConnectionFailedError("target: gone")
        return dict.fromkeys(tps, self._next(self.targets))

    async def compare_ends(self, _flow: object, ends: Collection[TopicPartition]) -> Compared:
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


async def test_what_the_source_has_where_a_copy_goes_on_is_told_the_partition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    What is read then is held against that; where it is in doubt it is asked for with what is before it.
    """
    copy, world = partition(), Overtaken(monkeypatch)
    world.targets, world.stops = [ends_at(5)], [Seam(5, 5)]

    await world.settle(copy)

    assert (copy.state, copy.fetch_offset, copy.batch_end) == (State.ACTIVE, 5, 5)
    assert copy.ask_offset == 4


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


@pytest.mark.parametrize(
    ("anothers", "reason"), [(False, Reason.TARGET_NOT_EMPTY), (True, Reason.ANOTHER_FLOW)]
)
async def test_a_target_that_is_not_empty_is_named_by_the_flow_that_filled_it(
    monkeypatch: pytest.MonkeyPatch, anothers: bool, reason: Reason
) -> None:
    """
    Also where offsets have to be the same: the way out is another one, and is never to delete a good copy.
    """
    copy, world = partition(), World(monkeypatch)
    world.objected = {copy.target: ANOTHERS} if anothers else {}
    filled = Stop(State.BLOCKED, Reason.TARGET_NOT_EMPTY, "it holds others")
    monkeypatch.setattr(judging, "decide", lambda *_, **__: filled)

    async with world.looking(copy):
        pass

    assert (copy.state, copy.reason) == (State.BLOCKED, reason)
    assert copy.look_due_at is not None


async def test_a_target_that_is_not_empty_is_judged_once_other_flows_could_be_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    Who has just taken the right asks them once nobody else may write any more, and does not say before that
    the records are nobody's. Who has lost the right stands by.
    """
    copy, lost, world = partition(), partition(), World(monkeypatch)
    world.objected = {copy.target: ANOTHERS}
    filled = Stop(State.BLOCKED, Reason.TARGET_NOT_EMPTY, "it holds others")
    monkeypatch.setattr(judging, "decide", lambda *_, **__: filled)
    world.settler.is_owner, world.right.since = False, time.monotonic() + 60

    async with world.looking(copy):
        pass
    first = copy.state, copy.look_due_at, world.right.since
    async with world.looking(lost):
        world.right.held = False
    world.right.held = world.settler.is_owner = True
    world.right.since = time.monotonic()
    async with world.looking(copy):
        pass

    assert first[0] is State.UNKNOWN
    assert first[1] == pytest.approx(first[2])
    assert lost.state is State.STANDBY
    assert (copy.state, copy.reason) == (State.BLOCKED, Reason.ANOTHER_FLOW)


@pytest.mark.parametrize("answered", [True, False])
async def test_that_a_partition_has_a_map_is_said_once_when_it_goes_on_so(
    monkeypatch: pytest.MonkeyPatch, answered: bool
) -> None:
    """
    Also where it was noted, and the answer to that was lost. Not where nobody wanted the same offsets.
    """
    copy, other, world = partition(0), partition(1), World(monkeypatch)
    why = Stop(State.BLOCKED, Reason.TARGET_NOT_EMPTY, "it holds others")
    first = [Register(OffsetMode.MAPPED, 0, 5, prepared=True, instead_of=stop) for stop in (why, None)]
    decisions = [first[0], None, None, first[1], None]

    async def register(*_: object) -> None:
        world.memory.mode = OffsetMode.MAPPED
        if not answered:
            raise ConnectionFailedError("no answer")

    cast(Any, world.memory).register = register
    monkeypatch.setattr(
        judging, "decide", lambda *_, **__: decisions.pop(0) or Proceed(0, 5, 0, 0, 0, nothing_copied=True)
    )
    said = []
    with capture_logs() as lines:
        for one in (copy, copy, copy, other, other):
            async with world.looking(one):
                pass
            said.append([line["topic"] for line in lines if line["event"] == "offsets_mapped"])

    told = next(line for line in lines if line["event"] == "offsets_mapped")
    assert [len(topics) for topics in said] == [0, 1, 1, 1, 1]
    assert (told["partition"], told["reason"], told["detail"]) == (0, "target_not_empty", "it holds others")
    assert copy.mode is other.mode is OffsetMode.MAPPED


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


@pytest.mark.parametrize("state", [State.PAUSED, State.DATA_LOSS, State.FENCED])
async def test_how_far_another_mirror_is_with_what_is_stopped_here_is_known(
    monkeypatch: pytest.MonkeyPatch, state: State
) -> None:
    """
    An operator has put it right there, and the copy ends before where it did: no loss, once the right is ours
    again. What the source said of all of its log stands together with when it did.
    """
    copy, world = partition(), World(monkeypatch)
    copy.proceed(Proceed(70, 70, 70, 0, 70), OffsetMode.SAME, 0, NOW)
    copy.heard(0, 80, 80, at=NOW)
    copy.stop(state, Reason.OPERATOR, "as it was found here", None)
    world.right.held = False

    for end in (30, 35):
        world.ends = Ends(90, 90, end)
        async with world.looking(copy):
            began = time.monotonic()

    assert (copy.state, copy.detail, copy.look_due_at) == (state, "as it was found here", None)
    assert (copy.next_offset, copy.acknowledged_target_offset) == (35, 35)
    assert (copy.source_high_watermark, copy.told_at, copy.copied_elsewhere) == (80, NOW, True)
    assert world.settler.moved_at >= began


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
