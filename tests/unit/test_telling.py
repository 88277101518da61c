"""What is told of a log whose stretches were looked at one by one."""

from __future__ import annotations

from spark_jobs.findings import Difference, Kind
from spark_jobs.telling import Edges, Item, Row, comparable, settled, told, with_doubled
from spark_jobs.window import Range

MISSING = Difference(kind=Kind.MISSING, source_offset=10)
EXTRA = Difference(kind=Kind.EXTRA, target_offset=90)
EDGES = Edges(source=Range(0, 100), target=Range(0, 100), begin=0, source_end=100)


def row(at: int, records: int, shift: int) -> Row:
    return Row(at, at + shift, records, shift)


def test_rows_of_the_same_shift_are_one_wherever_they_were_cut() -> None:
    found = told(
        [row(0, 5, 0), MISSING, row(11, 5, -1), row(16, 1000, -1), row(1016, 4, -1), row(1020, 9, 0)]
    )

    assert found == [
        MISSING,
        Difference(kind=Kind.SHIFTED, source_offset=11, target_offset=10, records=1009, shift=-1),
    ]


def test_rows_with_records_in_place_between_them_are_two() -> None:
    found = told([row(0, 2, 1), row(2, 1, 0), row(3, 2, 1)])

    assert [one.records for one in found] == [2, 2]


def test_a_record_that_is_missing_here_and_extra_there_has_moved_and_moves_no_others() -> None:
    items: list[Item] = [row(0, 10, 0), MISSING, row(11, 80, -1), EXTRA, row(91, 9, 0)]

    found = told(settled(items, {10: "same"}, {90: "same"}))

    assert found == [Difference(kind=Kind.REORDERED, source_offset=10, target_offset=90)]


def test_a_record_that_came_from_further_on_has_moved_too() -> None:
    extra, missing = (
        Difference(kind=Kind.EXTRA, target_offset=5),
        Difference(kind=Kind.MISSING, source_offset=50),
    )
    items: list[Item] = [row(0, 5, 0), extra, row(5, 45, 1), missing, row(51, 9, 0)]

    found = told(settled(items, {50: "same"}, {5: "same"}))

    assert found == [Difference(kind=Kind.REORDERED, source_offset=50, target_offset=5)]


def test_an_extra_record_that_the_source_holds_elsewhere_is_doubled() -> None:
    found = told(with_doubled([MISSING, EXTRA], {90: "seen"}, {"seen": 17}))

    assert [one.kind for one in found] == [Kind.MISSING, Kind.DUPLICATED]
    assert found[1].named_source_offset == 17


def test_others_stay_missing_and_extra() -> None:
    items = [MISSING, EXTRA]

    assert settled(items, {10: "one"}, {90: "other"}) == items


def test_at_the_end_a_record_may_belong_to_what_the_other_side_has_not_copied_yet() -> None:
    """
    With everything one ahead, the source's last record has its place behind the target's end.
    """
    last = Difference(kind=Kind.MISSING, source_offset=100)
    items: list[Item] = [row(11, 89, -1), last]

    assert comparable(items, {100: 100}, EDGES) == items
    assert comparable([row(11, 89, 0), last], {100: 100}, EDGES) == [row(11, 89, 0)]


def test_at_the_start_a_record_may_belong_to_what_the_other_side_has_deleted() -> None:
    first = Difference(kind=Kind.MISSING, source_offset=50)
    edges = Edges(source=Range(50, 100), target=Range(50, 100), begin=0, source_end=100)

    assert comparable([first, row(51, 9, -1)], {50: 50}, edges) == [row(51, 9, -1)]
    assert comparable([first, row(51, 9, 1)], {50: 50}, edges) == [first, row(51, 9, 1)]


def test_between_records_that_both_sides_have_nothing_has_its_counterpart_beyond_them() -> None:
    """
    However far they are shifted: what is missing or too many there is so.
    """
    missing, extra = (
        Difference(kind=Kind.MISSING, source_offset=50),
        Difference(kind=Kind.EXTRA, target_offset=5),
    )
    late: list[Item] = [row(0, 50, 60), missing, row(51, 9, 59)]
    early: list[Item] = [row(60, 5, -60), extra, row(65, 9, -59)]
    edges = Edges(source=Range(0, 50), target=Range(0, 100), begin=0, source_end=200)

    assert comparable(late, {50: 50}, edges) == late
    assert comparable(early, {}, edges) == early


def test_where_nothing_is_the_same_what_stands_within_both_is_told() -> None:
    """
    Of the places that were read up to the last one.
    """
    items: list[Item] = [
        Difference(kind=Kind.EXTRA, target_offset=60),
        Difference(kind=Kind.MISSING, source_offset=99),
    ]
    edges = Edges(source=Range(50, 100), target=Range(50, 100), begin=0, source_end=500)

    assert comparable(items, {99: 99}, edges) == items


def test_before_the_first_record_there_was_nothing_to_delete() -> None:
    """
    Neither a first record that is missing nor a first one too many has a counterpart before it.
    """
    missing: list[Item] = [Difference(kind=Kind.MISSING, source_offset=0), row(1, 9, -1)]
    extra: list[Item] = [Difference(kind=Kind.EXTRA, target_offset=0), row(0, 9, 1)]

    assert comparable(missing, {0: 0}, EDGES) == missing
    assert comparable(extra, {}, EDGES) == extra


def test_what_only_the_target_has_belongs_to_nothing_where_the_source_has_ended() -> None:
    beyond = Difference(kind=Kind.EXTRA, target_offset=99)

    assert comparable([row(0, 9, -1), beyond], {}, EDGES) == [row(0, 9, -1), beyond]
    later = Edges(source=EDGES.source, target=EDGES.target, begin=EDGES.begin, source_end=500)
    assert comparable([row(0, 9, -1), beyond], {}, later) == [row(0, 9, -1)]
