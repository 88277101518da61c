"""What an append lane tells the engine: whoever may not send must be looked at, and nobody is forgotten."""

from __future__ import annotations

import asyncio
import math
import struct
from typing import Any, cast

from kafka.protocol.producer import ProduceRequest

from mirror.errors import ConnectionFailedError
from mirror.flow.appending import AppendLane
from mirror.flow.passage import UNSTEADY_SECONDS
from mirror.flow.position import Proceed
from mirror.kafka.append import Outcome
from mirror.kafka.record_batch import walk
from mirror.model import OffsetMode, Reason, State, TopicPartition
from tests.unit.target_model import IDLE_LOOK_SECONDS, OURS, VERSION, Meters, Mirror, said, source_batch

SOON = 5.0
NOT_ENOUGH_REPLICAS = 19


def a_mirror(*, looked_at: float, queue_bytes_max: float = math.inf) -> Mirror:
    """A mirror with a batch queued, whose partition was looked at at some moment."""
    mirror = Mirror(queue_bytes_max)
    mirror.copy.proceed(Proceed(0, 0, 0, 0, 0), OffsetMode.SAME, -1, looked_at)
    buffer = mirror.pool.take(100)
    mirror.copy.queue.push([source_batch(0, 3)], [], buffer)
    buffer.release()
    return mirror


async def turns() -> None:
    """Let everything happen that waits for nothing."""
    for _ in range(6):
        await asyncio.sleep(0)


def now() -> float:
    return asyncio.get_running_loop().time()


async def test_after_a_long_silence_the_engine_is_told_to_look() -> None:
    """
    Nothing is sent before: the broker may have forgotten the producer.
    """
    mirror = a_mirror(looked_at=now() - IDLE_LOOK_SECONDS - 1)

    mirror.lane.offer(mirror.copy)
    await turns()

    assert mirror.hooks.changes == [mirror.copy]
    assert mirror.copy.look_due_at is not None
    assert not mirror.target.connections[-1].unheard


async def test_nothing_is_sent_of_a_partition_that_others_have_had_looked_at() -> None:
    """
    It waits in the lane with a batch when its log is found not to end where it was left. While it is looked
    at, that log must not move.
    """
    mirror = a_mirror(looked_at=now())

    mirror.lane.offer(mirror.copy)
    mirror.copy.look_first(now())
    await turns()
    before = len(mirror.target.connections[-1].unheard) if mirror.target.connections else 0
    mirror.copy.proceed(Proceed(0, 0, 7, 0, 0), OffsetMode.SAME, -1, now())
    mirror.lane.offer(mirror.copy)
    await turns()

    assert before == 0
    assert len(mirror.target.connections[-1].unheard) == 1


async def test_what_was_queued_before_a_look_is_sent_after_it() -> None:
    """
    If the look finds what was expected nothing has to be fetched again: over a slow link it might be too late
    again when it comes.
    """
    mirror = a_mirror(looked_at=now() - IDLE_LOOK_SECONDS - 1)
    mirror.lane.offer(mirror.copy)
    await turns()

    mirror.copy.proceed(Proceed(0, 0, 7, 0, 0), OffsetMode.SAME, -1, now())
    mirror.lane.offer(mirror.copy)
    await turns()

    assert mirror.copy.fetch_offset == 3
    assert len(mirror.target.connections[-1].unheard) == 1


async def test_what_was_queued_before_a_look_is_dropped_when_the_target_has_moved_on() -> None:
    """
    Another mirror of the flow has written it meanwhile.
    """
    mirror = a_mirror(looked_at=now() - IDLE_LOOK_SECONDS - 1)
    mirror.lane.offer(mirror.copy)
    await turns()

    mirror.copy.proceed(Proceed(3, 3, 7, 0, 3), OffsetMode.SAME, -1, now())

    assert (mirror.copy.fetch_offset, mirror.copy.pending) == (3, False)
    assert mirror.pool.used_bytes == 0


