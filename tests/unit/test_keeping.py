"""What the keeper does while control markers are on their way, and with an answer that comes too late."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from checkpoint import offset_map
from checkpoint.flow_state import FlowState
from mirror.errors import AuthenticationError, ConnectionFailedError, TwinsiteError
from mirror.flow import marking
from mirror.flow.engine import wants_look
from mirror.flow.keeping import Keeper
from mirror.flow.marking import LOST_AT_ONCE, MARKERS_AT_ONCE, spread
from mirror.flow.memory import FlowMemory
from mirror.flow.partition import PartitionCopy
from mirror.flow.position import Proceed, Register
from mirror.flow.states import PATIENCE
from mirror.kafka.failures import broker_error
from mirror.kafka.offsets import DEBUGGER, LATEST, Answers, Marking
from mirror.kafka.transactions import Token
from mirror.model import Gap, OffsetMode, Reason, State, TopicPartition
from tests.harness.daemon import until
from tests.harness.memory_store import MemoryStore
from tests.unit.target_model import Connection, Hooks, Mirror, source_batch

NOW = 1_000.0
SOON = 5.0
LANDING_SECONDS = 0.05
OWNER_EPOCH = 3


class Coordinator:
    """Says whether we are the owner, and since when."""

    def __init__(self) -> None:
        self.answers = [True]
        self.since = 0.0
        self.token = Token(7, OWNER_EPOCH)

    async def confirm(self) -> bool:
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


class Target:
    """The target cluster: who leads what, and whether brokers let themselves be reached.

    Attributes:
        greeted: Set once a broker that is to be heard from has greeted.
        starts: Set while brokers start on what they receive; at other times they only greet.
    """

    def __init__(self) -> None:
        self.leaders = {0: 1, 1: 1, 2: 2}
        self.reachable, self.starts = asyncio.Event(), asyncio.Event()
        self.greeted = asyncio.Event()
        self.reachable.set()
        self.starts.set()
        self.info = SimpleNamespace(leader=lambda tp: self.leaders[tp.partition])

    async def connection(self, node: int, lane: str) -> Connection:
        assert (node, lane) in {(1, "markers"), (2, "markers")}
        if not self.reachable.is_set():
            raise ConnectionFailedError(f"broker {node} does not answer")
        return Connection()

    async def hear_from(self, node: int) -> None:
        await self.connection(node, "markers")
        self.greeted.set()
        await self.starts.wait()


class Broker:
    """Takes markers and answers when it is told to.

    Attributes:
        refused: How many markers of a request it refuses before it takes the others.
        others: How many offsets somebody else has written to each partition.
        silent: What stands in the way when it is asked where logs end.
        asked: Of which partitions it was asked where their logs end, each time.
    """

    def __init__(self) -> None:
        self.requests: list[dict[TopicPartition, Marking]] = []
        self.answers: list[asyncio.Future[Answers[None]]] = []
        self.refused = 0
        self.others = 0
        self.silent: ConnectionFailedError | None = None
        self.asked: list[list[TopicPartition]] = []
        self._written: Counter[TopicPartition] = Counter()

    async def write_markers(
        self, _cluster: object, markings: Mapping[TopicPartition, Marking], **_: object
    ) -> Answers[None]:
        if not markings:
            return {}
        self.requests.append(dict(markings))
        self.answers.append(asyncio.get_running_loop().create_future())
        answers = await self.answers[-1]
        for tp, one in markings.items():
            self._written[tp] += one.count - self.refused if answers[tp] is None else 0
        return answers

    async def list_offsets(
        self, _cluster: object, tps: Sequence[TopicPartition], timestamp: int, *, replica_id: int, leader: int
    ) -> Answers[int]:
        """Where the logs end that began at 100."""
        assert (timestamp, replica_id, leader in {1, 2}) == (LATEST, DEBUGGER, True)
        self.asked.append(list(tps))
        return {tp: self.silent or 100 + self.others + self._written[tp] for tp in tps}

    def answer(self, error: TwinsiteError | None = None) -> None:
        """Answer the last request, for all partitions alike."""
        self.answers[-1].set_result(dict.fromkeys(self.requests[-1], error))

    @property
    def sizes(self) -> list[int]:
        """Markers of each request, in all."""
        return [sum(marking.count for marking in request.values()) for request in self.requests]


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
    monkeypatch.setattr(marking, "write_markers", broker.write_markers)
    monkeypatch.setattr(marking, "list_offsets", broker.list_offsets)
    monkeypatch.setattr(marking, "LANDING_SECONDS", LANDING_SECONDS)
    return broker


@asynccontextmanager
async def a_keeper() -> AsyncIterator[Keeper]:
    """A keeper at work."""
    hooks = Engaged()
    flow = Mirror().lane._flow
    flow.hooks = hooks
    flow.target = cast(Any, Target())
    flow.limits = replace(flow.limits, gap_limit=2 * MARKERS_AT_ONCE)
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
    copy.queue.push([Gap(100, 100 + offsets)], [], None)
    return copy


async def turns() -> None:
    """Let everything happen that waits for nothing."""
    for _ in range(20):
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


async def test_markers_that_are_not_all_there_do_not_count_though_the_broker_says_so(broker: Broker) -> None:
    """
    It tells the outcome of the last one. Nothing follows before a look has seen what is there.
    """
    copy, other = with_a_gap(7), with_a_gap(1, 1)
    async with a_keeper() as keeper:
        keeper.offer(copy)
        keeper.offer(other)
        await turns()
        broker.refused = 3

        broker.answer()
        await turns()

    assert wants_look(copy)
    assert (copy.next_offset, copy.pending, copy.state) == (100, False, State.ACTIVE)
    assert other.next_offset == 101


async def test_markers_do_not_count_where_the_log_end_is_not_told(broker: Broker) -> None:
    """
    A look asks for it again.
    """
    copy = with_a_gap(7)
    async with a_keeper() as keeper:
        keeper.offer(copy)
        await turns()
        broker.silent = ConnectionFailedError("gone")

        broker.answer()
        await turns()

    assert wants_look(copy)
    assert (copy.next_offset, copy.unanswered) == (100, False)


async def test_nobody_is_looked_at_while_the_end_of_its_markers_is_asked_for(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Nor marked once more: what was written is not counted yet.
    """
    asked, told = asyncio.Event(), asyncio.Event()

    async def slowly(*about: Any, **how: Any) -> Answers[int]:
        asked.set()
        await told.wait()
        return await broker.list_offsets(*about, **how)

    monkeypatch.setattr(marking, "list_offsets", slowly)
    copy = with_a_gap(7)
    async with a_keeper() as keeper:
        keeper.offer(copy)
        await turns()
        broker.answer()
        await asked.wait()
        keeper.offer(copy)
        await turns()
        meanwhile = copy.unanswered, len(broker.requests), copy.next_offset

        told.set()
        await turns()

    assert meanwhile == (True, 1, 100)
    assert copy.next_offset == 107


