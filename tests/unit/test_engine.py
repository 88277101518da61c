"""When an engine looks at its partitions, and for whom it waits meanwhile."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Collection
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mirror.errors import ConnectionFailedError, CorruptBatchError, NotAuthorizedError, TwinsiteError
from mirror.flow import engine as engine_module
from mirror.flow import succession
from mirror.flow.append_lanes import AppendLanes
from mirror.flow.engine import Engine
from mirror.flow.lanes import Lanes
from mirror.flow.partition import HOPELESS, PartitionCopy
from mirror.flow.position import Proceed
from mirror.flow.settling import Look
from mirror.flow.succession import Word
from mirror.kafka.dial import Address
from mirror.kafka.fetch import Isolation
from mirror.kafka.transactions import Token
from mirror.model import OffsetMode, Reason, State, TopicPartition
from tests.harness.daemon import until
from tests.unit.looked_at import SOON, Right, partition
from tests.unit.target_model import Mirror, source_batch

HOPELESS_IN_ORDER = (
    State.PAUSED,
    State.DATA_LOSS,
    State.FENCED,
    State.DIVERGED,
    State.TOPIC_RECREATED,
)


class Claimable(Right):
    """The right to copy the flow, another's until it is claimed.

    Attributes:
        refusals: How the next claims fail.
        lost: The token that was given to a claim that has failed; None if none was.
    """

    def __init__(self) -> None:
        super().__init__()
        self.held = False
        self.claims = 0
        self.refusals: list[TwinsiteError] = []
        self.lost: Token | None = None

    async def claim(self, *, patience_seconds: float) -> None:
        assert patience_seconds == 0, "before each attempt it is asked whose the right is"
        self.claims += 1
        if self.refusals:
            self.seen = self.lost or self.seen
            raise self.refusals.pop()
        self.held = True

    async def is_own(self, holder: Token | None) -> bool:
        return holder is not None and holder == self.lost


class Patient:
    """A settler: the looks at partition 0 never end, the others block what is not stopped."""

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
            if copy.state not in HOPELESS:
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
        return SimpleNamespace(leader=leader, brokers={})

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
        lambda: Word(right.seen.epoch, 0.0) if right.seen else None,
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


# -- whose turn it is ----------------------------------------------------------------------------


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


async def test_of_what_is_stopped_nothing_is_said_any_more_once_another_mirror_has_the_right() -> None:
    """
    That one may have no reason to stop: a lag that grows here, and a loss that comes near, would be untrue.
    """
    right = Right()
    engine = engine_of(Patient(), lambda tp: tp.partition, right)
    paused = partition(2)
    paused.proceed(Proceed(5, 5, 5, 0, 5), OffsetMode.SAME, 0, 0.0)
    truncated = partition(3)
    truncated.proceed(Proceed(5, 5, 5, 0, 5), OffsetMode.SAME, 0, 0.0)
    truncated.stop(State.DIVERGED, Reason.TARGET_TRUNCATED, "it ends at 3", None)
    engine.partitions |= {paused.tp: paused, truncated.tp: truncated}
    engine.pause(paused)

    right.held = False
    await eventually(lambda: paused.copied_elsewhere, engine.run())

    assert paused.state is State.PAUSED
    assert not truncated.copied_elsewhere, "a comparison asks here what the target had acknowledged"


async def test_of_what_is_stopped_the_lag_is_said_again_once_the_right_is_ours_again() -> None:
    """
    A paused partition is not looked at, and its source may lose records: nobody else warns of that now. Of
    one whose position was never known there is nothing to say.
    """
    right = Claimable()
    engine = engine_of(Patient(), lambda tp: tp.partition, right, time.monotonic() - 6)
    paused, unknown = partition(2), partition(3)
    paused.proceed(Proceed(5, 5, 5, 0, 5), OffsetMode.SAME, 0, 0.0)
    for copy in (paused, unknown):
        engine.add(copy)
        copy.copied_elsewhere = True
        engine.pause(copy)

    await eventually(lambda: right.held, engine.run())

    assert (paused.state, paused.copied_elsewhere) == (State.PAUSED, False)
    assert (unknown.state, unknown.copied_elsewhere) == (State.PAUSED, True)


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


async def test_a_claim_that_fails_for_now_is_made_again_by_the_next_look() -> None:
    """
    Partitions are followed meanwhile: if they were refused, the owner would have to be silent as long again.
    """
    settler, right = Patient(), Claimable()
    right.refusals = [ConnectionFailedError("the coordinator does not answer")] * 2
    engine = engine_of(settler, lambda tp: tp.partition, right, time.monotonic() - 6)
    engine.add(copy := partition(1))

    await eventually(lambda: right.held, engine.run())

    assert (right.claims, copy.attempts) == (3, 0)
    assert len(settler.looks) >= 2


async def test_a_claim_whose_answer_is_lost_is_made_again_by_the_next_look() -> None:
    """
    The owner is this mirror, and does not know it: nobody else is to be waited for.
    """
    settler, right = Patient(), Claimable()
    right.refusals, right.lost = [ConnectionFailedError("no answer for 30 s")], Token(4711, 1)
    engine = engine_of(settler, lambda tp: tp.partition, right, time.monotonic() - 6)
    engine.add(partition(1))

    await eventually(lambda: right.held, engine.run())

    assert right.claims == 2


async def test_a_claim_that_fails_for_good_is_shown() -> None:
    """
    Nothing but an operator ends that, and nobody may be copying.
    """
    right = Claimable()
    right.refusals = [NotAuthorizedError("the mirror may not write as flow-x")]
    engine = engine_of(Patient(), lambda tp: tp.partition, right, time.monotonic() - 6)
    engine.add(copy := partition(1))

    await eventually(lambda: copy.attempts > 0, engine.run())

    assert "may not write" in copy.detail


async def test_who_takes_over_looks_again_whether_a_loss_still_waits_for_a_decision() -> None:
    """
    It may have been accepted at the other mirror, and more copied since. What was fenced off has a newer
    epoch. What is paused here stays so, and so does what a look may not find again.
    """
    settler, right = Patient(), Claimable()
    engine = engine_of(settler, lambda tp: tp.partition, right, time.monotonic() - 6)
    engine.add(partition(1))
    states = {
        2: State.DATA_LOSS,
        3: State.PAUSED,
        4: State.DIVERGED,
        5: State.TOPIC_RECREATED,
        6: State.FENCED,
    }
    for number, state in states.items():
        engine.add(copy := partition(number))
        copy.stop(state, Reason.OPERATOR, "", None)
        copy.acknowledged_target_offset = 70

    await eventually(lambda: len(settler.looks) > 4, engine.run())

    ends = {number: engine.partitions[partition(number).tp].acknowledged_target_offset for number in states}
    assert set(settler.looks) == {1, 2, 6}
    assert set(ends.values()) == {70}, "a target log that was cut short meanwhile would not be noticed"


async def test_what_is_stopped_here_is_followed_now_and_then_while_another_mirror_has_the_right(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    That one may go on with it. What is never taken up again without an operator stays as it was found.
    """
    monkeypatch.setattr(engine_module, "standby_look_seconds", lambda _: 0.05)
    settler, right = Patient(), Claimable()
    engine = engine_of(settler, lambda tp: tp.partition, right)
    for number, state in enumerate((*HOPELESS_IN_ORDER, State.BLOCKED), 1):
        engine.add(copy := partition(number))
        copy.stop(state, Reason.OPERATOR, "", None if state in HOPELESS else 0.0)
    began = time.monotonic()

    await eventually(lambda: settler.looks.count(1) >= 3, engine.run())

    looks = {number: settler.looks.count(number) for number in range(1, 7)}
    assert {number for number, count in looks.items() if count} == {1, 2, 3, 6}
    assert time.monotonic() - began >= 2 * 0.05
    assert [copy.state for copy in engine.partitions.values()][:5] == list(HOPELESS_IN_ORDER)