async def test_a_partition_is_written_to_with_its_own_epoch() -> None:
    """
    The broker refuses the flow's where a repair has begun a newer one.
    """
    mirror = a_mirror(looked_at=now())
    mirror.copy.proceed(Proceed(0, 0, 0, 0, 0, producer_epoch=3), OffsetMode.SAME, -1, now())

    mirror.lane.offer(mirror.copy)
    await turns()

    body, _ = mirror.target.connections[-1].unheard[0]
    request = ProduceRequest.decode(body, version=VERSION)
    ((part,),) = [topic.partition_data for topic in request.topic_data]
    header, _ = next(walk(memoryview(part.records)))
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (OURS, 3, 0)


async def test_nothing_is_sent_while_it_is_not_our_turn() -> None:
    """
    What is queued is kept, and sent when the right is proven to be ours again.
    """
    mirror = a_mirror(looked_at=now())
    mirror.flow.turn.lost()
    mirror.lane.offer(mirror.copy)
    await turns()
    mirror.flow.turn.withdraw()
    mirror.lane.wake()
    await turns()
    before = len(mirror.target.connections)

    mirror.flow.turn.proven(now())
    mirror.lane.wake()
    await turns()

    assert before == 0
    assert len(mirror.target.connections[-1].unheard) == 1


async def test_whoever_waits_for_a_broker_that_cannot_be_reached_is_looked_at() -> None:
    """
    The engine is told: nobody else would.
    """
    mirror = a_mirror(looked_at=now())

    async def refuse(*_: Any) -> Any:
        raise ConnectionFailedError("nobody there")

    mirror.target.connection = refuse  # type: ignore[method-assign]
    mirror.lane.offer(mirror.copy)
    await turns()

    assert mirror.hooks.changes == [mirror.copy]
    assert mirror.copy.look_due_at is not None
    assert mirror.copy.state is State.ACTIVE


async def test_a_mistake_of_ours_while_a_connection_is_opened_ends_the_mirror() -> None:
    """
    Else the lane would stand still, and nobody would know why.
    """
    mirror, mistake = a_mirror(looked_at=now()), ZeroDivisionError("a bug")

    async def fail(*_: Any) -> Any:
        raise mistake

    mirror.target.connection = fail  # type: ignore[method-assign]
    mirror.lane.offer(mirror.copy)
    await turns()

    assert mirror.hooks.crashed is mistake


async def test_a_lane_that_is_closed_while_it_connects_is_no_mistake() -> None:
    """
    The mirror ends, and does not wait for a broker that does not answer.
    """
    mirror = a_mirror(looked_at=now())

    async def hang(*_: Any) -> Any:
        await asyncio.Event().wait()

    mirror.target.connection = hang  # type: ignore[method-assign]
    mirror.lane.offer(mirror.copy)
    await turns()
    await mirror.lane.close()

    assert mirror.hooks.crashed is None


async def test_who_has_too_much_to_send_for_a_lane_is_handed_back() -> None:
    """
    At once where nothing of it is on its way; nothing of it is sent here.
    """
    mirror = a_mirror(looked_at=now(), queue_bytes_max=10)

    mirror.lane.offer(mirror.copy)
    await turns()

    assert mirror.hooks.changes == [mirror.copy]
    assert not mirror.target.connections[-1].unheard
    mirror.lane.leave(mirror.copy)


async def test_who_outgrows_a_lane_is_handed_back_with_its_last_answer() -> None:
    """
    What is on its way is not overtaken; what comes after it goes elsewhere.
    """
    mirror = a_mirror(looked_at=now(), queue_bytes_max=1000)
    mirror.lane.offer(mirror.copy)
    await turns()
    _, on_answer = mirror.target.connections[-1].unheard.popleft()
    mirror.copy.queue.push([source_batch(3 + number, 1) for number in range(20)], [], None)
    mirror.lane.offer(mirror.copy)
    await turns()
    assert (len(mirror.copy.in_flight), mirror.hooks.changes) == (1, [])

    on_answer(said(0, 0))
    await turns()

    assert not mirror.copy.in_flight
    assert mirror.hooks.changes == [mirror.copy]
    assert len(mirror.target.connections[-1].unheard) == 0


