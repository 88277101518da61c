"""A fetch lane that meets a batch it cannot get whole."""

from __future__ import annotations

import asyncio
import struct
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest
from kafka.protocol.consumer import FetchResponse

from mirror.broker_codes import CORRUPT_MESSAGE, MESSAGE_TOO_LARGE
from mirror.errors import BatchError, ConnectionFailedError, CorruptBatchError
from mirror.flow import fetching, receiving
from mirror.flow.context import Flow, Limits
from mirror.flow.fetching import FetchLane, reread
from mirror.flow.lagging import LagMeter
from mirror.flow.partition import PartitionCopy
from mirror.flow.position import Proceed
from mirror.flow.states import PATIENCE, append_refusal
from mirror.kafka.buffers import BufferPool
from mirror.kafka.cluster_info import PartitionInfo
from mirror.kafka.fetch import FETCH_SESSION_ID_NOT_FOUND, FETCH_VERSION, Fetched, FetchLimits, Key, Want
from mirror.kafka.record_batch import MAGIC_AT
from mirror.model import Batch, OffsetMode, Reason, State, TopicPartition
from tests.harness.daemon import until
from tests.unit.batches import entries, v2
from tests.unit.target_model import Hooks, Meters
from tests.unit.test_fetch_codec import Said, answer

TOPIC_ID = b"t" * 16
ORDERS_0, ORDERS_1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
SOON = 5.0


class Source:
    """A broker that always answers with the same records, of which it has more, or with an error code."""

    name = "source"
    info = SimpleNamespace(partition=lambda _: None, leader=lambda _: -1)
    last_answer_at = None
    options = SimpleNamespace(request_timeout_seconds=30.0)
    address = "broker"

    def __init__(self, answer: bytes | int, end: int = 99) -> None:
        code, records = (answer, b"") if isinstance(answer, int) else (0, answer)
        topic = FetchResponse.FetchableTopicResponse
        part = topic.PartitionData(
            version=FETCH_VERSION, partition_index=0, error_code=code, high_watermark=end,
            last_stable_offset=end, log_start_offset=0, aborted_transactions=None, records=records,
        )  # fmt: skip
        responses = [topic(version=FETCH_VERSION, topic_id=UUID(bytes=TOPIC_ID), partitions=[part])]
        whole = FetchResponse(version=FETCH_VERSION, session_id=0, responses=responses)
        self._answer = bytes(whole.encode())
        self.asked = 0

    def says(self, answer: bytes) -> None:
        """It answers with this from now on."""
        self._answer = answer

    async def connection(self, *_: object) -> Source:
        return self

    def left_alone_seconds_of(self, _: int) -> float:
        return 0.0

    def version(self, *_: object, **__: object) -> int:
        return FETCH_VERSION

    async def send(self, _key: int, _version: int, _parts: list[bytes], *, allocate: Any) -> memoryview:
        self.asked += 1
        await asyncio.sleep(0)
        memory: memoryview = allocate(len(self._answer))
        memory[:] = self._answer
        return memory


class Slow(Source):
    """One that answers when it may."""

    def __init__(self, answer: bytes | int) -> None:
        super().__init__(answer)
        self.asking, self.answer = asyncio.Event(), asyncio.Event()

    async def send(self, key: int, version: int, parts: list[bytes], *, allocate: Any) -> memoryview:
        self.asking.set()
        await self.answer.wait()
        return await super().send(key, version, parts, allocate=allocate)


class Quiet(Hooks):
    """Notes that another replica was asked for, and asks it."""

    def __init__(self) -> None:
        super().__init__()
        self.lane: FetchLane | None = None
        self.flow: Flow | None = None
        self.rereads: list[asyncio.Task[None]] = []
        self.blocked = asyncio.Event()
        self.doubted = asyncio.Event()

    def changed(self, partition: PartitionCopy) -> None:
        assert self.lane is not None
        self.lane.update(partition)
        if partition.state is State.BLOCKED:
            self.blocked.set()
        if partition.look_due_at is not None:
            self.doubted.set()

    def reread(self, partition: PartitionCopy, bad: BatchError, node: int | None) -> None:
        assert self.flow is not None
        self.rereads.append(asyncio.create_task(reread(self.flow, partition, bad, node)))


