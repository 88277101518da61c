"""Mirrors that write to one state topic by mistake, and writes whose answer never came."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from checkpoint import batches
from checkpoint.batches import Writer
from checkpoint.errors import StateTakenOverError, StateUnavailableError
from checkpoint.flow_state import FlowState
from checkpoint.model import FlowRecord, OwnerRecord, PartitionRecord
from checkpoint.topic_store import LogPort, TopicStore
from mirror.errors import BrokerError, ConnectionFailedError
from mirror.kafka.transactions import init_producer_id
from mirror.model import OffsetMode, TopicPartition
from tests.contract.connected import BROKERS, NUMBERS, connected, state_log
from tests.contract.memory_log import MemoryLog
from tests.harness.kafka import KafkaCluster
from tests.harness.memory_store import MemoryStore

pytestmark = pytest.mark.timeout(180)

ORDERS_0, ORDERS_1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
TOPIC_ID = "8c9ad3c1-0000-0000-0000-000000000001"
FLOW = FlowRecord(7, 0, "source-id", "target-id", 1_700_000_000_000)
OWNER = OwnerRecord(1, "west-3", 4711, "", 1_700_000_000_000)
OLD: Writer = (7, 0)
NEW: Writer = (7, 1)
NEWER: Writer = (7, 2)


def store(log: LogPort, writer: Writer = OLD) -> TopicStore:
    return TopicStore(log, writer=lambda: writer)


def mapped(tp: TopicPartition) -> PartitionRecord:
    return PartitionRecord(tp.topic, tp.partition, TOPIC_ID, tp.topic, OffsetMode.MAPPED, True, 0, 0)


class WatchedLog(MemoryLog):
    """A log that somebody else reads after each append.

    Attributes:
        watched: Whether that is so by now.
        seen: What was found.
    """

    def __init__(self) -> None:
        super().__init__()
        self.watched = False
        self.seen: list[dict[str, bytes]] = []

    async def append(self, batch: bytes) -> int:
        base = await super().append(batch)
        if self.watched:
            self.seen.append(await TopicStore(self).load())
        return base


class TroubledLog(MemoryLog):
    """A log whose next append is given up on by the client.

    Attributes:
        trouble: ``before`` the broker has it, ``after``, or ``late``: it has it after :meth:`arrive`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.trouble = ""
        self._on_its_way = b""

    async def append(self, batch: bytes) -> int:
        trouble, self.trouble = self.trouble, ""
        if trouble == "after":
            await super().append(batch)
        if trouble == "late":
            self._on_its_way = batch
        if trouble:
            raise ConnectionFailedError("no answer for half a minute")
        return await super().append(batch)

    async def arrive(self) -> None:
        await super().append(self._on_its_way)


class Stale(MemoryLog):
    """A log that says where it ended before.

    Attributes:
        told: Said to be its end; None: where it ends.
    """

    told: int | None = None

    async def end(self) -> int:
        return await super().end() if self.told is None else self.told


class CutLog(MemoryLog):
    """A log that loses its end between an append and the next question.

    Attributes:
        lost_once_longer_than: What is behind that; None: nothing.
    """

    lost_once_longer_than: int | None = None

    async def end(self) -> int:
        left = self.lost_once_longer_than
        if left is not None and await super().end() > left:
            self.lost_once_longer_than = None
            self.truncate(left)
        return await super().end()


class TornLog(MemoryLog):
    """A log that hands out batches without their last byte."""

    async def read(self, offset: int) -> bytes:
        return (await super().read(offset))[:-1]


# -- several writers -----------------------------------------------------------------------------


async def test_a_writer_that_was_frozen_cannot_put_an_old_value_over_a_newer_one(log: LogPort) -> None:
    """
    It believes that it may write still; the broker knows better, from the moment the new one has read.
    """
    old, new = store(log, OLD), store(log, NEW)
    await old.load()
    await old.put({"map/t/0/0": b"short"})

    assert await new.load() == {"map/t/0/0": b"short"}
    with pytest.raises(StateTakenOverError, match="was refused"):
        await old.put({"map/t/0/0": b"stale"})
    await new.put({"map/t/0/0": b"longer"})
    with pytest.raises(StateTakenOverError, match="after us"):
        await old.put({"map/t/0/0": b"stale"})
    assert (old.fenced, new.fenced) == (1, 0)

    assert await store(log, (7, 2)).load() == {"map/t/0/0": b"longer"}


