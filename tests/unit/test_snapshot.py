"""What the status of a running mirror says of partitions."""

from __future__ import annotations

import time
from typing import Any
from unittest.mock import Mock

import pytest

from checkpoint.model import OwnerRecord
from mirror.flow.snapshot import Snapshots
from mirror.flow.states import PATIENCE, Refusal
from mirror.kafka.transactions import Token
from mirror.model import Forecast, OffsetMode, OwnerStatus, PartitionStatus, Reason, State
from monitoring.metrics import FlowCollector
from monitoring.outlook import Retention
from monitoring.tombstones import Tombstones
from tests.unit.test_lagging import Bench, a_flow

HOUR_MS = 3_600_000
AWAY = Refusal(None, Reason.TARGET_UNAVAILABLE)


def an_owner() -> Bench:
    """A mirror that has copied all there is of a partition, up to 100; the topic keeps an hour."""
    bench = Bench(a_flow(), now=time.monotonic() - 60, retention=Retention(HOUR_MS, -1))
    bench.proceed(100)
    for _ in range(2):
        bench.now += 0.5
        bench.p.heard(0, 100, 100, at=bench.now, answered_before=bench.heard_at)
        bench.heard_at = bench.now
    return bench


def snapshots(bench: Bench) -> Snapshots:
    cluster: Any = bench.flow.source
    cluster.info.cluster_id, cluster.connections = "id", Mock(bytes_received=0, bytes_sent=0)
    return Snapshots(
        flow=bench.flow,
        owner=Mock(held=True),
        meter=bench.meter,
        outlooks=bench.outlooks,
        tombstones=lambda _: Tombstones(HOUR_MS),
        lost_ranges=lambda _: (),
        owner_word=lambda: OwnerRecord(6, "west-4", 4711, "http://west-4:9640", 1_700_000_000_000),
        started_at_ms=0,
        started_at=0.0,
    )


def said(bench: Bench) -> PartitionStatus:
    """What a status says of the only partition."""
    [one] = snapshots(bench).take([bench.p], 0).partitions
    return one


def series(bench: Bench, name: str) -> list[float]:
    """The values of a metric."""
    collected = FlowCollector(lambda: snapshots(bench).take([bench.p], 0)).collect()
    return [sample.value for family in collected if family.name == name for sample in family.samples]


def another_copies(bench: Bench, source_end: int, position: int) -> None:
    """A look at how far the owner is."""
    bench.p.heard(-1, source_end, source_end)
    bench.p.follow(position, position, OffsetMode.SAME)
    bench.p.stand_by(bench.now, 2.0, "the owner of the flow is another mirror")


def unknown(one: PartitionStatus) -> bool:
    """It tells neither a lag, nor what follows from it, nor what the target has acknowledged."""
    every = (
        one.lag_records,
        one.lag_seconds,
        one.retention_headroom_seconds,
        one.tombstone_headroom_seconds,
        one.target_log_end_offset,
    )
    forecasts = one.outlook.catch_up, one.outlook.retention_loss
    return set(every) == {None} and set(forecasts) == {Forecast.UNKNOWN}


def test_of_a_loss_before_another_mirror_took_over_nothing_more_is_told() -> None:
    """
    It may have been accepted there: what is lost, or will be, is that mirror's to say.
    """
    bench = an_owner()
    bench.p.stop(State.DATA_LOSS, Reason.LOG_START_MOVED, "gone", None)
    mine = said(bench)

    bench.p.stand_by(bench.now, 2.0, "the owner of the flow is another mirror")

    assert (mine.outlook.retention_loss_seconds, unknown(mine)) == (0.0, False)
    assert unknown(said(bench))


def test_of_what_another_mirror_copies_only_the_position_is_known() -> None:
    """
    This one has copied it before: what it knows of its own copy says nothing of the other one's.
    """
    bench = an_owner()
    mine = said(bench)
    bench.p.doubt(bench.now)

    another_copies(bench, 300, 300)
    in_time = said(bench)
    another_copies(bench, 1_300, 400)
    behind = said(bench)
    for _ in range(PATIENCE):
        bench.p.refused(AWAY, "nobody answers", bench.now)
    away = said(bench)

    assert (mine.target_log_end_offset, unknown(mine)) == (100, False)
    assert [one.state for one in (in_time, behind, away)] == [State.STANDBY, State.STANDBY, State.BLOCKED]
    assert [one.next_offset for one in (in_time, behind, away)] == [300, 400, 400]
    assert all(unknown(one) for one in (in_time, behind, away))
    assert series(bench, "twinsite_lag_seconds") == []


@pytest.mark.parametrize(
    ("held", "holder", "own_epoch", "named"),
    [
        (True, (1, 6), 6, False),
        (False, (1, 6), 5, True),
        (False, (1, 6), 6, False),
        (False, (1, 7), 5, False),
        (False, None, 5, False),
    ],
)
def test_who_copies_is_said_by_a_mirror_that_stands_by(
    held: bool, holder: tuple[int, int] | None, own_epoch: int, named: bool
) -> None:
    """
    Where the last word is that of who holds the right; a word of one before it would send people astray, and
    so would its own, where a coordinator has forgotten who came after it.
    """
    taken = snapshots(an_owner())
    taken.owner = Mock(held=held, seen=holder and Token(*holder), token=Token(1, own_epoch))

    said = taken.take([], 0)

    whose = OwnerStatus("west-4", 4711, 1_700_000_000_000, "http://west-4:9640")
    assert (said.owner, said.copied_by) == (held, whose if named else None)


