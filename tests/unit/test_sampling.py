"""Which parts of a log a run compares."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirror.errors import UsageError
from mirror.model import TopicPartition
from spark_jobs.history import Run
from spark_jobs.logs import Log
from spark_jobs.sampling import (
    BLOCKS,
    GROWTH_MAX,
    Sample,
    blocks,
    fitting,
    holds_some,
    next_sample,
    parse_fraction,
)
from spark_jobs.stretches import RANGE_PLACES, joined, without
from spark_jobs.window import Range, SameOffsets, window


def log(start: int, end: int, partition: int = 0) -> Log:
    same = window(Range(start, end), Range(start, end), SameOffsets())
    return Log(
        name=TopicPartition("t", partition),
        target_topic="t",
        window=same,
        topic_id="id",
        target_topic_id="id-there",
        is_compacted=False,
        begin_place=0,
        source_end_place=end,
    )


def run(sample: Sample) -> Run:
    """As it is found in the history."""
    return Run("r", {"flow": "a", "outcome": "match", "sample": asdict(sample)})


@given(st.integers(0, 10**7), st.integers(1, 10**7), st.integers(1, 64), st.integers(0, 9))
def test_after_all_turns_every_record_was_compared_once(
    start: int, length: int, one_in: int, partition: int
) -> None:
    """
    Whatever the log, and whichever its partition.
    """
    whole = log(start, start + length, partition)
    first = fitting(Sample(one_in, 0), [whole], may_skip=True)

    turns = [blocks(whole, replace(first, turn=turn)) for turn in range(one_in)]

    assert joined(one for turn in turns for one in turn) == [Range(start, start + length)]
    assert sum(one.offsets for turn in turns for one in turn) == length
    assert max(map(len, turns)) <= BLOCKS + 1


@given(
    st.integers(2, 12),
    st.lists(st.tuples(st.integers(0, 10**5), st.integers(1, 10**6)), min_size=48, max_size=48),
)
def test_a_round_compares_all_that_stays_while_the_log_grows_and_shrinks(
    one_in: int, changes: list[tuple[int, int]]
) -> None:
    """
    Lengths go up and down over every border between two sizes of blocks; retention takes what is old.
    """
    known: list[Run] = []
    start, before = 0, one_in
    seen: list[Range] = []
    stays = Range(0, 0)
    for lost, length in changes:
        start += lost
        whole = log(start, start + length)
        sample = fitting(next_sample(one_in, known, "a"), [whole], may_skip=True)
        known.append(run(sample))
        stays = stays.within(whole.target_read)
        if sample.turn <= before:
            was_cut_short = length > GROWTH_MAX * max(one.offsets for one in [*seen, Range(0, 1)]) * BLOCKS
            assert was_cut_short or not any(left.offsets for left in without([stays], joined(seen)))
            seen, stays = [], whole.target_read
        seen += blocks(whole, sample)
        before = sample.turn


def test_a_log_that_has_outgrown_its_blocks_by_far_begins_another_round() -> None:
    """
    Else a run would read thousands of small ones.
    """
    small, grown, huge = (log(0, 1024 * 4 * BLOCKS * times) for times in (1, GROWTH_MAX, GROWTH_MAX + 1))
    begun = fitting(Sample(4, 0), [small], may_skip=True)

    later = next_sample(4, [run(begun)], "a")

    assert fitting(later, [grown], may_skip=True) == Sample(4, 1, begun.block_places)
    assert fitting(later, [small, huge], may_skip=True) == Sample(4, 0, 1024 * 2 * GROWTH_MAX)


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


def test_small_topics_take_turns_too() -> None:
    logs = [replace(log(0, 10), name=TopicPartition(f"t{at}", 0)) for at in range(64)]

    compared = [sum(bool(blocks(one, Sample(64, turn))) for one in logs) for turn in range(64)]

    assert sum(compared) == 64
    assert max(compared) < 16


@pytest.mark.parametrize("records", [1, 300, 3_000])
def test_of_short_logs_every_turn_compares_something(records: int) -> None:
    """
    A round is over when there is no more; the next one begins.
    """
    logs = [replace(log(0, records), name=TopicPartition(f"t{at}", 0)) for at in range(3)]
    known: list[Run] = []
    for _ in range(12):
        known.append(run(fitting(next_sample(64, known, "a"), logs, may_skip=True)))

    turns = [Sample(**one.summary["sample"]) for one in known]

    assert all(any(holds_some(one, sample) for one in logs) for sample in turns)
    of_one_round = 3 * -(-records // RANGE_PLACES)
    compared = [
        (one.name, *block) for sample in turns[:of_one_round] for one in logs for block in blocks(one, sample)
    ]
    assert len({*compared}) == of_one_round


def test_where_not_all_of_the_flow_is_looked_at_no_turn_is_left_out() -> None:
    """
    What is nobody's in this run may be somebody's in the next one.
    """
    little = [log(0, 3_000)]
    begun = Sample(64, 5, RANGE_PLACES)

    assert fitting(begun, little, may_skip=False) == begun
    assert fitting(begun, little, may_skip=True) != begun


def test_of_logs_that_hold_nothing_the_first_turn_is_taken() -> None:
    assert fitting(Sample(8, 3, RANGE_PLACES), [log(5, 5)], may_skip=True) == Sample(8, 0, RANGE_PLACES)


def test_a_run_goes_on_where_the_last_one_of_its_kind_ended() -> None:
    known = [
        run(Sample(4, 2, 2048)),
        run(Sample(64, 7)),
        Run("3", {"flow": "b", "outcome": "match", "sample": asdict(Sample(4, 0))}),
        Run("4", {"flow": "a", "outcome": "match", "sample": None}),
        Run("5", {"flow": "a", "outcome": "failed", "sample": asdict(Sample(4, 3))}),
    ]

    assert next_sample(4, known, "a") == Sample(4, 3, 2048)
    assert next_sample(4, [*known, run(Sample(4, 3))], "a").turn == 0
    assert next_sample(8, known, "a") == Sample(8, 0)


def test_a_fraction_is_one_part_of_many() -> None:
    assert parse_fraction("1/64") == 64


@pytest.mark.parametrize("text", ["2/64", "0.1", "1/0", "64", ""])
def test_what_is_no_fraction_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="1/64"):
        parse_fraction(text)
