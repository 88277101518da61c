"""Benches judge: what is wanted of which figures, and that nothing unknown counts as reached."""

from __future__ import annotations

import math
from dataclasses import replace

import click
import pytest

from bench import copying, goals, over_the_link, site_shares
from bench.contestants import DEFAULT, OURS, RELAYED, TUNED
from bench.goals import Goal, ratio
from bench.measuring import Run
from bench.over_the_link import AS_IT_COMES, BEST, ONE_CONNECTION, SURVIVES, Crossed, Profile

LONG, LOSSY = Profile(100, 100), Profile(20, 300, 0.01)
GOOD = Crossed(50.0, 0.23, 0.97, 1.5, 130.0)
TUNED_ONE = Crossed(11.0, 1.1, 0.96, 20.0, 861.0)
SLOW = Crossed(0.7, 1.0, 0.06, 142.0, 401.0)
NOTHING = Crossed(0.0, math.nan, 0.04, math.nan, 338.0)


def missed(found: list[Goal]) -> list[str]:
    return [goal.what for goal in found if not goal.reached]


@pytest.mark.parametrize(
    ("one", "other", "times"), [(6.0, 2.0, 3.0), (6.0, 0.0, math.inf), (0.0, 2.0, 0.0), (0.0, 0.0, math.nan)]
)
def test_times_nothing_is_infinitely_often(one: float, other: float, times: float) -> None:
    """
    And nothing against nothing is unknown.
    """
    assert ratio(one, other) == pytest.approx(times, nan_ok=True)


@pytest.mark.parametrize("at_most", [True, False])
def test_what_is_unknown_is_not_reached(at_most: bool) -> None:
    """
    Nor is it shown as if it were.
    """
    goal = Goal("figure", 3.0, math.nan, at_most=at_most)

    assert not goal.reached
    with pytest.raises(click.ClickException, match="1 of 2 goals missed"):
        goals.end([goal, Goal("figure", 3.0, 3.0, at_most=at_most)])


def test_a_bench_with_all_goals_reached_ends_well() -> None:
    """
    Its table names none.
    """
    reached = [Goal("speed", 3.0, 3.1), Goal("memory", 256.0, 131.0, at_most=True)]

    goals.end(reached)

    assert list(goals.table("Goals", reached).columns[3].cells) == ["", ""]


def test_over_a_link_each_goal_is_held_against_its_rival() -> None:
    """
    The tuned one, and the one that comes as it is; and figures of our own.
    """
    found = {OURS: GOOD, AS_IT_COMES: SLOW, BEST: TUNED_ONE, SURVIVES: SLOW}

    assert missed(over_the_link.judged(LONG, "none", found)) == []
    slower = over_the_link.judged(LONG, "none", found | {OURS: replace(GOOD, megabytes_per_second=30.0)})
    assert missed(slower) == ["MB/s, times the best MirrorMaker 2"]
    dearer = replace(GOOD, cpu_seconds_per_gigabyte=9.7, link_used=0.74, peak_megabytes=300.0)
    assert missed(over_the_link.judged(LONG, "none", found | {OURS: dearer})) == [
        "link used",
        "CPU of the best, times ours",
        "memory per side",
    ]


def test_where_packets_are_lost_the_best_is_the_one_that_survives() -> None:
    """
    Who got nothing over is beaten however often; what its bytes were nobody knows.
    """
    ours = replace(GOOD, megabytes_per_second=9.7, link_used=0.93)
    nobody = {OURS: ours, AS_IT_COMES: NOTHING, BEST: NOTHING, SURVIVES: NOTHING}

    one_survives = over_the_link.judged(LOSSY, "none", nobody | {SURVIVES: SLOW})
    assert one_survives[0].found == pytest.approx(9.7 / 0.7)
    assert missed(one_survives) == ["CPU of the default, times ours"]
    assert missed(over_the_link.judged(LOSSY, "none", nobody)) == [
        "bytes on the wire, times those of the best",
        "CPU of the best, times ours",
        "CPU of the default, times ours",
    ]


def test_without_bbr_many_connections_are_held_against_one() -> None:
    """
    Nobody else is on the link.
    """
    one = replace(GOOD, megabytes_per_second=GOOD.megabytes_per_second / 11)

    assert missed(over_the_link.judged(LOSSY, "none", {OURS: GOOD, ONE_CONNECTION: one})) == []
    assert missed(over_the_link.judged(LOSSY, "none", {OURS: GOOD, ONE_CONNECTION: GOOD})) != []


def test_on_loopback_only_those_count_that_competed() -> None:
    """
    With a relay between, three quarters of the speed are wanted.
    """
    ours = [Run(280.0, 1.8, 1.0, 95.0, 3.0)]
    runs = {OURS: ours, RELAYED: [Run(200.0, 4.4, 2.0, 140.0, 3.0)]}

    alone = copying.judged("1 KiB", runs)
    against = copying.judged(
        "1 KiB", runs | {DEFAULT: [Run(42.0, 30.0, 12.0, 1306.0)], TUNED: [Run(120.0, 25.0, 12.0, 1087.0)]}
    )

    assert missed(alone) == ["1 KiB: MB/s through a relay, times ours"]
    assert missed(against) == ["1 KiB: MB/s, times MirrorMaker 2 tuned", *missed(alone)]


@pytest.mark.parametrize(
    ("spans", "reached"),
    [
        ([(90, 10), (80, 20), (55, 45), (60, 40)], True),
        ([(50, 50), (50, 50), (70, 30), (60, 40)], False),
        ([(50, 50), (50, 50), (0, 0), (0, 0)], False),
    ],
)
def test_of_two_sites_the_lesser_share_counts_once_both_have_found_their_pace(
    spans: list[tuple[int, int]], reached: bool
) -> None:
    """
    How they begin says nothing; and where nothing came nobody knows.
    """
    found = site_shares.judged([{"large": large, "small": small} for large, small in spans])

    assert [goal.reached for goal in found] == [reached]
