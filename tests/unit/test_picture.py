"""Where along a log its picture shows what was compared and what differs."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from mirror.model import TopicPartition
from spark_jobs.findings import Difference, Kind
from spark_jobs.logs import Compared, Finding, Log
from spark_jobs.picture import BIN_WIDTH, HEIGHT, WIDTH, Rect, rects
from spark_jobs.window import Range, Window


def compared(*differences: Difference, **window: Range) -> Compared:
    """A partition of a thousand offsets, but for what is said otherwise."""
    nothing = Range(0, 0)
    ranges = {
        "source": Range(0, 1000),
        "target": window.get("source", Range(0, 1000)),
        "lost": nothing,
        "expired_at_source": nothing,
        "expired_at_target": nothing,
        "leaving": nothing,
        "never_copied": nothing,
        "pending": nothing,
        "beyond": nothing,
    }
    log = Log(
        name=TopicPartition("orders", 0),
        target_topic="orders",
        topic_id="id",
        target_topic_id="id-there",
        is_compacted=False,
        window=Window(**(ranges | window)),
        begin_place=0,
        source_end_place=0,
    )
    return Compared(log=log, findings=[Finding(difference=one, key=None) for one in differences])


def missing(offset: int) -> Difference:
    return Difference(kind=Kind.MISSING, source_offset=offset)


def extra(offset: int) -> Difference:
    return Difference(kind=Kind.EXTRA, target_offset=offset)


def drawn(one: Compared, *colors: str) -> list[Rect]:
    return [rect for rect in rects(one) if rect.color in colors]


def places(one: Compared, color: str) -> list[tuple[float, float]]:
    """From where to where along the picture, as shares of it."""
    return [(rect.x / WIDTH, (rect.x + rect.width) / WIDTH) for rect in drawn(one, color)]


def test_a_difference_is_marked_where_it_lies() -> None:
    """
    The first record at the left edge, the last one at the right edge, and not beyond it.
    """
    one = compared(missing(0), missing(500), missing(999))

    assert places(one, "missing") == [(0, 0.004), (0.5, 0.504), (0.996, 1)]


def test_many_of_a_kind_are_one_mark_and_a_rare_kind_is_seen_among_them() -> None:
    found = [*(missing(offset) for offset in range(500, 504)), extra(501)]

    marks = drawn(compared(*found), "missing", "extra")

    assert [(mark.color, mark.x, mark.height) for mark in marks] == [("missing", 500, 10), ("extra", 500, 10)]
    assert {mark.y for mark in marks} == {0, 10}
    assert marks[0].words == "4 missing, about source offsets 500 to 504"


def test_what_was_not_compared_has_its_place_in_the_log() -> None:
    one = compared(
        source=Range(400, 700),
        expired_at_target=Range(200, 400),
        pending=Range(700, 1200),
        beyond=Range(1200, 1200),
    )

    assert places(one, "log") == [(0.2, 0.5)]
    assert places(one, "pending") == [(0.5, 1)]
    assert (0, 0.2) in places(one, "gone")


def test_what_stands_behind_the_sources_end_is_drawn_behind_it() -> None:
    one = compared(extra(1000), extra(1249), beyond=Range(1000, 1250))

    assert places(one, "beyond") == [(0.8, 1)]
    assert places(one, "extra") == [(0.8, 0.804), (0.996, 1)]


def test_what_only_a_mapped_target_has_is_drawn_about_where_it_would_be() -> None:
    """
    Ten thousand offsets of the source are two thousand of the target, which begins elsewhere.
    """
    one = compared(extra(6000), source=Range(0, 10_000), target=Range(5000, 7000))

    assert places(one, "extra") == [(0.5, 0.504)]


def test_shifted_rows_are_underlined_and_those_that_touch_are_one_line() -> None:
    rows = [
        Difference(kind=Kind.SHIFTED, source_offset=100, target_offset=101, records=100, shift=1),
        Difference(kind=Kind.SHIFTED, source_offset=201, target_offset=203, records=99, shift=2),
        Difference(kind=Kind.SHIFTED, source_offset=900, target_offset=890, records=100, shift=-10),
    ]

    first, second = drawn(compared(*rows), "offset_shifted")

    assert (first.x, first.x + first.width) == (100, 300)
    assert first.words == "199 records are displaced by +1 to +2"
    assert (second.x, second.x + second.width) == (900, 1000)


def test_of_a_sample_only_what_was_compared_is_drawn_as_compared() -> None:
    found = [rect for rect in rects(compared(), [Range(0, 100), Range(500, 600)]) if rect.color == "log"]

    assert [(rect.x, rect.x + rect.width) for rect in found] == [(0, 100), (500, 600)]


def test_what_differs_and_was_not_looked_at_is_marked() -> None:
    one = replace(compared(source=Range(0, 2000)), unread=[Range(500, 1000)])

    assert places(one, "unnamed") == [(0.25, 0.5)]
    assert one.unnamed == 500
    assert not one.is_match


OFFSETS = st.integers(0, 1 << 40)
RANGES = st.tuples(OFFSETS, st.integers(0, 1 << 33)).map(lambda pair: Range(pair[0], sum(pair)))
DIFFERENCES = st.builds(
    Difference,
    kind=st.sampled_from(Kind),
    source_offset=st.none() | OFFSETS,
    target_offset=st.none() | OFFSETS,
    records=st.integers(1, 1 << 33),
    shift=st.integers(-5, 5),
)


@given(st.lists(DIFFERENCES, max_size=30), st.lists(RANGES, min_size=7, max_size=7))
def test_nothing_is_drawn_outside_the_picture(differences: list[Difference], ranges: list[Range]) -> None:
    """
    Whatever is found, and whatever the window looks like.
    """
    names = ("source", "target", "expired_at_source", "expired_at_target", "leaving", "pending", "beyond")

    found = rects(compared(*differences, **dict(zip(names, ranges, strict=True))))

    assert all(rect.x >= 0 and rect.x + rect.width <= WIDTH for rect in found)
    assert all(rect.y >= 0 and rect.y + rect.height <= HEIGHT for rect in found)
    marks = [rect for rect in found if rect.color in {*Kind}]
    assert {rect.color for rect in marks} == {one.kind.value for one in differences}
    assert all(rect.width >= BIN_WIDTH and rect.height > 0 for rect in marks)
