"""Durations as people say them."""

from __future__ import annotations

import pytest

from monitoring.durations import duration


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (None, "?"),
        (0, "0 s"),
        (0.4, "0.4 s"),
        (9.9, "9.9 s"),
        (10, "10 s"),
        (119, "119 s"),
        (120, "2 min"),
        (3_599, "59 min"),
        (7_199, "119 min"),
        (7_200, "2 h 0 min"),
        (19_259, "5 h 20 min"),
        (21_540, "5 h 59 min"),
        (172_799, "47 h 59 min"),
        (172_800, "2 days"),
        (1_123_199, "12 days"),
    ],
)
def test_a_duration_is_told_in_the_units_people_use(seconds: float | None, words: str) -> None:
    """
    Of minutes, hours and days those that are whole count.
    """
    assert duration(seconds) == words
