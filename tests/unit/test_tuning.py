"""How a relay compresses: by what the link and its core have to spare, and by what comes of it."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest

from mirror.relay.tuning import (
    FIRST,
    FORGET_SECONDS,
    NEAR_SECONDS,
    PERIOD_SECONDS,
    Spent,
    Tuner,
    is_near,
    ladder,
)

LONG = 3
"""Stands for level 2 over all of the window."""
SPEEDS = {0: 2000.0, 1: 200.0, 2: 165.0, LONG: 150.0, 6: 60.0, 9: 25.0}
"""MB/s of records that a core makes into frames, by level."""
MEGABYTES = 35
"""Of records in a period, or more."""
SHARES = {0: 1.0, 1: 0.34, 2: 0.3, LONG: 0.28, 6: 0.27, 9: 0.25}


def run(
    tuner: Tuner,
    link: float,
    shares: dict[int, float],
    *,
    periods: int = 12,
    began: float = 0.0,
    speeds: dict[int, float] = SPEEDS,
    taker: float = math.inf,
    paced: bool = False,
) -> list[int]:
    """The levels taken over time, of a channel with plenty behind.

    Args:
        link: What it carries, in MB/s.
        shares: What each level makes of the records.
        taker: The mirror takes no more of them, in MB/s.
        paced: What the link is said to carry is a limit.
    """
    taken, now = [], began
    for _ in range(periods):
        level = taken_by(tuner)
        by_core, by_link = speeds[level], link / shares[level]
        rate = min(by_core, by_link, taker)
        sealed, seconds = rate / by_core, max(MEGABYTES / rate, PERIOD_SECONDS)
        spent = Spent(
            waited=(1 - sealed) * seconds if rate < taker else 0.0,
            paced=(1 - sealed) * seconds if paced else 0.0,
            held=(1 - sealed) * seconds if rate == taker else 0.0,
            sealed=sealed * seconds,
            records_bytes=math.ceil(rate * seconds * 1e6),
            wire_bytes=math.ceil(rate * seconds * 1e6 * shares[level]),
            dry=sealed * seconds if by_core < by_link and rate < taker else 0.0,
        )
        now += seconds
        tuner.watched(spent, now)
        taken.append(taken_by(tuner))
    return taken


def taken_by(tuner: Tuner) -> int:
    """Its level, or LONG."""
    level, _, long = tuner.step.compression
    return LONG if (level, long) == (2, True) else level


@pytest.mark.parametrize("recode", [True, False])
@pytest.mark.parametrize(
    ("shares", "tried", "best"),
    [
        ({1: 0.2, 2: 0.25}, {1, 2, LONG}, 1),
        ({1: 0.25, 2: 0.5, LONG: 0.2}, {1, 2, LONG, 6}, LONG),
        ({2: 0.2}, {1, 2, LONG}, 2),
        ({LONG: 0.2}, {1, 2, LONG, 6}, LONG),
        ({6: 0.2}, {1, 2, LONG, 6, 9}, 6),
        ({6: 0.24, 9: 0.2}, {1, 2, LONG, 6, 9}, 9),
    ],
)
def test_on_a_slow_link_it_finds_what_makes_least(
    shares: dict[int, float], tried: set[int], best: int, recode: bool
) -> None:
    """
    It goes on from level to level as long as that helps, and need not try all. It says what it has found.
    """
    tuner = Tuner(ladder(0, recode=recode), 0.0)

    taken = run(tuner, 1.0, SHARES | shares)

    assert {2, *taken} == tried
    assert taken[5:] == [best] * 7
    assert tuner.why.startswith("the link is full; this level is the best of those tried: ")
    level = {1: "1", 2: "2", LONG: "2 over 16 MiB"}.get(best, f"{best} over 16 MiB")
    assert re.search(f"0.200 at level {level}[,;]", tuner.why)
    assert tuner.why.endswith(f"; 1.0 MB/s over the link; one core handles {SPEEDS[best]:.0f} MB/s")
    assert tuner.step.recode is recode


def test_what_makes_little_less_is_not_worth_its_time() -> None:
    """
    Level 6 and 9 take three and six times as long as level 2 for a twentieth of the bytes.
    """
    tuner = Tuner(ladder(0, recode=True), 0.0)

    assert run(tuner, 1.0, SHARES | {LONG: 0.213, 6: 0.205, 9: 0.203}, periods=14)[5:] == [LONG] * 9


def test_where_a_level_makes_no_less_the_next_one_is_not_tried() -> None:
    """
    JSON of 1 KiB: level 9 takes twice as long as 6, which found nothing more than 2 already.
    """
    tuner = Tuner(ladder(0, recode=True), 0.0)

    tried = run(tuner, 1.0, SHARES | {1: 0.303, 2: 0.213, LONG: 0.213, 6: 0.226, 9: 0.238}, periods=14)

    assert {2, *tried} == {1, 2, LONG, 6}
    assert tried[5:] == [2] * 9


def test_to_look_far_back_is_not_worth_its_time_where_nothing_repeats() -> None:
    """
    Nothing but nearby.
    """
    tuner = Tuner(ladder(0, recode=True), 0.0)

    assert run(tuner, 1.0, SHARES | {2: 0.214, LONG: 0.213}, periods=14)[5:] == [2] * 9


def test_what_repeats_over_megabytes_is_found() -> None:
    """
    No level finds it that looks nearby only, and the lightest makes about as much as the next.
    """
    tuner = Tuner(ladder(0, recode=True), 0.0)

    assert run(tuner, 1.0, {0: 1.0, 1: 0.47, 2: 0.48, LONG: 0.055, 6: 0.057, 9: 0.058})[5:] == [LONG] * 7


def test_on_a_fast_link_it_does_not_compress() -> None:
    """
    A core is the limit: what it is spared is carried, lz4 as it is too. How much more the link would carry
    nobody knows at first, nor how fast a core is that has nothing to do.
    """
    tuner = Tuner(ladder(0, recode=True), 0.0)

    taken = run(tuner, 1000.0, SHARES, periods=3)
    why = tuner.why
    taken += run(tuner, 1000.0, SHARES, began=10.0)

    assert taken[2:] == [0] * 13
    assert tuner.step.recode is False
    assert why == (
        "compression is the limit; this level is the best of those tried: 1.000 at level 0, "
        "0.340 at level 1, 0.300 at level 2"
    )


def test_in_between_it_stays_where_both_have_the_same_time() -> None:
    """
    45 MB/s: level 2 carries what the core can and the link can; level 6 would be too slow.
    """
    tuner = Tuner(ladder(0, recode=True), 0.0)

    assert set(run(tuner, 45.0, SHARES, periods=30)[15:]) <= {2, LONG}


@pytest.mark.parametrize(("shares", "best"), [(SHARES, 2), (SHARES | {LONG: 0.05}, LONG)])
def test_of_a_link_that_is_not_the_limit_it_is_tried_whether_what_repeats_is_far_back(
    shares: dict[int, float], best: int
) -> None:
    """
    The mirror takes less than comes: nothing would carry more, but bytes can be spared.
    """
    tuner = Tuner(ladder(0, recode=True), 0.0)

    assert run(tuner, 1000.0, shares, taker=20.0) == [LONG, *[best] * 11]
    assert tuner.why.startswith("the mirror is the limit; this level is the best of those tried: ")


@pytest.mark.parametrize(("taker", "best"), [(60.0, 2), (90.0, 1), (150.0, 0)])
def test_where_the_mirror_is_the_limit_bytes_are_saved_as_far_as_a_core_has_time(
    taker: float, best: int
) -> None:
    """
    A core was the limit before, and nothing was compressed any more.
    """
    tuner = Tuner(ladder(0, recode=True), 0.0)
    assert run(tuner, 1000.0, SHARES)[-1] == 0

    taken = run(tuner, 1000.0, SHARES, taker=taker, began=100.0, periods=30)

    assert taken[-1] == best
    assert set(taken) <= {0, 1, 2, LONG}


def test_where_the_mirror_is_the_limit_no_more_is_sent_than_the_link_carries() -> None:
    """
    Without compression a core would have time to spare, and the link would be too narrow by far.
    """
    tuner = Tuner(ladder(0, recode=True), 0.0)
    run(tuner, 50.0, SHARES)

    assert run(tuner, 50.0, SHARES, taker=130.0, began=100.0) == [2] * 12


def test_where_the_mirror_is_the_limit_of_a_link_that_has_become_wider_it_stays() -> None:
    """
    What goes over it now is more than it was thought to carry.
    """
    tuner = Tuner(ladder(0, recode=True), 0.0)
    before = run(tuner, 10.0, SHARES)[-1]

    assert run(tuner, 1000.0, SHARES, taker=60.0, began=100.0)[-1] == before == 2


def test_nothing_is_tried_before_the_link_was_full_for_two_seconds() -> None:
    """
    TCP finds out first what the link carries; in seconds in which a core was the limit it could not.
    """
    tuner = Tuner(ladder(0, recode=True), 0.0)
    at_first = run(tuner, 12.5, SHARES, periods=2), run(tuner, 12.5, SHARES, periods=1, began=1.6)

    other = Tuner(ladder(0, recode=True), 0.0)
    run(other, 5000.0, SHARES, periods=100)
    later = run(other, 50.0, SHARES, periods=3, began=12.0)

    assert at_first == ([2, 2], [1])
    assert later == [0, 2, 2]


def test_of_a_wide_link_that_is_full_uncompressed_it_is_known_at_once() -> None:
    """
    400 Mbit/s, and slow cores: one look at what goes without compression is enough.
    """
    tuner = Tuner(ladder(0, recode=True), 0.0)
    shares = SHARES | {1: 0.3, 2: 0.215}

    taken = run(tuner, 50.0, shares, speeds=SPEEDS | {1: 130.0, 2: 100.0})

    assert taken == [1, 0, *[1] * 10]


@pytest.mark.parametrize(("before", "after", "level"), [(1000.0, 1.0, 6), (1.0, 1000.0, 0)])
def test_a_link_that_changes_is_measured_again(before: float, after: float, level: int) -> None:
    """
    It breaks down to a thousandth, or comes back.
    """
    tuner = Tuner(ladder(0, recode=True), 0.0)
    run(tuner, before, SHARES)

    assert run(tuner, after, SHARES, began=100_000.0)[-1] == level


def test_what_was_found_out_is_found_out_again() -> None:
    """
    After a while, as other data comes.
    """
    tuner = Tuner(ladder(0, recode=True), 0.0)
    assert run(tuner, 1.0, SHARES | {1: 0.22, 2: 0.22, LONG: 0.22, 6: 0.22})[-1] == 1

    assert run(tuner, 1.0, SHARES | {1: 0.35, 2: 0.31, 6: 0.25}, began=FORGET_SECONDS)[-1] == 6


@pytest.mark.parametrize("taker", [20.0, 2.0, 1.0, 0.5])
def test_of_a_slow_mirror_it_is_not_tried_again_and_again_whether_bytes_can_be_spared(taker: float) -> None:
    """
    A look takes longer than what was found out is good for otherwise.
    """
    tuner = Tuner(ladder(0, recode=True), 0.0)

    assert run(tuner, 1000.0, SHARES, taker=taker, periods=40) == [LONG, *[2] * 39]


def test_over_a_slow_link_no_more_than_a_fiftieth_of_the_time_goes_into_finding_out_again() -> None:
    """
    A look at what makes nine times the bytes takes more than two minutes at 125 kB/s, so it is worth one in
    two hours; what is best is watched for an hour and a quarter here.
    """
    shares = {0: 1.0, 1: 0.47, 2: 0.48, LONG: 0.055, 6: 0.057, 9: 0.058}
    tuner = Tuner(ladder(0, recode=True), 0.0)
    run(tuner, 0.125, shares, periods=6)

    later = run(tuner, 0.125, shares, began=10_000.0, periods=300)

    assert later.count(2) == 1


def test_what_was_slow_once_is_tried_again() -> None:
    """
    Something else keeps the core busy when the mirror begins: soon after that it does what it can.
    """
    tuner, link = Tuner(ladder(0, recode=True), 0.0), 12.5
    shares = SHARES | {1: 0.31, 2: 0.22, LONG: 0.22, 6: 0.22, 9: 0.22}
    assert run(tuner, link, shares, speeds=SPEEDS | {2: 20.0}, periods=1) == [1]
    assert run(tuner, link, shares, began=20.0)[-1] == 1

    assert run(tuner, link, shares, began=140.0)[-1] == 2


def test_where_link_and_core_are_the_limit_in_turn_it_stays() -> None:
    """
    A level that makes more and takes less time would carry less: it knows that after the first time.
    """
    tuner = Tuner(ladder(0, recode=True), 0.0)
    shares = SHARES | {1: 0.31, 2: 0.217, LONG: 0.217, 6: 0.217, 9: 0.217}

    assert run(tuner, 12.5, shares, speeds=SPEEDS | {1: 60.0, 2: 52.0, 6: 20.0}, periods=40)[5:] == [2] * 35


@pytest.mark.parametrize(
    ("frame_bytes", "frame_seconds", "frames"),
    [(16 << 20, 0.011, 10), (4 << 20, 0.05, 8), (64 << 20, 0.2, 1)],
    ids=["for so long", "of so many bytes", "both"],
)
def test_a_step_is_watched_for_a_while_before_it_is_changed(
    frame_bytes: int, frame_seconds: float, frames: int
) -> None:
    """
    A core is the limit from the first frame on; one frame says little of what the window makes.
    """
    tuner, changed = Tuner(ladder(0, recode=True), 0.0), []

    for number in range(1, frames + 1):
        spent = Spent(0.0, frame_seconds, frame_bytes, frame_bytes // 4, dry=frame_seconds)
        changed.append(tuner.watched(spent, number * frame_seconds))

    assert changed == [False] * (frames - 1) + [True]


def test_while_both_have_time_nothing_changes() -> None:
    """
    Where little is behind, or nothing.
    """
    tuner = Tuner(ladder(0, recode=True), 0.0)
    for number in range(5):
        tuner.watched(Spent(0.2, 0.2, 50_000_000, 15_000_000), number + 1.0)

    assert tuner.step.compression == FIRST


@pytest.mark.parametrize(
    ("spent", "limit"),
    [
        ({"sealed": 0.9, "dry": 0.8}, "compression is the limit"),
        ({"sealed": 0.9, "dry": 0.3}, "the link is full"),
        ({"sealed": 0.6, "dry": 0.6, "waited": 0.05}, "compression is the limit"),
        ({"sealed": 0.6, "dry": 0.6, "waited": 0.2}, "the link is full"),
        ({"sealed": 0.0, "waited": 0.9}, "the link is full"),
        ({"sealed": 0.3, "waited": 0.6, "paced": 0.25}, "the link is full"),
        ({"sealed": 0.3, "waited": 0.6, "paced": 0.35}, "a configured limit is reached"),
        ({"sealed": 0.2, "waited": 0.5, "held": 0.3}, "the link is full"),
        ({"sealed": 0.2, "waited": 0.3, "held": 0.5}, "the mirror is the limit"),
        ({"sealed": 0.9, "dry": 0.9, "waited": 0.01, "held": 0.05}, "compression is the limit"),
        ({"sealed": 0.4, "waited": 0.1}, "not measured yet"),
    ],
)
def test_what_most_of_the_time_goes_into_is_the_limit(spent: dict[str, Any], limit: str) -> None:
    """
    Of each second: making frames, with the link dry meanwhile or not, or waiting for the link or the mirror.
    """
    tuner, of_two = Tuner(ladder(0, recode=True), 0.0), {name: 2 * seconds for name, seconds in spent.items()}

    changed = tuner.watched(Spent(records_bytes=100_000_000, wire_bytes=30_000_000, **of_two), 2.0)

    assert limit in tuner.why
    assert changed is (limit != "not measured yet")


def test_a_limit_is_told_from_a_full_link() -> None:
    """
    What is best is the same; who looks for what is slow does not look at the line.
    """
    tuner = Tuner(ladder(0, recode=True), 0.0)

    run(tuner, 1.0, SHARES, paced=True)

    assert tuner.why.startswith("a configured limit is reached; this level is the best of those tried: ")


def test_a_mirror_that_is_near_is_spared_the_time_of_compressing() -> None:
    """
    Bytes cost nothing there, neither while the mirror takes no more, nor while a core is the limit.
    """
    tuner = Tuner(ladder(0, recode=True), 0.0, near=True)

    assert tuner.why == "the mirror is near"
    assert run(tuner, 1000.0, SHARES, taker=60.0) == [0] * 12
    assert run(tuner, 1000.0, SHARES) == [0] * 12


def test_where_the_link_to_one_that_is_near_is_full_after_all_it_finds_what_makes_least() -> None:
    """
    It goes up from there, as long as that helps.
    """
    tuner = Tuner(ladder(0, recode=True), 0.0, near=True)

    assert run(tuner, 1.0, SHARES | {LONG: 0.2})[-6:] == [LONG] * 6
    assert tuner.why.startswith("the link is full; this level is the best of those tried: ")


@pytest.mark.parametrize(
    ("round_trip_seconds", "rate", "near"),
    [
        (NEAR_SECONDS / 2, None, True),
        (NEAR_SECONDS, None, False),
        (NEAR_SECONDS / 2, 2.5e6, False),
        (None, None, False),
    ],
)
def test_near_is_who_is_in_the_same_place_and_costs_nothing(
    round_trip_seconds: float | None, rate: float | None, near: bool
) -> None:
    """
    Not where nobody knows how far it is, and not where so many bytes a second were set.
    """
    assert is_near(round_trip_seconds, rate) is near


def test_what_is_configured_stays() -> None:
    """
    One level, with recoding or without; what the limit is, is said all the same, when it has become another.
    """
    fixed, limited = Tuner(ladder(6, recode=True), 0.0), Tuner(ladder(19, recode=True, level_max=6), 0.0)
    before = fixed.why

    assert run(fixed, 1.0, SHARES) == run(limited, 1.0, SHARES, paced=True) == [6] * 12
    assert (before, fixed.why) == ("as configured", "as configured; the link is full")
    assert limited.why == (
        "level 19 was requested; listen.level_max of the relay is 6; a configured limit is reached"
    )
    told = [
        fixed.watched(Spent(records_bytes=100_000_000, wire_bytes=30_000_000, **spent), now)
        for now, spent in (
            (10_000.0, {"waited": 9_000.0}),
            (10_001.0, {"waited": 0.9}),
            (10_002.0, {"waited": 0.9, "paced": 0.9}),
        )
    ]
    assert told == [False, False, True]
    assert fixed.why == "as configured; a configured limit is reached"
    assert fixed.watched(Spent(records_bytes=100_000_000, wire_bytes=30_000_000, sealed=0.1), 10_003.0)
    assert fixed.why == "as configured"
    assert Tuner(ladder(6, recode=True), 0.0, near=True).step == fixed.step
    assert [step.recode for step in ladder(6, recode=False)] == [False]


@pytest.mark.parametrize(
    ("asked", "level_max", "levels", "why"),
    [
        (0, 1, [0, 1], "not measured yet"),
        (19, 9, [9], "level 19 was requested; listen.level_max of the relay is 9"),
        (9, 9, [9], "as configured"),
        (19, 19, [19], "as configured"),
        (0, 3, [0, 1, 2, 2], "not measured yet"),
        (0, 19, [0, 1, 2, 2, 6, 9], "not measured yet"),
    ],
)
def test_no_level_is_above_what_the_relay_allows(
    asked: int, level_max: int, levels: list[int], why: str
) -> None:
    """
    And whoever has asked for more is told.
    """
    steps = ladder(asked, recode=True, level_max=level_max)

    assert [step.compression.level for step in steps] == levels
    assert Tuner(steps, 0.0).why == why
    assert Tuner(steps, 0.0).step.compression.level == (min(level_max, 2) if asked == 0 else levels[0])


@pytest.mark.parametrize(
    ("level", "recode", "near", "reasons"),
    [
        (0, True, False, "not measured yet; batches inflated as configured"),
        (0, False, False, "not measured yet; batches not inflated, as configured"),
        (0, True, True, "the mirror is near; batches not inflated, as nothing is compressed"),
        (6, True, False, "as configured; batches inflated as configured"),
        (6, False, True, "as configured; batches not inflated, as configured"),
    ],
)
def test_whether_batches_are_inflated_is_said_with_what_it_rests_on(
    level: int, recode: bool, near: bool, reasons: str
) -> None:
    """
    On what is configured, and not on what was measured, as the level does beside it.
    """
    assert Tuner(ladder(level, recode=recode), 0.0, near=near).reasons == reasons


def test_what_is_inflated_is_said_anew_with_the_level() -> None:
    """
    Where compressing is the limit nothing is inflated either, as soon as nothing is compressed.
    """
    tuner = Tuner(ladder(0, recode=True), 0.0)

    levels = run(tuner, 1000.0, SHARES)

    assert levels[-1] == 0
    assert tuner.reasons == f"{tuner.why}; batches not inflated, as nothing is compressed"


@pytest.mark.parametrize(("asked", "long"), [(1, False), (2, False), (3, True), (19, True)])
def test_who_asks_for_level_3_or_more_has_all_of_the_window_looked_at(asked: int, long: bool) -> None:
    """
    It takes a quarter more time, which those who ask for less want to save.
    """
    (step,) = ladder(asked, recode=True)

    assert step.compression == (asked, 24, long)
    assert step.compression.long_bytes == (16 << 20 if long else 0)
