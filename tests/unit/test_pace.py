"""How fast a site is read."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mirror.model import TopicPartition
from spark_jobs.pace import FIRST_OFFSETS, SLICE_SECONDS, Pace, Slices, offsets_of
from spark_jobs.stretches import joined
from spark_jobs.window import Range

some_ranges = st.lists(st.tuples(st.integers(0, 200), st.integers(0, 30)), max_size=4).map(
    lambda some: joined(Range(start, start + length) for start, length in some)
)


@given(st.lists(some_ranges, max_size=4), st.integers(1, 50))
def test_slices_are_all_there_is_and_nothing_twice(ranges: list[list[Range]], offsets: int) -> None:
    whole = {TopicPartition("t", number): some for number, some in enumerate(ranges)}
    slices, taken = Slices(whole), []
    while slices:
        taken.append(slices.take(offsets))

    for tp, some in whole.items():
        of_partition = [one for turn in taken for one in turn.get(tp, ())]
        assert joined(of_partition) == some
        assert sum(one.offsets for one in of_partition) == sum(one.offsets for one in some)
    assert all(offsets_of(turn) <= max(offsets, len(whole)) for turn in taken)


def test_a_slice_is_what_may_be_read_in_a_few_seconds() -> None:
    pace = Pace(bytes_per_second=1_000_000)

    assert pace.next_offsets() == FIRST_OFFSETS
    pace.read(offsets=1000, size=100_000)
    assert pace.next_offsets() == SLICE_SECONDS * 10_000


def test_what_was_read_too_fast_is_waited_for() -> None:
    pace = Pace(bytes_per_second=100.0)
    pace.read(offsets=1, size=500)

    assert pace.pause_seconds(2.0) == 3.0
    assert pace.pause_seconds(9.0) == 0.0


def test_offsets_without_records_do_not_stop_it() -> None:
    pace = Pace(bytes_per_second=100.0)
    pace.read(offsets=5000, size=0)

    assert pace.next_offsets() == FIRST_OFFSETS
    assert pace.pause_seconds(0.0) == 0.0
