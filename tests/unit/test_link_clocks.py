"""Moments that were told by another clock: never newer than they are."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from mirror.link.clocks import Distance

seconds = st.floats(0, 10, allow_nan=False)


@given(
    ahead=st.floats(-1e9, 1e9),
    ways=st.lists(st.tuples(seconds, seconds, seconds), min_size=1, max_size=20),
    age=seconds,
    way=seconds,
)
def test_what_was_told_never_looks_newer_than_it_is(
    ahead: float, ways: list[tuple[float, float, float]], age: float, way: float
) -> None:
    """
    However long questions and answers were on their way, and wherever the other clock stands. It is wrong by
    no more than the shortest round trip.
    """
    distance, now = Distance(), 0.0
    for pause, there, back in ways:
        asked_at = now + pause
        now = asked_at + there + back
        distance.learned(asked_at=asked_at, theirs=asked_at + there - ahead, came_at=now)

    read_at = now + age
    came_at = read_at + way
    ours = distance.ours(read_at - ahead, came_at)

    shortest = min(there + back for _, there, back in ways)
    assert ours <= read_at + 1e-6
    assert ours >= read_at - shortest - 0.1 - 1e-6


def test_nothing_is_known_before_anything_was_learned() -> None:
    """
    Nothing that came looks fresh then.
    """
    assert Distance().ours(5.0, came_at=7.0) == -math.inf


def test_a_clock_that_stood_still_is_learned_anew() -> None:
    """
    Ours, while this machine slept: what was known of theirs cannot be true any more.
    """
    distance = Distance()
    distance.learned(asked_at=10.0, theirs=10.0, came_at=10.1)
    distance.learned(asked_at=11.0, theirs=1011.0, came_at=11.1)

    assert 11.9 < distance.ours(1012.0, came_at=13.0) <= 12.0


def test_a_moment_that_has_not_come_yet_is_not_believed() -> None:
    """
    A relay may say what it likes: nothing was read after it came here.
    """
    distance = Distance()
    distance.learned(asked_at=10.0, theirs=10.0, came_at=10.1)

    assert distance.ours(1e12, came_at=20.0) == 20.0
