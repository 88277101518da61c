"""When a copy was complete, of what a source has told about its end."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mirror.flow.marks import STEPS, Marks


def test_a_copy_was_complete_at_the_last_moment_at_which_the_source_ended_there() -> None:
    marks = Marks()
    for end, at in ((100, 1.0), (100, 2.0), (130, 3.0), (150, 4.0)):
        marks.note(end, at)

    assert marks.passed_at(None) is None
    assert marks.passed_at(99) is None
    assert marks.passed_at(100) == 2.0
    assert marks.passed_at(149) == 3.0
    assert marks.passed_at(10_000) == 4.0


def test_a_copy_that_has_lost_something_was_never_complete() -> None:
    """
    How late it is then nobody knows before it has come to an end of the source again.
    """
    marks = Marks()
    marks.note(100, 1.0)
    marks.passed_at(100)
    marks.note(150, 2.0)

    marks.rewind()

    assert marks.passed_at(20) is None
    assert marks.passed_at(149) is None
    assert marks.passed_at(150) == 2.0


def test_an_end_that_moves_back_is_another_logs() -> None:
    """
    When the copy comes to the first one's end nobody knows what was missing of the other.
    """
    marks = Marks()
    marks.note(100, 1.0)
    marks.note(50, 2.0)

    assert marks.passed_at(49) is None
    assert marks.passed_at(100) == 2.0


@given(
    told=st.lists(st.tuples(st.integers(0, 20), st.floats(0.01, 10)), min_size=1, max_size=300),
    copied=st.lists(st.integers(0, 40), max_size=300),
)
def test_it_never_looks_better_than_it_is(told: list[tuple[int, float]], copied: list[int]) -> None:
    """
    However much was told and forgotten: at the moment that is named the source ended where the copy has been.
    """
    marks, end, at, next_offset = Marks(), 0, 0.0, 0
    moments: list[tuple[int, float]] = []
    for (more, later), further in zip(told, [*copied, *[0] * len(told)], strict=False):
        end, at = end + more, at + later
        marks.note(end, at)
        moments.append((end, at))
        next_offset = min(next_offset + further, end)
        found = marks.passed_at(next_offset)
        best = max((moment for ended, moment in moments if ended <= next_offset), default=None)
        assert found is None or (best is not None and found <= best)
        if next_offset == end:
            assert found == at


def test_a_catch_up_of_days_is_known_to_a_part_of_it() -> None:
    """
    A bounded number of marks: a copy that comes nearer is told to, in steps.
    """
    marks = Marks()
    for second in range(100_000):
        marks.note(second, float(second))

    late = [second - (marks.passed_at(second) or 0.0) for second in range(0, 100_000, 1000)]

    assert max(late) <= 2 * 100_000 / STEPS
    assert marks.passed_at(99_999) == 99_999.0


def test_what_was_written_long_ago_does_not_make_the_next_steps_large() -> None:
    """
    After a catch-up of days the copy is late by what is on its way, though it is never complete.
    """
    marks = Marks()
    for second in range(100_000):
        marks.note(second, float(second))
    marks.passed_at(99_990)
    for second in range(100_000, 100_100):
        marks.note(second, float(second))
        marks.passed_at(second - 2)

    found = marks.passed_at(100_097)
    assert found is not None
    assert 100_099 - found < 4
