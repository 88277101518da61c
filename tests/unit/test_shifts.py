"""By how much a target is shifted, along its log, and what is read of it."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.shifts import Anchors, Piece, changes, pieces, places_of, target_ranges
from spark_jobs.stretches import RANGE_PLACES, Island, between, joined, to_read
from spark_jobs.window import Range

LOG = Range(0, 10_000)


def test_without_anchors_nothing_is_taken_to_be_shifted() -> None:
    assert pieces([], LOG) == [Piece(0, 10_000, 0)]


def test_a_shift_begins_where_it_is_first_seen() -> None:
    seen = [Anchors(0, 4_000, 0, 250), Anchors(5_000, 9_000, -1, 250)]

    assert pieces(seen, LOG) == [Piece(0, 4_999, 0), Piece(4_999, 10_000, -1)]


def test_a_few_records_that_moved_shift_nothing() -> None:
    seen = [Anchors(0, 4_000, 0, 250), Anchors(4_100, 4_100, 900, 1), Anchors(4_200, 9_000, 0, 250)]

    assert pieces(seen, LOG) == [Piece(0, 10_000, 0)]


def test_rows_that_go_backwards_give_way_to_longer_ones() -> None:
    seen = [Anchors(0, 4_000, 0, 250), Anchors(4_100, 4_200, -3_000, 5), Anchors(4_300, 9_000, 2, 250)]

    assert pieces(seen, LOG) == [Piece(0, 4_302, 0), Piece(4_302, 10_000, 2)]


@pytest.mark.parametrize(
    "short",
    [
        Anchors(4_900, 5_100, -200, 5),
        Anchors(4_900, 5_000, -200, 5),
        Anchors(4_000, 4_990, 500, 5),
        Anchors(4_000, 4_499, 500, 5),
    ],
    ids=["in its midst", "at its first", "at the target in its midst", "at the target at its first"],
)
def test_a_row_that_runs_into_a_longer_one_gives_way_to_it(short: Anchors) -> None:
    """
    At the source or at the target: a record is at one place.
    """
    assert pieces([short, Anchors(5_000, 9_000, -1, 250)], LOG) == [Piece(0, 10_000, -1)]


@pytest.mark.parametrize(("records", "shifts"), [(2, [0, 2]), (3, [0, 1, 2])])
def test_three_records_in_a_row_are_a_shift_of_their_own(records: int, shifts: list[int]) -> None:
    """
    Fewer have moved, most likely, though nothing contradicts them.
    """
    seen = [Anchors(0, 4_000, 0, 250), Anchors(4_100, 4_200, 1, records), Anchors(4_300, 9_000, 2, 250)]

    assert [piece.shift for piece in pieces(seen, LOG)] == shifts


@given(st.integers(0, 60), st.integers(0, 9), st.integers(-9, 9), st.integers(0, 60), st.integers(0, 30))
def test_of_a_row_that_is_what_stands_in_a_range_of_the_target(
    first: int, more: int, shift: int, start: int, length: int
) -> None:
    """
    Place by place.
    """
    row, target = Anchors(first, first + more, shift, 5), Range(start, start + length)

    found = row.within(target)

    there = [place for place in range(row.first, row.last + 1) if target.holds(place + shift)]
    assert found.records == (5 if there else 0)
    if there:
        assert (found.first, found.last, found.shift) == (there[0], there[-1], shift)


def test_what_shifts_changes_where_it_begins_and_where_it_ends() -> None:
    assert changes([Piece(0, 50, 0)]) == []
    assert changes([Piece(0, 50, 0), Piece(50, 90, 2), Piece(90, 99, 0)]) == [48, 90]
    assert changes([Piece(0, 50, -1), Piece(50, 90, -3)]) == [1, 53, 93]


def test_all_that_differs_is_read_with_what_is_beside_it() -> None:
    whole = Range(0, 20 * RANGE_PLACES)
    log = [Piece(*whole, 0)]

    assert to_read([], log, whole) == []
    assert to_read([Island(0, 0).places, Island(7, 8).places], log, whole) == [
        Range(0, 2 * RANGE_PLACES),
        Range(6 * RANGE_PLACES, 10 * RANGE_PLACES),
    ]
    assert to_read([Island(19, 19).places], log, whole) == [Range(18 * RANGE_PLACES, 20 * RANGE_PLACES)]


def test_where_the_shift_changes_is_read_even_if_nothing_differs_there() -> None:
    log = [Piece(0, 5 * RANGE_PLACES, 0), Piece(5 * RANGE_PLACES, 20 * RANGE_PLACES, 1)]

    read = to_read([], log, places_of(log))

    assert any(one.holds(5 * RANGE_PLACES - 1) for one in read)
    assert any(one.holds(20 * RANGE_PLACES - 2) for one in read)


cuts = st.lists(st.integers(0, 300), min_size=2, max_size=8, unique=True).map(sorted)


@given(cuts, st.data())
def test_every_target_offset_is_somewhere(borders: list[int], data: st.DataObject) -> None:
    """
    Whatever the shifts, reading all places reads every target offset once.
    """
    shifts = [data.draw(st.integers(-9, 9)) for _ in borders[1:]]
    log = [Piece(*pair, shift) for pair, shift in zip(pairwise(borders), shifts, strict=True)]

    read = joined(target_ranges(log, places_of(log)))

    assert read == [Range(borders[0], borders[-1])]


@given(cuts, st.integers(-9, 310), st.integers(0, 99), st.data())
def test_of_some_places_those_target_offsets_are_read_that_have_to_stand_there(
    borders: list[int], start: int, length: int, data: st.DataObject
) -> None:
    """
    Offset by offset, and nothing twice.
    """
    shifts = [data.draw(st.integers(-9, 9)) for _ in borders[1:]]
    log = [Piece(*pair, shift) for pair, shift in zip(pairwise(borders), shifts, strict=True)]
    places = Range(start, start + length)

    read = list(target_ranges(log, places))

    wanted = [at for one in log for at in range(one.start, one.end) if places.holds(at - one.shift)]
    assert [at for one in read for at in range(*one)] == wanted
    assert all(one.offsets > 0 for one in read)


@given(st.lists(st.tuples(st.integers(0, 90), st.integers(0, 9)), max_size=6))
def test_ranges_and_what_is_between_them_are_the_whole(some: list[tuple[int, int]]) -> None:
    ranges = joined(Range(start, start + length) for start, length in some)

    covered = sorted([*ranges, *between(ranges, Range(0, 100))])

    filled = [one for one in covered if one.offsets]
    assert [filled[0].start, filled[-1].end] == [0, 100]
    assert all(one.end == other.start for one, other in pairwise(filled))


@given(st.sets(st.integers(0, 20_000), max_size=40))
def test_of_what_differs_the_ranges_beside_it_are_read_and_no_more(differing: set[int]) -> None:
    """
    So of a log of which one range in 10 000 differs, three in 10 000 are read, wherever they are.
    """
    log = Range(0, 20_000 * RANGE_PLACES + 17)
    islands = [Island(at, at) for at in sorted(differing)]

    found = to_read([island.places for island in islands], [Piece(*log, shift=0)], log)

    assert all(any(one.holds(at) for one in found) for at in (island.places.start for island in islands))
    assert sum(one.offsets for one in found) <= 3 * RANGE_PLACES * len(differing)