async def test_of_one_marker_the_answer_is_enough(broker: Broker) -> None:
    """
    A gap of one offset, as each committed transaction leaves it, costs no other question.
    """
    copy, longer = with_a_gap(1), with_a_gap(2, 1)
    async with a_keeper() as keeper:
        keeper.offer(copy)
        keeper.offer(longer)
        await turns()
        broker.answer()
        await turns()
        copy.queue.push([Gap(101, 102)], [], None)
        keeper.offer(copy)
        await turns()
        broker.answer()
        await turns()

    assert broker.asked == [[longer.target]]
    assert (copy.next_offset, longer.next_offset) == (102, 102)


async def test_markers_that_are_not_allowed_block_the_partition(broker: Broker) -> None:
    """
    What it lacks is named, as no other way keeps the offsets.
    """
    copy = with_a_gap(7)
    async with a_keeper() as keeper:
        keeper.offer(copy)
        await turns()

        broker.answer(broker_error(31, "WriteTxnMarkers"))
        await turns()

    assert (copy.state, copy.reason) == (State.BLOCKED, Reason.MARKERS_NOT_AUTHORIZED)
    assert "not authorized to write control markers" in copy.detail


async def test_why_a_partition_is_mapped_is_known_though_nobody_answers_that_it_was_noted(
    broker: Broker,
) -> None:
    """
    It may be noted all the same: then the next look goes on with a map, and says why.
    """
    copy = with_a_gap(7)
    noted = []

    async def become_mapped(tp: TopicPartition) -> None:
        noted.append(tp)
        raise ConnectionFailedError("no answer")

    async with a_keeper() as keeper:
        keeper._auto, keeper._ledger = True, cast(Any, SimpleNamespace(become_mapped=become_mapped))
        keeper.offer(copy)
        await turns()

        broker.answer(broker_error(31, "WriteTxnMarkers"))
        await turns()

    assert noted == [copy.tp]
    assert copy.look_due_at is not None
    assert copy.mapped_for is not None
    reason, words = copy.mapped_for
    assert reason is Reason.MARKERS_NOT_AUTHORIZED
    assert "not authorized to write control markers" in words


