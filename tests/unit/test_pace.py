"""How fast a site is read."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirror.model import TopicPartition
from spark_jobs.pace import (
    FETCH_BYTES_MIN,
    FETCHES_MIN,
    FIRST_OFFSETS,
    GROWTH,
    SHARE_BYTES_MIN,
    SLICE_SECONDS,
    Pace,
    Slices,
    fetch_bytes,
    rounds,
    slices,
)
from spark_jobs.questions import ended, endless, offsets_of
from spark_jobs.stretches import joined
from spark_jobs.window import ALL, Range

some_ranges = st.lists(st.tuples(st.integers(0, 200), st.integers(0, 30)), max_size=4).map(
    lambda some: joined(Range(start, start + length) for start, length in some)
)


@given(st.lists(some_ranges, max_size=4), st.integers(1, 50))
def test_slices_are_all_there_is_and_nothing_twice(ranges: list[list[Range]], offsets: int) -> None:
    whole = {TopicPartition("t", number): some for number, some in enumerate(ranges)}
    left, taken = Slices(whole), []
    while left:
        taken.append(left.take(offsets))

    for tp, some in whole.items():
        of_partition = [one for turn in taken for one in turn.get(tp, ())]
        assert joined(of_partition) == some
        assert sum(one.offsets for one in of_partition) == sum(one.offsets for one in some)
    assert all(offsets_of(turn) <= max(offsets, len(whole)) for turn in taken)


def test_partitions_of_which_nothing_is_asked_for_are_not_read() -> None:
    """
    One that has something is, though a part of it is nothing.
    """
    empty, some = TopicPartition("t", 0), TopicPartition("t", 1)
    left = Slices({empty: [Range(3, 3)], some: [Range(0, 0), Range(5, 8)]})

    assert len(left) == 1
    assert {tp: joined(ranges) for tp, ranges in left.take(10).items()} == {some: [Range(5, 8)]}
    assert not left


def test_a_range_without_an_end_gets_one_before_it_is_sliced() -> None:
    """
    Those with an end keep theirs.
    """
    here, there = TopicPartition("t", 0), TopicPartition("t", 1)
    ranges = {here: [Range(5, 8), Range(8, ALL.end)], there: [Range(0, 4)]}

    bounded = ended(ranges, lambda _, start: start + 2)

    assert endless(ranges) == [here]
    assert bounded == {here: [Range(5, 8), Range(8, 10)], there: [Range(0, 4)]}


def test_a_slice_is_what_may_be_read_in_a_few_seconds() -> None:
    pace = Pace(bytes_per_second=100_000)

    pace.read(offsets=1000, size=100_000)

    assert pace.next_offsets() == SLICE_SECONDS * 1000


@pytest.mark.parametrize("record_bytes", [10, 1_000, 1_000_000])
def test_the_first_slices_are_small_whatever_records_weigh(record_bytes: int) -> None:
    """
    Nobody knows their size before some were read; what they are then is held to the rate.
    """
    pace = Pace(bytes_per_second=50_000_000)
    slices = []
    for _ in range(8):
        slices.append(pace.next_offsets())
        pace.read(offsets=slices[-1], size=slices[-1] * record_bytes)

    assert slices[0] == FIRST_OFFSETS
    assert all(later <= GROWTH * first for first, later in pairwise(slices))
    assert slices[-1] * record_bytes <= 50_000_000 * SLICE_SECONDS


def test_records_that_grow_larger_make_slices_smaller_at_once() -> None:
    pace = Pace(bytes_per_second=1_000_000)
    pace.read(offsets=100_000, size=1_000_000)

    pace.read(offsets=1_000, size=10_000_000)

    assert pace.next_offsets() == SLICE_SECONDS * 100


def test_a_slice_of_many_partitions_takes_enough_of_each() -> None:
    """
    A broker sends whole batches, however little of them is wanted; what that makes too much is waited for.
    """
    pace = Pace(bytes_per_second=1_000_000)
    pace.read(offsets=10_000, size=1_000_000)

    offsets = pace.next_offsets(partitions=100)

    assert offsets * 100 == pytest.approx(100 * SHARE_BYTES_MIN, rel=0.01)
    pace.read(offsets, offsets * 100)
    assert pace.pause_seconds(1.0) == pytest.approx((1_000_000 + offsets * 100) / 1_000_000 - 1.0)


@given(st.integers(0, 1 << 40), st.integers(0, 10_000), st.sampled_from([128 << 10, 16 << 20]))
def test_what_is_fetched_for_nothing_is_a_small_part_of_a_range(size: int, ranges: int, most: int) -> None:
    """
    It is one fetch at the end of a range and one ahead, at most; where ranges are small, two batches.
    """
    fetched = fetch_bytes(size, ranges, most)

    assert FETCH_BYTES_MIN <= fetched <= most
    assert fetched == FETCH_BYTES_MIN or fetched * FETCHES_MIN * max(1, ranges) <= size
    assert fetched == most or fetched * 2 * FETCHES_MIN * max(1, ranges) > size - 2 * FETCHES_MIN * max(
        1, ranges
    )


def test_fetches_stay_as_they_are_while_slices_are_of_about_one_size() -> None:
    """
    Consumers that are kept for the next slice have the settings they were made with.
    """
    assert {fetch_bytes(size, 10, 16 << 20) for size in range(6_000_000, 9_000_000, 1000)} == {1 << 17}


def test_what_was_read_too_fast_is_waited_for() -> None:
    pace = Pace(bytes_per_second=100.0)
    pace.read(offsets=1, size=500)

    assert pace.pause_seconds(2.0) == 3.0
    assert pace.pause_seconds(9.0) == 0.0


def test_offsets_without_records_do_not_stop_it() -> None:
    pace = Pace(bytes_per_second=100.0)
    pace.read(offsets=5000, size=0)

    assert pace.next_offsets() == GROWTH * 5000
    assert pace.pause_seconds(0.0) == 0.0


FIVE_SLICES = [(start, start + 200) for start in range(0, 1_000, 200)]
WHILE_READ = [(1_000, 1_200), (1_200, 1_400), (1_400, 1_450)]
TOLD = [1_000] * 5 + [1_450] * 3


@pytest.mark.parametrize(
    ("ends", "read", "totals"),
    [
        ([1_000, 1_450, 1_600], [*FIVE_SLICES, *WHILE_READ, (1_450, 1_600)], [*TOLD, 1_600]),
        ([1_000, 1_450, 1_700], [*FIVE_SLICES, *WHILE_READ, (1_450, 1_700)], [*TOLD, 1_700]),
        ([1_000, 1_450, 1_450], [*FIVE_SLICES, *WHILE_READ], TOLD),
        ([1_000, 1_501], [*FIVE_SLICES, (1_000, 1_501)], [*TOLD[:5], 1_501]),
        ([1_000, 1_000], FIVE_SLICES, TOLD[:5]),
        ([150], [(0, 150)], [150]),
        ([0], [(0, 0)], [0]),
    ],
    ids=[
        "until that is a slice",
        "until more is written than can be read",
        "until nothing is written",
        "more is written than can be read",
        "nothing is written",
        "little is there",
        "nothing is there",
    ],
)
def test_what_is_written_while_a_log_is_read_is_read_too_as_long_as_it_becomes_less(
    ends: list[int], read: list[tuple[int, int]], totals: list[int]
) -> None:
    """
    In slices as well, except for the last of it: the end is asked for right before that.
    """
    log, asked, pace = TopicPartition("t", 0), iter(ends), Pace(1.0)
    found: list[tuple[int, int]] = []
    told: list[int] = []

    wanted = rounds(
        {log: [Range(0, ALL.end)]}, lambda some: ended(some, lambda *_: next(asked)), lambda _: 200
    )
    for ranges, total in slices(wanted, pace):
        found += [(one.start, one.end) for one in ranges[log]]
        told.append(total)
        pace.read(offsets_of(ranges), 0)
        pace.most = 200

    assert (found, told) == (read, totals)
    assert list(asked) == []


def test_after_the_rest_of_a_round_the_next_one_is_as_large_as_the_rate_allows() -> None:
    """
    However little the rest was: what was written meanwhile is no more than a slice, so it is read at once.
    """
    log, asked, pace = TopicPartition("t", 0), iter([50_201, 60_000, 70_000]), Pace(1_000_000)
    read: list[int] = []

    wanted = rounds(
        {log: [Range(0, ALL.end)]}, lambda some: ended(some, lambda *_: next(asked)), pace.next_offsets
    )
    for ranges, _ in slices(wanted, pace):
        read.append(offsets_of(ranges))
        pace.read(read[-1], read[-1] * 100)

    assert read == [200, 10_000, 40_000, 1, 9_799]


def test_of_ranges_with_an_end_there_is_one_round() -> None:
    """
    What is written behind them is not asked for.
    """
    some = {TopicPartition("t", 0): [Range(5, 900)], TopicPartition("t", 1): [Range(0, 0)]}

    assert list(rounds(some, lambda ranges: ended(ranges, lambda *_: 1_000), lambda _: 200)) == [
        (some, False)
    ]