@pytest.mark.parametrize("right_is_lost", [False, True])
async def test_where_all_is_stopped_it_is_noticed_that_the_owner_is_gone(
    monkeypatch: pytest.MonkeyPatch, right_is_lost: bool
) -> None:
    """
    Nothing is due, and the right may be lost before or after that; a loss that waits is looked at again.
    """
    monkeypatch.setattr(engine_module, "standby_look_seconds", lambda _: 0.05)
    settler, right = Patient(), Claimable()
    right.held = right_is_lost
    engine = engine_of(settler, lambda tp: tp.partition, right, time.monotonic() - 6)
    for number, state in {2: State.DATA_LOSS, 3: State.PAUSED}.items():
        engine.add(copy := partition(number))
        copy.stop(state, Reason.OPERATOR, "", None)
    running = asyncio.create_task(engine.run())
    if right_is_lost:
        await asyncio.sleep(0.01)
        right.held = False

    await eventually(lambda: bool(settler.looks), running)

    assert right.claims == 1
    assert set(settler.looks) == {2}


@pytest.mark.parametrize("moves", [True, False])
async def test_an_owner_that_gives_no_sign_of_life_is_taken_for_gone_where_all_is_stopped(
    monkeypatch: pytest.MonkeyPatch, moves: bool
) -> None:
    """
    Nobody would say how late what is paused is, nor warn of a loss. One that still copies lives, though it
    can write nothing to the state.
    """
    monkeypatch.setattr(engine_module, "standby_look_seconds", lambda _: 0.01)
    for name in ("WORD_COUNTS_SECONDS", "TAKE_OVER_AFTER_SECONDS"):
        monkeypatch.setattr(succession, name, 0.1)
    settler, right = Patient(), Claimable()
    engine = engine_of(settler, lambda tp: tp.partition, right)
    engine.add(copy := partition(3))
    engine.pause(copy)
    asked, began = right.holder, time.monotonic()

    async def holder() -> Token | None:
        settler.moved_at = time.monotonic() if moves else settler.moved_at
        return await asked()

    right.holder = holder  # type: ignore[method-assign]

    await eventually(lambda: right.held or time.monotonic() > began + 1, engine.run())

    assert right.held is not moves


