"""Control markers at one broker: to which partitions they are sent, and what is known of them then."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mirror.errors import (
    AnswerError,
    AuthenticationError,
    BrokerError,
    ConnectionFailedError,
    NotAuthorizedError,
    TlsRefusedError,
    TwinsiteError,
)
from mirror.flow import marking
from mirror.flow.context import Flow
from mirror.flow.marking import mark, until_landed
from mirror.flow.partition import PartitionCopy
from mirror.flow.position import Proceed
from mirror.kafka.offsets import Marking
from mirror.model import Gap, OffsetMode, TopicPartition
from tests.harness.daemon import until
from tests.unit.target_model import Hooks, source_batch

NOW = 1_000.0
GONE = BrokerError("UNKNOWN_TOPIC_OR_PARTITION", 3, "it does not exist")
HIDDEN = NotAuthorizedError("it may not be described")


def with_a_gap(number: int, offsets: int, *, in_front: int = 0) -> PartitionCopy:
    """A partition whose gap is next, behind so many records that are on their way."""
    tp = TopicPartition("orders", number)
    copy = PartitionCopy(tp, tp, b"t" * 16, in_flight_max=5)
    copy.proceed(Proceed(0, 0, 0, 3, 0), OffsetMode.SAME, -1, NOW)
    if in_front:
        copy.queue.push([source_batch(0, in_front)], (), None)
        copy.take()
    copy.queue.push([Gap(in_front, in_front + offsets)], (), None)
    return copy


class Unhurried(Hooks):
    """Counts how often the picture of the cluster was called stale; nobody is told of changes."""

    def __init__(self) -> None:
        super().__init__()
        self.stale_calls = 0

    def stale(self, cluster: object) -> None:
        self.stale_calls += 1

    def changed(self, partition: PartitionCopy) -> None: ...


class Target:
    """A broker that appends markers to empty logs.

    Attributes:
        ends: Where logs end.
        markings: What it was asked to append.
        loses: Of each request to a partition, so many.
        answers: False while its answers are lost on the way.
        ended: With what the connection ends then.
        leader: Who leads all partitions; at first nobody that is asked for anything.
        topics: The topics that it knows.
        errors: What it says of the others.
        starts: Set while it starts on what it receives.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ends: dict[TopicPartition, int] = {}
        self.markings: list[Mapping[TopicPartition, Marking]] = []
        self.loses: dict[TopicPartition, int] = {}
        self.answers = True
        self.ended: TwinsiteError = ConnectionFailedError("gone")
        self.leader: int | None = None
        self.topics = {"orders"}
        self.errors: dict[str, TwinsiteError] = {}
        self.starts = asyncio.Event()
        self.hooks = Unhurried()
        monkeypatch.setattr(marking, "LANDING_SECONDS", 0.0)
        monkeypatch.setattr(marking, "LEADERS_SECONDS", 0.01, raising=False)
        for name in ("write_markers", "list_offsets"):
            monkeypatch.setattr(marking, name, getattr(self, name))

    async def write_markers(
        self, _connection: object, markings: Mapping[TopicPartition, Marking], **_: object
    ) -> dict[TopicPartition, TwinsiteError | None]:
        self.markings.append(markings)
        for tp, one in markings.items():
            self.ends[tp] = self.ends.get(tp, 0) + one.count - self.loses.get(tp, 0)
        return dict.fromkeys(markings, None if self.answers else self.ended)

    def epochs(self, copy: PartitionCopy) -> list[int]:
        """The coordinator epochs of the markers that it was asked to append to a partition."""
        return [asked[copy.target].coordinator_epoch for asked in self.markings if copy.target in asked]

    async def list_offsets(
        self, _cluster: object, tps: Collection[TopicPartition], *_: object, **__: object
    ) -> dict[TopicPartition, int]:
        return {tp: self.ends[tp] for tp in tps}

    @property
    def info(self) -> SimpleNamespace:
        """As it was asked for last; each time is a second later."""
        topic = SimpleNamespace(partitions={0: object(), 1: object()})
        return SimpleNamespace(
            leader=lambda _: self.leader,
            partition=lambda tp: object() if tp.topic in self.topics else None,
            topics=dict.fromkeys(self.topics, topic),
            errors=self.errors,
            seen_at=float(self.hooks.stale_calls),
        )

    async def hear_from(self, node: int) -> None:
        assert node == 1
        await self.starts.wait()

    def flow(self) -> Flow:
        flow = SimpleNamespace(
            producer_id=4711,
            producer_epoch=0,
            target=self,
            room=asyncio.Event(),
            hooks=self.hooks,
            draining=False,
        )
        return cast(Flow, flow)

    async def mark(self, *partitions: PartitionCopy, owner_epoch: int = 0) -> Any:
        found = await mark(self.flow(), cast(Any, None), 1, partitions, owner_epoch)
        await until_landed(self.flow(), 1, [p for p in partitions if p.markers_under_way])
        return found

    def look(self, copy: PartitionCopy) -> None:
        """Look at a partition whose markers have landed; at the source one more offset is empty."""
        at, seen = self.ends[copy.target], self.epochs(copy)[-1]
        copy.proceed(Proceed(at, at, 0, seen, at), OffsetMode.SAME, -1, NOW)
        copy.queue.push([Gap(at, at + 1)], (), None)


