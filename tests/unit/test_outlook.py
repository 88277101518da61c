"""When a copy has caught up and when retention overtakes it: projections, and the paces they go by."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitoring.objectives import Progress
from monitoring.outlook import (
    NO_LIMIT,
    SPAN_SECONDS_MIN,
    UNKNOWN_PACE,
    WINDOW_SECONDS,
    Pace,
    Retention,
    Sample,
    Trail,
    age_seconds,
    catch_up_seconds,
    is_near,
    last,
    pace,
    retention_loss_seconds,
    soonest,
    standing_still,
    total,
)

NOW_MS = 1_700_000_000_000
HOUR_MS, FOREVER = 3_600_000, Retention(NO_LIMIT, NO_LIMIT)
HOUR = Retention(HOUR_MS, NO_LIMIT)


def a_sample(at: float, **changes: Any) -> Sample:
    """A partition of which 1 000 offsets are missing, heard this very moment."""
    made = Sample(
        at,
        heard_at=at,
        end=2_000,
        next_offset=1_000,
        log_start_offset=0,
        lost_offsets=0,
        age_seconds=600.0,
    )
    return made._replace(**changes)


def a_trail(
    seconds: int,
    *,
    produced: float = 0.0,
    copied: float = 0.0,
    ageing: float = 0.0,
    removed: float = 0.0,
    every: int = 1,
) -> Trail:
    """A partition and its copy that went evenly for so long, from moment 0 on."""
    trail = Trail.begun(a_sample(0))
    for at in range(every, seconds + 1, every):
        trail = trail.then(
            a_sample(
                at,
                end=2_000 + round(produced * at),
                next_offset=1_000 + round(copied * at),
                age_seconds=600 + ageing * at,
                log_start_offset=round(removed * at),
            )
        )
    return trail


# -- the pace --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [5, 29, 30, 31, 60, 61, 90, 200])
def test_what_goes_evenly_has_its_pace_whenever_one_looks(seconds: int) -> None:
    """
    In the first seconds by what is known so far, later by the window.
    """
    going = pace(a_trail(seconds, produced=40, copied=10, ageing=0.75, removed=20), now=seconds)

    assert going.produced_per_second == pytest.approx(40)
    assert going.copied_per_second == pytest.approx(10)
    assert going.ageing == pytest.approx(0.75)
    if seconds >= 10:
        assert going.removed_per_second == pytest.approx(20)


@pytest.mark.parametrize("trail", [None, Trail.begun(a_sample(0)), a_trail(4, produced=40, copied=10)])
def test_a_glance_gives_no_pace(trail: Trail | None) -> None:
    """
    Of less than five seconds nothing is concluded; least of all that nothing moves.
    """
    assert pace(trail, now=4) == UNKNOWN_PACE


def test_a_pace_is_forgotten_within_the_window() -> None:
    """
    A copy that stands has the pace of one that stands, however fast it was before.
    """
    trail = a_trail(300, produced=40, copied=10)
    stopped = trail.latest
    for after in range(1, int(WINDOW_SECONDS) + 1):
        trail = trail.then(stopped._replace(at=stopped.at + after, heard_at=stopped.at + after))

    going = pace(trail, now=stopped.at + WINDOW_SECONDS)

    assert (going.produced_per_second, going.copied_per_second) == (0, 0)
    assert trail.stands_still


@pytest.mark.parametrize(
    ("trail", "still"),
    [
        (a_trail(29), False),
        (a_trail(30), True),
        (a_trail(60, produced=1), False),
        (a_trail(60, copied=1), False),
        (a_trail(60, ageing=1.0, removed=5), True),
    ],
    ids=[
        "not for long",
        "for half of the window",
        "the source moves",
        "the copy moves",
        "only its log start",
    ],
)
def test_a_partition_stands_still_where_neither_side_moves_for_a_while(trail: Trail, still: bool) -> None:
    assert trail.stands_still is still


@pytest.mark.parametrize(
    ("first", "last", "at", "now", "produced"),
    [
        ({}, {"heard_at": 20.0, "end": 2_400}, 21.0, 45.0, 20.0),
        ({}, {"heard_at": 20.0, "end": 2_400}, 21.0, 51.0, None),
        ({}, {"heard_at": 4.0, "end": 2_400}, 10.0, 10.0, None),
        ({}, {"end": 1_900}, 10.0, 10.0, 0.0),
        ({"heard_at": None}, {}, 10.0, 10.0, None),
        ({}, {"heard_at": None}, 10.0, 10.0, None),
        ({"end": None}, {}, 10.0, 10.0, None),
        ({}, {"end": None}, 10.0, 10.0, None),
    ],
)
def test_what_is_produced_is_known_of_a_source_that_was_heard_for_long_and_not_long_ago(
    first: dict[str, Any], last: dict[str, Any], at: float, now: float, produced: float | None
) -> None:
    """
    By when it was heard, whenever that was looked at. A log that was cut produces nothing.
    """
    older, latest = a_sample(0.0, **first), a_sample(at, **last)

    assert pace(Trail(older, older, latest), now=now).produced_per_second == produced


@pytest.mark.parametrize(
    ("first", "last", "ageing"),
    [(600.0, 605.0, 0.5), (600.0, 900.0, 1.0), (None, 600.0, None), (600.0, None, None)],
)
def test_what_is_missing_becomes_no_older_than_time_passes(
    first: float | None, last: float | None, ageing: float | None
) -> None:
    """
    A bound that grows faster, as where a clock was set, says no more than that nothing is copied.
    """
    older, latest = a_sample(0.0, age_seconds=first), a_sample(10.0, age_seconds=last)

    assert pace(Trail(older, older, latest), now=10.0).ageing == ageing


def test_a_copy_that_stands_has_the_pace_of_its_source_and_none_of_its_own() -> None:
    assert standing_still(Pace(5, 9, -3, 7)) == Pace(5, 0, 1, 7)


def test_a_source_that_is_not_heard_produces_an_unknown_number() -> None:
    """
    What it did before says nothing of now; the copy's own pace is known all the same.
    """
    trail = a_trail(60, produced=40, copied=10)
    for at in range(61, 100):
        trail = trail.then(a_sample(at, heard_at=60, end=4_400, next_offset=1_600))

    going = pace(trail, now=99)

    assert going.produced_per_second is None
    assert going.copied_per_second == 0


@pytest.mark.parametrize(
    "odd",
    [
        {"at": 200.0, "next_offset": 1_500},
        {"at": 70.1, "next_offset": 1_500},
        {"at": 41.0, "next_offset": 900},
        {"at": 41.0, "next_offset": 9_000, "lost_offsets": 8_000},
    ],
    ids=["nobody looked for long", "nor for half a minute", "the copy is shorter", "a loss was accepted"],
)
def test_what_does_not_go_on_from_before_is_begun_anew(odd: dict[str, Any]) -> None:
    """
    A leap of the position is no copying, and what happened unseen has no pace.
    """
    trail = a_trail(40, copied=10)

    after = trail.then(a_sample(**odd))

    assert after == Trail.begun(after.latest)
    assert trail.then(a_sample(70.0, next_offset=1_500)).older == trail.newer


@pytest.mark.parametrize("field", ["end", "age_seconds"])
def test_what_becomes_known_for_the_first_time_is_where_its_pace_begins(field: str) -> None:
    """
    A first copy knows neither at the start.
    """
    trail = Trail.begun(a_sample(0, **{field: None}))
    for at in range(1, 10):
        trail = trail.then(a_sample(at, **{field: None}))
    unknown = trail
    for at in range(10, 20):
        trail = trail.then(a_sample(at))

    assert (unknown.older.at, trail.older.at) == (0, 10)


def test_a_log_that_leapt_once_is_taken_to_lose_what_is_produced() -> None:
    """
    Two leaps are a pace; one says that the log is as long as it may be; none says nothing. That a start is
    not known for a moment is no leap.
    """
    never, once = a_trail(20, produced=40), a_trail(20, produced=40)
    once = once.then(a_sample(21, end=2_840, next_offset=1_000, log_start_offset=500))
    for start in (None, None, 500):
        once = once.then(once.latest._replace(log_start_offset=start))

    assert pace(never, now=20).removed_per_second is None
    assert pace(once, now=21).removed_per_second == pytest.approx(40)


# -- the age of what is missing --------------------------------------------------------------------------


def aged(**changes: Any) -> float | None:
    known = Progress(90, 100, heard_at=1_000.0, complete_at=None, last_timestamp_ms=None)
    return age_seconds(
        replace(known, **changes),
        now=1_000.0,
        now_ms=NOW_MS,
        fresh_seconds=5,
    )


@pytest.mark.parametrize(
    ("complete_at", "timestamp_ms", "seconds"),
    [
        (None, None, None),
        (None, -1, None),
        (None, NOW_MS + 1, None),
        (400.0, None, 600.0),
        (None, NOW_MS - 30_000, 30.0),
        (400.0, NOW_MS - 30_000, 30.0),
        (990.0, NOW_MS - 86_400_000, 10.0),
    ],
)
def test_the_oldest_missing_record_is_as_old_as_the_better_bound_says(
    complete_at: float | None, timestamp_ms: int | None, seconds: float | None
) -> None:
    """
    A copy that catches up is as far as its last record; one that was idle for a day, as when it was complete.
    """
    assert aged(complete_at=complete_at, last_timestamp_ms=timestamp_ms) == seconds


def test_nothing_missing_has_no_age_while_the_source_says_so() -> None:
    """
    After that something may be missing since then.
    """
    assert aged(next_offset=100) == 0
    assert aged(next_offset=100, heard_at=900.0) == 100


# -- catching up -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("behind", "going", "seconds"),
    [
        (1_000, Pace(10, 30), 50.0),
        (1_000, Pace(0, 10), 100.0),
        (1_000, Pace(30, 10), math.inf),
        (1_000, Pace(10, 10), math.inf),
        (1_000, Pace(None, 0), math.inf),
        (1_000, Pace(None, 10), None),
        (1_000, Pace(10, None), None),
        (1_000, UNKNOWN_PACE, None),
        (None, Pace(10, 30), None),
        (0, Pace(10, 30), None),
    ],
)
def test_a_copy_catches_up_by_what_it_gains(behind: int | None, going: Pace, seconds: float | None) -> None:
    """
    Never where it gains nothing; not known where a figure is missing, unless nothing is copied at all, or
    where all is copied but what waits for the end of a transaction.
    """
    assert catch_up_seconds(behind, going, in_time=False) == seconds


def test_a_copy_in_time_has_nothing_to_catch_up() -> None:
    """
    A few records are always on their way, as fast as they are produced: that is not never.
    """
    assert catch_up_seconds(12, Pace(40, 40), in_time=True) == 0


rates = st.none() | st.floats(0, 1e6)
paces = st.builds(Pace, rates, rates, st.none() | st.floats(-100, 1), rates)
counts = st.none() | st.integers(0, 10**12)


@given(behind=counts, going=paces, in_time=st.booleans())
def test_catching_up_is_never_negative_and_zero_only_in_time(
    behind: int | None, going: Pace, in_time: bool
) -> None:
    """
    What is not known is not zero.
    """
    seconds = catch_up_seconds(behind, going, in_time=in_time)

    assert seconds is None or seconds >= 0
    assert (seconds == 0) == in_time


@given(
    behind=st.integers(1, 10**9),
    produced=st.floats(0, 1e5),
    copied=st.floats(0, 1e5),
    more=st.floats(0, 1e5),
)
def test_a_faster_copy_is_never_there_later(behind: int, produced: float, copied: float, more: float) -> None:
    """
    And one that has more to copy never sooner.
    """

    def there(records: int, rate: float) -> float:
        seconds = catch_up_seconds(records, Pace(produced, rate), in_time=False)
        assert seconds is not None
        return seconds

    assert there(behind, copied + more) <= there(behind, copied) <= there(behind * 2, copied)


# -- the loss --------------------------------------------------------------------------------------------


def loss(going: Pace, retention: Retention, *, complete: bool = False, **changes: Any) -> float | None:
    return retention_loss_seconds(a_sample(100, **changes), going, retention, complete=complete)


@pytest.mark.parametrize(
    ("ageing", "seconds"),
    [(1.0, 3_000.0), (0.5, 6_000.0), (0.0, math.inf), (-20.0, math.inf), (None, None)],
)
def test_a_loss_by_age_comes_when_the_headroom_is_used_up(
    ageing: float | None, seconds: float | None
) -> None:
    """
    An hour is kept and ten minutes are gone: fifty minutes for a copy that stands, twice that at half speed.
    """
    assert loss(Pace(ageing=ageing), HOUR) == seconds


@pytest.mark.parametrize(
    ("changes", "retention", "seconds"),
    [
        ({"age_seconds": None}, HOUR, None),
        ({}, Retention(None, NO_LIMIT), None),
        ({}, Retention(HOUR_MS, None), 3_000.0),
        ({}, FOREVER, math.inf),
        ({}, Retention(), None),
        ({"age_seconds": 7_200.0}, HOUR, 0.0),
        ({"log_start_offset": 1_001}, FOREVER, 0.0),
        ({"log_start_offset": None}, FOREVER, math.inf),
        ({}, Retention(0, NO_LIMIT), 0.0),
    ],
)
def test_a_loss_is_told_as_far_as_it_is_known(
    changes: dict[str, Any], retention: Retention, seconds: float | None
) -> None:
    """
    A source that keeps everything loses nothing; settings that may not be read are not the same.
    """
    assert loss(standing_still(UNKNOWN_PACE), retention, **changes) == seconds


@pytest.mark.parametrize(
    ("going", "seconds"),
    [
        (Pace(50, 10, None, 50), 25.0),
        (Pace(50, 60, None, 50), math.inf),
        (Pace(50, 50, None, 50), math.inf),
        (Pace(50, 60, None, None), math.inf),
        (Pace(50, 50, None, None), math.inf),
        (Pace(0.2, 0.5, None, None), math.inf),
        (Pace(0, 0, None, None), None),
        (Pace(50, 10, None, None), None),
        (Pace(None, 10, None, None), None),
        (Pace(None, None, None, 50), None),
    ],
)
def test_a_loss_by_size_comes_when_the_start_of_the_log_is_there(going: Pace, seconds: float | None) -> None:
    """
    A thousand offsets lie between them; a log that was never seen to leap may have room for years.
    """
    assert loss(going, Retention(NO_LIMIT, 1 << 30)) == seconds
    assert loss(going, Retention(NO_LIMIT, 0), log_start_offset=200, next_offset=1_200) == seconds
    assert loss(going, Retention(NO_LIMIT, None)) is None
    assert loss(going, Retention(NO_LIMIT, 1 << 30), log_start_offset=None) is None


def test_the_sooner_of_both_losses_is_told() -> None:
    """
    By age in fifty minutes, by size in 25 seconds.
    """
    assert loss(Pace(50, 10, 1.0, 50), Retention(HOUR_MS, 1 << 30)) == 25
    assert loss(Pace(50, 10, 1.0, 10.1), Retention(HOUR_MS, 1 << 30)) == 3_000


def test_a_complete_copy_loses_nothing() -> None:
    """
    Whatever is known of its pace or of its source's settings.
    """
    assert loss(UNKNOWN_PACE, Retention(), complete=True) == math.inf


limits = st.none() | st.integers(-1, 10**12)


@given(
    going=paces,
    retention=st.builds(Retention, limits, limits),
    age=st.none() | st.floats(0, 1e9),
    start=counts,
    position=st.integers(0, 10**12),
)
def test_a_loss_is_never_negative_and_nothing_is_made_up(
    going: Pace, retention: Retention, age: float | None, start: int | None, position: int
) -> None:
    """
    A number has a limit of the source behind it, or records that are gone.
    """
    changes: dict[str, Any] = {"age_seconds": age, "log_start_offset": start, "next_offset": position}
    seconds = loss(going, retention, **changes)

    gone = start is not None and start > position
    limited = any(limit is not None and limit >= 0 for limit in retention)
    assert seconds is None or seconds >= 0
    if seconds is not None and math.isfinite(seconds):
        assert gone or limited
    if retention == Retention() and not gone:
        assert seconds is None


@given(ageing=st.floats(0.01, 1), less=st.floats(0, 1), age=st.floats(0, 3_600), older=st.floats(0, 3_600))
def test_a_copy_that_ages_faster_or_is_older_never_loses_later(
    ageing: float, less: float, age: float, older: float
) -> None:
    """
    Nor does a source that keeps less.
    """

    def at(rate: float, seconds: float, kept_ms: int = HOUR_MS) -> float:
        found = loss(Pace(ageing=rate), Retention(kept_ms, NO_LIMIT), age_seconds=seconds)
        assert found is not None
        return found

    assert at(ageing, age) <= at(ageing * less, age)
    assert at(ageing, age + older) <= at(ageing, age)
    assert at(ageing, age, kept_ms=HOUR_MS // 2) <= at(ageing, age)


def test_a_loss_foretold_comes_true() -> None:
    """
    A copy at half the speed of the source's time: whenever one looks, the same moment is told.
    """
    retention = Retention(1_200_000, NO_LIMIT)
    moments = []
    for seconds in range(int(SPAN_SECONDS_MIN), 600, 7):
        trail = a_trail(seconds, produced=40, copied=20, ageing=0.5)
        foretold = retention_loss_seconds(trail.latest, pace(trail, now=seconds), retention, complete=False)
        assert foretold is not None
        moments.append(seconds + foretold)

    assert moments == pytest.approx([1_200.0] * len(moments))


# -- what is near, and what several have together ----------------------------------------------------------


@pytest.mark.parametrize(
    ("lost_in", "caught_up_in", "before", "near"),
    [
        (1_000.0, math.inf, False, True),
        (1_000.0, None, False, True),
        (1_000.0, 501.0, False, True),
        (1_000.0, 499.0, False, False),
        (1_000.0, 499.0, True, True),
        (1_000.0, 300.0, True, False),
        (1_000.0, 0.0, False, False),
        (3_601.0, math.inf, False, False),
        (3_601.0, math.inf, True, True),
        (5_401.0, math.inf, True, False),
        (0.0, math.inf, False, True),
        (math.inf, math.inf, True, False),
        (None, math.inf, True, False),
    ],
)
def test_a_loss_is_near_within_the_bound_and_not_long_after_the_copy_is_there(
    lost_in: float | None, caught_up_in: float | None, before: bool, near: bool
) -> None:
    """
    And stays so until it is clearly further away: what hovers about a bound does not fill the log.
    """
    assert is_near(lost_in, caught_up_in, within_seconds=3_600, before=before) is near


@pytest.mark.parametrize(
    ("every", "first", "end"),
    [
        ([], math.inf, 0.0),
        ([5.0, 9.0], 5.0, 9.0),
        ([5.0, None], 5.0, None),
        ([5.0, math.inf], 5.0, math.inf),
        ([None, math.inf], None, math.inf),
        ([math.inf, math.inf], math.inf, math.inf),
    ],
)
def test_of_several_the_first_loss_and_the_last_arrival_count(
    every: list[float | None], first: float, end: float
) -> None:
    """
    One that is not known makes no loss later, and no arrival sooner.
    """
    assert (soonest(every), last(every)) == (first, end)


def test_a_sum_with_a_gap_is_no_sum() -> None:
    """
    A backlog of which a part is not known is not the other part.
    """
    assert total([1, 2.5]) == 3.5
    assert total([1, None]) is None
