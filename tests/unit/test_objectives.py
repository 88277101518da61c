"""Lag, headroom and the choice between ACTIVE and LAGGING."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirror.model import State
from monitoring.objectives import (
    Progress,
    lag_records,
    lag_seconds,
    lag_state,
    late_seconds,
)

NOW = 5_000.0
NOW_MS = 1_700_000_000_000
FRESH_SECONDS = 5.0


def progress(
    *,
    next_offset: int | None = 90,
    end: int | None = 100,
    heard_at: float | None = NOW,
    complete_at: float | None = None,
    last_timestamp_ms: int | None = None,
) -> Progress:
    return Progress(next_offset, end, heard_at, complete_at, last_timestamp_ms)


def lag(of: Progress) -> float | None:
    return lag_seconds(of, now=NOW, now_ms=NOW_MS)


def late(of: Progress) -> float | None:
    return late_seconds(of, lag(of), now=NOW, prompt_seconds=FRESH_SECONDS)


def behind(of: Progress) -> int | None:
    return lag_records(of, now=NOW, fresh_seconds=FRESH_SECONDS)


@pytest.mark.parametrize(("silent_seconds", "seconds"), [(0.0, 0.001), (0.4, 0.4), (4.9, 4.9)])
def test_a_complete_copy_counts_from_the_last_word_of_its_source(
    silent_seconds: float, seconds: float
) -> None:
    """
    What the source has taken since is not there, and nobody knows of it: that is never no time at all.
    """
    assert lag(progress(next_offset=100, heard_at=NOW - silent_seconds)) == pytest.approx(seconds)


@pytest.mark.parametrize(("silent_seconds", "seconds"), [(0.0, 0.0), (4.9, 0.0), (5.1, 5.1)])
def test_a_complete_copy_is_not_late_between_two_words_of_its_source(
    silent_seconds: float, seconds: float
) -> None:
    """
    However tight the stated lag is: that would begin and end each time. One that has fallen silent is.
    """
    assert late(progress(next_offset=100, heard_at=NOW - silent_seconds)) == pytest.approx(seconds)


def test_a_copy_that_is_not_complete_is_as_late_as_it_is_behind() -> None:
    """
    A source that speaks all the time, or never did, changes nothing of that.
    """
    assert late(progress(heard_at=NOW, complete_at=NOW - 0.3)) == pytest.approx(0.3)
    assert late(progress(heard_at=None, last_timestamp_ms=NOW_MS - 60_000)) == 60
    assert late(progress(next_offset=None, end=None, heard_at=None)) is None


def test_a_complete_copy_of_a_silent_source_grows_old() -> None:
    """
    Behind a cut the source may have taken records for as long as it has been silent.
    """
    assert lag(progress(next_offset=100, heard_at=NOW - 60)) == 60


def test_a_complete_copy_whose_source_is_not_read_counts_from_when_it_was() -> None:
    """
    A paused partition hears nothing; what was known last is all there is.
    """
    assert lag(progress(next_offset=100, heard_at=None, complete_at=NOW - 30)) == 30


def test_a_copy_that_was_complete_counts_from_then() -> None:
    """
    The oldest missing record came after the last moment at which none was missing.
    """
    assert lag(progress(complete_at=NOW - 12.5, last_timestamp_ms=NOW_MS - 1)) == 12.5


def test_a_copy_that_stands_still_is_not_without_lag() -> None:
    """
    A source that answers all the time does not hide that nothing is copied.
    """
    assert lag(progress(heard_at=NOW, complete_at=NOW - 3_600)) == 3_600


def test_a_first_copy_counts_from_the_newest_record_copied() -> None:
    """
    Before the first completion the timestamp of the last batch is the best bound there is.
    """
    assert lag(progress(last_timestamp_ms=NOW_MS - 86_400_000)) == 86_400


@pytest.mark.parametrize("timestamp_ms", [None, -1, NOW_MS, NOW_MS + 60_000])
def test_a_first_copy_without_a_usable_timestamp_has_an_unknown_lag(timestamp_ms: int | None) -> None:
    """
    No record copied, no timestamp in it, or one from the future: nothing can be said, so nothing is.
    """
    assert lag(progress(last_timestamp_ms=timestamp_ms)) is None


def test_a_partition_not_looked_at_has_an_unknown_lag() -> None:
    """
    Unknown offsets are not equal offsets.
    """
    nothing = progress(next_offset=None, end=None, heard_at=None)

    assert lag(nothing) is None
    assert behind(nothing) is None


@pytest.mark.parametrize(("next_offset", "records"), [(90, 10), (100, 0), (101, 0)])
def test_records_behind_are_counted_up_to_the_last_stable_offset(next_offset: int, records: int) -> None:
    """
    A position ahead of what the source has told so far is no negative lag.
    """
    assert behind(progress(next_offset=next_offset)) == records


@pytest.mark.parametrize("heard_at", [None, NOW - 60])
def test_no_records_behind_is_said_only_while_the_source_says_so(heard_at: float | None) -> None:
    """
    A paused partition that was complete may lack any number by now; one that was not lacks at least those.
    """
    assert behind(progress(next_offset=100, heard_at=heard_at)) is None
    assert behind(progress(next_offset=90, heard_at=heard_at)) == 10


moments = st.none() | st.floats(min_value=0, max_value=NOW)


@given(
    next_offset=st.none() | st.integers(0, 20),
    end=st.none() | st.integers(0, 20),
    heard_at=moments,
    complete_at=moments,
    last_timestamp_ms=st.none() | st.integers(-1, NOW_MS * 2),
)
def test_an_age_is_never_zero_and_reaches_back_to_the_last_word_of_the_source(
    next_offset: int | None,
    end: int | None,
    heard_at: float | None,
    complete_at: float | None,
    last_timestamp_ms: int | None,
) -> None:
    """
    Whatever is known or not. Only what is held against a copy is 0, of one that is complete and was heard of.
    """
    anything = Progress(next_offset, end, heard_at, complete_at, last_timestamp_ms)

    seconds = lag(anything)

    heard_lately = heard_at is not None and NOW - heard_at <= FRESH_SECONDS
    assert seconds is None or seconds > 0
    assert (late(anything) == 0) == (anything.complete and heard_lately)
    known = [at for at in (heard_at, complete_at) if at is not None]
    if seconds is not None and known:
        assert seconds >= NOW - max(known)


@given(waited=st.floats(min_value=0, max_value=1e6))
def test_lag_grows_with_the_clock_while_nothing_happens(waited: float) -> None:
    """
    A mirror that stands still never looks better later.
    """
    still = progress(complete_at=NOW - 1)
    later = lag_seconds(still, now=NOW + waited, now_ms=NOW_MS)

    assert later is not None
    assert later >= (lag(still) or 0)


@pytest.mark.parametrize(
    ("before", "seconds", "state"),
    [
        (State.ACTIVE, 10.0, State.ACTIVE),
        (State.ACTIVE, 10.1, State.LAGGING),
        (State.LAGGING, 9.0, State.LAGGING),
        (State.LAGGING, 5.0, State.ACTIVE),
        (State.BLOCKED, 0.0, State.ACTIVE),
    ],
)
def test_a_partition_lags_above_the_bound_until_it_is_below_half_of_it(
    before: State, seconds: float, state: State
) -> None:
    """
    A lag that hovers about the bound does not fill the log with changes of state.
    """
    assert lag_state(3, seconds, before=before, lagging_seconds=10) is state


@pytest.mark.parametrize(("records", "state"), [(None, State.ACTIVE), (0, State.ACTIVE), (1, State.LAGGING)])
def test_records_decide_while_the_age_is_unknown(records: int | None, state: State) -> None:
    """
    The first minutes of a copy of old data have no age, and are behind all the same.
    """
    assert lag_state(records, None, before=State.UNKNOWN, lagging_seconds=10) is state