async def test_what_is_in_flight_of_a_partition_that_is_dropped_is_answered_and_moves_nothing() -> None:
    """
    Its memory is given back; nothing more of it is sent.
    """
    mirror = a_mirror(looked_at=now())
    mirror.lane.offer(mirror.copy)
    await turns()
    _, on_answer = mirror.target.connections[-1].unheard.popleft()
    mirror.copy.stop(State.UNKNOWN, Reason.STARTING, "no longer copied", None)
    mirror.lane.leave(mirror.copy)

    on_answer(said(0, 0))
    await turns()

    assert (mirror.copy.unanswered, mirror.copy.next_offset, mirror.pool.used_bytes) == (False, 0, 0)
    assert not mirror.target.connections[-1].unheard
    assert mirror.hooks.crashed is None


async def test_only_what_was_acknowledged_has_a_latency() -> None:
    """
    A refusal says nothing of how long a record takes, least of all the one that was acknowledged before.
    """
    mirror, observed = a_mirror(looked_at=now()), list[int]()

    class Observing(Meters):
        def observe_copy_latency(self, seconds: float, tp: TopicPartition, offset: int) -> None:
            observed.append(offset)

    mirror.flow.instruments = Observing()
    mirror.copy.queue.push([source_batch(3, 2)], [], None)
    mirror.lane.offer(mirror.copy)
    await turns()
    for code, base_offset in ((0, 0), (NOT_ENOUGH_REPLICAS, -1)):
        _, on_answer = mirror.target.connections[-1].unheard.popleft()
        on_answer(said(code, base_offset))
        await turns()

    assert (mirror.copy.counters.records, mirror.copy.attempts) == (3, 1)
    assert observed == [2]


async def test_what_a_broker_calls_a_repeat_is_no_proof_that_this_batch_is_there() -> None:
    """
    Something of as many records came there since the look. Which, the next look finds.
    """
    mirror = a_mirror(looked_at=now())
    mirror.lane.offer(mirror.copy)
    await turns()
    before = mirror.copy.next_offset
    _, on_answer = mirror.target.connections[-1].unheard.popleft()

    on_answer(said(0, mirror.copy.in_flight[0].target_offset, repeated=True))
    await turns()

    assert (mirror.copy.next_offset, mirror.copy.counters.records) == (before, 0)
    assert mirror.copy.look_due_at is not None
    assert (mirror.copy.state, mirror.copy.attempts) == (State.ACTIVE, 0)
    assert mirror.hooks.changes[-1] is mirror.copy


async def test_nothing_more_is_sent_to_a_topic_that_replaces_record_times() -> None:
    """
    The answer has a time that is not the batch's own, and a look finds this batch there. Whether the topic
    still does so, only another batch can tell.
    """
    mirror = a_mirror(looked_at=now())
    mirror.lane.offer(mirror.copy)
    await turns()
    mirror.copy.queue.push([source_batch(3, 2)], [], None)
    _, on_answer = mirror.target.connections[-1].unheard.popleft()

    on_answer(said(0, mirror.copy.in_flight[0].target_offset, stamped_ms=1_700_000_000_000))
    await turns()
    mirror.copy.proceed(Proceed(3, 3, 3, 0, 0), OffsetMode.SAME, -1, now())
    await turns()
    due_at = mirror.copy.look_due_at

    assert (mirror.copy.state, mirror.copy.reason) == (State.BLOCKED, Reason.APPEND_TIMES)
    assert "LogAppendTime" in mirror.copy.detail
    assert not mirror.target.connections[-1].unheard
    assert due_at is not None
    assert due_at - now() > SOON
    assert mirror.hooks.changes[-1] is mirror.copy


