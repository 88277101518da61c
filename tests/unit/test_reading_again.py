"""What is named of long logs that have lost much and hold much that is foreign."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_jobs.findings import Difference, Kind
from spark_jobs.window import Range
from tests.unit.reading_again import compared, log_of

FOREIGN = 10_000_000
"""From here on contents are of records that the source never had."""

Step = tuple[str, int]
"""Records that are kept, lost, or foreign, and how many."""


def play(steps: Sequence[Step]) -> tuple[dict[int, int], dict[int, int], list[Difference]]:
    """Both logs, and all that differs."""
    source: list[int] = []
    target: list[int] = []
    expected: list[Difference] = []
    for what, count in steps:
        here, there = len(source), len(target)
        if what != "foreign":
            source += range(here, here + count)
        if what == "lost":
            expected += [Difference(kind=Kind.MISSING, source_offset=at) for at in range(here, here + count)]
        elif what == "kept":
            target += range(here, here + count)
            if here != there:
                row = Difference(kind=Kind.SHIFTED, source_offset=here, target_offset=there, records=count)
                expected.append(replace(row, shift=there - here))
        else:
            target += range(FOREIGN + there, FOREIGN + there + count)
            expected += [Difference(kind=Kind.EXTRA, target_offset=at) for at in range(there, there + count)]
    return dict(enumerate(source)), dict(enumerate(target)), expected


def check(steps: Sequence[Step], *, closely: bool) -> None:
    source, target, expected = play(steps)
    log = log_of(Range(0, len(source)), Range(0, len(target)))

    found = compared(source, target, log, closely=closely)

    assert [one.difference for one in found.findings] == expected
    assert not found.unnamed


CASES = {
    "first lost": "lost 3, kept 40000, foreign 3",
    "many first lost": "lost 3000, kept 40000, foreign 3000",
    "foreign first": "foreign 5000, kept 35000, lost 5000, kept 5000",
    "lost, and as many foreign": "kept 10000, lost 5000, kept 15000, foreign 5000, kept 10000",
    "foreign, and as many lost": "kept 10000, foreign 1500, kept 20000, lost 1500, kept 9000",
    "before a border": "kept 10000, lost 120, kept 39981, foreign 120, kept 9000",
    "lost twice": "kept 10000, lost 1, kept 15000, lost 1, kept 15000, foreign 2, kept 999",
}


@pytest.mark.parametrize("closely", [False, True], ids=["whole", "closely"])
@pytest.mark.parametrize("name", CASES)
def test_what_is_lost_and_what_is_foreign_is_named_and_the_rest_is_not(name: str, closely: bool) -> None:
    steps = [step.split() for step in CASES[name].split(", ")]

    check([(what, int(count)) for what, count in steps], closely=closely)


COUNTS = st.integers(1, 20) | st.integers(21, 3_000)
KEPT = st.tuples(st.just("kept"), st.integers(1_000, 12_000))
CHANGE = st.tuples(st.sampled_from(["lost", "foreign"]), COUNTS)


@settings(max_examples=25)
@given(st.lists(st.tuples(CHANGE, KEPT), min_size=1, max_size=4), st.integers(0, 12_000))
def test_wherever_records_are_lost_or_foreign_just_these_are_named(
    changes: list[tuple[Step, Step]], first: int
) -> None:
    """
    Whether what differs is read whole, or known closer first.
    """
    steps = [("kept", first), *(step for pair in changes for step in pair)]
    end = sum(-count if what == "lost" else count for what, count in steps if what != "kept")
    steps.append(("foreign", -end) if end < 0 else ("lost", end))
    steps = [step for step in [*steps, ("kept", 500)] if step[1]]

    for closely in (False, True):
        check(steps, closely=closely)
