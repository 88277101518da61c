"""Why nothing of a log is compared."""

from __future__ import annotations

import pytest

from spark_jobs.nothing import Nothing, nothing_of
from spark_jobs.window import Range, SameOffsets, window

SAME = SameOffsets()


@pytest.mark.parametrize(
    ("source", "target", "start", "why"),
    [
        (Range(0, 10), Range(0, 10), 0, None),
        (Range(0, 10), Range(0, 10), 9, None),
        (Range(0, 10), Range(0, 10), 10, Nothing.OUTSIDE),
        (Range(0, 10), Range(0, 10), 99, Nothing.OUTSIDE),
        (Range(0, 10), Range(10, 10), 0, Nothing.DELETED_AT_TARGET),
        (Range(10, 10), Range(0, 10), 0, Nothing.DELETED_AT_SOURCE),
        (Range(0, 10), Range(0, 0), 0, Nothing.PENDING),
        (Range(5, 10), Range(0, 5), 0, Nothing.DELETED_AT_SOURCE),
        (Range(5, 10), Range(0, 4), 0, Nothing.NEVER_COPIED),
        (Range(7, 7), Range(4, 4), 0, Nothing.NEVER_COPIED),
        (Range(0, 0), Range(0, 0), 0, None),
        (Range(7, 7), Range(7, 7), 0, None),
        (Range(0, 0), Range(0, 0), 99, None),
    ],
)
def test_nothing_is_known_of_a_log_of_which_nothing_was_compared(
    source: Range, target: Range, start: int, why: Nothing | None
) -> None:
    """
    But for one that is empty at both sites.
    """
    asked, whole = (window(source, target, SAME, start=at) for at in (start, 0))

    assert nothing_of(asked, whole, compared_before=False) is why


def test_a_run_that_goes_on_behind_another_one_needs_nothing_new() -> None:
    """
    But for what came since: gone from one side already, or nothing of it copied, or gone before it was.
    """
    both, ahead, gone, never = (
        window(source, copy, SAME, start=at)
        for source, copy, at in (
            (Range(0, 10), Range(0, 10), 10),
            (Range(0, 10), Range(0, 8), 8),
            (Range(0, 10), Range(10, 10), 6),
            (Range(10, 10), Range(0, 8), 8),
        )
    )

    assert nothing_of(both, both, compared_before=True) is None
    assert nothing_of(ahead, ahead, compared_before=True) is Nothing.STANDING
    assert nothing_of(gone, gone, compared_before=True) is Nothing.DELETED_AT_TARGET
    assert nothing_of(never, never, compared_before=True) is Nothing.NEVER_COPIED


def test_nothing_is_known_of_what_goes_before_it_can_be_read() -> None:
    going = window(Range(0, 10), Range(0, 10), SAME, leaving=10)

    assert nothing_of(going, going, compared_before=False) is Nothing.LEAVING