async def test_who_has_lost_the_right_may_read_and_not_write(log: LogPort) -> None:
    """
    A standby follows what the owner writes.
    """
    new, late = store(log, NEW), store(log, OLD)
    await new.put({"a": b"1"})

    assert await late.load() == {"a": b"1"}
    with pytest.raises(StateTakenOverError):
        await late.put({"a": b"0"})
    await new.put({"b": b"2"})

    assert await late.load() == {"a": b"1", "b": b"2"}


async def test_a_right_taken_anew_begins_with_reading(log: LogPort) -> None:
    """
    Another mirror may have written while it was not ours.
    """
    writer = OLD
    ours, theirs = TopicStore(log, writer=lambda: writer), store(log, NEW)
    await ours.put({"a": b"1"})
    await theirs.put({"a": b"2"})
    writer = (7, 2)

    with pytest.raises(StateTakenOverError, match="taken again"):
        await ours.put({"b": b"1"})

    assert await ours.load() == {"a": b"2"}
    await ours.put({"b": b"1"})
    assert await ours.load() == {"a": b"2", "b": b"1"}


async def test_whoever_is_replaced_can_see_that_in_the_log(log: LogPort) -> None:
    """
    From the first write of who replaces him on, and not by what he writes himself.
    """
    ours, theirs = store(log, OLD), store(log, NEW)
    await ours.put({"a": b"1"})
    at_first = await ours.taken_over()
    await ours.put({"b": b"1"})
    later = await ours.taken_over()

    await theirs.load()

    assert [at_first, later, await ours.taken_over(), await ours.taken_over()] == [False, False, True, True]
    assert not await theirs.taken_over()


async def test_who_takes_the_right_again_cannot_tell_by_what_it_wrote_before(log: LogPort) -> None:
    """
    Somebody else had it in between, and is not there any more.
    """
    writer = OLD
    ours = TopicStore(log, writer=lambda: writer)
    await ours.load()
    await store(log, NEW).load()
    writer = (7, 2)

    with pytest.raises(StateUnavailableError, match="under our epoch"):
        await ours.taken_over()

    await ours.load()
    assert not await ours.taken_over()


async def test_another_producer_id_replaces_as_well(log: LogPort) -> None:
    """
    As when epochs have run out. What is written without any does not.
    """
    ours = store(log, NEW)
    await ours.load()
    await TopicStore(log).put({"a": b"1"})
    at_first = await ours.taken_over()

    await store(log, (9, 0)).load()

    assert (at_first, await ours.taken_over()) == (False, True)


async def test_whose_first_write_was_refused_is_not_told_that_the_log_is_his(log: LogPort) -> None:
    begun: list[Writer] = []
    outdated: list[Writer] = []
    late = TopicStore(log, writer=lambda: OLD, begun=begun.append, outdated=outdated.append)
    await store(log, NEW).load()

    await late.load()

    assert (begun, outdated) == ([], [OLD])
    with pytest.raises(StateUnavailableError, match="under our epoch"):
        await late.taken_over()


@pytest.mark.parametrize("writes", [0, 1, 7])
async def test_an_epoch_that_somebody_has_written_under_is_nobodys_to_begin_with(
    log: LogPort, writes: int
) -> None:
    """
    A coordinator that lost its last records gives it out again. The next one is free.
    """
    told: list[tuple[str, Writer]] = []
    writer = NEW
    first = store(log, NEW)
    await first.load()
    for number in range(writes):
        await first.put({"a": b"%d" % number})
    again = TopicStore(
        log,
        writer=lambda: writer,
        begun=lambda one: told.append(("begun", one)),
        outdated=lambda one: told.append(("outdated", one)),
    )

    await again.load()
    writer = NEWER
    await again.load()

    assert told == [("outdated", NEW), ("begun", NEWER)]


@pytest.mark.parametrize("cut_off", [False, True])
async def test_who_is_replaced_under_another_producer_id_writes_nothing_once_that_was_read(
    cut_off: bool,
) -> None:
    """
    The broker would take it: epochs of two ids are not compared. It is told, so that it takes the right anew
    where the coordinator does not know better.
    """
    log = MemoryLog()
    outdated: list[Writer] = []
    ours = TopicStore(log, writer=lambda: OLD, outdated=outdated.append)
    await ours.put({"a": b"1"})
    await ours.put({"a": b"2"})
    await ours.taken_over()
    if cut_off:
        log.truncate(2)
        with pytest.raises(StateUnavailableError):
            await ours.taken_over()
    theirs = store(log, (9, 0))
    await theirs.put({"a": b"3"})
    if not cut_off:
        await ours.load()

    for _ in range(2):
        with pytest.raises(StateTakenOverError):
            await ours.put({"a": b"4", "b": b"4"})
        await ours.load()

    assert outdated == [OLD] * 2
    assert await theirs.load() == await TopicStore(log).load() == {"a": b"3"}


