"""The lane of a mirror to whose request for a stream something else comes than a stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mirror.flow import linked
from mirror.flow.context import Flow, Limits, LinkLimits
from mirror.flow.linked import LinkLane
from mirror.flow.partition import PartitionCopy
from mirror.flow.position import Proceed
from mirror.kafka.buffers import BufferPool
from mirror.kafka.connection_pool import ConnectionPool
from mirror.kafka.dial import Address, ConnectionOptions, Relays
from mirror.kafka.fetch import FetchLimits
from mirror.link import messages
from mirror.link.protocol import Down
from mirror.model import OffsetMode, Reason, State, TopicPartition
from mirror.timetable import Period
from tests.harness.daemon import until
from tests.unit.fake_relay import OF_ITS_OWN, SWITCHING, fake_relay, problem, welcome
from tests.unit.target_model import Hooks, Meters

ORDERS_0 = TopicPartition("orders", 0)
TOO_OLD = problem(404, "not_found")
OFFICE_HOURS = Period(rate=2_500_000, days=frozenset(range(5)), begins=480, ends=1080, zone=UTC)
AT_NIGHT = Period(rate=None, days=frozenset(range(7)), begins=1320, ends=360, zone=UTC)
SOON = 10.0


class Engine(Hooks):
    """Brings a partition to the lane, or to brokers, as the flow says.

    Attributes:
        ways: By which it has come, one after the other.
    """

    def __init__(self) -> None:
        super().__init__()
        self.copy = PartitionCopy(ORDERS_0, ORDERS_0, b"t" * 16, in_flight_max=5)
        self.copy.proceed(Proceed(7, 7, 0, 0, 7), OffsetMode.SAME, 0, 0.0)
        self.ways: list[str] = []

    def begin(self, flow: Flow, lane: LinkLane) -> None:
        self.flow, self.lane = flow, lane
        self.changed(self.copy)

    def changed(self, partition: PartitionCopy) -> None:
        way = "stream" if self.flow.link is not None else "brokers"
        if way == "stream" and partition.copying:
            self.lane.update(partition)
        else:
            self.lane.leave(partition.key)
        if self.ways[-1:] != [way]:
            self.ways.append(way)

    def stale(self, cluster: object) -> None:
        if self.copy.copying:
            self.changed(self.copy)


@asynccontextmanager
async def mirror(options: ConnectionOptions, rates: Sequence[Period] = ()) -> AsyncIterator[Engine]:
    """A lane that runs, and one partition."""
    engine = Engine()
    source = SimpleNamespace(
        options=options,
        connections=ConnectionPool(),
        info=SimpleNamespace(cluster_id="east", partition=lambda _: None),
    )
    limits = Limits(
        fetch=FetchLimits(), partition_fetch_bytes_max=1 << 16, request_bytes_max=1 << 20,
        fetch_connections=1, append_connections=1, requests_in_flight_max=5, batches_in_flight_max=5,
        buffer_bytes_max=8 << 20, partition_buffer_bytes_max=1 << 20, gap_limit=1_000, padding_limit=0,
    )  # fmt: skip
    link = LinkLimits(window_bytes=1 << 20, level=3, recode=True, connections=1, rates=rates)
    flow = Flow(
        name="f", source=cast(Any, source), target=cast(Any, None), limits=limits,
        pool=BufferPool(idle_bytes_max=0), instruments=Meters(), hooks=engine, link=link,
    )  # fmt: skip
    lane = LinkLane(flow, link)
    engine.begin(flow, lane)
    running = asyncio.create_task(lane.run())
    try:
        yield engine
        assert not running.done()
    finally:
        running.cancel()
        await asyncio.wait([running])


class Answers:
    """These, one after the other, and then streams; counts how often it was asked."""

    def __init__(self, *first: bytes, then: bytes = SWITCHING) -> None:
        self.asked = 0
        self._first: Iterator[bytes] = iter(first)
        self._then = then

    def __call__(self, _: str) -> bytes:
        self.asked += 1
        return next(self._first, self._then)


@pytest.mark.parametrize(
    "answer",
    [
        OF_ITS_OWN,
        b"HTTP/1.1 403 Forbidden\r\n\r\n",
        SWITCHING.replace(b"HTTP", b"HTTQ", 1),
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
    ],
    ids=["of-an-ingress", "refused-by-one", "one-bit", "bad-request"],
)
async def test_an_answer_that_is_no_relays_is_asked_again(answer: bytes) -> None:
    """
    Within a second or two, and brokers are not asked meanwhile: they know no limits.
    """
    async with fake_relay(Answers(answer), welcome()) as options, mirror(options) as engine:
        await until(lambda: engine.flow.stream is not None, "there is a stream", SOON)

    assert engine.ways == ["stream"]


@pytest.mark.parametrize("answer", [TOO_OLD, problem(426, "other_protocol")], ids=["path", "protocol"])
async def test_a_stream_is_looked_for_again_where_relays_were_too_old(
    answer: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Brokers are asked until one has been updated; also while that one is being started.
    """
    monkeypatch.setattr(linked, "LOOK_AGAIN_SECONDS", 0.05)
    answers = Answers(answer, answer, problem(503, "source_unavailable"))

    async with fake_relay(answers, welcome()) as options, mirror(options, [AT_NIGHT]) as engine:
        await until(lambda: engine.ways == ["stream", "brokers", "stream"], "it is back", SOON)
        member = engine.copy.key in engine.lane._members

    assert answers.asked == 4
    assert member
    assert engine.copy.state is State.ACTIVE