# -- partitions that go ---------------------------------------------------------------------------


class Place:
    """A lane, for reading or for writing, that notes who has come and who has left."""

    def __init__(self, *_: object, **__: object) -> None:
        self.here: set[object] = set()
        self.dropped: list[object] = []
        self.hurried = 0

    def update(self, copy: PartitionCopy) -> None:
        self.here.add(copy.key)

    def offer(self, copy: PartitionCopy) -> None:
        self.here.add(copy)

    def leave(self, one: object) -> None:
        self.here.discard(one)

    def drop(self, key: object) -> None:
        self.dropped.append(key)

    def try_now(self) -> None:
        self.hurried += 1


def a_copy(engine: Engine) -> PartitionCopy:
    """A partition that is being copied, with a batch in flight and another queued."""
    copy = partition(1)
    copy.proceed(Proceed(0, 0, 0, 0, 0), OffsetMode.SAME, -1, time.monotonic())
    copy.queue.push([source_batch(number, 1) for number in range(2)], [], None)
    engine.add(copy)
    engine.changed(copy)
    copy.take()
    return copy


async def test_nothing_is_kept_of_a_partition_that_is_dropped() -> None:
    """
    Though something of it is in flight; the answer to that brings nothing back.
    """
    engine, told = engine_of(Patient(), lambda _: 1), list[PartitionCopy]()
    reading = engine._reading = Lanes[Any](1, Place)
    writing = engine._writing = AppendLanes[Any](1, Isolation.READ_COMMITTED, Place)
    forgotten = cast(Any, engine._keeper).forgotten = list[PartitionCopy]()
    cast(Any, engine._keeper).forget = forgotten.append
    engine.on_dropped = told.append
    copy = a_copy(engine)
    places = [*reading, *writing]
    here = [len(place.here) for place in places]

    engine.drop(copy)
    (sent,) = copy.in_flight
    copy.answered(sent, appended=True, now=time.monotonic())
    copy.stop(State.DIVERGED, Reason.OFFSETS_DIFFER, "what its answer says", None)
    engine.changed(copy)

    assert here == [1, 1]
    assert [place.here for place in places] == [set(), set()]
    assert (reading.of(copy), engine.partitions, engine._shown) == (None, {}, {})
    assert places[0].dropped == [copy.key]
    assert (forgotten[-1:], told) == ([copy], [copy])
    assert [of for lanes in (reading, writing._behind, writing._urgent) for of in lanes._on] == []


