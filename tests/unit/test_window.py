"""What of a partition can be compared."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoint.errors import UntranslatableError
from checkpoint.offset_map import OffsetMap
from spark_jobs.window import Range, SameOffsets, Window, window

SAME = SameOffsets()


class Mapped:
    """What an offset map tells while the target's log ends at an offset."""

    def __init__(self, runs: list[tuple[int, int]], log_end: int) -> None:
        self._map, self._end = OffsetMap(runs), log_end

    def to_target(self, source_offset: int) -> int:
        return self._map.committed_to_target(source_offset, self._end)

    def to_source(self, target_offset: int) -> int:
        return self._map.committed_to_source(target_offset, self._end)


def nothing(at: int) -> Range:
    return Range(at, at)


def test_a_copy_that_is_complete_is_compared_whole() -> None:
    assert window(Range(0, 10), Range(0, 10), SAME) == Window(
        source=Range(0, 10),
        target=Range(0, 10),
        lost=nothing(10),
        expired_at_source=nothing(0),
        expired_at_target=nothing(0),
        leaving=nothing(0),
        never_copied=nothing(10),
        pending=nothing(10),
        beyond=nothing(10),
    )


def test_what_is_on_its_way_is_no_difference() -> None:
    found = window(Range(0, 10), Range(0, 7), SAME)

    assert found.source == found.target == Range(0, 7)
    assert found.pending == Range(7, 10)
    assert found.beyond == nothing(7)


def test_what_only_the_target_has_beyond_the_source_is_found() -> None:
    found = window(Range(0, 7), Range(0, 10), SAME)

    assert found.source == Range(0, 7)
    assert found.beyond == Range(7, 10)
    assert not found.pending.offsets


def test_what_a_target_has_lost_at_its_end_is_compared_with_nothing() -> None:
    """
    Up to where it is known to have been there; what follows is on its way as ever.
    """
    found = window(Range(0, 12), Range(0, 7), SAME, acknowledged=10)

    assert found.source == found.target == Range(0, 10)
    assert found.lost == Range(7, 10)
    assert found.pending == Range(10, 12)
    assert not found.beyond.offsets


@pytest.mark.parametrize(
    ("source", "target", "leaving", "compared", "left"),
    [
        (Range(0, 10), Range(0, 10), 4, Range(4, 10), Range(0, 4)),
        (Range(0, 10), Range(3, 7), 4, Range(4, 7), Range(3, 4)),
        (Range(0, 10), Range(3, 7), 2, Range(3, 7), nothing(3)),
        (Range(5, 10), Range(0, 7), 4, Range(5, 7), nothing(5)),
        (Range(0, 10), Range(0, 7), 9, nothing(7), Range(0, 7)),
    ],
)
def test_what_goes_before_it_can_be_read_is_not_compared_and_counted(
    source: Range, target: Range, leaving: int, compared: Range, left: Range
) -> None:
    """
    Apart from what has gone from one side already.
    """
    found, all_of_it = (window(source, target, SAME, leaving=at) for at in (leaving, 0))

    assert (found.source, found.leaving) == (compared, left)
    assert found.expired_at_source == all_of_it.expired_at_source
    assert found.expired_at_target == all_of_it.expired_at_target
    assert found.pending == all_of_it.pending


@pytest.mark.parametrize(
    ("source", "target", "end", "compared", "lost"),
    [
        (Range(0, 12), Range(0, 7), 5, Range(0, 5), nothing(7)),
        (Range(0, 12), Range(0, 7), 8, Range(0, 8), Range(7, 8)),
        (Range(0, 9), Range(0, 7), None, Range(0, 9), Range(7, 9)),
        (Range(9, 12), Range(0, 7), None, Range(9, 10), Range(9, 10)),
        (Range(11, 12), Range(0, 7), None, nothing(10), nothing(10)),
        (Range(0, 12), Range(0, 0), None, Range(0, 10), Range(0, 10)),
        (Range(0, 12), Range(0, 11), None, Range(0, 11), nothing(11)),
    ],
)
def test_what_is_lost_is_looked_for_where_it_is_wanted_and_can_be_read(
    source: Range, target: Range, end: int | None, compared: Range, lost: Range
) -> None:
    """
    Not behind the end of the source, nor what retention took there; a target that is further lost nothing.
    """
    found = window(source, target, SAME, end=end, acknowledged=10)

    assert (found.source, found.lost) == (compared, lost)


def test_what_others_wrote_behind_the_source_is_no_further_than_the_log() -> None:
    """
    The source has lost its end too.
    """
    found = window(Range(0, 5), Range(0, 7), SAME, acknowledged=10)

    assert (found.source, found.beyond) == (Range(0, 5), Range(5, 7))
    assert not found.lost.offsets


def test_what_is_lost_is_told_in_offsets_of_the_target() -> None:
    """
    Source offsets 3 to 5 and 8 hold no records; the log ended at 7, and ends at 4 now.
    """
    mapped = Mapped([(0, 0), (6, 3), (9, 5)], log_end=7)

    found = window(Range(0, 20), Range(0, 4), mapped, acknowledged=7)

    assert (found.source, found.target) == (Range(0, 11), Range(0, 7))
    assert (found.lost, found.pending) == (Range(4, 7), Range(11, 20))


