"""When a partition that is copied begins to lag, why, and when it no longer does."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from unittest.mock import Mock

import pytest

from mirror.flow.context import Flow, Limits
from mirror.flow.hints import severity
from mirror.flow.lagging import LagMeter, LagWatch
from mirror.flow.partition import PartitionCopy
from mirror.flow.position import Proceed
from mirror.kafka.buffers import BufferPool
from mirror.kafka.fetch import FetchLimits, Isolation
from mirror.model import OffsetMode, Reason, State, TopicPartition

ORDERS_0 = TopicPartition("orders", 0)
STATED_SECONDS = 10.0
MIB = 1 << 20


def a_flow(isolation: Isolation = Isolation.READ_COMMITTED) -> Flow:
    """A flow with limits and a pool of buffers; its clusters are never asked."""
    limits = Limits(
        fetch=FetchLimits(wait_ms_max=500, bytes_max=MIB, isolation=isolation),
        partition_fetch_bytes_max=MIB,
        request_bytes_max=MIB,
        fetch_connections=1,
        append_connections=1,
        requests_in_flight_max=5,
        batches_in_flight_max=5,
        buffer_bytes_max=2 * MIB,
        partition_buffer_bytes_max=MIB,
        gap_limit=10,
        padding_limit=10,
    )
    nobody = Mock()
    return Flow("f", nobody, nobody, limits, BufferPool(2 * MIB), instruments=nobody, hooks=nobody)


@dataclass(slots=True)
class Bench:
    """A partition that is copied, a clock that is turned by hand, and a watch on both."""

    flow: Flow
    now: float = 1000.0
    heard_at: float | None = None
    told: list[tuple[State, Reason | None]] = field(default_factory=list)
    p: PartitionCopy = field(init=False)
    meter: LagMeter = field(init=False)
    watch: LagWatch = field(init=False)

    def __post_init__(self) -> None:
        self.p = PartitionCopy(ORDERS_0, ORDERS_0, bytes(16), in_flight_max=5)
        self.meter = LagMeter(self.flow, lambda _: self.heard_at)
        self.watch = LagWatch(self.meter, lagging_seconds=STATED_SECONDS, changed=self._changed)

    def _changed(self, p: PartitionCopy) -> None:
        self.told.append((p.state, p.reason))

    def proceed(self, next_offset: int) -> None:
        self.p.proceed(Proceed(next_offset, next_offset, 0, 0, next_offset), OffsetMode.SAME, 0, self.now)

    def source_says(self, high_watermark: int, last_stable_offset: int | None = None) -> None:
        """An answer of the source, just now."""
        stable = high_watermark if last_stable_offset is None else last_stable_offset
        self.p.heard(0, high_watermark, stable, self.heard_at)
        self.heard_at = self.now

    def look(self, after_seconds: float = 0.0) -> State:
        self.now += after_seconds
        self.watch.look([self.p], now=self.now, now_ms=int(self.now * 1000))
        return self.p.state


@pytest.fixture
def bench() -> Bench:
    """Everything copied up to 100, and the source has just said so."""
    made = Bench(a_flow())
    made.proceed(100)
    made.source_says(100)
    made.now += 0.5
    made.source_says(100)
    return made


def test_a_partition_that_falls_behind_lags_and_is_active_again_below_half_of_it(bench: Bench) -> None:
    """
    Nobody asks for a status: each change is told once, as it happens.
    """
    bench.now += 0.5
    bench.source_says(250)
    states = [bench.look(), bench.look(STATED_SECONDS - 2)]
    bench.now += 4
    bench.source_says(260)
    states.append(bench.look())
    bench.proceed(260)
    bench.source_says(260)
    states.append(bench.look())

    assert states == [State.ACTIVE, State.ACTIVE, State.LAGGING, State.ACTIVE]
    assert bench.told == [(State.LAGGING, Reason.CATCHING_UP), (State.ACTIVE, None)]


def test_a_lag_says_how_many_offsets_are_missing(bench: Bench) -> None:
    """
    The sentence is that of the last look.
    """
    bench.source_says(250)
    bench.look(STATED_SECONDS + 2)
    bench.source_says(300)

    bench.look()

    assert bench.p.detail == "200 offsets behind"


def test_a_source_that_falls_silent_is_named_as_the_reason(bench: Bench) -> None:
    """
    A copy that was complete lags too, when nobody can say whether it still is.
    """
    bench.look(STATED_SECONDS + 1)

    assert bench.told == [(State.LAGGING, Reason.SOURCE_UNAVAILABLE)]
    assert "has not answered since" in bench.p.detail


def test_a_source_that_falls_silent_while_the_copy_lags_is_not_explained_by_the_lag(bench: Bench) -> None:
    """
    How many offsets were missing when it was last heard says nothing of why it is not heard.
    """
    bench.source_says(250)
    bench.look(STATED_SECONDS + 2)
    bench.source_says(300)
    bench.look()

    bench.look(STATED_SECONDS + 1)

    assert bench.told[-1] == (State.LAGGING, Reason.SOURCE_UNAVAILABLE)
    assert "has not answered since" in bench.p.detail


def test_a_source_that_has_never_answered_is_named_as_the_reason() -> None:
    """
    It was there when the partition was looked at, and is gone before the first record was read.
    """
    bench = Bench(a_flow())
    bench.proceed(0)
    bench.p.source_high_watermark = 1000

    states = [bench.look(STATED_SECONDS - 1), bench.look(2)]

    assert states == [State.ACTIVE, State.LAGGING]
    assert bench.told == [(State.LAGGING, Reason.SOURCE_UNAVAILABLE)]
    assert "has not answered since" in bench.p.detail


def test_what_the_connection_said_is_kept_as_the_detail(bench: Bench) -> None:
    """
    The words of the failure say more than the time of the last answer.
    """
    bench.p.detail = "east:9092: connection refused"

    bench.look(STATED_SECONDS + 1)

    assert bench.p.detail == "east:9092: connection refused"


def test_a_source_that_answers_again_leaves_nothing_of_its_silence(bench: Bench) -> None:
    """
    Neither state nor words.
    """
    bench.p.detail = "east:9092: connection refused"
    bench.look(STATED_SECONDS + 1)
    bench.source_says(100)

    bench.look()

    assert (bench.p.state, bench.p.reason, bench.p.detail) == (State.ACTIVE, None, "")


def test_a_mirror_without_room_does_not_blame_the_source(bench: Bench) -> None:
    """
    Whoever has no room asks nothing; the lag is the target's.
    """
    bench.source_says(250)
    held = bench.flow.pool.take(2 * MIB)

    bench.look(STATED_SECONDS + 5)

    held.release()
    assert bench.told == [(State.LAGGING, Reason.CATCHING_UP)]


def test_a_transaction_left_open_is_named_as_the_reason(bench: Bench) -> None:
    """
    Everything that may be read is copied, so there is no lag in records, and yet nothing moves.
    """
    bench.source_says(120, last_stable_offset=100)
    bench.look()
    states = []
    for _ in range(12):
        bench.source_says(120, last_stable_offset=100)
        states.append(bench.look(1))
    bench.source_says(120)
    bench.proceed(120)
    states.append(bench.look())

    assert states == [State.ACTIVE] * 10 + [State.LAGGING] * 2 + [State.ACTIVE]
    assert bench.told == [(State.LAGGING, Reason.OPEN_TRANSACTION), (State.ACTIVE, None)]


def test_transactions_that_end_in_time_are_no_lag(bench: Bench) -> None:
    """
    On a busy topic there is always one open; what counts is whether the same one stands.
    """
    states = set()
    for end in range(100, 130):
        bench.source_says(end + 20, last_stable_offset=end)
        bench.proceed(end)
        states.add(bench.look(1))

    assert states == {State.ACTIVE}


@pytest.mark.parametrize("state", sorted(set(State) - {State.ACTIVE, State.LAGGING}))
def test_a_partition_with_a_state_of_its_own_is_left_alone(bench: Bench, state: State) -> None:
    """
    What is blocked, paused or lost does not become a lag.
    """
    bench.p.stop(state, Reason.OPERATOR, "as it was", None)

    bench.look(100)

    assert (bench.p.state, bench.p.detail, bench.told) == (state, "as it was", [])


def test_a_doubt_does_not_end_a_lag(bench: Bench) -> None:
    """
    A partition that is looked at and goes on where it was is as far behind as before: no flapping.
    """
    bench.source_says(250)
    bench.look(STATED_SECONDS + 2)
    bench.p.doubt(bench.now)
    bench.proceed(100)

    assert bench.p.state is State.LAGGING


def test_nothing_is_missing_where_the_high_watermark_is_reached() -> None:
    """
    Before the first fetch the last stable offset is not known; it never lies above the high watermark.
    """
    bench = Bench(a_flow())
    bench.proceed(100)
    bench.p.heard(0, 100, -1, None)

    reached = bench.meter.measure(bench.p, now=bench.now, now_ms=0)
    bench.p.heard(0, 101, -1, None)
    open_end = bench.meter.measure(bench.p, now=bench.now, now_ms=0)

    assert (reached.records, open_end.records) == (0, None)


@pytest.mark.parametrize(
    ("state", "reason", "level"),
    [
        (State.ACTIVE, None, logging.INFO),
        (State.UNKNOWN, Reason.STARTING, logging.INFO),
        (State.PAUSED, Reason.OPERATOR, logging.INFO),
        (State.LAGGING, Reason.CATCHING_UP, logging.INFO),
        (State.LAGGING, Reason.SOURCE_UNAVAILABLE, logging.WARNING),
        (State.LAGGING, Reason.OPEN_TRANSACTION, logging.WARNING),
        (State.BLOCKED, Reason.TARGET_UNAVAILABLE, logging.WARNING),
        (State.BLOCKED, Reason.INTERNAL_ERROR, logging.ERROR),
        (State.DATA_LOSS, Reason.LOG_START_MOVED, logging.ERROR),
        (State.DIVERGED, Reason.FOREIGN_WRITE, logging.ERROR),
        (State.BLOCKED, Reason.TOPIC_DELETED, logging.WARNING),
        (State.TOPIC_RECREATED, Reason.TOPIC_ID_CHANGED, logging.ERROR),
        (State.FENCED, Reason.NEWER_EPOCH, logging.ERROR),
    ],
)
def test_each_state_is_logged_as_loudly_as_it_deserves(
    state: State, reason: Reason | None, level: int
) -> None:
    """
    What was asked for is no error; what nobody but an operator can end is one.
    """
    assert severity(state, reason) == level