async def test_an_answer_to_a_partition_that_was_dropped_does_not_end_the_one_after_it() -> None:
    """
    A topic that was hidden is shown again: it is read under the same name by the same lane.
    """
    engine = engine_of(Patient(), lambda _: 1)
    engine._reading = Lanes[Any](1, Place)
    engine._writing = AppendLanes[Any](1, Isolation.READ_COMMITTED, Place)
    before = a_copy(engine)
    engine.drop(before)
    after = a_copy(engine)

    engine.changed(before)

    [place] = cast(Any, engine._reading)
    assert place.here == {after.key}
    assert engine.partitions == {after.tp: after}


# -- brokers that do not answer ------------------------------------------------------------------


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


def asked_in_vain(*, left_alone_seconds: float) -> tuple[Engine, list[float]]:
    """An engine whose source does not answer, and when it was asked for metadata (monotonic seconds)."""
    engine, asked = engine_of(Patient(), lambda _: 1), list[float]()
    source = cast(Any, engine._flow.source)

    async def refresh() -> None:
        asked.append(time.monotonic())
        raise ConnectionFailedError("no answer")

    source.refresh, source.left_alone_seconds = refresh, left_alone_seconds
    engine.stale(source)
    return engine, asked


async def test_a_cluster_that_does_not_answer_is_asked_less_and_less_often() -> None:
    """
    Its metadata may be large, and the way there paid by the byte; it may be away for days.
    """
    engine, asked = asked_in_vain(left_alone_seconds=0.0)

    await eventually(lambda: bool(asked) and time.monotonic() > asked[0] + 3.5, engine.run())

    assert 4 <= len(asked) <= 6


async def test_a_cluster_that_refuses_connections_is_asked_as_soon_as_one_may_be_tried_again() -> None:
    """
    Sooner it would be in vain, and later nothing else might notice that it is back.
    """
    engine, asked = asked_in_vain(left_alone_seconds=0.5)

    await eventually(lambda: len(asked) == 4, engine.run())

    assert all(after - before >= 0.49 for before, after in itertools.pairwise(asked))


@pytest.mark.parametrize("anew", [True, False], ids=["a broker is there anew", "it answers again"])
async def test_what_waits_for_a_broker_that_is_back_tries_at_once(anew: bool) -> None:
    """
    It may have failed so often that it would wait for much longer than that takes.
    """
    settler = Patient()
    engine, lane = engine_of(settler, lambda _: 1), Place()
    source = cast(Any, engine._flow.source)
    engine._reading = Lanes[Any](1, lambda *_: lane)
    engine._reading.open(1)
    waiting, paused = partition(1), partition(2)
    for copy in (waiting, paused):
        engine.add(copy)
        copy.stop(State.BLOCKED, Reason.SOURCE_UNAVAILABLE, "it is away", time.monotonic() + 3_600)
    engine.pause(paused)
    answers, opened = iter([anew, True]), list[bool]()

    async def refresh() -> None:
        if not next(answers):
            raise ConnectionFailedError("no answer")
        if anew:
            source.info.brokers = {1: Address("east", 1)}

    source.refresh, source.left_alone_seconds = refresh, 0.0
    source.try_now = lambda: opened.append(True)
    engine.stale(source)

    await eventually(lambda: bool(settler.looks), engine.run())

    assert len(opened) == (not anew), "other brokers that were away may be back, too"
    assert settler.looks[0] == 1
    assert 2 not in settler.looks
    assert lane.hurried == 1


async def test_brokers_are_tried_at_once_where_somebody_asks_for_it() -> None:
    """
    He has just mended what they refused, or the way there.
    """
    engine, lane, told = engine_of(Patient(), lambda _: 1), Place(), list[str]()
    for cluster in (engine._flow.source, engine._flow.target):
        cast(Any, cluster).try_now = lambda name=cluster.name: told.append(name)
    engine._reading = Lanes[Any](1, lambda *_: lane)
    engine._reading.open(1)

    engine.try_brokers_now()

    assert (told, lane.hurried) == (["source", "target"], 1)


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

    engine.reread(partition(), CorruptBatchError(0, "its CRC is another one"), 1)

    with pytest.raises(ExceptionGroup) as ended:
        async with asyncio.timeout(SOON):
            await running
    assert ended.value.subgroup(ZeroDivisionError)