async def test_that_a_new_epoch_has_begun_is_told_once(log: LogPort) -> None:
    begun: list[Writer] = []
    writer = OLD
    ours = TopicStore(log, writer=lambda: writer, begun=begun.append)
    await ours.load()
    await ours.put({"a": b"1"})
    await ours.load()
    first = list(begun)
    writer = NEW

    await ours.load()

    assert (first, begun) == ([OLD], [OLD, NEW])


async def test_of_a_log_that_lost_its_end_nobody_can_tell() -> None:
    log = MemoryLog()
    ours = store(log)
    await ours.put({"a": b"1"})
    await ours.taken_over()
    log.truncate(1)

    with pytest.raises(StateUnavailableError, match="ends at 1"):
        await ours.taken_over()


@pytest.mark.parametrize("version", list(BROKERS))
async def test_every_claim_of_the_transactional_id_fences_the_one_before(
    version: str, source: KafkaCluster, target: KafkaCluster
) -> None:
    """
    The coordinator's own epochs, as mirrors get them.
    """
    brokers = source if version == "3.9" else target
    async with connected(brokers) as cluster, state_log(brokers, cluster) as log:
        claimed = f"claims-{next(NUMBERS)}"
        first = store(log, await init_producer_id(cluster, claimed))
        await first.put({"a": b"1"})
        second = store(log, await init_producer_id(cluster, claimed))
        await second.load()

        with pytest.raises(StateTakenOverError):
            await first.put({"a": b"2"})

        await second.put({"a": b"3"})
        assert await first.load() == {"a": b"3"}


# -- a log that loses its end ----------------------------------------------------------------------


@pytest.mark.parametrize("end", [2, 1, 0], ids=["its last write", "all but the fence", "all"])
async def test_what_a_log_has_lost_its_only_writer_writes_again(end: int) -> None:
    """
    After an unclean election, or a power cut. What was acknowledged is what a load gives until then.
    """
    log = MemoryLog()
    ours = store(log)
    await ours.put({"a": b"1"})
    await ours.put({"a": b"2", "b": b"2"})
    log.truncate(end)

    with pytest.raises(StateTakenOverError):
        await ours.put({"c": b"3"})
    known = await ours.load()
    await ours.put({"c": b"3"})
    await ours.put({"b": None})

    assert known == {"a": b"2", "b": b"2"}
    assert await ours.load() == {"a": b"2", "c": b"3"}
    assert not await ours.taken_over()
    assert await store(log, NEW).load() == {"a": b"2", "c": b"3"}


async def test_a_first_write_that_is_lost_before_the_log_is_read_is_written_again() -> None:
    """
    The broker knows nothing of the epoch then, and would refuse a second write under it for ever.
    """
    log = CutLog()
    await store(log, OLD).put({"a": b"1"})
    ours = store(log, NEW)
    log.lost_once_longer_than = 2

    with pytest.raises(StateUnavailableError, match="ends at offset 2"):
        await ours.load()
    known = await ours.load()
    await ours.put({"b": b"2"})

    assert known == {"a": b"1"}
    assert await store(log, NEWER).load() == {"a": b"1", "b": b"2"}


async def test_a_log_that_is_found_to_have_lost_its_end_is_completed_by_the_next_write() -> None:
    """
    What was removed is removed once more, too. That write stays whole, in a batch of its own.
    """
    log = MemoryLog()
    ours = store(log)
    await ours.put({"a": b"1", "b": b"1"})
    await ours.put({"a": b"2", "b": None})
    log.truncate(3)

    known = [await ours.load(), await ours.load()]
    await ours.put({"c": b"3"})

    assert known == [{"a": b"2"}] * 2
    assert [base for base, _ in log.batches] == [0, 1, 3, 5]
    assert await store(log, NEW).load() == {"a": b"2", "c": b"3"}


async def test_what_was_never_acknowledged_is_not_written_again() -> None:
    """
    Nobody has gone by it.
    """
    log = TroubledLog()
    ours = store(log)
    await ours.put({"a": b"1"})
    await ours.put({"b": b"1"})
    log.trouble = "before"
    with pytest.raises(ConnectionFailedError):
        await ours.put({"c": b"1"})
    log.truncate(2)

    await ours.put({"d": b"1"})

    assert await store(log, NEW).load() == {"a": b"1", "b": b"1", "d": b"1"}


