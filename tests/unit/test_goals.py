"""When a copy that is to end has come to its end."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from mirror.flow import goals
from mirror.flow.goals import Goals
from mirror.flow.partition import HOPELESS, PartitionCopy
from mirror.flow.position import Proceed
from mirror.model import Gap, OffsetMode, Reason, State, TopicPartition, is_there

SOON = 5.0
"""Much longer than it takes."""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(goals, "CHECK_SECONDS", 0.001)
    monkeypatch.setattr(goals, "STUCK_SECONDS", 0.3)
    monkeypatch.setattr(goals, "ABSENT_SECONDS", 0.8)


def copied(number: int, position: int, high_watermark: int) -> PartitionCopy:
    """A partition that has copied so much of what the source has."""
    tp = TopicPartition("orders", number)
    copy = PartitionCopy(tp, tp, b"t" * 16, in_flight_max=5)
    copy.proceed(Proceed(position, position, 0, 0, position), OffsetMode.SAME, 0, 0.0)
    copy.heard(0, high_watermark, high_watermark)
    return copy


def advance(copy: PartitionCopy, to: int) -> None:
    assert copy.next_offset is not None
    copy.queue.push([Gap(copy.next_offset, to)], (), None)
    copy.gap_marked(to - copy.next_offset, 0.0)


async def over(waiting: Goals) -> bool:
    """True when the wait ends by itself."""
    try:
        async with asyncio.timeout(SOON):
            await waiting.reached(None)
    except TimeoutError:
        return False
    return True


async def open_after(waiting: Goals, seconds: float) -> bool:
    """True when it would still wait by then."""
    try:
        async with asyncio.timeout(seconds):
            await waiting.reached(None)
    except TimeoutError:
        return True
    return False


async def test_it_is_over_when_every_partition_is_where_its_source_ended() -> None:
    """
    Nothing to copy is that from the beginning.
    """
    assert await over(Goals([copied(0, 10, 10), copied(1, 0, 0)]))
    assert await over(Goals([]))


async def test_what_is_written_meanwhile_is_not_waited_for() -> None:
    """
    The goal is the high watermark that was seen first.
    """
    copy = copied(0, 5, 10)
    waiting = Goals([copy])

    assert await open_after(waiting, 0.02)
    copy.heard(0, 99, 99)
    advance(copy, 10)

    assert await over(waiting)


async def test_a_partition_nobody_has_looked_at_is_waited_for() -> None:
    """
    Its goal is not known yet: unknown is not zero.
    """
    tp = TopicPartition("orders", 0)

    assert await open_after(Goals([PartitionCopy(tp, tp, b"t" * 16, in_flight_max=5)]), 0.1)


async def test_checks_of_many_partitions_leave_nearly_all_of_the_time_to_the_copy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    Where one takes long the next one comes later.
    """
    now, rests = 0.0, list[float]()

    def takes_long() -> float:
        nonlocal now
        now += 0.5
        return now

    async def rest(seconds: float) -> None:
        nonlocal now
        now += seconds
        rests.append(seconds)

    monkeypatch.setattr(goals, "time", SimpleNamespace(monotonic=takes_long))
    monkeypatch.setattr(goals, "asyncio", SimpleNamespace(sleep=rest))

    await Goals([copied(0, 5, 10)]).reached(65.0)

    assert min(rests[:-1]) >= 10
    assert sum(rests) < 65


async def test_time_that_is_up_ends_the_wait() -> None:
    """
    Whatever is still missing.
    """
    async with asyncio.timeout(SOON):
        await Goals([copied(0, 5, 10)]).reached(0.02)


@pytest.mark.parametrize("state", sorted(HOPELESS))
async def test_a_partition_that_only_an_operator_can_help_is_not_waited_for(state: State) -> None:
    """
    But the others are.
    """
    hopeless, other = copied(0, 5, 10), copied(1, 5, 10)
    hopeless.stop(state, Reason.OPERATOR, "seen", None)
    waiting = Goals([hopeless, other])

    assert await open_after(waiting, 0.1)
    advance(other, 10)

    assert await over(waiting)