def test_what_retention_took_at_one_side_is_expired_there() -> None:
    at_target, at_source = window(Range(2, 10), Range(5, 10), SAME), window(Range(5, 10), Range(2, 10), SAME)

    assert at_target.source == at_source.source == Range(5, 10)
    assert at_target.expired_at_target == Range(2, 5)
    assert at_source.expired_at_source == Range(2, 5)
    assert not at_target.expired_at_source.offsets
    assert not at_source.expired_at_target.offsets


def test_a_copy_that_retention_overtook_has_nothing_to_compare() -> None:
    found = window(Range(20, 30), Range(0, 10), SAME)

    assert not found.source.offsets
    assert found.expired_at_source == Range(0, 10)
    assert found.never_copied == Range(10, 20)
    assert found.pending == Range(20, 30)
    assert not found.beyond.offsets
    assert not window(Range(20, 30), Range(0, 10), SAME, standing=False).never_copied.offsets


@pytest.mark.parametrize(
    ("start", "end", "compared"),
    [
        (3, None, Range(3, 10)),
        (0, 5, Range(0, 5)),
        (3, 5, Range(3, 5)),
        (0, 99, Range(0, 10)),
        (5, 3, nothing(5)),
        (0, 0, nothing(0)),
        (50, None, nothing(10)),
    ],
)
def test_only_what_was_asked_for_is_compared(start: int, end: int | None, compared: Range) -> None:
    found = window(Range(0, 10), Range(0, 10), SAME, start=start, end=end)

    assert found.source == compared
    assert not found.pending.offsets
    assert not found.expired_at_source.offsets
    assert not found.expired_at_target.offsets


@pytest.mark.parametrize(
    ("target", "start", "end", "acknowledged", "never"),
    [
        (Range(0, 10), 0, None, 0, Range(10, 20)),
        (Range(10, 10), 10, None, 0, Range(10, 20)),
        (Range(0, 10), 15, None, 0, Range(15, 20)),
        (Range(0, 10), 0, 15, 0, Range(10, 15)),
        (Range(0, 10), 25, None, 0, nothing(20)),
        (Range(0, 10), 0, 5, 0, nothing(10)),
        (Range(0, 10), 0, None, 18, Range(18, 20)),
        (Range(0, 20), 0, None, 0, nothing(20)),
        (Range(0, 25), 0, None, 0, nothing(25)),
    ],
)
@pytest.mark.parametrize("source_end", [20, 30])
def test_what_the_source_deletes_before_it_is_copied_is_told_apart(
    source_end: int, target: Range, start: int, end: int | None, acknowledged: int, never: Range
) -> None:
    """
    Whatever the source still has, as far as it was asked for; what was lost at the target was copied.
    """
    source = Range(20, source_end)

    found = window(source, target, SAME, start=start, end=end, acknowledged=acknowledged)

    assert found.never_copied == never


def test_beyond_the_source_is_looked_only_where_no_end_was_asked_for() -> None:
    assert not window(Range(0, 7), Range(0, 10), SAME, end=7).beyond.offsets


def test_an_offset_map_tells_which_target_offsets_belong_to_it() -> None:
    """
    Source offsets 3 to 5 and 8 hold no records.
    """
    mapped = Mapped([(0, 0), (6, 3), (9, 5)], log_end=7)

    assert window(Range(0, 11), Range(0, 7), mapped) == Window(
        source=Range(0, 11),
        target=Range(0, 7),
        lost=nothing(7),
        expired_at_source=nothing(0),
        expired_at_target=nothing(0),
        leaving=nothing(0),
        never_copied=nothing(11),
        pending=nothing(11),
        beyond=nothing(7),
    )
    assert window(Range(0, 20), Range(0, 7), mapped, start=4, end=9).target == Range(3, 5)
    assert window(Range(0, 10), Range(0, 7), mapped).beyond == Range(6, 7)


def test_offsets_that_cannot_be_told_are_not_guessed() -> None:
    with pytest.raises(UntranslatableError):
        window(Range(0, 10), Range(0, 4), Mapped([(6, 3)], log_end=4))


logs = st.tuples(st.integers(0, 50), st.integers(0, 50)).map(lambda pair: Range(min(pair), max(pair)))


@given(logs, logs, st.integers(0, 50), st.none() | st.integers(0, 60), st.integers(0, 60))
def test_every_offset_wanted_is_somewhere(
    source: Range, target: Range, start: int, end: int | None, acknowledged: int
) -> None:
    """
    Compared, expired at one side, on its way or beyond: what a site has of them is in one of these. What the
    source has and the target has lost is compared too.
    """
    found = window(source, target, SAME, start=start, end=end, acknowledged=acknowledged)
    told = [found.source, found.expired_at_source, found.expired_at_target, found.pending, found.beyond]

    for offset in range(start, 60 if end is None else end):
        lost = offset in range(*source) and offset in range(target.end, acknowledged)
        has = [offset in range(*source), lost or offset in range(*target)]
        places = sum(offset in range(*place) for place in told)
        assert places == any(has), offset
        assert (offset in range(*found.source)) == all(has)
        assert (offset in range(*found.lost)) == lost