async def test_the_word_of_a_newer_writer_counts_where_the_log_has_lost_what_was_before_it() -> None:
    """
    It has gone by what was left, and what it wrote is built on that.
    """
    log = MemoryLog()
    ours, theirs = store(log, OLD), store(log, NEW)
    await ours.put({"a": b"1"})
    await ours.put({"a": b"2", "b": b"2", "c": b"2", "d": b"2"})
    log.truncate(2)
    await theirs.put({"b": b"3"})

    found = await ours.load()
    with pytest.raises(StateTakenOverError):
        await ours.put({"e": b"4"})

    assert found == await ours.load() == await theirs.load() == {"a": b"1", "b": b"3"}


async def test_who_takes_the_right_anew_goes_by_what_the_log_has_then() -> None:
    """
    Another writer may have been there in between, and its writes be lost as well.
    """
    writer = OLD
    log = MemoryLog()
    ours = TopicStore(log, writer=lambda: writer)
    await ours.put({"a": b"1"})
    await ours.put({"a": b"2", "b": b"2"})
    log.truncate(2)
    writer = NEW

    assert await ours.load() == {"a": b"1"}


async def test_of_a_state_that_is_written_anew_the_flows_own_record_comes_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    It takes several batches, and others read meanwhile: what is there makes sense, and is whole once the
    record is there.
    """
    monkeypatch.setattr(batches, "BATCH_BYTES_MAX", 1000)
    log = WatchedLog()
    state = FlowState(store(log))
    await state.load()
    await state.save_flow(FLOW)
    for number in range(20):
        await state.begin(mapped(TopicPartition("orders", number)), [(0, 0)])
        await state.extend_maps({TopicPartition("orders", number): [(40, 20)]})
    before = await TopicStore(log).load()

    log.truncate(0)
    log.watched = True
    with pytest.raises(StateTakenOverError):
        await state.save_owner(None)
    await state.save_owner(None)

    assert len(log.seen) > 3
    assert log.seen[-1] == before
    assert not any("flow" in items for items in log.seen[:-2])
    for items in log.seen:
        await FlowState(MemoryStore(items)).load()


async def test_who_stands_by_leaves_a_state_that_was_deleted_to_its_owner() -> None:
    """
    The word of the owner is not taken back by that. Once it is written again what is there counts.
    """
    log = MemoryLog()
    owner, standby = FlowState(store(log, NEW)), FlowState(store(log, OLD))
    await standby.load()
    await owner.load()
    await owner.save_flow(FLOW)
    await owner.begin(mapped(ORDERS_0), [(0, 0)])
    await owner.save_owner(OWNER)
    await standby.load()

    log.truncate(0)
    await standby.load()
    deleted = standby.flow, standby.owner, set(standby.partitions)
    with pytest.raises(StateTakenOverError):
        await owner.save_owner(OWNER)
    await owner.save_owner(OWNER)
    await standby.load()
    written = standby.flow, standby.owner, set(standby.partitions)
    await owner.save_owner(None)
    await standby.load()

    assert deleted == written == (FLOW, OWNER, {ORDERS_0})
    assert standby.owner is None


async def test_who_takes_the_place_of_an_owner_whose_state_was_deleted_writes_what_it_had_read() -> None:
    """
    And the owner, which has lost the right before it could do so, believes no state without that record.
    """
    log = MemoryLog()
    writer = OLD
    owner, standby = FlowState(store(log, NEW)), FlowState(TopicStore(log, writer=lambda: writer))
    await standby.load()
    await owner.load()
    await owner.save_flow(FLOW)
    await owner.begin(mapped(ORDERS_0), [(0, 0)])
    await standby.load()
    log.truncate(0)
    await standby.load()

    writer = NEWER
    await standby.load()
    await owner.load()
    between = owner.flow, set(owner.partitions)
    await standby.save_owner(OWNER)
    await owner.load()

    again = FlowState(store(log, NEWER))
    await again.load()
    assert between == (FLOW, {ORDERS_0})
    for one in (owner, again):
        assert (one.flow, one.owner, list(one.map(ORDERS_0) or ())) == (FLOW, OWNER, [(0, 0)])


async def test_a_log_that_is_seen_to_have_lost_its_end_is_completed_by_the_next_write_without_an_error() -> (
    None
):
    """
    Who asks whether it was taken over finds out; nothing is missing any more once it is written.
    """
    log = MemoryLog()
    ours = store(log)
    await ours.put({"a": b"1", "b": b"1"})
    await ours.taken_over()
    whole = ours.cut_short
    log.truncate(0)
    with pytest.raises(StateUnavailableError):
        await ours.taken_over()
    found = ours.cut_short

    await ours.put({"c": b"2"})

    assert (whole, found, ours.cut_short) == (False, True, False)
    assert await TopicStore(log).load() == {"a": b"1", "b": b"1", "c": b"2"}


async def test_where_an_end_was_told_that_is_out_of_date_nothing_is_said_to_be_lost() -> None:
    """
    As by a leader that has just become one. All is read again, and all is there.
    """
    log = Stale()
    ours = store(log)
    await ours.put({"a": b"1", "b": b"1"})
    await ours.taken_over()
    log.told = 1
    with pytest.raises(StateUnavailableError):
        await ours.taken_over()
    log.told = None

    with capture_logs() as logs:
        await ours.put({"c": b"2"})

    assert logs == []
    assert not ours.cut_short
    assert await TopicStore(log).load() == {"a": b"1", "b": b"1", "c": b"2"}


async def test_an_offset_map_has_no_hole_where_the_log_has_lost_a_run() -> None:
    """
    Another partition notices; this one, which nobody doubts, notes its next run behind the one that was lost.
    """
    log = MemoryLog()
    state = FlowState(store(log))
    await state.load()
    for tp in (ORDERS_0, ORDERS_1):
        await state.begin(mapped(tp), [(0, 0)])
    end = await log.end()
    await state.extend_maps({ORDERS_0: [(40, 20)], ORDERS_1: [(40, 20)]})
    log.truncate(end)
    with pytest.raises(StateTakenOverError):
        await state.extend_maps({ORDERS_0: [(60, 35)]})

    await state.extend_maps({ORDERS_1: [(60, 35)]})

    again = FlowState(store(log, NEW))
    await again.load()
    assert [list(again.map(tp) or ()) for tp in (ORDERS_0, ORDERS_1)] == [
        [(0, 0), (40, 20)],
        [(0, 0), (40, 20), (60, 35)],
    ]


# -- lost answers --------------------------------------------------------------------------------


async def test_a_batch_sent_again_is_written_once() -> None:
    """
    The broker knows it by its sequence.
    """
    log = MemoryLog()
    ours = store(log)
    await ours.load()
    log.lose_answers = 1

    await ours.put({"a": b"1"})
    await ours.put({"a": b"2"})

    assert len(log.batches) == 3  # with the one that fences
    assert await ours.load() == {"a": b"2"}


@pytest.mark.parametrize("trouble", ["before", "after"])
@pytest.mark.parametrize("load", [True, False])
async def test_writing_goes_on_after_a_write_that_was_given_up_on(trouble: str, load: bool) -> None:
    """
    Whether it is there is seen by reading; the caller may put again or load again.
    """
    log = TroubledLog()
    ours = store(log)
    await ours.put({"a": b"1", "b": b"1"})
    log.trouble = trouble
    with pytest.raises(ConnectionFailedError):
        await ours.put({"a": b"2", "c": b"2"})
    if load:
        found = await ours.load()
        assert found == ({"a": b"2", "b": b"1", "c": b"2"} if trouble == "after" else {"a": b"1", "b": b"1"})

    await ours.put({"a": b"3", "c": b"3"})
    await ours.put({"b": b"4"})

    assert await ours.load() == {"a": b"3", "b": b"4", "c": b"3"}


async def test_a_late_write_is_not_taken_for_the_one_that_follows_it() -> None:
    """
    It has the same sequence and lands after we have looked: the broker answers ours as its repetition.
    """
    log = TroubledLog()
    ours = store(log)
    await ours.put({"a": b"1"})
    log.trouble = "late"
    with pytest.raises(ConnectionFailedError):
        await ours.put({"a": b"late"})
    assert await ours.load() == {"a": b"1"}
    await log.arrive()

    with pytest.raises(StateTakenOverError, match="an earlier write of ours"):
        await ours.put({"a": b"2"})

    assert await ours.load() == {"a": b"late"}
    await ours.put({"a": b"3"})
    assert await ours.load() == {"a": b"3"}


async def test_a_late_write_that_comes_after_the_next_one_is_refused() -> None:
    """
    Its sequence is used up.
    """
    log = TroubledLog()
    ours = store(log)
    await ours.put({"a": b"1"})
    log.trouble = "late"
    with pytest.raises(ConnectionFailedError):
        await ours.put({"a": b"late", "b": b"late"})
    await ours.put({"a": b"2"})

    with pytest.raises(BrokerError, match="after"):
        await log.arrive()

    assert await ours.load() == {"a": b"2"}


async def test_a_batch_that_is_not_whole_is_not_passed_over() -> None:
    """
    What it holds is part of the state.
    """
    log = TornLog()
    await log.append(log.encode([(0, b"a", b"value")]))

    with pytest.raises(StateUnavailableError, match="incomplete"):
        await TopicStore(log).load()
