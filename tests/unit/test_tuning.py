"""How a relay compresses: by what the link and its core have to spare, and by what comes of it."""

from __future__ import annotations

import pytest

from mirror.relay.tuning import FORGET_SECONDS, PERIOD_SECONDS, Spent, Step, Tuner, ladder

RECORDS = 1_000_000


def levels(
    tuner: Tuner, makes: dict[int, float], *, waited: float, sealed: float = 0.1, periods: int, first: int = 0
) -> list[int]:
    """The level after each period.

    Args:
        makes: The share of the records that each level sends.
        waited, sealed: Shares of the time.
        first: Periods that have passed before.
    """
    taken = []
    for number in range(first, first + periods):
        wire = int(makes[tuner.step.compression.level] * RECORDS)
        spent = Spent(waited * PERIOD_SECONDS, sealed * PERIOD_SECONDS, RECORDS, wire)
        tuner.watched(spent, (number + 1) * PERIOD_SECONDS)
        taken.append(tuner.step.compression.level)
    return taken


@pytest.mark.parametrize("recode", [True, False])
@pytest.mark.parametrize("best", [1, 3, 6, 9])
def test_while_the_link_is_full_it_finds_what_makes_least(best: int, recode: bool) -> None:
    """
    Each level once, then the best: a higher one need not be better. And says what it has found.
    """
    makes = {1: 0.30, 3: 0.31, 6: 0.29, 9: 0.295} | {best: 0.2}
    tuner = Tuner(ladder(0, recode=recode), 0.0)

    taken = levels(tuner, makes, waited=0.9, periods=6)

    assert {3, *taken} == {1, 3, 6, 9}
    assert taken[3:] == [best] * 3
    assert f"this makes least: 0.200 at level {best}" in tuner.why


def test_a_full_core_makes_it_try_less() -> None:
    """
    Down to sending lz4 as it is; what was too slow is not tried again soon.
    """
    tuner = Tuner(ladder(0, recode=True), 0.0)
    makes = dict.fromkeys((1, 3, 6, 9), 0.3)

    assert levels(tuner, makes, waited=0.0, sealed=0.95, periods=3) == [1, 1, 1]
    assert tuner.step.recode is False
    assert tuner.why == "compression is the limit: it is at work 95% of the time"


def test_what_was_found_out_is_found_out_again() -> None:
    """
    After a while, as other data comes.
    """
    tuner = Tuner(ladder(0, recode=True), 0.0)
    levels(tuner, {1: 0.1, 3: 0.2, 6: 0.3, 9: 0.4}, waited=0.9, periods=5)
    assert tuner.step.compression.level == 1

    later = int(FORGET_SECONDS / PERIOD_SECONDS) + 1
    taken = levels(tuner, {1: 0.4, 3: 0.3, 6: 0.2, 9: 0.1}, waited=0.9, periods=6, first=later)

    assert taken[-1] == 9


@pytest.mark.parametrize(("waited", "sealed"), [(0.0, 0.1), (0.5, 0.5), (0.0, 0.0)])
def test_while_both_have_time_nothing_changes(waited: float, sealed: float) -> None:
    """
    Or where nothing is behind.
    """
    makes = dict.fromkeys((1, 3, 6, 9), 0.3)
    tuner = Tuner(ladder(0, recode=True), 0.0)

    assert levels(tuner, makes, waited=waited, sealed=sealed, periods=3) == [3, 3, 3]


def test_what_is_configured_stays() -> None:
    """
    One level; or no recoding, with any level.
    """
    fixed = Tuner(ladder(5, recode=True), 0.0)

    assert levels(fixed, {5: 0.3}, waited=1.0, periods=2) == [5, 5]
    assert fixed.why == "as configured"
    assert [(step.compression.level, step.recode) for step in ladder(0, recode=False)] == [
        (level, False) for level in (1, 3, 6, 9)
    ]
    assert ladder(0, recode=True)[0] == Step(ladder(1, recode=True)[0].compression, recode=False)