async def test_a_login_that_fails_under_markers_is_no_missing_permission(broker: Broker) -> None:
    """
    It may be renewed: were it taken for one, a partition might give up its offsets for ever. Nor is it an
    answer: the markers may land until the broker has answered on another connection.
    """
    copy = with_a_gap(7)
    async with a_keeper() as keeper:
        reachable = cast(Any, keeper._flow.target).reachable
        keeper.offer(copy)
        await turns()

        reachable.clear()
        broker.answer(AuthenticationError("the token has expired"))
        await turns()
        meanwhile = copy.unanswered, wants_look(copy)
        reachable.set()
        await until(lambda: not copy.unanswered, "they can land no more", SOON)

    assert meanwhile == (True, False)
    assert wants_look(copy)
    assert (copy.state, copy.next_offset) == (State.ACTIVE, 100)


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


async def test_markers_of_an_owner_are_above_those_of_the_one_before_and_its_own_of_an_earlier_look(
    broker: Broker,
) -> None:
    """
    What was delayed of these is refused then. That they landed need not have been seen: they may land later.
    """
    copy = with_a_gap(7)
    async with a_keeper() as keeper:
        keeper.offer(copy)
        await turns()
        broker.answer(ConnectionFailedError("gone"))
        await until(lambda: not copy.markers_under_way, "they can land no more", SOON)
        copy.proceed(Proceed(100, 100, 0, 1, 100), OffsetMode.SAME, -1, NOW)
        copy.queue.push([Gap(100, 107)], [], None)
        keeper.offer(copy)
        await turns()

    first, again = (marking.coordinator_epoch for request in broker.requests for marking in request.values())
    assert OWNER_EPOCH << 16 <= first < again < (OWNER_EPOCH + 1) << 16


# -- how many at once ----------------------------------------------------------------------------


def test_markers_of_one_request_are_spread_fairly() -> None:
    """
    Who needs few gets them all; the others share what is left.
    """
    short, long, longer = (with_a_gap(number=number) for number in range(3))

    shares = spread({longer: 900, short: 10, long: 800}, 100)

    assert shares == {short: 10, long: 45, longer: 45}


def test_with_more_partitions_than_markers_some_wait() -> None:
    """
    Each of the others gets one.
    """
    copies = [with_a_gap(number=number) for number in range(5)]

    shares = spread(dict.fromkeys(copies, 7), 3)

    assert sorted(shares.values()) == [1, 1, 1]


