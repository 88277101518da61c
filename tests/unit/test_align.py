"""What differs between two stretches of a log."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.align import RELATED_MAX, Record, differences
from spark_jobs.findings import Difference, Kind, Part


def record(place: int, content: int | None = None, **fields: Any) -> Record:
    """A record whose content is told by a number; by its place when none is given."""
    number = place if content is None else content
    made = Record(place, place, 1_000 + number, number, 10_000 + number, 0, 0)
    return made._replace(**fields)


def log(*contents: int, start: int = 0) -> list[Record]:
    return [record(start + index, content) for index, content in enumerate(contents)]


def found(source: list[Record], target: list[Record]) -> list[tuple[Any, ...]]:
    """Kind and offsets of each difference, in short."""
    return [(d.kind, d.source_offset, d.target_offset) for d in differences(source, target)]


def test_equal_stretches_do_not_differ() -> None:
    assert differences(log(*range(50)), log(*range(50))) == []


def test_of_nothing_on_one_side_all_is_missing_or_extra() -> None:
    assert found(log(0, 1), []) == [(Kind.MISSING, 0, None), (Kind.MISSING, 1, None)]
    assert found([], log(0, 1)) == [(Kind.EXTRA, None, 0), (Kind.EXTRA, None, 1)]
    assert found([], []) == []


def test_a_missing_record_shifts_what_follows() -> None:
    """
    The row that follows is one difference, with its length and distance.
    """
    assert differences(log(0, 1, 2, 3, 4), log(0, 1, 3, 4)) == [
        Difference(kind=Kind.MISSING, source_offset=2),
        Difference(kind=Kind.SHIFTED, source_offset=3, target_offset=2, records=2, shift=-1),
    ]


def test_a_missing_record_that_leaves_a_hole_shifts_nothing() -> None:
    source = log(0, 1, 2, 3)

    assert found(source, [source[0], source[2], source[3]]) == [(Kind.MISSING, 1, None)]


def test_an_extra_record_shifts_what_follows() -> None:
    assert differences(log(0, 1, 2), log(0, 99, 1, 2)) == [
        Difference(kind=Kind.EXTRA, target_offset=1),
        Difference(kind=Kind.SHIFTED, source_offset=1, target_offset=2, records=2, shift=1),
    ]


def test_a_doubled_record_is_not_an_extra_one() -> None:
    assert differences(log(0, 1, 2), log(0, 1, 1, 2)) == [
        Difference(kind=Kind.DUPLICATED, target_offset=2, original=1),
        Difference(kind=Kind.SHIFTED, source_offset=2, target_offset=3, records=1, shift=1),
    ]


def test_a_record_doubled_far_away_is_doubled() -> None:
    assert found(log(*range(10)), log(*range(10), 3)) == [(Kind.DUPLICATED, None, 10)]


def test_records_that_occur_several_times_at_the_source_are_no_doubles() -> None:
    assert differences(log(7, 7, 7, 1, 7), log(7, 7, 7, 1, 7)) == []
    assert [d.kind for d in differences(log(7, 7, 1), log(7, 7, 7, 1))] == [Kind.DUPLICATED, Kind.SHIFTED]
    assert [d.kind for d in differences(log(7, 7, 7, 1), log(7, 7, 1))] == [Kind.MISSING, Kind.SHIFTED]


def test_two_that_changed_places_are_one_that_moved() -> None:
    """
    One of them has moved past the other; neither is shifted.
    """
    (difference,) = differences(log(0, 1, 2, 3), log(0, 2, 1, 3))

    assert difference.kind is Kind.REORDERED
    assert difference.source_offset in (1, 2)
    assert difference.target_offset == 3 - (difference.source_offset or 0)


def test_a_record_that_moved_far_shifts_nothing() -> None:
    assert found(log(*range(8)), log(0, 2, 3, 4, 5, 6, 1, 7)) == [(Kind.REORDERED, 1, 6)]
    assert found(log(*range(8)), log(0, 6, 1, 2, 3, 4, 5, 7)) == [(Kind.REORDERED, 6, 1)]


def test_a_record_that_moved_and_left_a_hole_shifts_nothing_either() -> None:
    source = log(*range(8))
    moved = source[1]._replace(offset=8, place=8)

    assert found(source, [source[0], *source[2:], moved]) == [(Kind.REORDERED, 1, 8)]


@pytest.mark.parametrize(
    ("fields", "parts"),
    [
        ({"value": 5}, (Part.VALUE,)),
        ({"key": 5}, (Part.KEY,)),
        ({"timestamp_ms": 5}, (Part.TIMESTAMP,)),
        ({"headers": 5, "header_set": 5}, (Part.HEADERS,)),
        ({"headers": 5}, (Part.HEADER_ORDER,)),
        ({"value": 5, "timestamp_ms": 5}, (Part.TIMESTAMP, Part.VALUE)),
        ({"key": 5, "value": 5, "timestamp_ms": 5, "headers": 5}, (*tuple(Part)[:3], Part.HEADER_ORDER)),
    ],
)
@pytest.mark.parametrize("place", [0, 3, 6])
def test_a_changed_record_says_what_of_it(
    place: int, fields: dict[str, int], parts: tuple[Part, ...]
) -> None:
    source = log(*range(7))
    target = list(source)
    target[place] = target[place]._replace(**fields)

    assert differences(source, target) == [
        Difference(kind=Kind.CHANGED, source_offset=place, target_offset=place, parts=parts)
    ]


def test_a_changed_record_beside_a_missing_one_is_told_apart() -> None:
    target = [record(0), record(1, 2, value=5), record(2, 3)]

    assert found(log(0, 1, 2, 3), target) == [
        (Kind.MISSING, 1, None),
        (Kind.CHANGED, 2, 1),
        (Kind.SHIFTED, 2, 1),
    ]


def test_of_very_many_that_changed_beside_some_that_are_missing_places_decide() -> None:
    """
    To hold each against each other would take too long.
    """
    source = log(*range(600))
    target = [record(at, 10_000 + at) for at in range(600) if at % 6]

    told = differences(source, target)

    assert len(source) * len(target) > RELATED_MAX
    assert Counter(d.kind for d in told) == {Kind.CHANGED: 500, Kind.MISSING: 100}
    assert all(d.source_offset == d.target_offset for d in told if d.kind is Kind.CHANGED)


def test_a_whole_copy_that_stands_elsewhere_is_one_row() -> None:
    target = [one._replace(offset=one.offset + 5, place=one.place + 5) for one in log(*range(100))]

    assert differences(log(*range(100)), target) == [
        Difference(kind=Kind.SHIFTED, source_offset=0, target_offset=5, records=100, shift=5)
    ]


def test_gaps_of_the_source_are_no_difference_where_places_say_so() -> None:
    """
    With an offset map source offsets have gaps and target offsets have none.
    """
    target = log(*range(5))
    source = [one._replace(offset=one.offset * 2) for one in target]

    assert differences(source, target) == []
    assert found(source, target[:2] + [one._replace(place=one.place - 1) for one in target[3:]])[0] == (
        Kind.MISSING,
        4,
        None,
    )


def test_two_losses_make_two_rows() -> None:
    assert differences(log(*range(9)), log(0, 2, 3, 4, 6, 7, 8)) == [
        Difference(kind=Kind.MISSING, source_offset=1),
        Difference(kind=Kind.SHIFTED, source_offset=2, target_offset=1, records=3, shift=-1),
        Difference(kind=Kind.MISSING, source_offset=5),
        Difference(kind=Kind.SHIFTED, source_offset=6, target_offset=4, records=3, shift=-2),
    ]


@given(st.lists(st.integers(0, 5), max_size=40), st.lists(st.integers(0, 5), max_size=40))
def test_every_record_is_accounted_for(here: list[int], there: list[int]) -> None:
    """
    Source records less what is missing are as many as target records less what is extra or doubled.
    """
    kinds = [d.kind for d in differences(log(*here), log(*there))]

    of_source = len(here) - kinds.count(Kind.MISSING)
    of_target = len(there) - kinds.count(Kind.EXTRA) - kinds.count(Kind.DUPLICATED)
    assert of_source == of_target


@given(st.lists(st.integers(0, 3), max_size=30), st.lists(st.integers(0, 3), max_size=30))
def test_nothing_differs_only_where_nothing_differs(here: list[int], there: list[int]) -> None:
    assert (differences(log(*here), log(*there)) == []) == (here == there)


@given(st.integers(1, 60), st.data())
def test_a_planted_loss_or_addition_is_found_where_it_is(count: int, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, count - 1))
    contents = list(range(count))

    lost = differences(log(*contents), log(*contents[:at], *contents[at + 1 :]))
    added = differences(log(*contents), log(*contents[:at], 999, *contents[at:]))

    assert lost[0] == Difference(kind=Kind.MISSING, source_offset=at)
    assert Difference(kind=Kind.EXTRA, target_offset=at) in added
    assert [d.kind for d in lost[1:]] == [Kind.SHIFTED] * (at < count - 1)
    assert len(added) == 2


def test_thousands_of_equal_records_take_no_time() -> None:
    source = log(*[7] * 20_000)

    assert [d.kind for d in differences(source, source[:-3])] == [Kind.MISSING] * 3