async def test_a_length_that_cannot_be_true_blocks_the_partition(monkeypatch: Any) -> None:
    """
    More and more is asked for; when the most does not hold the batch, its length is a lie, and it is corrupt.
    """
    monkeypatch.setattr(fetching, "FETCH_BYTES_CEILING", 1 << 20)
    lying = bytearray(v2(entries(0, 3)))
    struct.pack_into(">i", lying, 8, 1 << 30)
    source, hooks = Source(bytes(lying)), Quiet()
    copy, lane, _ = reading(source, hooks)

    await until_blocked(lane, hooks)

    assert copy.reason is Reason.CORRUPT_BATCH
    assert "offset 0" in copy.detail
    assert len(hooks.rereads) == 1


async def test_what_stands_before_a_corrupt_batch_is_written_before_the_partition_is_blocked() -> None:
    """
    And until it is written the batch is not read again and again.
    """
    good, rotten = v2(entries(0, 3)), bytearray(v2(entries(3, 3)))
    rotten[-1] ^= 1
    source, hooks = Source(bytes(good) + bytes(rotten)), Quiet()
    copy, lane, flow = reading(source, hooks)

    running = asyncio.create_task(lane.run())
    for _ in range(50):
        await asyncio.sleep(0)
    asked, state = source.asked, copy.state
    await blocked_when_written(copy, hooks, flow)
    running.cancel()

    assert (asked, state) == (2, State.ACTIVE)
    assert copy.next_offset == 3
    assert "offset 3" in copy.detail


@pytest.mark.parametrize(
    "says",
    [
        pytest.param(answer([], throttle_ms=2_000, session=1), id="a quota is used up"),
        pytest.param(answer([], code=FETCH_SESSION_ID_NOT_FOUND, session=0), id="the session is lost"),
    ],
)
async def test_a_broker_that_says_nothing_is_not_one_without_news(says: bytes) -> None:
    """
    It has left out all there is, also of a partition that is written: that is no lag of 0.
    """
    source, hooks = Source(b"", end=0), Quiet()
    copy, lane, flow = reading(source, hooks)
    meter = LagMeter(flow, lane.answered_at, lane.arriving_at)

    running = asyncio.create_task(lane.run())
    await until(lambda: lane.answered_at(copy) is not None, "it has answered", SOON)
    source.says(says)
    asked = source.asked
    await until(lambda: source.asked >= asked + 5, "what was on its way has come", SOON)
    heard = meter.measure(copy, now=time.monotonic(), now_ms=0)
    await until(lambda: source.asked >= asked + 50, "it has said nothing for a while", SOON)
    an_hour_later = meter.measure(copy, now=time.monotonic() + 3_600, now_ms=0)
    running.cancel()

    assert an_hour_later.heard_at == heard.heard_at
    assert an_hour_later.records is None
    assert an_hour_later.seconds is not None
    assert an_hour_later.seconds >= 3_600