async def test_a_gap_is_filled_with_as_many_markers(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Of all partitions that wait for them, in one request.
    """
    target = Target(monkeypatch)
    several, single = with_a_gap(0, 7), with_a_gap(1, 1)

    found = await target.mark(several, single)

    assert found == {several.tp: 7, single.tp: 1}
    assert [{tp: one.count for tp, one in asked.items()} for asked in target.markings] == [found]
    assert [copy.markers_under_way for copy in (several, single)] == [False, False]


async def test_no_marker_is_sent_to_a_partition_of_which_something_is_on_its_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    It would land in front of that, at whatever offset the log ends.
    """
    target = Target(monkeypatch)
    waits, free = with_a_gap(0, 7, in_front=3), with_a_gap(1, 2)

    found = await target.mark(waits, free)

    assert found == {free.tp: 2}
    assert set(target.markings[0]) == {free.tp}
    assert not waits.markers_under_way


async def test_a_partition_whose_log_does_not_end_behind_its_markers_is_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    Nobody is told that they were appended: what follows would have the wrong offsets.
    """
    target = Target(monkeypatch)
    short, whole = with_a_gap(0, 7), with_a_gap(1, 5)
    target.loses[short.tp] = 1

    found = await target.mark(short, whole)

    assert found == {whole.tp: 5}
    assert (short.look_due_at is not None, whole.look_due_at) == (True, None)


# -- when they can no longer land ----------------------------------------------------------------


def under_way(target: Target) -> tuple[PartitionCopy, asyncio.Task[None]]:
    """A partition with markers at a broker that does not answer, and the task that waits for their end."""
    copy = with_a_gap(0, 7)
    copy.markers_under_way = True
    return copy, asyncio.create_task(until_landed(target.flow(), 1, [copy]))


async def test_a_partition_whose_leader_moves_does_not_wait_for_a_broker_that_hangs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    The question to it may take as long as a request may. Meanwhile it is asked again who leads what.
    """
    target = Target(monkeypatch)
    target.leader = 1
    copy, waiting = under_way(target)
    await until(lambda: target.hooks.stale_calls > 2, "the leaders are asked for again", 2)
    waited = copy.markers_under_way

    target.leader = 2
    await asyncio.wait_for(waiting, 2)

    assert (waited, copy.markers_under_way) == (True, False)


async def test_a_partition_without_a_leader_waits_for_the_one_it_had(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    That was its only replica in sync. It will lead again, and may append then what it has received before.
    """
    target = Target(monkeypatch)
    target.leader = -1
    copy, waiting = under_way(target)
    await until(lambda: target.hooks.stale_calls > 2, "the leaders are asked for again", 2)
    waited = copy.markers_under_way

    target.starts.set()
    await asyncio.wait_for(waiting, 2)

    assert (waited, copy.markers_under_way) == (True, False)


async def test_a_partition_of_a_topic_that_is_gone_waits_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Nor does what was appended to it last.
    """
    target = Target(monkeypatch)
    target.leader, target.topics, target.errors = -1, set(), {"orders": GONE}
    copy, waiting = under_way(target)

    await asyncio.wait_for(waiting, 2)

    assert not copy.markers_under_way


class Starting(Target):
    """Its first answer comes from a broker that has just started, and knows no topics yet."""

    @property
    def info(self) -> SimpleNamespace:
        is_first = self.hooks.stale_calls < 2
        self.topics, self.errors = (set(), {"orders": GONE}) if is_first else ({"orders"}, {})
        return super().info


@pytest.mark.parametrize("said", [None, HIDDEN, GONE])
async def test_a_topic_that_an_answer_does_not_have_may_be_there_still(
    monkeypatch: pytest.MonkeyPatch, said: TwinsiteError | None
) -> None:
    """
    It was said once only that it does not exist, or nobody says whether it does. The broker with the markers
    may lead it again.
    """
    target = Starting(monkeypatch) if said is GONE else Target(monkeypatch)
    target.leader, target.topics = -1, set()
    target.errors = {} if said is None else {"orders": said}
    copy, waiting = under_way(target)
    await until(lambda: target.hooks.stale_calls > 5, "it is asked for again and again", 2)
    waited = copy.markers_under_way

    target.starts.set()
    await asyncio.wait_for(waiting, 2)

    assert (waited, copy.markers_under_way) == (True, False)


# -- what is late is refused ---------------------------------------------------------------------

OWNER_EPOCH = 3
OWNERS, NEXT_OWNERS = OWNER_EPOCH << 16, (OWNER_EPOCH + 1) << 16


async def test_looks_do_not_use_up_the_epochs_of_an_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A transaction a minute is a marker and a look a minute, for months: while all are answered none can be
    late, and the markers of the next owner still have a higher epoch.
    """
    target = Target(monkeypatch)
    copy = with_a_gap(0, 1)

    for _ in range(20):
        await target.mark(copy, owner_epoch=OWNER_EPOCH)
        target.look(copy)

    assert target.epochs(copy) == [OWNERS] * 20


@pytest.mark.parametrize("ended", [ConnectionFailedError, AuthenticationError, TlsRefusedError, AnswerError])
async def test_what_follows_a_request_without_an_answer_refuses_what_may_still_land_of_it(
    monkeypatch: pytest.MonkeyPatch, ended: type[TwinsiteError]
) -> None:
    """
    A broker refuses a lower epoch than one it has seen. A failed renewal of a session ends connections too;
    and an answer that breaks the protocol tells nothing of the markers.
    """
    target = Target(monkeypatch)
    target.ended = ended("gone")
    copy = with_a_gap(0, 1)

    for answers in (True, False, False, True):
        target.answers = answers
        await target.mark(copy, owner_epoch=OWNER_EPOCH)
        target.look(copy)
    await target.mark(copy, owner_epoch=OWNER_EPOCH)

    assert target.epochs(copy) == [OWNERS, OWNERS, OWNERS + 1, OWNERS + 2, OWNERS + 2]


async def test_an_owner_sends_no_markers_under_the_epochs_of_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    After 65 536 requests without an answer it has none of its own left. The partition says so, and waits;
    others go on.
    """
    target = Target(monkeypatch)
    copy, other = with_a_gap(0, 1), with_a_gap(1, 1)
    copy.coordinator_epoch = NEXT_OWNERS - 2

    target.answers = False
    for _ in range(2):
        await target.mark(copy, other, owner_epoch=OWNER_EPOCH)
        target.look(copy)
        target.look(other)
    target.answers = True
    found = await target.mark(copy, other, owner_epoch=OWNER_EPOCH)

    assert target.epochs(copy) == [NEXT_OWNERS - 2, NEXT_OWNERS - 1]
    assert (isinstance(found[copy.tp], TwinsiteError), found[other.tp]) == (True, 1)
    assert "restart the mirror" in str(found[copy.tp])
    assert not copy.markers_under_way


async def test_no_marker_has_an_epoch_of_more_than_31_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    The last one there is has been seen, of another owner.
    """
    target = Target(monkeypatch)
    copy = with_a_gap(0, 1)
    copy.proceed(Proceed(0, 0, 0, 2**31 - 1, 0), OffsetMode.SAME, -1, NOW)

    found = await target.mark(copy)

    assert isinstance(found[copy.tp], TwinsiteError)
    assert not target.epochs(copy)