def test_headroom_is_what_retention_by_size_leaves_too() -> None:
    """
    Of an hour by age a complete copy has all. Where the log is full, it is as far as its start is away; and
    what is gone already has none.
    """
    bench = an_owner()
    bench.heard_at = time.monotonic()
    whole = said(bench).retention_headroom_seconds
    bench.retention = Retention(HOUR_MS, 1 << 20)
    for second in range(60):
        bench.now += 1
        start, bench.heard_at = max(0, 100 * (second - 30)), bench.now
        bench.p.heard(start, 90_000 + 100 * second, 90_000 + 100 * second, at=bench.now)
        bench.proceed(3_000 + 50 * second)
        bench.look()
    full = said(bench).retention_headroom_seconds
    bench.p.stop(State.DATA_LOSS, Reason.LOG_START_MOVED, "seen", None)

    assert whole == pytest.approx(3_600, abs=1)
    assert full == pytest.approx((3_000 + 50 * 59 - 100 * 29) / 100, abs=1)
    assert said(bench).retention_headroom_seconds == 0


def test_a_topic_that_keeps_everything_has_no_headroom_to_tell() -> None:
    """
    That it never comes is no number.
    """
    bench = an_owner()
    bench.retention = Retention(-1, -1)

    assert said(bench).retention_headroom_seconds is None


def test_whoever_copies_again_says_how_far_behind_it_is() -> None:
    """
    As soon as a look has told it where to go on.
    """
    bench = an_owner()
    another_copies(bench, 300, 300)
    bench.p.doubt(bench.now)

    bench.proceed(300)
    bench.source_says(350)

    again = said(bench)
    assert (again.target_log_end_offset, again.lag_records) == (300, 50)
    assert again.lag_seconds is not None


def test_what_is_complete_has_all_the_time_for_deletes_between_two_words_of_the_source() -> None:
    """
    An hour that stands still, and a lag that does not.
    """
    bench = an_owner()
    bench.heard_at = time.monotonic() - 0.2

    one = said(bench)

    assert one.lag_seconds is not None
    assert one.lag_seconds >= 0.2
    assert one.tombstone_headroom_seconds == 3_600


def test_a_flow_that_has_ended_says_how_far_behind_it_was() -> None:
    """
    Though nobody reads the source any more while its topics are left in order.
    """
    bench = an_owner()
    drained_at = bench.now + 0.2

    later = said(bench)
    taken = snapshots(bench).take([bench.p], 0, ended_seconds=time.monotonic() - drained_at)

    [ended] = taken.partitions
    assert later.lag_records is None
    assert later.lag_seconds is not None
    assert later.lag_seconds > 58
    assert ended.lag_records == 0
    assert ended.lag_seconds is not None
    assert ended.lag_seconds < 5


def test_a_loss_is_pending_until_it_is_decided_on() -> None:
    """
    Not while the target is away after it was accepted, nor where the topic was made again.
    """
    accepted, recreated = an_owner(), an_owner()
    for bench in (accepted, recreated):
        bench.p.stop(State.DATA_LOSS, Reason.LOG_START_MOVED, "50 offsets are gone", None)
        bench.p.lost = (100, 150)
    before = said(accepted), series(accepted, "twinsite_loss_pending_offsets")

    accepted.p.look_anew(accepted.now)
    for _ in range(PATIENCE):
        accepted.p.refused(AWAY, "nobody answers", accepted.now)
    recreated.p.stop(State.TOPIC_RECREATED, Reason.TOPIC_ID_CHANGED, "another id", None)

    assert (before[0].lost_from, before[0].lost_to, before[1]) == (100, 150, [50])
    for bench in (accepted, recreated):
        one = said(bench)
        assert (one.lost_from, one.lost_to) == (None, None)
        assert series(bench, "twinsite_loss_pending_offsets") == []


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        (State.BLOCKED, Reason.TOPIC_DELETED),
        (State.PAUSED, Reason.OPERATOR),
        (State.DATA_LOSS, Reason.LOG_START_MOVED),
    ],
)
def test_a_topic_that_is_gone_has_no_lag_and_says_nothing_of_the_flow(state: State, reason: Reason) -> None:
    """
    All its figures are unknown, and it is none of those whose lag should be known, also where it keeps a
    state that an operator ends. What else the flow copies is in time, and said to be so.
    """
    bench, other = an_owner(), an_owner()
    bench.p.stop(state, reason, "the source no longer has topic orders", None)
    bench.p.topic_gone = True
    bench.heard_at = None
    gone = said(bench)
    dark = series(bench, "twinsite_partitions_lag_unknown")
    bench.heard_at = other.heard_at = time.monotonic()

    status = snapshots(bench).take([bench.p, other.p], 0)

    assert (gone.lag_seconds, gone.lag_records) == (None, None)
    assert (gone.retention_headroom_seconds, gone.tombstone_headroom_seconds) == (None, None)
    assert (gone.outlook.catch_up, gone.outlook.retention_loss) == (Forecast.UNKNOWN, Forecast.UNKNOWN)
    assert dark == [0]
    assert series(bench, "twinsite_retention_loss_seconds") == []
    assert (status.outlook.catch_up_seconds, status.outlook.retention_loss) == (0, Forecast.NEVER)