async def test_a_broker_that_may_answer_again_is_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    It was away for so long that the next try would be late.
    """

    class Away(Source):
        away = True

        async def connection(self, *_: object) -> Source:
            if self.away:
                raise ConnectionFailedError("it is away")
            return self

    monkeypatch.setattr(fetching, "pause_seconds", lambda _: 3_600.0)
    source, hooks = Away(b"", end=0), Quiet()
    copy, lane, _ = reading(source, hooks)
    running = asyncio.create_task(lane.run())
    await until(lambda: copy.unheard is not None, "it was tried", SOON)

    source.away = False
    lane.try_now()
    await until(lambda: source.asked > 0, "it is read", SOON)
    running.cancel()

    assert lane.answered_at(copy) is not None


class Remembers(Source):
    """A broker with a fetch session: it answers as it is told to, once for each time."""

    def __init__(self) -> None:
        super().__init__(b"")
        self._answers = asyncio.Queue[bytes]()
        self.asking = asyncio.Event()

    async def tells(self, *ends: tuple[int, int]) -> None:
        """Of these partitions, where they end; what it tells has come when it is asked the next time."""
        await self.asking.wait()
        self.asking.clear()
        said = [Said(number, 0, end, end, 0, [], b"", None, None) for number, end in ends]
        self._answers.put_nowait(answer([(TOPIC_ID, said)] if said else [], session=7))
        await self.asking.wait()

    async def send(self, key: int, version: int, parts: list[bytes], *, allocate: Any) -> memoryview:
        self.asking.set()
        self.says(await self._answers.get())
        return await super().send(key, version, parts, allocate=allocate)


AGO = 3_600.0
"""So long before now the source has told of a partition."""


def told_long_ago(lane: FetchLane, number: int, end: int) -> PartitionCopy:
    """A partition that was complete then, as another broker has told, and has gone over to this lane."""
    copy, at = (
        PartitionCopy(ORDERS_0._replace(partition=number), ORDERS_0, TOPIC_ID, in_flight_max=5),
        time.monotonic(),
    )
    copy.proceed(Proceed(end, end, 0, 0, end), OffsetMode.SAME, 0, at - AGO)
    copy.heard(0, end, end, at=at - AGO)
    lane.update(copy)
    return copy


async def test_what_a_broker_has_told_of_others_says_nothing_of_a_partition_it_was_not_asked_for() -> None:
    """
    It comes from one that was silent for an hour: until the new one tells of it, and also where that tells of
    records, it was complete an hour ago.
    """
    source, hooks = Remembers(), Quiet()
    _, lane, flow = reading(source, hooks)
    meter = LagMeter(flow, lane.answered_at, lane.arriving_at)
    running = asyncio.create_task(lane.run())
    await source.tells((0, 0))

    moved = told_long_ago(lane, 1, 100)
    before = meter.measure(moved, now=time.monotonic(), now_ms=0)
    await source.tells()
    await source.tells((1, 900))
    after = meter.measure(moved, now=time.monotonic(), now_ms=0)
    running.cancel()

    assert (before.records, after.records) == (None, 800)
    assert [lag.seconds is not None and lag.seconds >= AGO for lag in (before, after)] == [True, True]


async def test_a_partition_of_which_the_session_has_told_is_as_it_was_when_an_answer_leaves_it_out() -> None:
    """
    The broker tells of what has changed only. Another one that has it from then on has told nothing of it,
    and that it was complete until then is known all the same.
    """
    source, hooks = Remembers(), Quiet()
    _, lane, flow = reading(source, hooks)
    idle = told_long_ago(lane, 1, 100)
    meter = LagMeter(flow, lane.answered_at, lane.arriving_at)
    running = asyncio.create_task(lane.run())

    await source.tells((0, 0), (1, 100))
    await source.tells()
    there = meter.measure(idle, now=time.monotonic(), now_ms=0)
    lane.leave(idle.key)
    other = FetchLane(flow, 2)
    other.update(idle)
    moved = LagMeter(flow, other.answered_at, other.arriving_at).measure(idle, now=time.monotonic(), now_ms=0)
    running.cancel()

    assert (there.records, there.late_seconds) == (0, 0.0)
    assert (moved.records, moved.late_seconds) == (0, 0.0)


async def test_a_partition_that_was_left_out_for_want_of_room_was_not_heard_meanwhile() -> None:
    """
    Others of the same broker were.
    """
    source, hooks = Remembers(), Quiet()
    _, lane, flow = reading(source, hooks)
    crowded = told_long_ago(lane, 1, 100)
    running = asyncio.create_task(lane.run())
    await source.tells((0, 0), (1, 100))

    flow.limits = replace(flow.limits, partition_buffer_bytes_max=0)
    lane.update(crowded)
    await source.tells()
    await source.tells()
    meter = LagMeter(flow, lane.answered_at, lane.arriving_at)
    told = meter.measure(crowded, now=time.monotonic(), now_ms=0).heard_at
    answered_at = cast(float, source.last_answer_at)
    running.cancel()

    assert lane.answered_at(crowded) is None
    assert told is not None
    assert told < answered_at


async def test_what_a_broker_has_told_of_another_place_it_is_asked_for_again() -> None:
    """
    A look has found that the copy is further; what has not changed a broker tells no second time.
    """
    source, hooks = Remembers(), Quiet()
    _, lane, _ = reading(source, hooks)
    copy = told_long_ago(lane, 1, 100)
    running = asyncio.create_task(lane.run())
    await source.tells((0, 0), (1, 100))

    lane.leave(copy.key)
    copy.proceed(Proceed(110, 110, 0, 0, 110), OffsetMode.SAME, 0, time.monotonic())
    lane.update(copy)
    await source.tells((1, 110))
    wanted = [copy.key in lane._session.told]
    await source.tells()
    wanted.append(copy.key in lane._session.told)
    unheard = lane.answered_at(copy)
    await source.tells((1, 110))
    running.cancel()

    assert wanted == [False, True]
    assert unheard is None
    assert lane.answered_at(copy) is not None


def rotten_batch(at: int = -1) -> bytes:
    rotten = bytearray(v2(entries(0, 3)))
    rotten[at] ^= 1
    return bytes(rotten)


ROTTEN, OF_NO_FORMAT = rotten_batch(), rotten_batch(MAGIC_AT)
AT_THE_LEADER: dict[bytes | int, Reason] = {
    ROTTEN: Reason.CORRUPT_BATCH,
    OF_NO_FORMAT: Reason.UNREADABLE_BATCH,
    CORRUPT_MESSAGE: Reason.CORRUPT_BATCH,
}
"""What the leader answers, and the reason that is shown where no other replica has the batch whole."""
KINDS = ["payload", "magic", "refused"]


class Replicas(Source):
    """A leader with a rotten batch and two followers in sync, each of which answers as it is told to.

    Attributes:
        has: What each follower has, an error code, or what happens when it is asked.
        others_asked: Set when one was.
        may_answer: They answer once this is set.
    """

    info = SimpleNamespace(partition=lambda _: PartitionInfo(1, 0, (1, 2, 3), (1, 2, 3)), leader=lambda _: 1)

    def __init__(self, has: dict[int, bytes | int | Exception], leader: bytes | int = ROTTEN) -> None:
        super().__init__(leader)
        self.has = has
        self.others_asked, self.may_answer = asyncio.Event(), asyncio.Event()

    async def connection(self, *way: object) -> Any:
        return way[0] if way[1] == "reread" else self

    async def peek(self, node: int, wants: dict[Key, Any], _: object) -> list[Fetched]:
        self.others_asked.set()
        await self.may_answer.wait()
        has = self.has[node]
        if isinstance(has, Exception):
            raise has
        [key] = wants
        code, records = (has, b"") if isinstance(has, int) else (0, has)
        return [Fetched(key, code, 99, 99, 0, None, [], memoryview(bytearray(records)))]


@pytest.mark.parametrize("leader", AT_THE_LEADER, ids=KINDS)
async def test_a_batch_that_another_replica_has_whole_blocks_nothing(
    leader: bytes | int, monkeypatch: Any
) -> None:
    """
    Until it has come the leader is not asked again; where one follower cannot be read the next one is asked.
    """
    refuses = ConnectionFailedError("nobody there")
    source, hooks = Replicas({2: refuses, 3: bytes(v2(entries(0, 3)))}, leader), Quiet()
    monkeypatch.setattr(fetching, "peek", source.peek)
    copy, lane, _ = reading(source, hooks)

    running = asyncio.create_task(lane.run())
    async with asyncio.timeout(SOON):
        await source.others_asked.wait()
    for _ in range(50):
        await asyncio.sleep(0)
    asked, meanwhile = source.asked, (copy.state, copy.copying)
    source.may_answer.set()
    await until(lambda: copy.batch_ready, "the batch came", SOON)
    running.cancel()

    assert (asked, meanwhile) == (1, (State.ACTIVE, False))
    assert not hooks.blocked.is_set()
    assert (copy.state, copy.copying, copy.fetch_offset) == (State.ACTIVE, True, 3)


@pytest.mark.parametrize("mistake", [ZeroDivisionError("a bug"), ConnectionFailedError("nobody there")])
async def test_a_partition_is_blocked_when_no_replica_has_the_batch_whole(
    mistake: Exception, monkeypatch: Any
) -> None:
    """
    Whatever happens when the followers are asked: when it is looked for again they are asked again.
    """
    source, hooks = Replicas({2: mistake, 3: ROTTEN}), Quiet()
    source.may_answer.set()
    monkeypatch.setattr(fetching, "peek", source.peek)
    copy, lane, _ = reading(source, hooks)

    running = asyncio.create_task(lane.run())
    async with asyncio.timeout(SOON):
        await hooks.blocked.wait()
    blocked = (copy.state, copy.reason, copy.look_due_at is not None)
    copy.proceed(Proceed(0, 0, 0, 0, 0), OffsetMode.SAME, 0, 0.0)
    lane.update(copy)
    await until(lambda: len(hooks.rereads) == 2, "they are asked again", SOON)
    running.cancel()

    assert blocked == (State.BLOCKED, Reason.CORRUPT_BATCH, True)
    assert "offset 0" in copy.detail


@pytest.mark.parametrize(("leader", "reason"), AT_THE_LEADER.items(), ids=KINDS)
async def test_where_no_replica_has_the_batch_whole_the_reason_is_what_was_wrong_at_the_leader(
    leader: bytes | int, reason: Reason, monkeypatch: Any
) -> None:
    """
    A batch of a format that is still to come is the same on all of them, and not called corrupt.
    """
    source, hooks = Replicas({2: leader, 3: leader}, leader), Quiet()
    source.may_answer.set()
    monkeypatch.setattr(fetching, "peek", source.peek)
    copy, lane, _ = reading(source, hooks)

    await until_blocked(lane, hooks)

    assert (copy.reason, len(hooks.rereads)) == (reason, 1)
    assert "batch at offset 0" in copy.detail


async def test_a_leader_that_refuses_to_read_a_batch_does_not_take_back_what_stands_before_it() -> None:
    """
    That is written first; only then the other replicas are asked.
    """
    source, hooks = Source(CORRUPT_MESSAGE), Quiet()
    copy, lane, flow = reading(source, hooks)
    copy.queue.push([Batch(0, 3, 0, 1, memoryview(bytes(v2(entries(0, 3)))))], (), None)
    lane.update(copy)

    running = asyncio.create_task(lane.run())
    for _ in range(50):
        await asyncio.sleep(0)
    asked, meanwhile = source.asked, (copy.state, len(hooks.rereads))
    await blocked_when_written(copy, hooks, flow)
    running.cancel()

    assert (asked, meanwhile) == (1, (State.ACTIVE, 0))
    assert (copy.next_offset, copy.reason) == (3, Reason.CORRUPT_BATCH)
    assert "batch at offset 3" in copy.detail


async def test_what_is_too_large_for_the_target_is_asked_of_no_other_replica() -> None:
    """
    It is as large there.
    """
    source, hooks = Source(bytes(v2(entries(0, 1, b"x" * 1000)))), Quiet()
    copy, lane, flow = reading(source, hooks)
    flow.batch_bytes_max["orders"] = 500

    await until_blocked(lane, hooks)

    assert (copy.reason, hooks.rereads) == (Reason.RECORD_TOO_LARGE, [])


async def test_what_an_operator_has_said_while_other_replicas_were_asked_stands(monkeypatch: Any) -> None:
    """
    It was paused meanwhile; what has come is not taken.
    """
    source, hooks = Replicas({2: bytes(v2(entries(0, 3)))}), Quiet()
    monkeypatch.setattr(fetching, "peek", source.peek)
    copy, lane, _ = reading(source, hooks)

    running = asyncio.create_task(lane.run())
    async with asyncio.timeout(SOON):
        await source.others_asked.wait()
        copy.stop(State.PAUSED, Reason.OPERATOR, "paused", None)
        source.may_answer.set()
        await asyncio.gather(*hooks.rereads)
    running.cancel()

    assert (copy.state, copy.pending) == (State.PAUSED, False)


async def test_a_mistake_of_ours_blocks_one_partition_only(monkeypatch: Any) -> None:
    """
    The lane goes on, and the state says whose mistake it is.
    """
    source, hooks = Source(bytes(v2(entries(0, 3)))), Quiet()
    copy, lane, _ = reading(source, hooks)

    def mistake(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(receiving, "take_plain", mistake)
    running = asyncio.create_task(lane.run())
    async with asyncio.timeout(SOON):
        await hooks.blocked.wait()

    assert not running.done()
    assert (copy.reason, copy.look_due_at is not None) == (Reason.INTERNAL_ERROR, True)
    assert "a bug" in copy.detail
    running.cancel()


async def test_what_blocks_a_partition_is_said_also_while_its_source_is_not_read() -> None:
    """
    It is tried again, and read for that. Why it is not read is no reason for what the target has refused.
    """
    copy, lane, _ = reading(Source(0), Quiet())
    copy.heard(0, 9, 9)
    copy.refused(append_refusal(MESSAGE_TOO_LARGE), "too large", 0.0)
    copy.proceed(Proceed(0, 0, 0, 0, 0), OffsetMode.SAME, 0, 0.0)
    lane.update(copy)

    lane._lost(ConnectionFailedError("broker 1 is not there"))

    assert copy.copying
    assert (copy.state, copy.reason, copy.detail) == (State.BLOCKED, Reason.RECORD_TOO_LARGE, "too large")


async def test_full_buffers_that_wait_for_a_dead_broker_are_taken_back(monkeypatch: Any) -> None:
    """
    Each record that waits for it keeps the buffer in which it came: without that nobody could be read.
    """
    monkeypatch.setattr(receiving, "ROOM_WAIT_SECONDS", 0.05)
    source, hooks = Source(bytes(v2(entries(0, 3)))), Quiet()
    copy, lane, flow = reading(source, hooks, buffer_bytes_max=8 << 20)

    running = asyncio.create_task(lane.run())
    async with asyncio.timeout(SOON):
        await hooks.doubted.wait()

    assert (copy.pending, flow.pool.used_bytes) == (False, 0)
    assert copy.state is State.ACTIVE
    running.cancel()


async def test_a_bell_without_room_does_not_put_off_taking_buffers_back(monkeypatch: Any) -> None:
    """
    It rings for everybody who may want something; four partitions that are looked at in turn ring it often.
    """
    monkeypatch.setattr(receiving, "ROOM_WAIT_SECONDS", 0.2)
    source, hooks = Source(bytes(v2(entries(0, 3)))), Quiet()
    copy, lane, flow = reading(source, hooks, buffer_bytes_max=8 << 20)

    async def ring() -> None:
        while True:
            await asyncio.sleep(0.02)
            flow.room.set()

    running = [asyncio.create_task(lane.run()), asyncio.create_task(ring())]
    async with asyncio.timeout(SOON):
        await hooks.doubted.wait()

    assert (copy.pending, flow.pool.used_bytes) == (False, 0)
    for task in running:
        task.cancel()


async def test_a_quiet_partition_that_is_read_again_has_patience_again() -> None:
    """
    Nothing is appended that could show it: without that every later leader change would block it for longer.
    """
    source, hooks = Source(b""), Quiet()
    copy, lane, _ = reading(source, hooks, at=99)
    copy.attempts = PATIENCE - 1

    running = asyncio.create_task(lane.run())
    await until(lambda: source.asked > 1, "an answer came", SOON)
    running.cancel()

    assert copy.attempts == 0


async def test_a_partition_that_has_room_again_is_read_though_nobody_else_is() -> None:
    """
    It was written while the broker was waited for, and the others that were read there are gone by then.
    """
    source, hooks = Slow(b""), Quiet()
    crowded, lane, flow = reading(source, hooks)
    flow.limits = replace(flow.limits, partition_buffer_bytes_max=100)
    other = PartitionCopy(ORDERS_1, ORDERS_1, b"o" * 16, in_flight_max=5)
    other.proceed(Proceed(0, 0, 0, 0, 0), OffsetMode.SAME, 0, 0.0)
    crowded.queue.push([Batch(0, 3, 0, 1, memoryview(bytearray(500)))], [], None)
    lane.update(crowded)
    lane.update(other)
    running = asyncio.create_task(lane.run())
    await source.asking.wait()

    sent, _ = crowded.take()
    crowded.answered(sent, appended=True, now=1.0)
    flow.room.set()
    lane.leave(other.key)
    source.answer.set()
    await until(lambda: source.asked > 1, "it is asked for", SOON)
    running.cancel()


async def test_of_a_partition_that_was_looked_at_the_broker_tells_again_how_far_it_may_be_read() -> None:
    """
    It says so of what has not changed only to whom it does not know: with an open transaction never again.
    """
    copy, lane, flow = reading(Source(b""), Quiet())
    lane.update(copy)
    lane._session.request(flow.limits.fetch)
    copy.look_first(0.0)
    lane.leave(copy.key)
    copy.proceed(Proceed(0, 0, 0, 0, 0), OffsetMode.SAME, 0, 0.0)

    lane.update(copy)

    assert copy.source_last_stable_offset is None
    assert copy.key in lane._session._forgotten


MOVED_UP, MOVED_DOWN = v2(entries(3, 3)), v2(entries(3, 3))
struct.pack_into(">q", MOVED_UP, 0, 5)
struct.pack_into(">q", MOVED_DOWN, 0, 0)


async def test_a_batch_that_says_it_stands_further_down_is_asked_for_with_the_one_before() -> None:
    """
    Asked for what follows alone, a broker would pass over it, and nothing would be left of it but a gap.
    """
    source, hooks = Source(bytes(v2(entries(0, 3))) + bytes(MOVED_DOWN) + bytes(v2(entries(6, 3)))), Quiet()
    copy, lane, flow = reading(source, hooks)

    running = asyncio.create_task(lane.run())
    await until(lambda: source.asked > 1, "what can be believed was taken", SOON)
    asked_at = copy.ask_offset
    await blocked_when_written(copy, hooks, flow)
    running.cancel()

    assert (asked_at, copy.fetch_offset, copy.ask_offset) == (2, 3, 2)
    assert (copy.reason, copy.pending) == (Reason.CORRUPT_BATCH, False)
    assert "batch at offset 3: it claims to hold offsets 0 to 2" in copy.detail


async def test_a_batch_beyond_the_end_of_the_log_is_asked_for_once_more_before_it_is_refused() -> None:
    """
    The end may have moved between the broker's look at it and its reading.
    """
    source, hooks = Source(bytes(MOVED_UP), end=6), Quiet()
    copy, lane, _ = reading(source, hooks, at=3)

    await until_blocked(lane, hooks)

    assert (source.asked, len(hooks.rereads)) == (2, 1)
    assert "batch at offset 3: it claims to end at 8, but the log ends at 6" in copy.detail


async def test_a_first_batch_that_begins_before_what_was_read_is_refused() -> None:
    """
    A batch of the source ends there, as the mirror has seen; after a restart it could not know.
    """
    source, hooks = Source(bytes(MOVED_UP)), Quiet()
    copy, lane, _ = reading(source, hooks, at=6)
    copy.batch_end = 6

    await until_blocked(lane, hooks)

    assert "batch at offset 6: it claims to hold offsets 5 to 7" in copy.detail


async def test_another_replica_is_asked_for_what_stands_before_it_too(monkeypatch: Any) -> None:
    """
    What it has is held against that like anything else, and only what is new is taken.
    """
    before, sound = bytes(v2(entries(0, 3))), bytes(v2(entries(3, 3)))
    source, hooks = (
        Replicas({2: before + bytes(MOVED_DOWN), 3: before + sound}, before + bytes(MOVED_DOWN)),
        Quiet(),
    )
    source.may_answer.set()
    monkeypatch.setattr(fetching, "peek", source.peek)
    copy, lane, _ = reading(source, hooks, at=3)
    copy.doubtful_at = 3
    lane.update(copy)

    running = asyncio.create_task(lane.run())
    await until(lambda: copy.batch_ready, "the batch came", SOON)
    running.cancel()

    assert (copy.fetch_offset, copy.state) == (6, State.ACTIVE)
    assert copy.take()[0].batch.base_offset == 3


async def test_a_replica_that_has_other_records_than_were_copied_says_so(monkeypatch: Any) -> None:
    """
    It is told of the leader epoch of the last record, as the leader is: it may have replaced records of that.
    """
    source, hooks = Replicas({}), Quiet()

    async def peek(_node: int, wants: dict[Key, Want], _: object) -> list[Fetched]:
        [(key, want)] = wants.items()
        assert (want.offset, want.last_fetched_epoch) == (100, 1)
        return [Fetched(key, 0, 120, 120, 0, (1, 90), [], memoryview(b""))]

    monkeypatch.setattr(fetching, "peek", peek)
    copy, _, flow = reading(source, hooks, at=100, epoch=1)
    copy.rereading = True

    await reread(flow, copy, CorruptBatchError(100, "its CRC-32C is not what it should be"))

    assert (copy.state, copy.reason) == (State.DIVERGED, Reason.SOURCE_TRUNCATED)
    assert "copied up to 100, but the source's leader epoch 1 ends at 90" in copy.detail
    assert not copy.pending


async def test_the_new_leader_is_asked_where_the_former_one_has_the_batch_damaged(monkeypatch: Any) -> None:
    """
    The metadata are newer than the answer; and the former one, a follower now, is not asked again.
    """
    led_by_2 = PartitionInfo(2, 1, (1, 2), (1, 2))
    source, hooks = Replicas({1: ROTTEN, 2: bytes(v2(entries(0, 3)))}), Quiet()
    source.info = SimpleNamespace(partition=lambda _: led_by_2, leader=lambda _: 2)
    source.may_answer.set()
    monkeypatch.setattr(fetching, "peek", source.peek)
    copy, lane, _ = reading(source, hooks)

    running = asyncio.create_task(lane.run())
    await until(lambda: copy.batch_ready or hooks.blocked.is_set(), "the others were asked", SOON)
    running.cancel()

    assert (copy.state, copy.fetch_offset) == (State.ACTIVE, 3)


async def test_a_replica_that_does_not_know_the_last_leader_epoch_is_passed_over(monkeypatch: Any) -> None:
    """
    It was built anew from a compacted log, and knows none of which no record is left; another one may.
    """
    source, hooks = Replicas({}), Quiet()

    async def peek(node: int, wants: dict[Key, Want], _: object) -> list[Fetched]:
        [key] = wants
        if node == 2:
            return [Fetched(key, 0, 120, 120, 0, (0, 110), [], memoryview(b""))]
        return [Fetched(key, 0, 120, 120, 0, None, [], memoryview(v2(entries(100, 3))))]

    monkeypatch.setattr(fetching, "peek", peek)
    copy, _, flow = reading(source, hooks, at=100, epoch=1)
    copy.rereading = True

    await reread(flow, copy, CorruptBatchError(100, "its CRC-32C is not what it should be"))

    assert (copy.state, copy.fetch_offset) == (State.ACTIVE, 103)


async def blocked_when_written(copy: PartitionCopy, hooks: Quiet, flow: Flow) -> None:
    """What was taken is written, and the partition is blocked after that."""
    sent, _ = copy.take()
    copy.answered(sent, appended=True, now=1.0)
    hooks.changed(copy)
    flow.room.set()
    async with asyncio.timeout(SOON):
        await hooks.blocked.wait()


async def until_blocked(lane: FetchLane, hooks: Quiet) -> None:
    """Read until a partition is blocked."""
    running = asyncio.create_task(lane.run())
    async with asyncio.timeout(SOON):
        await hooks.blocked.wait()
    running.cancel()


def reading(
    source: Source, hooks: Quiet, *, at: int = 0, epoch: int = 0, buffer_bytes_max: int = 1 << 30
) -> tuple[PartitionCopy, FetchLane, Flow]:
    """A partition that is to be read from an offset on, by a lane that is told of it."""
    hooks.flow = flow = _flow(source, hooks, buffer_bytes_max)
    copy = PartitionCopy(ORDERS_0, ORDERS_0, TOPIC_ID, in_flight_max=5)
    copy.proceed(Proceed(at, at, 0, 0, 0), OffsetMode.SAME, epoch, 0.0)
    hooks.lane = lane = FetchLane(flow, 1)
    lane.update(copy)
    return copy, lane, flow


def _flow(source: Source, hooks: Quiet, buffer_bytes_max: int) -> Flow:
    limits = Limits(
        fetch=FetchLimits(), partition_fetch_bytes_max=1 << 16, request_bytes_max=1 << 20,
        fetch_connections=1, append_connections=1, requests_in_flight_max=5, batches_in_flight_max=5,
        buffer_bytes_max=buffer_bytes_max,
        partition_buffer_bytes_max=1 << 30, gap_limit=1_000, padding_limit=0,
    )  # fmt: skip
    return Flow(
        name="f", source=cast(Any, source), target=cast(Any, None), limits=limits,
        pool=BufferPool(idle_bytes_max=0), instruments=Meters(), hooks=hooks,
    )  # fmt: skip