async def test_after_an_answer_with_another_time_a_look_comes_first_and_at_once() -> None:
    """
    It may be a repeat of other records, if the source was compacted since those were sent.
    """
    mirror = a_mirror(looked_at=now())
    mirror.lane.offer(mirror.copy)
    await turns()
    _, on_answer = mirror.target.connections[-1].unheard.popleft()

    on_answer(said(0, mirror.copy.in_flight[0].target_offset, stamped_ms=1_700_000_000_000))
    await turns()

    assert mirror.copy.state is State.ACTIVE
    assert mirror.copy.look_due_at is not None
    assert mirror.copy.look_due_at <= now()


async def test_an_answer_that_comes_too_late_to_move_anything_still_shows_that_times_are_replaced() -> None:
    """
    The answer to the batch before it was lost. A look finds both there, and nothing left to copy.
    """
    mirror = a_mirror(looked_at=now() - UNSTEADY_SECONDS)
    mirror.lane.offer(mirror.copy)
    await turns()
    mirror.target.connections[-1].unheard.popleft()[1](said(0, 0))
    mirror.copy.queue.push([source_batch(3, 2), source_batch(5, 2)], [], None)
    mirror.lane.offer(mirror.copy)
    await turns()
    mirror.copy.heard(0, 7, 7)
    first, second = list(mirror.copy.in_flight)

    mirror.lane._settle(mirror.copy, first, None, now())
    in_doubt = mirror.copy.look_due_at
    mirror.lane._settle(mirror.copy, second, Outcome(0, 5, 0, None, 1_700_000_000_000), now())
    unchanged = mirror.copy.look_due_at == in_doubt
    mirror.copy.proceed(Proceed(7, 7, 7, 0, 0), OffsetMode.SAME, -1, now())

    assert unchanged
    assert (mirror.copy.state, mirror.copy.reason) == (State.BLOCKED, Reason.APPEND_TIMES)


async def test_a_slow_answer_moves_no_look_at_what_sends_nothing() -> None:
    """
    Its topic has a conflict, so no look is due until the topics were looked at again; or a pause is not over.
    """
    held, paused = a_mirror(looked_at=now()).copy, a_mirror(looked_at=now()).copy
    going, rereading = a_mirror(looked_at=now()).copy, a_mirror(looked_at=now()).copy
    held.stop(State.BLOCKED, Reason.APPEND_TIMES, "it would change record timestamps", None)
    paused.stop(State.BLOCKED, Reason.RECORD_TOO_LARGE, "too large", now() + 15)
    rereading.rereading = True
    before = paused.look_due_at
    request = [(copy, cast(Any, None)) for copy in (held, paused, going, rereading)]

    told = AppendLane._look_again(request, 5.0)

    assert (held.look_due_at, paused.look_due_at) == (None, before)
    assert (going.look_due_at, rereading.look_due_at) == (5.0, 5.0)
    assert told == [held, paused, going, rereading]


async def test_a_broker_is_not_silent_when_it_was_just_asked_nor_for_as_long_as_a_quota_holds_us_back() -> (
    None
):
    """
    Whoever else waits for it looks at that, too.
    """
    mirror, other = a_mirror(looked_at=now()), a_mirror(looked_at=now() - 50).copy
    silence = mirror.flow.silence
    other.waits_for = 1
    before = silence.of(other, now())

    mirror.lane.offer(mirror.copy)
    await turns()
    asked = silence.of(other, now())
    answer = bytearray(said(0, 0))
    struct.pack_into(">i", answer, len(answer) - 5, 30_000)
    _, on_answer = mirror.target.connections[-1].unheard.popleft()
    on_answer(memoryview(answer))

    assert before > 49
    assert asked < SOON
    assert silence.of(other, now() + 30) < SOON
