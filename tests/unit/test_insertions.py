"""Offsets that are no copies, and a map in a log that has such."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoint.errors import CorruptStateError, UntranslatableError
from checkpoint.flow_state import FlowState
from checkpoint.insertions import Insertions, LogMap, united
from checkpoint.model import Insertion, PartitionRecord, insertion_key, parse_insertion_key
from checkpoint.offset_map import OffsetMap
from mirror.flow.memory import FlowMemory
from mirror.model import OffsetMode, TopicPartition
from spark_jobs.places import lines_of_runs, lines_past
from spark_jobs.window import Range
from tests.harness.memory_store import MemoryStore

ORDERS_0 = TopicPartition("orders", 0)
BEFORE, INSERTED, COPY = "before", "inserted", "copy"

logs = st.lists(
    st.tuples(st.sampled_from([INSERTED, COPY, COPY]), st.integers(0, 2)), min_size=1, max_size=30
)
"""What stands at each target offset; of a copy, how many source offsets before it hold no record."""


def written(log: list[tuple[str, int]]) -> tuple[LogMap, Insertions, dict[int, int]]:
    """The map of a log that grew like this, and by brute force where each source record stands."""
    source, dense, stands = 0, 0, {}
    offsets, inserted = OffsetMap([(0, 0)], begins_at=0), []
    for at, (what, gap) in enumerate(log):
        if what == INSERTED:
            inserted.append((at, at + 1))
            continue
        source += gap if dense else 0
        if gap and dense:
            offsets.add(source, dense)
        stands[source] = at
        source, dense = source + 1, dense + 1
    insertions = Insertions(united(inserted))
    return LogMap(offsets, insertions), insertions, stands


@given(logs)
def test_every_record_is_translated_to_where_it_stands_and_back(log: list[tuple[str, int]]) -> None:
    offsets, insertions, stands = written(log)

    for source, at in stands.items():
        assert offsets.target_of(source, len(log)) == at
        assert offsets.source_of(at, len(log)) == source
    for at, (what, _) in enumerate(log):
        assert insertions.holds(at) == (what == INSERTED)
        if what == INSERTED:
            with pytest.raises(UntranslatableError, match="inserted"):
                offsets.source_of(at, len(log))
    with pytest.raises(UntranslatableError, match=f"target offset {len(log)} is not written yet"):
        offsets.source_of(len(log), len(log))


@given(logs)
def test_the_copy_goes_on_behind_its_last_record_whatever_was_inserted(log: list[tuple[str, int]]) -> None:
    for end in range(len(log) + 1):
        offsets, _, stands = written(log[:end])
        assert offsets.position(end) == max(stands, default=-1) + 1


@given(logs)
def test_a_group_goes_on_with_the_next_record_past_what_was_inserted(log: list[tuple[str, int]]) -> None:
    offsets, _, stands = written(log)
    end, read_to = len(log), max(stands, default=-1) + 1

    for committed in range(read_to + 1):
        unread = [at for source, at in stands.items() if source >= committed]
        assert offsets.committed_to_target(committed, end) == min(unread, default=end)
    for committed in range(end + 1):
        unread = [source for source, at in stands.items() if at >= committed]
        assert offsets.committed_to_source(committed, end) == min(unread, default=read_to)


@given(logs)
def test_lines_lead_every_source_offset_to_its_place(log: list[tuple[str, int]]) -> None:
    offsets, insertions, stands = written(log)
    end = max(stands, default=-1) + 1

    lines = lines_past(lines_of_runs(offsets, Range(0, end)), insertions.dense_starts, insertions.in_log)

    places = {source: line.place(source) for line in lines for source in range(line.start, line.end)}
    assert {source: places[source] for source in stands} == stands
    assert all(earlier.end <= later.start for earlier, later in pairwise(lines))


def test_what_is_inserted_behind_an_offset_begins_there() -> None:
    insertions = Insertions([(1, 3), (5, 9)])

    assert insertions.behind(0) == [(1, 3), (5, 9)]
    assert insertions.behind(2) == [(2, 3), (5, 9)]
    assert insertions.behind(3) == [(5, 9)]
    assert insertions.behind(9) == Insertions().behind(0) == []


@given(logs)
def test_a_log_ends_for_the_copy_in_front_of_what_was_inserted_at_its_end(
    log: list[tuple[str, int]],
) -> None:
    """
    There the last record copied is looked for, to be held against the source's.
    """
    for end in range(len(log) + 1):
        _, insertions, _ = written(log[:end])
        rest = list(log[:end])
        while rest and rest[-1][0] == INSERTED:
            rest.pop()

        assert insertions.copied_end(end) == len(rest)


def test_the_last_of_what_was_inserted_ends_behind_all_others() -> None:
    """
    A log that ends before that has lost it.
    """
    assert Insertions([(1, 3), (5, 9)]).end == 9
    assert Insertions().end == 0


def test_a_log_that_ends_amid_what_was_inserted_ends_for_the_copy_in_front_of_that() -> None:
    """
    As far as one log is asked of what is known of a longer one.
    """
    insertions = Insertions([(1, 3), (5, 9)])

    assert [insertions.copied_end(end) for end in range(11)] == [0, 1, 1, 1, 4, 5, 5, 5, 5, 5, 10]


def test_ranges_that_touch_become_one() -> None:
    assert united([(5, 7), (1, 2), (2, 3), (6, 9), (4, 4)]) == ((1, 3), (5, 9))


def record() -> PartitionRecord:
    return PartitionRecord(
        topic="orders",
        partition=0,
        topic_id="8c9ad3c1-0000-0000-0000-000000000001",
        target_topic="orders",
        mode=OffsetMode.MAPPED,
        prepared=True,
        start_offset=0,
        target_start_offset=0,
    )


async def test_what_is_inserted_is_remembered_before_and_after_it_stands() -> None:
    """
    Whoever loads the state in between finds what was about to be appended, bytes and all.
    """
    items: dict[str, bytes] = {}
    state = FlowState(MemoryStore(items))
    await state.begin(record(), [(0, 0)])
    memory = FlowMemory(state)
    insertion = Insertion(10, 3, 1, b"\n\x00 a batch \n")

    await memory.begin_insertion(ORDERS_0, insertion)
    after_a_crash = FlowState(MemoryStore(dict(items)))
    await after_a_crash.load()
    await memory.end_insertion(ORDERS_0, insertion, [(10, 13)])

    assert after_a_crash.insertion(ORDERS_0) == insertion
    reloaded = FlowState(MemoryStore(items))
    await reloaded.load()
    known = FlowMemory(reloaded).known(ORDERS_0)
    assert known is not None
    assert (known.insertion, known.producer_epoch) == (None, 1)
    assert [known.to_source(end) for end in (10, 11, 13, 14)] == [10, 10, 10, 11]
    assert [known.insertions.holds(offset) for offset in (9, 10, 12, 13)] == [False, True, True, False]


async def test_a_partition_that_begins_anew_has_nothing_that_is_about_to_be_appended() -> None:
    """
    It was meant for another log; whoever found it would append it to this one.
    """
    items: dict[str, bytes] = {}
    state = FlowState(MemoryStore(items))
    await state.begin(record(), [(0, 0)])
    await state.begin_insertion(ORDERS_0, Insertion(10, 3, 1, b"x"))

    await state.begin(record(), [(0, 0)])

    reloaded = FlowState(MemoryStore(items))
    await reloaded.load()
    assert [each.insertion(ORDERS_0) for each in (state, reloaded)] == [None, None]


async def test_runs_are_noted_and_dropped_in_the_offsets_of_the_log() -> None:
    state = FlowState(MemoryStore())
    await state.begin(record(), [(0, 0)])
    memory = FlowMemory(state)
    await memory.note_inserted(ORDERS_0, [(10, 13)])

    await memory.note_runs({ORDERS_0: [(12, 13), (25, 20)]})

    assert memory.runs_after(ORDERS_0, 13) == [(25, 20)]
    assert memory.translate(ORDERS_0, 12, reverse=False, target_log_end=30) == 13
    assert memory.translate(ORDERS_0, 25, reverse=False, target_log_end=30) == 20
    await memory.drop_runs(ORDERS_0, 15)
    assert memory.runs_after(ORDERS_0, 13) == []


async def test_an_insertion_that_never_stood_leaves_nothing() -> None:
    items: dict[str, bytes] = {}
    state = FlowState(MemoryStore(items))
    await state.begin(record(), [(0, 0)])
    before = dict(items)
    insertion = Insertion(10, 3, 1, b"x")

    await FlowMemory(state).begin_insertion(ORDERS_0, insertion)
    await FlowMemory(state).end_insertion(ORDERS_0, insertion, ())

    assert items == before


@pytest.mark.parametrize("key", ["insertion/orders", "insertion//1", "insertion/orders/x"])
def test_a_key_that_makes_no_sense_is_damage(key: str) -> None:
    with pytest.raises(CorruptStateError, match=key):
        parse_insertion_key(key)


def test_keys_are_read_as_they_are_written() -> None:
    assert parse_insertion_key(insertion_key("a.b-c", 12)) == ("a.b-c", 12)
    with pytest.raises(CorruptStateError, match="insertion"):
        Insertion.from_bytes(b'{"version": 1}\nbatch')
