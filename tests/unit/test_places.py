"""Where records have to stand, told by the runs of an offset map."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoint.offset_map import OffsetMap
from mirror.model import TopicPartition
from spark_jobs.logs import Log
from spark_jobs.places import SAME, Line, clipped, lines_of_runs
from spark_jobs.window import Range, Window

RUNS = [(0, 0), (5, 3), (9, 5)]


def place(lines: list[Line], offset: int) -> int:
    (line,) = [line for line in lines if line.start <= offset < line.end]
    return line.place(offset)


def test_records_follow_their_run_and_gaps_stand_before_the_next() -> None:
    lines = lines_of_runs(RUNS, Range(0, 12))

    assert [place(lines, offset) for offset in range(12)] == [0, 1, 2, 3, 3, 3, 4, 5, 5, 5, 6, 7]


def test_only_what_is_asked_for_has_lines() -> None:
    lines = lines_of_runs(RUNS, Range(6, 10))

    assert (lines[0].start, lines[-1].end) == (6, 10)


def test_before_the_first_run_there_is_a_gap() -> None:
    assert lines_of_runs([(7, 0)], Range(5, 9)) == [Line(5, 7, 0, 0), Line(7, 9, 1, -7)]


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6)), min_size=1, max_size=8))
def test_places_are_what_the_map_says(steps: list[tuple[int, int]]) -> None:
    """
    For every record: lengths of runs and gaps, in turns.
    """
    runs, source, target = [], 0, 0
    for gap, length in steps:
        source += gap
        runs.append((source, target))
        source, target = source + length, target + length
    known = OffsetMap(runs)
    lines = lines_of_runs(runs, Range(0, source))

    for offset in range(runs[0][0], source):
        assert place(lines, offset) == known.committed_to_target(offset, target)


def mapped(lines: list[Line] | None) -> Log:
    nothing = Range(0, 0)
    window = Window(Range(0, 12), Range(0, 8), *[nothing] * 7)
    return Log(
        name=TopicPartition("t", 0),
        target_topic="t",
        window=window,
        topic_id="id",
        target_topic_id="id-there",
        is_compacted=False,
        begin_place=0,
        source_end_place=8,
        lines=lines,
    )


@pytest.mark.parametrize(("end", "in_gap"), [(3, False), (5, True), (6, False), (9, True), (12, False)])
def test_a_log_ends_in_a_gap_where_its_map_has_no_records_at_its_end(end: int, in_gap: bool) -> None:
    """
    A gap before its last records is none.
    """
    assert mapped(lines_of_runs(RUNS, Range(0, end))).ends_in_gap is in_gap
    assert not mapped(None).ends_in_gap


@given(st.integers(0, 8), st.integers(0, 8))
def test_the_source_offsets_of_places_are_those_that_have_to_stand_there(start: int, length: int) -> None:
    lines = lines_of_runs(RUNS, Range(0, 12))
    log = mapped(lines)

    offsets = log.source_offsets(Range(start, start + length))

    wanted = [at for at in range(12) if start <= place(lines, at) < start + length]
    assert list(range(*offsets)) == wanted


def test_lines_are_cut_to_what_is_read() -> None:
    assert clipped(SAME, [Range(3, 5), Range(9, 10)]) == [Line(3, 5, 1, 0), Line(9, 10, 1, 0)]


cuts = st.lists(st.integers(0, 60), max_size=16, unique=True).map(sorted)


@given(cuts, cuts)
def test_what_is_left_of_lines_is_what_both_hold(lines: list[int], ranges: list[int]) -> None:
    """
    Offset by offset; lines and ranges may touch, and may be empty.
    """
    some = [Line(start, end, 1, start) for start, end in pairwise(lines)]
    wanted = [Range(start, start + (end - start) // 2) for start, end in pairwise(ranges)]

    found = clipped(some, wanted)

    both = [(at, line.base) for line in some for at in range(line.start, line.end) if _held(wanted, at)]
    assert [(at, line.base) for line in found for at in range(line.start, line.end)] == both


def _held(ranges: list[Range], offset: int) -> bool:
    return any(one.holds(offset) for one in ranges)


def test_many_lines_and_ranges_are_gone_through_once() -> None:
    """
    One after the other, each would be held against each of the others.
    """
    lines = [Line(at, at + 10, 1, 0) for at in range(0, 1_000_000, 10)]
    looked_at = []

    def ranges() -> Iterator[Range]:
        for at in range(0, 1_000_000, 100):
            looked_at.append(at)
            yield Range(at, at + 1)

    assert len(clipped(lines, ranges())) == len(looked_at) == 10_000
