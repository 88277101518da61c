"""How long a copy that is behind misses no delete."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitoring.objectives import Progress
from monitoring.outlook import NO_LIMIT
from monitoring.tombstones import Tombstones, tombstone_headroom_seconds

NOW = 1_000_000.0
DAY_MS, DAY_SECONDS = 86_400_000, 86_400.0
WEEK_MS, WEEK_SECONDS = 7 * DAY_MS, 7 * DAY_SECONDS
A_COPY = Progress(1_000, 1_200, NOW, None, None)
DAY = Tombstones(DAY_MS)

settings = st.one_of(st.none(), st.just(NO_LIMIT), st.integers(0, WEEK_MS))
ages = st.floats(0, 2 * WEEK_SECONDS)


def headroom(
    behind_seconds: float | None, tombstones: Tombstones = DAY, *, empty_for: float | None = None
) -> float | None:
    """Of a copy that is so far behind, and held nothing that long ago."""
    progress = replace(A_COPY, empty_at=None if empty_for is None else NOW - empty_for)
    return tombstone_headroom_seconds(progress, behind_seconds, tombstones, now=NOW)


@pytest.mark.parametrize(
    ("behind_seconds", "left"),
    [
        pytest.param(0.0, DAY_SECONDS, id="complete"),
        pytest.param(3_600.0, DAY_SECONDS - 3_600, id="behind"),
        pytest.param(DAY_SECONDS, 0.0, id="just too late"),
        pytest.param(WEEK_SECONDS, 0.0, id="much too late"),
    ],
)
def test_headroom_is_what_the_lag_leaves_of_the_time_for_tombstones(
    behind_seconds: float, left: float
) -> None:
    """
    The cleaner may have met one at once. Even a complete copy has no more than all of the time.
    """
    assert headroom(behind_seconds) == left


@pytest.mark.parametrize(
    "tombstones", [Tombstones(), Tombstones(NO_LIMIT), Tombstones(NO_LIMIT, DAY_MS, NOW)]
)
def test_there_is_no_figure_where_none_is_taken_or_nobody_knows(tombstones: Tombstones) -> None:
    """
    Neither zero nor infinity; nor where it is not known what is missing since when.
    """
    assert headroom(60.0, tombstones) is None
    assert headroom(None) is None


@pytest.mark.parametrize(
    ("behind_seconds", "empty_for", "left"),
    [
        pytest.param(None, 0.0, DAY_SECONDS, id="nothing copied yet"),
        pytest.param(WEEK_SECONDS, 600.0, DAY_SECONDS - 600, id="of old data"),
        pytest.param(WEEK_SECONDS, DAY_SECONDS + 1, 0.0, id="that takes too long"),
        pytest.param(60.0, WEEK_SECONDS, DAY_SECONDS - 60, id="that was complete meanwhile"),
    ],
)
def test_a_first_copy_has_all_the_time_from_when_it_held_nothing(
    behind_seconds: float | None, empty_for: float, left: float
) -> None:
    """
    A cleaner that met a tombstone before took the records of its key before, too: the copy has none of them.
    """
    assert headroom(behind_seconds, empty_for=empty_for) == left


# -- when the time is changed ----------------------------------------------------------------------------


def test_a_longer_time_is_not_for_what_the_cleaner_may_have_met() -> None:
    """
    Raised an hour ago: what is younger has all of it, what is older goes as it was to go.
    """
    raised = DAY.then(WEEK_MS, now=NOW - 3_600)

    assert headroom(3_599.0, raised) == WEEK_SECONDS - 3_599
    assert headroom(3_600.0, raised) == DAY_SECONDS - 3_600
    assert headroom(DAY_SECONDS, raised) == 0


def test_a_shorter_time_is_for_all() -> None:
    """
    The cleaner may meet any of them only now.
    """
    assert headroom(3_600.0, Tombstones(WEEK_MS).then(DAY_MS, now=NOW)) == DAY_SECONDS - 3_600


def test_a_time_that_was_away_for_a_while_is_remembered() -> None:
    """
    Settings that could not be read once, or a topic that was not compacted for an hour, change no tombstone.
    """
    for between in (None, NO_LIMIT):
        away = DAY.then(between, now=NOW - 7_200)
        back, longer = away.then(DAY_MS, now=NOW - 3_600), away.then(WEEK_MS, now=NOW - 3_600)

        assert headroom(3_600.0, away) is None
        assert back == DAY
        assert headroom(4_000.0, longer) == DAY_SECONDS - 4_000
        assert headroom(3_000.0, longer) == WEEK_SECONDS - 3_000


def test_a_topic_that_becomes_compacted_has_no_past() -> None:
    """
    Nor has one whose settings are read for the first time.
    """
    for before in (None, NO_LIMIT):
        assert Tombstones(before).then(WEEK_MS, now=NOW) == Tombstones(WEEK_MS)


@given(
    changes=st.lists(st.tuples(settings, st.floats(0, WEEK_SECONDS)), min_size=1, max_size=6),
    written_before=ages,
    behind=ages,
)
def test_no_tombstone_goes_sooner_than_was_told(
    changes: list[tuple[int | None, float]], written_before: float, behind: float
) -> None:
    """
    Whenever it was written, and whatever was set at the moment when a cleaner met it.
    """
    written_at = NOW - min(written_before, behind)
    read = sorted(((NOW - before, ms) for ms, before in changes), key=lambda one: one[0])
    tombstones, meeting = Tombstones(), [written_at]
    for at, ms in read:
        tombstones = tombstones.then(ms, now=at)
        meeting.append(at)

    told = headroom(behind, tombstones)

    for at in meeting:
        in_force = [ms for since, ms in read if since <= at]
        if told is not None and at >= written_at and in_force and in_force[-1] not in {None, NO_LIMIT}:
            assert NOW + told <= max(at + in_force[-1] / 1_000, NOW) + 0.001