async def test_a_relay_that_is_too_old_will_do_while_the_other_one_is_dead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    After some tries: it may only be being started again, and then there is a stream at once.
    """
    monkeypatch.setattr(linked, "LOOK_AGAIN_SECONDS", 0.05)
    monkeypatch.setattr(linked, "pause_seconds", lambda _: 0.01)
    answers = Answers(*[TOO_OLD] * 8)

    async with fake_relay(answers, welcome()) as options:
        assert options.relays is not None
        both = ConnectionOptions(relays=Relays([*options.relays.in_turn(), Address("127.0.0.1", 1)]))
        async with mirror(both) as engine:
            await until(lambda: engine.ways == ["stream", "brokers", "stream"], "it is back", SOON)

    assert answers.asked == 9


async def test_a_rate_is_kept_rather_than_brokers_asked() -> None:
    """
    The partition says why it waits, and goes on when the relay is another one.
    """
    answers = Answers(then=TOO_OLD)

    async with fake_relay(answers, welcome()) as options, mirror(options, [AT_NIGHT, OFFICE_HOURS]) as engine:
        await until(lambda: engine.copy.state is State.BLOCKED, "it is blocked", SOON)
        reason, detail, due = engine.copy.reason, engine.copy.detail, engine.copy.look_due_at
        answers._then = SWITCHING
        engine.copy.proceed(Proceed(7, 7, 0, 0, 7), OffsetMode.SAME, 0, 0.0)
        engine.changed(engine.copy)
        await until(lambda: engine.flow.stream is not None, "there is a stream", SOON)

    assert reason is Reason.RELAY_TOO_OLD
    assert "of an older version" in detail
    assert detail.endswith("; without a stream the rates of link.limits cannot be kept")
    assert due is not None
    assert engine.ways == ["stream"]


async def test_a_relay_of_another_cluster_is_not_read() -> None:
    """
    One of two leads there by mistake: the other one is asked, whichever comes first, and nothing is concluded
    from what the first one does not have.
    """
    wrong, right = Answers(), Answers()

    async with (
        fake_relay(wrong, welcome(source_cluster_id="staging")) as there,
        fake_relay(right, welcome(source_cluster_id="east")) as here,
    ):
        assert there.relays is not None
        assert here.relays is not None
        both = ConnectionOptions(relays=Relays([*there.relays.in_turn(), *here.relays.in_turn()]))
        async with mirror(both) as engine:
            await until(lambda: engine.copy.unheard is not None, "it is said", SOON)
            unheard = engine.copy.unheard
            await until(lambda: engine.flow.stream is not None and right.asked > 0, "there is a stream", SOON)
            relay = engine.flow.stream and engine.flow.stream.relay

    assert unheard is not None
    assert "it reads cluster staging, not east as before" in unheard.why
    assert wrong.asked == right.asked == 1
    assert [relay] == here.relays.in_turn()


async def test_a_mirror_whose_epoch_is_old_is_fenced() -> None:
    """
    As where the target says so: it is not asked for again until an operator says so.
    """
    answers = Answers()
    bye = messages.say(Down.BYE, {"code": "old_epoch", "detail": "flow f is at epoch 5"})

    async with fake_relay(answers, bye) as options, mirror(options) as engine:
        await until(lambda: engine.copy.state is State.FENCED, "it is fenced", SOON)
        before = answers.asked
        await asyncio.sleep(0.5)  # longer than until the next try

    assert (engine.copy.reason, engine.copy.look_due_at) == (Reason.NEWER_EPOCH, None)
    assert engine.copy.counters.fenced == 1
    assert "flow f is at epoch 5" in engine.copy.detail
    assert answers.asked == before
