"""Which parts of a log a run compares."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirror.errors import UsageError
from mirror.model import TopicPartition
from spark_jobs.history import Run
from spark_jobs.logs import Log
from spark_jobs.sampling import BLOCKS, Sample, blocks, next_sample, parse_fraction
from spark_jobs.stretches import joined
from spark_jobs.window import Range, SameOffsets, window


def log(start: int, end: int, partition: int = 0) -> Log:
    same = window(Range(start, end), Range(start, end), SameOffsets())
    return Log(
        name=TopicPartition("t", partition),
        target_topic="t",
        window=same,
        topic_id="id",
        is_compacted=False,
        begin_place=0,
        source_end_place=end,
    )


@given(st.integers(0, 10**7), st.integers(1, 10**7), st.integers(1, 64), st.integers(0, 9))
def test_after_all_turns_every_record_was_compared_once(
    start: int, length: int, one_in: int, partition: int
) -> None:
    """
    Whatever the log, and whichever its partition.
    """
    whole = log(start, start + length, partition)

    turns = [blocks(whole, Sample(one_in, turn)) for turn in range(one_in)]

    assert joined(one for turn in turns for one in turn) == [Range(start, start + length)]
    assert sum(one.offsets for turn in turns for one in turn) == length
    assert max(map(len, turns)) <= BLOCKS + 1


def test_small_logs_take_turns() -> None:
    """
    With one block each they would else all be compared in the first run, and none in the others.
    """
    compared = [
        [partition for partition in range(4) if blocks(log(0, 10, partition), Sample(4, turn))]
        for turn in range(4)
    ]

    assert sorted(partition for turn in compared for partition in turn) == [0, 1, 2, 3]
    assert all(len(turn) == 1 for turn in compared)


def test_a_run_goes_on_where_the_last_one_of_its_kind_ended() -> None:
    known = [
        Run("1", {"flow": "a", "sample": {"one_in": 4, "turn": 2}}),
        Run("2", {"flow": "a", "sample": {"one_in": 64, "turn": 7}}),
        Run("3", {"flow": "b", "sample": {"one_in": 4, "turn": 0}}),
        Run("4", {"flow": "a"}),
    ]

    assert next_sample(4, known, "a") == Sample(4, 3)
    assert (
        next_sample(4, [*known, Run("5", {"flow": "a", "sample": {"one_in": 4, "turn": 3}})], "a").turn == 0
    )
    assert next_sample(8, known, "a") == Sample(8, 0)


def test_a_fraction_is_one_part_of_many() -> None:
    assert parse_fraction("1/64") == 64


@pytest.mark.parametrize("text", ["2/64", "0.1", "1/0", "64", ""])
def test_what_is_no_fraction_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="1/64"):
        parse_fraction(text)
