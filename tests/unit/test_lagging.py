"""When a partition that is copied begins to lag, why, and when it no longer does."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, field
from unittest.mock import Mock

import pytest
import structlog

from mirror.flow.context import Flow, Limits
from mirror.flow.hints import severity
from mirror.flow.lagging import Lag, LagMeter, LagWatch
from mirror.flow.outlook import Outlooks, Projection, catching_up, forgetting, losing, of_flow
from mirror.flow.partition import PartitionCopy
from mirror.flow.position import Proceed
from mirror.flow.receiving import Answers, Receiver
from mirror.kafka.buffers import BufferPool
from mirror.kafka.fetch import Fetched, FetchLimits, Isolation
from mirror.model import FlowOutlook, Forecast, OffsetMode, Outlook, Reason, State, TopicPartition
from monitoring.outlook import NO_LIMIT, Pace, Retention
from monitoring.tombstones import Tombstones, tombstone_headroom_seconds

ORDERS_0 = TopicPartition("orders", 0)
STATED_SECONDS = 10.0
NEAR_SECONDS = 3_600.0
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
    piece_at: float | None = None
    told: list[tuple[State, Reason | None]] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    p: PartitionCopy = field(init=False)
    meter: LagMeter = field(init=False)
    outlooks: Outlooks = field(init=False)
    watch: LagWatch = field(init=False)
    retention: Retention = field(default=Retention(NO_LIMIT, NO_LIMIT))
    tombstones: Tombstones = field(default=Tombstones())

    def __post_init__(self) -> None:
        self.p = PartitionCopy(ORDERS_0, ORDERS_0, bytes(16), in_flight_max=5)
        self.meter = LagMeter(self.flow, lambda _: self.heard_at, lambda _: self.piece_at)
        self.outlooks = Outlooks(lambda _: self.retention, fresh_seconds=self.meter.fresh_seconds)
        self.watch = LagWatch(
            self.meter,
            self.outlooks,
            lambda _: self.tombstones,
            lagging_seconds=STATED_SECONDS,
            near_seconds=NEAR_SECONDS,
            changed=self._changed,
        )

    def _changed(self, p: PartitionCopy) -> None:
        self.told.append((p.state, p.reason))
        self.words.append(p.detail)

    def proceed(self, next_offset: int) -> None:
        self.p.proceed(Proceed(next_offset, next_offset, 0, 0, next_offset), OffsetMode.SAME, 0, self.now)

    def source_says(
        self, high_watermark: int, last_stable_offset: int | None = None, log_start_offset: int = 0
    ) -> None:
        """An answer of the source, just now."""
        stable = high_watermark if last_stable_offset is None else last_stable_offset
        self.p.heard(log_start_offset, high_watermark, stable, answered_before=self.heard_at)
        self.heard_at = self.now

    def look(self, after_seconds: float = 0.0) -> State:
        self.now += after_seconds
        self.watch.look([self.p], now=self.now, now_ms=int(self.now * 1000))
        return self.p.state

    def lag(self) -> Lag:
        return self.meter.measure(self.p, now=self.now, now_ms=int(self.now * 1000))

    def outlook(self) -> FlowOutlook:
        now_ms = int(self.now * 1000)
        lag = self.lag()
        return of_flow(
            [self.outlooks.project(self.p, self.p.state, lag.progress, lag, now=self.now, now_ms=now_ms)]
        )


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


# -- what is to be expected ------------------------------------------------------------------------------


def going(bench: Bench, seconds: int, *, produced: int, copied: int) -> None:
    """So many offsets a second at the source and of the copy, looked at each second; stamped as produced."""
    end, position = bench.p.source_high_watermark or 0, bench.p.next_offset or 0
    for _ in range(seconds):
        bench.now += 1
        end, position = end + produced, min(position + copied, end + produced)
        bench.proceed(position)
        bench.source_says(end)
        bench.look()


def expected(bench: Bench) -> Outlook:
    """What a status says now."""
    now_ms = int(bench.now * 1000)
    lag = bench.meter.measure(bench.p, now=bench.now, now_ms=now_ms)
    return bench.outlooks.project(
        bench.p, bench.p.state, lag.progress, lag, now=bench.now, now_ms=now_ms
    ).status()


def test_a_copy_that_gains_says_when_it_is_there(bench: Bench) -> None:
    """
    A backlog of 10 000, 100 a second more, 300 a second copied.
    """
    bench.source_says(10_100)

    going(bench, 20, produced=100, copied=300)

    said = expected(bench)
    assert said.catch_up is Forecast.EXPECTED
    assert said.catch_up_seconds == pytest.approx((10_000 - 20 * 200) / 200)
    assert said.produced_per_second == pytest.approx(100)
    assert said.copied_per_second == pytest.approx(300)
    assert said.retention_loss is Forecast.NEVER
    assert bench.p.detail == "6000 offsets behind, caught up in 30 s at this pace"
    assert bench.told == [(State.LAGGING, Reason.CATCHING_UP)]


def test_what_was_written_since_the_source_was_heard_has_to_be_caught_up_with_too(bench: Bench) -> None:
    """
    Over a slow link: a relay has read 20 s ago what comes now. The lag is of then, the projection is not.
    """
    late, end, position = 20, 50_100, 100
    for _ in range(60):
        bench.now, end, position = bench.now + 1, end + 100, position + 300
        bench.proceed(position)
        bench.p.heard(0, end - late * 100, end - late * 100)
        bench.heard_at = bench.now - late
        bench.look()
    missing = 50_000 - 60 * 200

    assert bench.lag().records == missing - late * 100
    assert expected(bench).catch_up_seconds == pytest.approx(missing / 200)
    assert bench.outlook().backlog_seconds == pytest.approx(missing / 200)


def test_a_copy_that_gains_nothing_says_so(bench: Bench) -> None:
    """
    Nothing is lost where the source keeps everything.
    """
    going(bench, 30, produced=300, copied=100)

    said = expected(bench)
    assert (said.catch_up, said.catch_up_seconds) == (Forecast.NEVER, None)
    assert bench.p.detail.endswith("offsets behind, and not catching up at this pace")
    assert bench.told == [(State.LAGGING, Reason.CATCHING_UP)]


def test_what_is_told_as_a_lag_begins_is_told_of_the_lag(bench: Bench) -> None:
    """
    The log has one line for the change: a copy that was in time a moment ago is not caught up in no time.
    """
    going(bench, 30, produced=2_000, copied=1_000)

    assert bench.told == [(State.LAGGING, Reason.CATCHING_UP)]
    assert bench.words == ["21000 offsets behind, and not catching up at this pace"]


def test_a_lag_that_begins_with_a_loss_to_come_says_so_at_once(bench: Bench) -> None:
    """
    Nothing is copied of a topic that keeps ten minutes.
    """
    bench.retention = Retention(600_000, NO_LIMIT)

    going(bench, 30, produced=300, copied=0)

    assert bench.told == [(State.LAGGING, Reason.RETENTION_NEAR)]


def test_a_loss_to_come_is_the_reason_and_is_logged_now_and_then(bench: Bench) -> None:
    """
    Nothing is copied of a topic that keeps ten minutes: one warning for minutes of looking, then another one.
    """
    bench.retention = Retention(600_000, NO_LIMIT)

    with structlog.testing.capture_logs() as logged:
        going(bench, 100, produced=300, copied=0)
    said, detail = expected(bench), bench.p.detail
    with structlog.testing.capture_logs() as logged_later:
        going(bench, 300, produced=0, copied=0)

    assert said.retention_loss is Forecast.EXPECTED
    assert said.retention_loss_seconds == pytest.approx(500, abs=2)
    assert bench.told[-1] == (State.LAGGING, Reason.RETENTION_NEAR)
    assert detail == ("30000 offsets behind; at this pace records are lost in 8 min, before it has caught up")
    assert [line["event"] for line in logged] == ["retention_loss_near"]
    assert [line["event"] for line in logged_later] == ["retention_loss_near"]
    [warning] = logged
    assert (warning["log_level"], warning["topic"], warning["partitions"]) == ("warning", "orders", 1)


def test_deletes_that_may_be_missed_are_the_reason_once_half_of_their_time_is_used_up(bench: Bench) -> None:
    """
    Nothing is copied of a topic that keeps tombstones for ten minutes: not at once, then with how long it is.
    """
    bench.tombstones = Tombstones(600_000)

    with structlog.testing.capture_logs() as logged:
        going(bench, 299, produced=300, copied=0)
    early = bench.p.detail
    with structlog.testing.capture_logs() as logged_later:
        going(bench, 61, produced=300, copied=0)
    near = bench.p.detail
    going(bench, 250, produced=300, copied=0)

    assert "deletes" not in early
    assert near.endswith(
        "; deletes that are not copied are safe from compaction for 4 min, before it has caught up"
    )
    assert bench.p.detail.endswith("; deletes that are not copied may be compacted away already")
    assert bench.told == [(State.LAGGING, Reason.CATCHING_UP), (State.LAGGING, Reason.COMPACTION_NEAR)]
    assert logged == []
    [warning] = logged_later
    assert (warning["event"], warning["log_level"], warning["topic"], warning["partitions"]) == (
        "tombstone_loss_near",
        "warning",
        "orders",
        1,
    )


def test_deletes_are_not_said_to_be_in_danger_before_it_is_known_how_fast_the_copy_is(bench: Bench) -> None:
    """
    A mirror comes back after most of the time that deletes are given, and is there within a minute.
    """
    bench.tombstones = Tombstones(600_000)
    bench.now += 400
    bench.source_says(10_000)

    going(bench, 20, produced=0, copied=300)

    assert bench.told == [(State.LAGGING, Reason.CATCHING_UP)]


def test_a_longer_time_for_deletes_is_no_reason_to_warn(bench: Bench) -> None:
    """
    Of what is missing the shorter one counts, half of which is not used up.
    """
    bench.tombstones = Tombstones(3_600_000)
    going(bench, 100, produced=300, copied=0)

    bench.tombstones = bench.tombstones.then(36_000_000, now=bench.now)
    going(bench, 100, produced=300, copied=0)

    assert bench.told == [(State.LAGGING, Reason.CATCHING_UP)]


def test_a_copy_that_is_there_in_time_misses_no_deletes(bench: Bench) -> None:
    """
    It warns while it stands still, and no more when it copies what is left in a third of what deletes have.
    """
    bench.tombstones = Tombstones(600_000)
    going(bench, 310, produced=300, copied=0)

    going(bench, 45, produced=300, copied=2_000)

    assert bench.told[1:] == [(State.LAGGING, Reason.COMPACTION_NEAR), (State.LAGGING, Reason.CATCHING_UP)]


def test_records_that_are_lost_are_said_before_deletes_and_both_are_logged(bench: Bench) -> None:
    """
    Of a topic with both policies.
    """
    bench.retention, bench.tombstones = Retention(600_000, NO_LIMIT), Tombstones(600_000)

    with structlog.testing.capture_logs() as logged:
        going(bench, 310, produced=300, copied=0)

    assert bench.p.reason is Reason.RETENTION_NEAR
    assert {line["event"] for line in logged} == {"retention_loss_near", "tombstone_loss_near"}


@pytest.mark.parametrize("tombstones", [Tombstones(), Tombstones(-1), Tombstones(86_400_000)])
def test_deletes_that_are_safe_for_long_are_no_reason(bench: Bench, tombstones: Tombstones) -> None:
    """
    Not known, not compacted, or a day.
    """
    bench.tombstones = tombstones

    going(bench, 400, produced=300, copied=0)

    assert bench.told == [(State.LAGGING, Reason.CATCHING_UP)]


def test_a_headroom_that_is_used_up_is_a_loss_at_any_moment(bench: Bench) -> None:
    """
    Brokers remove segments when they come to it.
    """
    bench.retention = Retention(60_000, NO_LIMIT)

    going(bench, 100, produced=300, copied=0)

    assert expected(bench).retention_loss_seconds == 0
    assert bench.p.detail == (
        "30000 offsets behind; records that are not copied may be removed at any moment"
    )


@pytest.mark.parametrize(
    ("retention", "headroom"),
    [
        (Retention(NO_LIMIT, 10**6), 8_000 / 100),
        (Retention(600_000, 10**6), 8_000 / 100),
        (Retention(70_000, 10**6), 43.0),
        (Retention(70_000, NO_LIMIT), 43.0),
        (Retention(NO_LIMIT, NO_LIMIT), math.inf),
        (Retention(), None),
    ],
)
def test_headroom_is_what_retention_by_time_or_size_leaves_if_nothing_more_is_copied(
    bench: Bench, retention: Retention, headroom: float | None
) -> None:
    """
    The log starts 8 000 before the copy, and 100 offsets further each second. What is to be copied next was
    written 27 s ago.
    """
    bench.retention = retention
    bench.p.last_timestamp_ms = None
    bench.source_says(8_000)
    bench.proceed(8_000)
    bench.source_says(8_000)
    bench.heard_at = bench.now
    for second in range(1, 41):
        bench.now += 1
        bench.source_says(8_000 + 300 * second, log_start_offset=100 * second)
        bench.proceed(8_000 + 100 * second)
        bench.look()
    progress = bench.meter.measure(bench.p, now=bench.now, now_ms=int(bench.now * 1000)).progress

    found = bench.outlooks.headroom_seconds(bench.p, progress, now=bench.now, now_ms=int(bench.now * 1000))

    assert found == (None if headroom is None else pytest.approx(headroom, abs=2))


def deletes_are_safe_for(bench: Bench) -> float | None:
    """Of a topic that keeps tombstones for a day."""
    lag = bench.meter.measure(bench.p, now=bench.now, now_ms=int(bench.now * 1000))
    return tombstone_headroom_seconds(lag.progress, lag.late_seconds, Tombstones(86_400_000), now=bench.now)


def test_a_pause_takes_from_the_time_for_which_deletes_are_safe(bench: Bench) -> None:
    """
    A complete copy has all of it, and no more.
    """
    complete = deletes_are_safe_for(bench)
    bench.source_says(200)
    bench.p.stop(State.PAUSED, Reason.OPERATOR, "paused by an operator", None)
    bench.now += 600

    assert complete == 86_400
    assert deletes_are_safe_for(bench) == pytest.approx(86_400 - 600, abs=1)


def test_a_first_copy_of_old_data_has_not_missed_deletes_before_it_began() -> None:
    """
    Its age is that of what it has come to, and says nothing of tombstones.
    """
    bench = Bench(a_flow(), now=500_000.0)
    not_looked_at = deletes_are_safe_for(bench)
    bench.p.proceed(Proceed(0, 0, 0, 0, 0, nothing_copied=True), OffsetMode.SAME, 0, bench.now)
    bench.source_says(100)
    bench.p.last_timestamp_ms = 1_000
    bench.now += 60

    assert (not_looked_at, deletes_are_safe_for(bench)) == (None, 86_340)


def test_a_loss_further_away_than_the_bound_is_no_reason(bench: Bench) -> None:
    """
    It may well be night by then, and quiet: it is shown, and wakes nobody.
    """
    bench.retention = Retention(7_200_000, NO_LIMIT)

    with structlog.testing.capture_logs() as logged:
        going(bench, 100, produced=300, copied=0)

    assert expected(bench).retention_loss_seconds == pytest.approx(7_100, abs=2)
    assert bench.told == [(State.LAGGING, Reason.CATCHING_UP)]
    assert logged == []


def test_a_copy_that_comes_to_speed_is_in_order_again(bench: Bench) -> None:
    """
    Once what is left is copied in a third of the time that retention leaves.
    """
    bench.retention = Retention(600_000, NO_LIMIT)
    going(bench, 60, produced=300, copied=0)

    going(bench, 60, produced=300, copied=500)

    assert bench.told == [(State.LAGGING, Reason.RETENTION_NEAR), (State.LAGGING, Reason.CATCHING_UP)]


def test_a_paused_partition_is_warned_of_too(bench: Bench) -> None:
    """
    Retention does not wait; its state stays what the operator made of it.
    """
    bench.retention = Retention(600_000, NO_LIMIT)
    bench.source_says(200)
    bench.look()
    bench.p.stop(State.PAUSED, Reason.OPERATOR, "paused by an operator", None)

    with structlog.testing.capture_logs() as logged:
        bench.look(100)

    assert (bench.p.state, bench.p.reason) == (State.PAUSED, Reason.OPERATOR)
    assert [line["event"] for line in logged] == ["retention_loss_near"]
    assert expected(bench).catch_up is Forecast.NEVER


@pytest.fixture
def kept_by_size(bench: Bench) -> Bench:
    """A copy of 90 offsets a second, of a log that loses a hundred of them; 2 500 lie between."""
    bench.retention = Retention(7 * 86_400_000, MIB)
    for second in range(1, 61):
        bench.now += 1
        bench.proceed(100 + 90 * second)
        bench.source_says(60_000 + 100 * second, log_start_offset=max(0, 100 * second - 3_000))
        bench.look()
    return bench


@pytest.mark.parametrize(
    ("state", "reason"),
    [(State.PAUSED, Reason.OPERATOR), (State.BLOCKED, Reason.TARGET_UNAVAILABLE)],
)
def test_retention_by_size_goes_on_while_a_partition_is_not_copied(
    kept_by_size: Bench, state: State, reason: Reason
) -> None:
    """
    At the pace at which it went until then, and from where the log was seen to start last. What it was by is
    not known any more once the topic keeps more.
    """
    bench = kept_by_size
    copying = expected(bench).retention_loss_seconds

    bench.p.stop(state, reason, "seen", None)
    bench.look(10)
    stopped = expected(bench).retention_loss_seconds
    bench.look(9)
    later = expected(bench).retention_loss_seconds
    bench.p.heard(3_500, 70_000, -1)
    bench.look()
    told = expected(bench).retention_loss_seconds
    with structlog.testing.capture_logs() as logged:
        bench.look(300)
    at_last = expected(bench).retention_loss_seconds
    bench.retention = Retention(7 * 86_400_000, 2 * MIB)
    bench.look()

    assert copying == pytest.approx(2_500 / 10, abs=10)
    assert [stopped, later, told, at_last] == [pytest.approx(x, abs=1) for x in (15, 6, 20, 0)]
    assert [line["event"] for line in logged] == ["retention_loss_near"]
    assert (expected(bench).retention_loss_seconds or 0) > 6 * 86_400


def taking(bench: Bench, seconds: int, *, produced: int, copied: int, log_start_offset: int) -> float:
    """So many offsets a second, from a log that starts there all the while; answers when it takes what is
    not copied.
    """
    end, position = bench.p.source_high_watermark or 0, bench.p.next_offset or 0
    for second in range(1, seconds + 1):
        bench.now += 1
        bench.proceed(position + copied * second)
        bench.source_says(end + produced * second, log_start_offset=log_start_offset)
        bench.look()
    loss = expected(bench).retention_loss_seconds
    assert loss is not None
    return loss


def test_a_copy_that_goes_on_after_a_pause_is_overtaken_as_fast_as_before(kept_by_size: Bench) -> None:
    """
    A log loses a segment now and then, and none in the first seconds: until one goes it is taken to lose as
    much as it did. So it is when the copy is paused once more; from when the source has said that none went.
    """
    bench = kept_by_size
    bench.p.stop(State.PAUSED, Reason.OPERATOR, "seen", None)
    bench.look(10)

    going_on = taking(bench, 10, produced=80, copied=50, log_start_offset=4_000)
    bench.p.stop(State.PAUSED, Reason.OPERATOR, "seen", None)
    bench.look(5)
    paused = expected(bench).retention_loss_seconds
    bench.p.heard(4_000, 70_000, -1, at=bench.now)
    bench.look()
    told = expected(bench).retention_loss_seconds
    still = taking(bench, 10, produced=80, copied=50, log_start_offset=4_000)
    moved = taking(bench, 1, produced=80, copied=50, log_start_offset=4_700)

    assert going_on == pytest.approx((6_000 - 4_000) / (100 - 50), abs=1)
    assert paused == pytest.approx((6_000 - 4_000) / 100 - 5, abs=1)
    assert told == pytest.approx((6_000 - 4_000) / 100, abs=1)
    assert still == pytest.approx((6_500 - 4_000) / (100 - 50), abs=1)
    assert moved == pytest.approx((6_550 - 4_700) / (80 - 50), abs=1)


@pytest.mark.parametrize("change", ["keeps more", "was looked into"])
def test_what_a_log_lost_before_says_nothing_once_other_things_hold(kept_by_size: Bench, change: str) -> None:
    """
    Its topic keeps more, or somebody had to see to the partition: then it is lost by age alone.
    """
    bench = kept_by_size
    bench.p.stop(State.PAUSED, Reason.OPERATOR, "seen", None)
    bench.look(10)
    if change == "was looked into":
        taking(bench, 10, produced=80, copied=50, log_start_offset=4_000)
        bench.p.stop(State.DATA_LOSS, Reason.LOG_START_MOVED, "seen", None)
        bench.look(1)
        bench.p.look_anew(bench.now)
        bench.look(1)
        bench.proceed(bench.p.next_offset or 0)
        bench.look(1)
        assert expected(bench).copied_per_second is None
    before = taking(bench, 10, produced=80, copied=50, log_start_offset=4_000)
    if change == "keeps more":
        bench.retention = Retention(7 * 86_400_000, 2 * MIB)
    after = taking(bench, 1, produced=80, copied=50, log_start_offset=4_000)

    assert (before < 100) == (change == "keeps more")
    assert after > 6 * 86_400


def test_a_copy_that_has_lost_something_loses_it_no_more_later(bench: Bench) -> None:
    """
    What is lost already is lost now, whatever its topic keeps.
    """
    going(bench, 10, produced=100, copied=50)
    bench.p.stop(State.DATA_LOSS, Reason.LOG_START_MOVED, "seen", None)

    assert (expected(bench).retention_loss, expected(bench).retention_loss_seconds) == (Forecast.EXPECTED, 0)


@pytest.mark.parametrize(
    ("catch_up", "beside"),
    [
        (100.0, ", not long after it has caught up in 100 s"),
        (150.0, ", not long after it has caught up in 2 min"),
        (151.0, ", before it has caught up"),
        (math.inf, ", before it has caught up"),
        (None, ""),
    ],
)
def test_what_is_about_to_be_lost_is_told_beside_the_end_of_the_lag(
    catch_up: float | None, beside: str
) -> None:
    """
    Of records as of deletes.
    """
    projection = Projection(10, catch_up, 150.0, Pace())

    assert losing(projection) == f"at this pace records are lost in 2 min{beside}"
    words = "deletes that are not copied are safe from compaction for 2 min"
    assert forgetting(150.0, catch_up) == f"{words}{beside}"
    assert bool(catching_up(projection)) == (catch_up is not None)


def test_a_partition_that_keeps_up_has_caught_up_and_loses_nothing(bench: Bench) -> None:
    """
    Whatever is on its way just now, and whoever has looked for how long.
    """
    first = expected(bench)
    going(bench, 40, produced=100, copied=100)
    bench.source_says((bench.p.source_high_watermark or 0) + 10)

    busy = expected(bench)

    for said in (first, busy):
        assert (said.catch_up, said.catch_up_seconds) == (Forecast.EXPECTED, 0)
    assert first.retention_loss is Forecast.NEVER


def test_one_that_has_caught_up_has_its_pace_as_long_as_it_moves(bench: Bench) -> None:
    """
    Though all of it is copied whenever one looks.
    """
    going(bench, 20, produced=100, copied=50)
    going(bench, 10, produced=100, copied=200)
    going(bench, 40, produced=100, copied=100)

    said = expected(bench)
    assert said.catch_up_seconds == 0
    assert said.produced_per_second == pytest.approx(100)


def test_nothing_is_kept_of_partitions_that_stand_still(bench: Bench) -> None:
    """
    Thousands of them cost nothing; those that move are remembered for as long as the window.
    """
    idle = bench.outlooks.wants(bench.p, math.inf)
    going(bench, 10, produced=100, copied=0)
    moving = [bench.outlooks.wants(bench.p, bench.now + seconds) for seconds in (0, 4.9, 5, math.inf)]
    going(bench, 120, produced=0, copied=100)

    assert (idle, moving) == (False, [False, False, True, True])
    assert not bench.outlooks.wants(bench.p, math.inf)


def test_one_that_goes_on_after_a_pause_is_looked_at_though_it_has_no_news(bench: Bench) -> None:
    going(bench, 10, produced=100, copied=50)
    bench.p.stop(State.PAUSED, Reason.OPERATOR, "seen", None)
    bench.look(1)

    assert bench.outlooks.wants(bench.p, bench.now)


@pytest.mark.parametrize(
    ("state", "catch_up"),
    [
        (State.ACTIVE, Forecast.UNKNOWN),
        (State.LAGGING, Forecast.UNKNOWN),
        (State.UNKNOWN, Forecast.UNKNOWN),
        (State.STANDBY, Forecast.UNKNOWN),
        (State.PAUSED, Forecast.NEVER),
        (State.BLOCKED, Forecast.NEVER),
        (State.DIVERGED, Forecast.NEVER),
    ],
)
def test_what_has_just_begun_may_be_fast_and_what_is_stopped_is_not(state: State, catch_up: Forecast) -> None:
    """
    A thousand offsets are missing, and none was seen to be copied. Nobody knows how old they are, so it is
    not in time because it is not late.
    """
    bench = Bench(a_flow())
    bench.proceed(0)
    bench.source_says(1_000)
    match state:
        case State.ACTIVE:
            pass
        case State.LAGGING:
            bench.p.measured((Reason.CATCHING_UP, "seen"))
        case _:
            bench.p.stop(state, Reason.OPERATOR, "seen", None)

    assert expected(bench).catch_up is catch_up


def test_what_a_silent_source_may_remove_is_counted_from_when_it_was_heard(bench: Bench) -> None:
    """
    A copy that is complete loses nothing as long as the source says so, and an hour later than that else.
    """
    bench.retention = Retention(3_600_000, NO_LIMIT)

    def headroom() -> float | None:
        lag, now_ms = bench.lag(), int(bench.now * 1000)
        return bench.outlooks.headroom_seconds(bench.p, lag.progress, now=bench.now, now_ms=now_ms)

    heard = headroom()
    bench.now += 600
    silent = headroom()
    bench.p = PartitionCopy(ORDERS_0, ORDERS_0, bytes(16), in_flight_max=5)

    assert (heard, headroom()) == (math.inf, None)
    assert silent == pytest.approx(3_000, abs=1)


def test_what_a_silent_source_will_remove_is_known_all_the_time(bench: Bench) -> None:
    """
    A copy that was complete is not idle as soon as nobody says that it still is: a figure that goes missing
    now and then keeps no alert on it alive. Once the source says so again, there is nothing to know.
    """
    bench.retention = Retention(86_400_000, NO_LIMIT)

    def foretold() -> Forecast:
        bench.look(1.0)
        return bench.outlook().retention_loss

    at_first = {foretold() for _ in range(10)}
    silent = {foretold() for _ in range(190)}
    bench.source_says(100)

    assert at_first == {Forecast.NEVER, Forecast.UNKNOWN, Forecast.EXPECTED}
    assert (silent, foretold()) == ({Forecast.EXPECTED}, Forecast.NEVER)


def test_a_flow_is_as_late_as_its_last_partition_and_loses_with_its_first() -> None:
    """
    Its backlog goes by what all of them gain together; those in time, or stopped, take no part in that.
    """
    slow = Projection(1_000, 500.0, math.inf, Pace(8, 10))
    fast = Projection(4_000, 100.0, 7_200.0, Pace(10, 50))
    in_time = Projection(0, 0.0, math.inf, Pace(None, 3))
    paused = Projection(None, None, None, Pace(None, 0), State.PAUSED)
    lost = Projection(50, math.inf, 0.0, Pace(None, 0), State.DATA_LOSS)

    said = of_flow([slow, fast, in_time, paused])
    with_lost = of_flow([slow, fast, in_time, lost])

    together, alone = of_flow([slow, fast, in_time]), of_flow([paused])
    unknown = of_flow([slow, Projection(10, None, None, Pace(None, 5))])
    with_busy = of_flow([slow, fast, Projection(0, 0.0, math.inf, Pace(7, 7))])

    assert together.catch_up_seconds == 500
    assert (together.produced_per_second, together.copied_per_second) == (18, 60)
    assert (with_busy.produced_per_second, with_busy.copied_per_second) == (25, 67)
    assert (unknown.produced_per_second, unknown.backlog) == (None, Forecast.UNKNOWN)
    assert (alone.backlog_records, alone.backlog, alone.produced_per_second) == (None, Forecast.UNKNOWN, None)
    assert said.catch_up is Forecast.UNKNOWN
    assert (said.retention_loss, said.retention_loss_seconds) == (Forecast.EXPECTED, 7_200)
    assert (with_lost.catch_up, with_lost.retention_loss_seconds) == (Forecast.NEVER, 7_200)
    assert (said.backlog_records, said.backlog) == (5_000, Forecast.EXPECTED)
    assert said.backlog_seconds == pytest.approx(5_000 / 42)


@pytest.mark.parametrize(
    ("one", "forecast"),
    [
        (Projection(None, None, None, Pace()), Forecast.UNKNOWN),
        (Projection(7, math.inf, None, Pace(1, 0)), Forecast.NEVER),
        (Projection(0, 0.0, math.inf, Pace(0, 0)), Forecast.EXPECTED),
    ],
)
def test_a_flow_knows_no_more_than_its_partitions(one: Projection, forecast: Forecast) -> None:
    """
    Not of those either of which it has none.
    """
    in_time = Projection(0, 0.0, math.inf, Pace(0, 0))

    assert (of_flow([one, in_time]).catch_up, of_flow([one]).backlog) == (forecast, forecast)
    assert of_flow([]) == FlowOutlook()


# -- a source that is silent -----------------------------------------------------------------------------


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


def test_a_source_whose_answer_is_still_arriving_is_not_silent(bench: Bench) -> None:
    """
    Over a slow link it takes seconds until it is whole. When pieces do not come any more it is silent.
    """
    bench.source_says(250)
    for _ in range(3):
        bench.piece_at = bench.now + STATED_SECONDS
        bench.look(STATED_SECONDS + 0.1)

    bench.look(STATED_SECONDS + 1)

    assert bench.told == [(State.LAGGING, Reason.CATCHING_UP), (State.LAGGING, Reason.SOURCE_UNAVAILABLE)]


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
    bench.p.not_heard("east:9092: connection refused", bench.now)

    bench.look(STATED_SECONDS + 1)

    assert bench.p.detail == "east:9092: connection refused"


def test_what_the_connection_said_is_said_also_of_a_copy_that_lagged_before(bench: Bench) -> None:
    """
    As soon as its source counts as silent, in place of how far behind it is.
    """
    bench.source_says(250)
    bench.look(STATED_SECONDS + 2)
    bench.source_says(300)
    bench.look()
    behind = bench.p.detail

    bench.p.not_heard("east:9092: connection refused", bench.now + 1)
    bench.look(1)
    still_behind = bench.p.detail
    bench.look(STATED_SECONDS)

    assert behind == still_behind == "200 offsets behind"
    assert bench.p.detail == "east:9092: connection refused"


def test_what_the_connection_said_before_the_source_was_heard_explains_no_later_silence(
    bench: Bench,
) -> None:
    """
    It has passed.
    """
    bench.p.not_heard("east:9092: connection refused", bench.now)
    bench.now += 1
    bench.source_says(100)

    bench.look(STATED_SECONDS + 1)

    assert bench.told == [(State.LAGGING, Reason.SOURCE_UNAVAILABLE)]
    assert "has not answered since" in bench.p.detail


def test_how_far_a_copy_was_behind_does_not_explain_a_later_silence(bench: Bench) -> None:
    """
    It is complete by then, and its source falls silent at once.
    """
    bench.source_says(250)
    bench.now += STATED_SECONDS + 2
    bench.source_says(250)
    bench.look()
    lagged = bench.p.state, bench.p.detail
    bench.proceed(250)
    bench.source_says(250)
    complete = bench.look(STATED_SECONDS * 0.4), bench.p.detail

    bench.look(STATED_SECONDS)

    assert lagged == (State.LAGGING, "150 offsets behind")
    assert complete == (State.ACTIVE, "")
    assert (bench.p.state, bench.p.reason) == (State.LAGGING, Reason.SOURCE_UNAVAILABLE)
    assert "has not answered since" in bench.p.detail


def test_a_source_that_answers_again_leaves_nothing_of_its_silence(bench: Bench) -> None:
    """
    Neither state nor words.
    """
    bench.p.not_heard("east:9092: connection refused", bench.now)
    bench.look(STATED_SECONDS + 1)
    bench.source_says(100)

    bench.look()

    assert (bench.p.state, bench.p.reason, bench.p.detail) == (State.ACTIVE, None, "")


def test_a_copy_that_goes_on_does_not_blame_the_source(bench: Bench) -> None:
    """
    Over a narrow link what comes was read long before: it comes all the same.
    """
    heard_at = bench.heard_at
    for position in range(100, 200):
        bench.now += 1
        bench.p.heard(0, 1_000, 1_000)
        bench.proceed(position)
        bench.look()

    assert bench.heard_at == heard_at
    assert bench.told == [(State.LAGGING, Reason.CATCHING_UP)]


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


def test_nothing_is_kept_of_a_partition_that_is_dropped(bench: Bench) -> None:
    """
    Topics come and go; those that transactions hold back, too.
    """
    bench.source_says(120, last_stable_offset=100)
    bench.look()
    kept = [*bench.watch._held, *bench.outlooks._trails]

    bench.watch.forget(bench.p)

    assert set(kept) == {bench.p}
    assert [*bench.watch._held, *bench.outlooks._trails, *bench.outlooks._before] == []


def test_a_doubt_does_not_end_the_wait_for_a_transaction(bench: Bench) -> None:
    """
    A look does not tell how far one may read; the next answer says that it is no further.
    """
    bench.source_says(120, last_stable_offset=100)
    bench.look()
    bench.now += STATED_SECONDS + 1
    bench.source_says(120, last_stable_offset=100)
    bench.look()
    bench.p.doubt(bench.now)
    bench.p.heard(0, 120, -1)
    bench.proceed(100)
    bench.heard_at = None
    bench.look()
    bench.source_says(120, last_stable_offset=100)
    bench.look()

    assert bench.told == [(State.LAGGING, Reason.OPEN_TRANSACTION)]
    assert bench.p.detail == "offsets 100 to 120 wait for the end of a transaction"


def test_transactions_that_end_in_time_are_no_lag(bench: Bench) -> None:
    """
    On a busy topic there is always one open; what counts is how long each one holds back the others.
    """
    states = set()
    for end in range(100, 130):
        bench.p.next_offset = end
        bench.source_says(end + 5, last_stable_offset=end)
        states.add(bench.look(1))

    assert states == {State.ACTIVE}
    assert bench.lag().seconds == pytest.approx(6, abs=1)


def test_transactions_that_are_open_for_longer_than_the_stated_lag_are_a_lag(bench: Bench) -> None:
    """
    Even if none of them stands still: what others commit comes so late. It is said once, and why.
    """
    for end in range(100, 160):
        bench.p.next_offset = end
        bench.source_says(end + 20, last_stable_offset=end)
        bench.look(1)

    assert bench.told == [(State.LAGGING, Reason.CATCHING_UP)]
    assert bench.p.detail == "offsets 159 to 179 wait for the end of a transaction"
    assert bench.lag().seconds == pytest.approx(21, abs=2)


def test_what_waits_behind_an_open_transaction_grows_old(bench: Bench) -> None:
    """
    Others have committed it, and it is not on the target. When it will be nobody knows: not before the
    transaction ends, and what it has held back is as old as before when it has.
    """
    for second in range(3_600):
        bench.now += 1
        bench.source_says(101 + second, last_stable_offset=100)
        bench.look()
    held, outlook = bench.lag(), bench.outlook()
    bench.source_says(3_700)
    ended = bench.lag()
    bench.proceed(3_700)
    bench.source_says(3_700)

    assert (held.records, ended.records) == (0, 3_600)
    assert held.seconds == pytest.approx(3_600, abs=1)
    assert ended.seconds == held.seconds
    assert (outlook.catch_up, outlook.backlog) == (Forecast.UNKNOWN, Forecast.UNKNOWN)
    assert (bench.look(), bench.lag().late_seconds) == (State.ACTIVE, 0)


async def test_who_reads_what_is_uncommitted_lags_behind_the_high_watermark() -> None:
    """
    A copy that stands still lags, whatever is left open at the source; and at the end none holds it up.
    """
    bench = Bench(a_flow(Isolation.READ_UNCOMMITTED))
    receiver = Receiver(bench.flow, lambda _: False)
    bench.proceed(100)
    await answered(bench, receiver, 100, last_stable_offset=100)

    for second in range(12):
        bench.now += 1
        await answered(bench, receiver, 200 + 10 * second, last_stable_offset=100)
    behind = bench.look(), bench.p.reason
    lag = bench.meter.measure(bench.p, now=bench.now, now_ms=int(bench.now * 1000))
    bench.proceed(310)
    for _ in range(12):
        bench.now += 1
        await answered(bench, receiver, 310, last_stable_offset=100)
        bench.look()

    assert behind == (State.LAGGING, Reason.CATCHING_UP)
    assert lag.records == 210
    assert lag.seconds == pytest.approx(12)
    assert bench.told == [(State.LAGGING, Reason.CATCHING_UP), (State.ACTIVE, None)]


async def answered(bench: Bench, receiver: Receiver, high_watermark: int, *, last_stable_offset: int) -> None:
    """An answer of the source without records, as a lane takes it in."""
    fetched = Fetched(
        bench.p.key, 0, high_watermark, last_stable_offset, 0, None, [], memoryview(bytearray())
    )
    buffer, answers = bench.flow.pool.take(1), Answers(bench.now, bench.heard_at)
    await receiver.take(bench.p, fetched, bench.p.fetch_offset, buffer, answers)
    buffer.release()
    bench.heard_at = bench.now


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
    bench.p.heard(0, 100, -1)

    reached = bench.meter.measure(bench.p, now=bench.now, now_ms=0)
    bench.p.heard(0, 101, -1)
    open_end = bench.meter.measure(bench.p, now=bench.now, now_ms=0)

    assert (reached.records, open_end.records) == (0, None)


@pytest.mark.parametrize("has_room", [True, False])
def test_a_copy_that_is_resumed_is_not_said_to_be_complete_because_it_was(
    bench: Bench, has_room: bool
) -> None:
    """
    It was when it was paused; an hour later the source has gone on by a million, and not told yet how much of
    that may be read. With no room for an answer it is not asked either.
    """
    bench.look()
    bench.p.stop(State.PAUSED, Reason.OPERATOR, "paused by an operator", None)
    bench.heard_at = None
    bench.now += 3_600
    bench.p.look_anew(bench.now)
    bench.p.heard(0, 1_000_000, -1)
    bench.proceed(100)
    held = bench.flow.pool.take(MIB if has_room else 2 * MIB)

    lags = []
    for _ in range(12):
        bench.look(1)
        lags.append(bench.meter.measure(bench.p, now=bench.now, now_ms=0))
    held.release()

    assert {lag.records for lag in lags} == {None}
    assert min(lag.seconds or 0 for lag in lags) > 3_600
    assert Reason.OPEN_TRANSACTION not in {reason for _, reason in bench.told}


@pytest.mark.parametrize("state", [State.PAUSED, State.BLOCKED, State.DIVERGED])
def test_a_copy_that_has_lost_its_end_was_not_complete_because_it_had_been(
    bench: Bench, state: State
) -> None:
    """
    The target was restored from a backup while nothing was copied: what is missing is older than that.
    """
    bench.p.last_timestamp_ms = int(bench.now * 1000)
    bench.p.stop(state, Reason.OPERATOR, "seen", None)
    bench.p.look_anew(bench.now)
    bench.p.heard(0, 100, -1)
    bench.proceed(1)
    bench.source_says(160)
    bench.now += 30

    lag = bench.meter.measure(bench.p, now=bench.now, now_ms=int(bench.now * 1000))

    assert (lag.records, lag.seconds) == (159, None)


@pytest.mark.parametrize(("ahead_ms", "age_seconds"), [(3_000.0, 8.0), (-3_000.0, 5.0), (None, 5.0)])
def test_records_of_a_site_whose_clock_is_ahead_are_as_old_as_they_are_there(
    bench: Bench, ahead_ms: float | None, age_seconds: float
) -> None:
    """
    By the clock of its relay, as it was measured last; where that is behind records do not become younger.
    """
    bench.source_says(10)
    bench.proceed(5)
    bench.p.last_timestamp_ms = int(bench.now * 1000) - 5_000

    bench.flow.stream = Mock(clock_offset_ms=ahead_ms)
    with_it = bench.lag().seconds
    bench.flow.stream = None
    without = bench.lag().seconds

    assert with_it == without == pytest.approx(age_seconds)


def test_of_copies_without_times_nothing_is_made_up_by_clocks(bench: Bench) -> None:
    """
    Records of before there were times, and copies that have taken none yet.
    """
    bench.source_says(10)
    bench.proceed(5)
    bench.flow.stream = Mock(clock_offset_ms=3_000.0)

    for none in (None, -1):
        bench.p.last_timestamp_ms = none
        assert bench.lag().seconds is None


@pytest.mark.parametrize(
    ("silent_seconds", "late_seconds", "records"),
    [(0.1, 0.0, 0), (0.9, 0.0, 0), (1.1, 1.1, 0), (2.4, 2.4, 0), (2.6, 2.6, None)],
)
def test_an_age_counts_from_the_last_word_of_the_source(
    bench: Bench, silent_seconds: float, late_seconds: float, records: int | None
) -> None:
    """
    From the first moment. It is not held against the copy as long as the source may hold its next word back,
    half a second, and as much for the way; how many records it was is believed for some more of them.
    """
    lag = bench.meter.measure(bench.p, now=bench.now + silent_seconds, now_ms=0)

    assert lag.seconds == pytest.approx(silent_seconds)
    assert lag.late_seconds == pytest.approx(late_seconds)
    assert lag.records == records


def test_a_stated_lag_below_the_time_between_two_words_does_not_come_and_go(bench: Bench) -> None:
    """
    A mirror cannot know of less; a source that falls silent is told of as soon as it should have spoken.
    """
    tight = LagWatch(
        bench.meter,
        bench.outlooks,
        lambda _: bench.tombstones,
        lagging_seconds=0.1,
        near_seconds=NEAR_SECONDS,
        changed=bench._changed,
    )

    def look(after_seconds: float) -> State:
        bench.now += after_seconds
        tight.look([bench.p], now=bench.now, now_ms=0)
        return bench.p.state

    bench.source_says(200)
    behind = look(0.5)
    bench.proceed(200)
    bench.source_says(200)
    between = [look(0.1) for _ in range(9)]
    silent = look(2.0)

    assert (behind, set(between), silent) == (State.LAGGING, {State.ACTIVE}, State.LAGGING)


HOURS = 3_600.0


def keeping_a_day() -> Bench:
    """One whose topic keeps records, and tombstones, for a day."""
    return Bench(a_flow(), retention=Retention(86_400_000, NO_LIMIT), tombstones=Tombstones(86_400_000))


def not_copied(bench: Bench, reason: Reason, *, missing: int = 0) -> None:
    """It was copied, but for so many records at last, and is not any more."""
    bench.proceed(100)
    bench.source_says(100)
    bench.look(0.5)
    bench.source_says(100 + missing)
    bench.look(1.0)
    state = State.PAUSED if reason is Reason.OPERATOR else State.BLOCKED
    bench.p.stop(state, reason, "as it is said", None)
    bench.heard_at = None


@pytest.mark.parametrize("reason", [Reason.TOPIC_DELETED, Reason.OPERATOR])
@pytest.mark.parametrize("missing", [0, 40])
def test_of_a_topic_that_is_gone_nothing_can_be_lost_any_more(missing: int, reason: Reason) -> None:
    """
    Neither records nor deletes, whether all of it was copied or not, and though it was paused before. It has
    no lag, and nothing is said of it for a month.
    """
    bench = keeping_a_day()
    not_copied(bench, reason, missing=missing)
    bench.p.topic_gone = True

    with structlog.testing.capture_logs() as logged:
        for _ in range(30 * 24):
            bench.look(HOURS)

    lag = bench.lag()
    assert logged == []
    assert (lag.records, lag.seconds) == (None, None)
    assert (expected(bench).retention_loss, expected(bench).catch_up) == (Forecast.UNKNOWN, Forecast.UNKNOWN)


def test_a_topic_that_is_only_hidden_is_warned_of() -> None:
    """
    It is not shown to us, and goes on for others.
    """
    bench = keeping_a_day()
    not_copied(bench, Reason.SOURCE_NOT_AUTHORIZED)

    with structlog.testing.capture_logs() as logged:
        bench.look(24 * HOURS)

    assert [line["event"] for line in logged] == ["tombstone_loss_near"]


def test_a_topic_that_is_gone_does_not_hide_one_that_is_about_to_lose_something() -> None:
    """
    A warning names the first to lose something: that is not the one that has been gone for days.
    """
    bench = keeping_a_day()
    not_copied(bench, Reason.TOPIC_DELETED)
    bench.p.topic_gone = True
    gone, audit_0 = bench.p, TopicPartition("audit", 0)
    bench.now += 72 * HOURS
    bench.p = PartitionCopy(audit_0, audit_0, b"audit".ljust(16), in_flight_max=5)
    not_copied(bench, Reason.OPERATOR)
    bench.now += 23.5 * HOURS

    with structlog.testing.capture_logs() as logged:
        bench.watch.look([gone, bench.p], now=bench.now, now_ms=int(bench.now * 1000))

    assert [(line["topic"], line["partitions"]) for line in logged] == [("audit", 1)]


@pytest.mark.parametrize(
    ("state", "reason", "level"),
    [
        (State.ACTIVE, None, logging.INFO),
        (State.UNKNOWN, Reason.STARTING, logging.INFO),
        (State.PAUSED, Reason.OPERATOR, logging.INFO),
        (State.LAGGING, Reason.CATCHING_UP, logging.INFO),
        (State.LAGGING, Reason.RETENTION_NEAR, logging.WARNING),
        (State.LAGGING, Reason.COMPACTION_NEAR, logging.WARNING),
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