async def test_a_blocked_partition_is_waited_for_a_while() -> None:
    """
    It may come right by itself; when nothing moves any more it is over.
    """
    blocked = copied(0, 5, 10)
    waiting = Goals([blocked])
    blocked.stop(State.BLOCKED, Reason.NOT_ENOUGH_REPLICAS, "seen", 0.0)

    assert await open_after(waiting, 0.02)
    assert await over(waiting)


async def test_a_partition_that_is_blocked_beyond_its_goal_is_waited_for_as_well() -> None:
    """
    It counts as there only where nothing is wrong with it: a missing replica may be back in a moment.
    """
    blocked = copied(0, 15, 10)
    waiting = Goals([blocked])
    blocked.stop(State.BLOCKED, Reason.NOT_ENOUGH_REPLICAS, "seen", 0.0)

    assert await open_after(waiting, 0.02)
    blocked.state, blocked.reason = State.ACTIVE, None

    assert await over(waiting)


async def test_a_copy_whose_record_times_were_replaced_is_not_there_however_long_another_takes() -> None:
    """
    It was copied whole, in one batch; looks find nothing more to do.
    """
    replaced, slow = copied(0, 5, 10), copied(1, 0, 100)
    waiting = Goals([replaced, slow])
    assert await open_after(waiting, 0.02)
    replaced.answered_with_other_time(0.0, current=True)
    for _ in range(2):
        replaced.proceed(Proceed(10, 10, 5, 0, 10), OffsetMode.SAME, 0, 0.0)
        replaced.heard(0, 10, 10)

    slow_waited_for = await open_after(waiting, 0.4)
    advance(slow, 100)
    ended = await over(waiting)

    assert slow_waited_for
    assert ended
    assert not is_there(replaced.state, replaced.mode, replaced.next_offset, replaced.goal_offset)
    assert is_there(slow.state, slow.mode, slow.next_offset, slow.goal_offset)


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        (State.LAGGING, Reason.SOURCE_UNAVAILABLE),
        (State.BLOCKED, Reason.SOURCE_UNAVAILABLE),
        (State.BLOCKED, Reason.TARGET_UNAVAILABLE),
    ],
)
async def test_a_broker_that_is_being_started_again_is_waited_for_longer(
    state: State, reason: Reason, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    What a broker has refused it will refuse again; one that is not there mostly comes back, but not always.
    """
    refused, absent = copied(0, 5, 10), copied(1, 5, 10)
    refused.stop(State.BLOCKED, Reason.RECORD_TOO_LARGE, "seen", 0.0)
    absent.state, absent.reason = state, reason
    now = 0.0
    monkeypatch.setattr(goals, "time", SimpleNamespace(monotonic=lambda: now))
    alone, both = Goals([refused]), Goals([refused, absent])
    assert await open_after(alone, 0.02)
    assert await open_after(both, 0.02)

    now = (goals.STUCK_SECONDS + goals.ABSENT_SECONDS) / 2
    assert await over(alone)
    assert await open_after(both, 0.02)

    now = goals.ABSENT_SECONDS
    assert await over(both)


async def test_what_another_flow_may_be_writing_down_is_waited_for_as_long_as_that_may_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    Twice as long as for a broker, or longer while news of it come; then it is looked at again, and begun.
    Nothing else is waited for longer because of that.
    """
    waiting_for, refused = copied(0, 5, 10), copied(1, 5, 10)
    waiting_for.stop(State.BLOCKED, Reason.TARGET_UNAVAILABLE, "not whole", 0.0)
    refused.stop(State.BLOCKED, Reason.RECORD_TOO_LARGE, "seen", 0.0)
    now, awaits = 0.0, True
    monkeypatch.setattr(goals, "time", SimpleNamespace(monotonic=lambda: now))
    begun, other = Goals([waiting_for], lambda: awaits), Goals([refused], lambda: awaits)
    assert await open_after(begun, 0.02)
    assert await open_after(other, 0.02)

    now = 3 * goals.ABSENT_SECONDS
    assert await over(other)
    assert await open_after(begun, 0.02)
    awaits = False
    now += goals.ABSENT_SECONDS / 2
    assert await open_after(begun, 0.02)

    now += goals.ABSENT_SECONDS
    assert await over(begun)


async def test_a_blocked_partition_is_waited_for_as_long_as_another_moves() -> None:
    """
    What is copied there may take hours.
    """
    blocked, busy = copied(0, 5, 10), copied(1, 0, 1_000)
    blocked.stop(State.BLOCKED, Reason.NOT_ENOUGH_REPLICAS, "seen", 0.0)
    waiting = Goals([blocked, busy])

    for to in range(1, 8):
        advance(busy, to)
        assert await open_after(waiting, 0.02)


async def test_a_blocked_partition_is_waited_for_a_while_after_the_last_one_has_come_to_its_goal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    However long that took. What blocks it may have come right with that.
    """
    blocked, busy = copied(0, 5, 10), copied(1, 0, 1_000)
    blocked.stop(State.BLOCKED, Reason.RECORD_TOO_LARGE, "seen", 0.0)
    now = 0.0
    monkeypatch.setattr(goals, "time", SimpleNamespace(monotonic=lambda: now))
    waiting = Goals([blocked, busy])
    assert await open_after(waiting, 0.02)

    now = 3_600.0
    advance(busy, 1_000)
    assert await open_after(waiting, 0.02)
    now += goals.STUCK_SECONDS / 2
    assert await open_after(waiting, 0.02)

    now += goals.STUCK_SECONDS
    assert await over(waiting)


async def test_what_is_written_to_other_partitions_meanwhile_is_no_reason_to_wait() -> None:
    """
    They are at their goals, and are copied on and on: that brings the blocked one no nearer.
    """
    blocked, busy = copied(0, 5, 10), copied(1, 10, 10)
    blocked.stop(State.BLOCKED, Reason.RECORD_TOO_LARGE, "seen", 0.0)

    async def write_on() -> None:
        for to in range(11, 1_000):
            advance(busy, to)
            await asyncio.sleep(0.01)

    writing = asyncio.create_task(write_on())
    assert await over(Goals([blocked, busy]))
    writing.cancel()


async def test_what_waits_for_the_end_of_a_transaction_is_not_waited_for_once_that_is_known() -> None:
    """
    A producer that died leaves one open for as long as it likes.
    """
    held = copied(0, 5, 10)
    waiting = Goals([held])

    assert await open_after(waiting, 0.5)
    held.state, held.reason = State.LAGGING, Reason.OPEN_TRANSACTION

    assert await over(waiting)


async def test_the_goal_is_where_the_source_ended_at_first() -> None:
    """
    It stays when more is written, and is seen from outside.
    """
    copy = copied(0, 10, 100)
    waiting = Goals([copy])
    assert await open_after(waiting, 0.01)
    copy.heard(0, 500, 500)

    advance(copy, 100)

    assert await over(waiting)
    assert copy.goal_offset == 100


async def test_a_copy_that_somebody_else_has_made_is_no_end_before_it_was_looked_at() -> None:
    """
    For a moment after the start only the former owner of the flow may know where its offset map ends.
    """
    copy = copied(0, 100, 100)
    copy.stop(State.UNKNOWN, Reason.STARTING, "not looked at yet", 0.0)
    waiting = Goals([copy])
    assert await open_after(waiting, 0.05)

    copy.proceed(Proceed(100, 100, 0, 0, 100), OffsetMode.MAPPED, 0, 0.0)

    assert await over(waiting)


async def test_a_copy_that_waits_for_an_owner_for_ever_has_an_end() -> None:
    """
    Another mirror has the flow, and keeps it.
    """
    copy = copied(0, 100, 100)
    copy.stop(State.UNKNOWN, Reason.STARTING, "not looked at yet", 0.0)
    copy.stand_by(0.0, 1.0, "")

    assert await over(Goals([copy]))