async def test_a_request_holds_no_more_markers_than_a_broker_writes_quickly(broker: Broker) -> None:
    """
    However many partitions wait: the next owner counts on its end. The rest follows.
    """
    copies = [with_a_gap(MARKERS_AT_ONCE, number) for number in (0, 1)]
    async with a_keeper() as keeper:
        for copy in copies:
            keeper.offer(copy)
        await turns()

        broker.answer()
        await turns()

    assert broker.sizes == [MARKERS_AT_ONCE, MARKERS_AT_ONCE]
    assert [copy.next_offset for copy in copies] == [100 + MARKERS_AT_ONCE // 2] * 2


async def test_a_broker_that_takes_its_time_over_markers_holds_up_no_other(broker: Broker) -> None:
    """
    Partitions on another broker get theirs meanwhile.
    """
    slow, other = with_a_gap(7, 0), with_a_gap(7, 2)
    async with a_keeper() as keeper:
        keeper.offer(slow)
        await turns()

        keeper.offer(other)
        await turns()
        broker.answer()
        await turns()

    assert (slow.next_offset, other.next_offset) == (100, 107)


async def test_the_owner_asks_again_just_before_it_writes_markers(broker: Broker) -> None:
    """
    What had to be noted first may have taken half a minute: another mirror may be the owner by now.
    """
    copy = with_a_gap(7)
    async with a_keeper() as keeper:
        cast(Any, keeper._owner).answers = [True, False]

        keeper.offer(copy)
        await turns()

    assert not broker.requests
    assert copy.look_due_at is not None


async def test_the_owner_asks_again_when_the_connection_for_markers_is_open(broker: Broker) -> None:
    """
    To open one may take longer than a new owner waits before it writes.
    """
    copy = with_a_gap(7)
    async with a_keeper() as keeper:
        cast(Any, keeper._owner).answers = [True, True, False]

        keeper.offer(copy)
        await turns()

    assert not broker.requests
    assert copy.look_due_at is not None


def at_third_question(keeper: Keeper, happens: Callable[[], None]) -> None:
    """Let something happen when the connection for markers is open, and the owner is asked once more."""
    owner = cast(Any, keeper._owner)
    asked, confirm = 0, owner.confirm

    async def confirm_late() -> bool:
        nonlocal asked
        asked += 1
        if asked == 3:
            happens()
        return cast(bool, await confirm())

    owner.confirm = confirm_late


async def test_who_is_to_be_looked_at_by_the_time_markers_can_be_sent_gets_them_after_the_look(
    broker: Broker,
) -> None:
    """
    Its log was found to end elsewhere while the owner was asked once more. A log end that is being read must
    not move. The look may keep the queue; others get theirs at once.
    """
    copy, other = with_a_gap(7), with_a_gap(5, 1)
    async with a_keeper() as keeper:
        at_third_question(keeper, lambda: copy.look_first(NOW))
        keeper.offer(copy)
        keeper.offer(other)
        await turns()
        meanwhile = wants_look(copy), [set(request) for request in broker.requests]

        copy.proceed(Proceed(100, 100, 0, 1, 100), OffsetMode.SAME, -1, NOW)
        broker.answer()
        await turns()
        keeper._flow.hooks.changed(copy)
        await turns()
        broker.answer()
        await turns()

    assert meanwhile == (True, [{other.target}])
    assert (copy.next_offset, other.next_offset) == (107, 105)


@pytest.mark.parametrize("found", ["a leader epoch", "a large gap", "other offsets"])
async def test_who_was_fetched_anew_by_the_time_markers_can_be_sent_is_served_from_the_beginning(
    broker: Broker, found: str
) -> None:
    """
    Another gap is at the head. It may be in a leader epoch that is to be noted first, or too large, or the
    partition is mapped by now.
    """
    copy, served = with_a_gap(7), list[str]()

    def fetched_anew() -> None:
        mode = OffsetMode.MAPPED if found == "other offsets" else OffsetMode.SAME
        offsets = 2 * MARKERS_AT_ONCE + 1 if found == "a large gap" else 9
        copy.doubt(NOW)
        copy.proceed(Proceed(100, 100, 0, 1, 100), mode, 3, NOW)
        copy.queue.push([Gap(100, 100 + offsets)], [(4, 103)] if found == "a leader epoch" else [], None)

    async def note_epochs(_: object) -> None:
        served.append("a leader epoch" if not broker.requests else "too late")

    async def note_runs(_: object) -> None:
        served.append("other offsets")

    async with a_keeper() as keeper:
        keeper._ledger = cast(
            Any, SimpleNamespace(note_epochs=note_epochs, note_runs=note_runs, runs_after=lambda *_: [])
        )
        at_third_question(keeper, fetched_anew)
        keeper.offer(copy)
        await turns()
        served += ["a large gap"] if copy.reason is Reason.GAP_TOO_LARGE else []

    assert served == [found]
    assert broker.sizes == ([9] if found == "a leader epoch" else [])


async def test_no_markers_are_begun_once_the_mirror_drains_though_they_were_about_to_be(
    broker: Broker,
) -> None:
    """
    Nobody waits for the answer any more.
    """
    copy = with_a_gap(7)
    async with a_keeper() as keeper:
        at_third_question(keeper, lambda: setattr(keeper._flow, "draining", True))
        keeper.offer(copy)
        await turns()

    assert (broker.requests, copy.unanswered) == ([], False)


async def test_an_owner_that_took_the_right_back_looks_before_it_writes(broker: Broker) -> None:
    """
    What it knew of the partition is from before: another owner may have written there since.
    """
    copy = with_a_gap(7)
    async with a_keeper() as keeper:
        cast(Any, keeper._owner).since = NOW + 1
        keeper.offer(copy)
        await turns()
        looks, asked = wants_look(copy), list(broker.requests)

        broker.others = 3
        copy.proceed(Proceed(100, 103, 0, 2, 100), OffsetMode.SAME, -1, NOW + 2)
        copy.queue.push([Gap(100, 107)], [], None)
        keeper.offer(copy)
        await turns()
        broker.answer()
        await turns()

    assert (looks, asked) == (True, [])
    assert (copy.next_offset, copy.acknowledged_target_offset) == (107, 110)


async def test_what_was_lost_takes_few_markers_at_a_time_and_no_limit_stops_it(broker: Broker) -> None:
    """
    It may be millions, and takes minutes; others on that broker need a few each, now.
    """
    copy = with_a_gap(0)
    copy.queue.clear(100)
    copy.queue.push([Gap(100, 1_000_100, lost=True)], [], None)
    async with a_keeper() as keeper:
        keeper.offer(copy)
        await turns()
        broker.answer()
        await turns()

        other = with_a_gap(7, number=1)
        keeper.offer(other)
        await turns()
        broker.answer()
        await turns()

    assert broker.sizes[:2] == [LOST_AT_ONCE, LOST_AT_ONCE]
    assert max(broker.sizes) <= LOST_AT_ONCE + 7
    assert copy.counters.lost_offsets == 2 * LOST_AT_ONCE


async def test_a_partition_whose_leader_moves_waits_for_the_old_one_no_more(broker: Broker) -> None:
    """
    The broker that led it is busy with others, or frozen.
    """
    slow, moving = with_a_gap(7, 0), with_a_gap(7, 1)
    async with a_keeper() as keeper:
        keeper.offer(slow)
        await turns()
        keeper.offer(moving)
        await turns()
        waited = not moving.markers_under_way

        cast(Any, keeper._flow.target).leaders[1] = 2
        keeper.leaders_moved()
        await turns()
        broker.answer()
        await turns()

    assert waited
    assert (slow.next_offset, moving.next_offset) == (100, 107)


async def test_markers_under_way_to_another_broker_have_not_landed_with_those_that_are_lost(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    No marker was left for the partition in the first request. Its leader has moved since.
    """
    monkeypatch.setattr(marking, "spread", partial(spread, at_once=1))
    lost, moving = with_a_gap(1, 0), with_a_gap(7, 1)
    async with a_keeper() as keeper:
        keeper.offer(lost)
        keeper.offer(moving)
        await turns()
        cast(Any, keeper._flow.target).leaders[1] = 2
        keeper.offer(moving)
        await turns()
        sent = [[tp.partition for tp in request] for request in broker.requests]

        broker.answers[0].set_result({lost.target: ConnectionFailedError("gone")})
        await until(lambda: not lost.markers_under_way, "they can land no more", SOON)
        await turns()

        assert moving.markers_under_way

    assert sent == [[0], [1]]
    assert len(broker.requests) == 2


async def test_a_map_that_is_contradicted_is_corrected_before_the_batch_is_sent(broker: Broker) -> None:
    """
    Behind where the batch begins nothing stays of what was written ahead.
    """
    dropped: list[tuple[TopicPartition, int]] = []

    async def drop_runs(tp: TopicPartition, target_offset: int) -> None:
        dropped.append((tp, target_offset))

    copy = with_a_gap(0)
    copy.proceed(Proceed(100, 7, 0, 1, 100), OffsetMode.MAPPED, -1, NOW, [(110, 9)])
    copy.queue.push([source_batch(100, 3)], [], None)
    async with a_keeper() as keeper:
        keeper._ledger = cast(Any, SimpleNamespace(drop_runs=drop_runs))
        waited = not copy.batch_ready

        keeper.offer(copy)
        await turns()

    assert waited
    assert dropped == [(copy.target, 7)]
    assert copy.batch_ready


@pytest.mark.parametrize(
    "read",
    [(1, 2, 3, 4, 5, 6), (1, 2, 3, 5, 6), (1, 2, 6), (2, 3, 4, 5, 6), (1, 2, 3, 4, 5, 6, 7, 8), (7, 8), ()],
    ids=["as foreseen", "one less", "three less", "the first less", "more behind", "later", "none"],
)
async def test_of_a_map_that_was_given_far_ahead_a_few_runs_are_looked_at_and_it_becomes_what_is_read(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, read: Sequence[int]
) -> None:
    """
    Two at a time here, of six. What is foreseen, and read no more, does not stay between runs that are.
    """
    monkeypatch.setattr(offset_map, "AHEAD_RUNS", 2)
    tp = TopicPartition("orders", 0)
    state = FlowState(MemoryStore())
    await state.load()
    memory = FlowMemory(state)
    await memory.register(tp, tp, "t", Register(OffsetMode.MAPPED, 0, 0, prepared=True))
    await memory.note_runs({tp: [(10 * n, 9 * n) for n in range(1, 7)]})
    copy = PartitionCopy(tp, tp, b"t" * 16, in_flight_max=5)
    copy.proceed(Proceed(0, 0, 0, 1, 0), OffsetMode.MAPPED, -1, time.monotonic(), memory.runs_after(tp, 0))
    expected, target = [(0, 0)], 0
    for n in range(1, 9):
        copy.queue.push([source_batch(10 * n - 10, 9)], [], None)
        copy.queue.push([Gap(10 * n - 1, 10 * n) if n in read else source_batch(10 * n - 1, 1)], [], None)
        target += 9 if n in read else 10
        expected += [(10 * n, target)] if n in read else []
    async with a_keeper() as keeper:
        keeper._ledger = memory
        while copy.pending:
            while copy.batch_ready:
                copy.answered(copy.take()[0], appended=True, now=time.monotonic())
            keeper.offer(copy)
            await turns()

    offsets = state.map(tp)
    assert offsets is not None
    assert list(offsets) == expected


async def test_a_run_that_the_flows_state_does_not_take_blocks_its_partition(broker: Broker) -> None:
    """
    By a reason of its own: the target topic has refused nothing, and its brokers answer.
    """
    tp = TopicPartition("orders", 0)
    copy = PartitionCopy(tp, tp, b"t" * 16, in_flight_max=5)
    copy.proceed(Proceed(100, 100, 0, 1, 100), OffsetMode.MAPPED, -1, NOW)
    copy.queue.push([Gap(100, 107), source_batch(107, 1)], [], None)

    class Full:
        async def note_runs(self, _: object) -> None:
            raise broker_error(10, "target: Produce to __twinsite_state.orders-0")

    async with a_keeper() as keeper:
        keeper._ledger = cast(Any, Full())
        keeper.offer(copy)
        await turns()

    assert (copy.state, copy.reason) == (State.BLOCKED, Reason.STATE_UNUSABLE)
    assert copy.look_due_at is not None


# -- no answer -----------------------------------------------------------------------------------


async def test_after_no_answer_nobody_is_looked_at_before_the_broker_answers_again(broker: Broker) -> None:
    """
    It may be frozen with the request in its hands. The partition is in doubt meanwhile, and says so in time.
    """
    copy = with_a_gap(7)
    async with a_keeper() as keeper:
        target = cast(Any, keeper._flow.target)
        keeper.offer(copy)
        await turns()
        target.reachable.clear()
        broker.answer(ConnectionFailedError("no answer for 30 s"))
        await until(lambda: copy.state is State.BLOCKED, "it says that the broker is away", SOON)
        looked_at_while_blocked = wants_look(copy)

        target.reachable.set()
        await until(lambda: wants_look(copy), "it may be looked at", SOON)

    assert not looked_at_while_blocked
    assert copy.reason is Reason.TARGET_UNAVAILABLE


async def test_a_broker_that_answers_again_gets_time_to_write_what_it_has(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    It has begun with what it had received before, but need not be done.
    """
    monkeypatch.setattr(marking, "LANDING_SECONDS", 3_600)
    copy = with_a_gap(7)
    async with a_keeper() as keeper:
        keeper.offer(copy)
        await turns()

        broker.answer(ConnectionFailedError("the connection was lost"))
        await turns()
        in_doubt, looked_at = copy.look_due_at is not None, wants_look(copy)

    assert in_doubt
    assert not looked_at


async def test_a_broker_that_leads_no_more_is_not_waited_for(broker: Broker) -> None:
    """
    What it appends now does not last.
    """
    copy = with_a_gap(7)
    async with a_keeper() as keeper:
        target = cast(Any, keeper._flow.target)
        keeper.offer(copy)
        await turns()
        target.reachable.clear()
        target.leaders[0] = 2

        broker.answer(ConnectionFailedError("no answer for 30 s"))
        await until(lambda: not copy.unanswered, "nothing is waited for", SOON)

    assert (copy.next_offset, copy.state) == (100, State.ACTIVE)


async def test_what_a_broker_has_not_started_on_may_still_land_though_it_greets(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Under SASL it answers greetings ahead of its queue, where the markers wait for its disks.
    """
    monkeypatch.setattr(marking, "LANDING_SECONDS", 0)
    copy = with_a_gap(7)
    async with a_keeper() as keeper:
        target = cast(Any, keeper._flow.target)
        keeper.offer(copy)
        await turns()
        target.starts.clear()
        broker.answer(ConnectionFailedError("no answer for 30 s"))
        await asyncio.wait_for(target.greeted.wait(), SOON)
        await turns()
        meanwhile = copy.unanswered, wants_look(copy)

        target.starts.set()
        await until(lambda: wants_look(copy), "it may be looked at", SOON)

    assert meanwhile == (True, False)


async def test_a_partition_whose_leader_moves_does_not_wait_for_those_that_stay(broker: Broker) -> None:
    """
    They have no other replica: as long as the broker is frozen their markers may land.
    """
    moved, stays = with_a_gap(7), with_a_gap(7, 1)
    async with a_keeper() as keeper:
        target = cast(Any, keeper._flow.target)
        keeper.offer(moved)
        keeper.offer(stays)
        await turns()
        target.reachable.clear()
        broker.answer(ConnectionFailedError("no answer for 30 s"))
        await turns()

        target.leaders[0] = 2
        await until(lambda: wants_look(moved), "it may be looked at", SOON)

    assert stays.unanswered


async def test_who_waits_for_a_broker_whose_markers_may_still_land_says_that_it_cannot_be_reached(
    broker: Broker,
) -> None:
    """
    Nothing of it is on its way there. It is looked at again and again, and no marker of it can be sent.
    """
    lost, other = with_a_gap(7), with_a_gap(5, 1)
    async with a_keeper() as keeper:
        keeper.offer(lost)
        await turns()
        cast(Any, keeper._flow.target).reachable.clear()
        broker.answer(AuthenticationError("the token has expired"))
        await turns()

        for _ in range(PATIENCE):
            keeper.offer(other)
            await until(lambda: wants_look(other), "it is refused", SOON)
            if other.state is not State.BLOCKED:
                other.proceed(Proceed(100, 100, 0, 1, 100), OffsetMode.SAME, -1, time.monotonic())
                other.queue.push([Gap(100, 105)], [], None)

    assert (other.state, other.reason) == (State.BLOCKED, Reason.TARGET_UNAVAILABLE)
    assert lost.unanswered
    assert len(broker.requests) == 1
