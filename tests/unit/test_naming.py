"""What is named of a log of which too much differs to be looked at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirror.model import TopicPartition
from spark_jobs.align import Record
from spark_jobs.findings import Difference, Kind, Part
from spark_jobs.logs import Log
from spark_jobs.naming import Naming, Plan, Side, limited
from spark_jobs.shifts import Piece
from spark_jobs.stretches import RANGE_PLACES, joined
from spark_jobs.window import Range, SameOffsets, window


def plan(*reads: Range, partition: int = 0) -> Plan:
    whole = Range(0, 1 << 40)
    log = Log(
        name=TopicPartition("t", partition),
        target_topic="t",
        topic_id="id",
        target_topic_id="id-there",
        is_compacted=False,
        window=window(whole, whole, SameOffsets()),
        begin_place=0,
        source_end_place=whole.end,
    )
    return Plan(log, [Piece(*whole, shift=0)], reads)


def stretch(first: int, ranges: int) -> Range:
    return Range(first * RANGE_PLACES, (first + ranges) * RANGE_PLACES)


def size(ranges: Sequence[Range]) -> int:
    return sum(one.offsets for one in ranges)


STRETCHES = st.lists(st.builds(stretch, st.integers(0, 900), st.integers(1, 200)), max_size=5).map(joined)


@given(st.lists(STRETCHES, max_size=6), st.integers(0, 300 * RANGE_PLACES))
def test_no_more_is_read_than_may_be_and_the_rest_is_counted(wanted: list[list[Range]], most: int) -> None:
    """
    Of every log the first part; nothing is left out as long as it fits.
    """
    plans = limited([plan(*reads, partition=at) for at, reads in enumerate(wanted)], most)

    assert sum(size(one.reads) for one in plans) <= most
    for one, reads in zip(plans, wanted, strict=True):
        assert joined([*one.reads, *one.unread]) == reads
        assert size(one.reads) + size(one.unread) == size(reads)
        assert not one.unread or not one.reads or one.reads[-1].end <= one.unread[0].start
    if sum(map(size, wanted)) <= most:
        assert not any(one.unread for one in plans)


def test_of_a_log_that_is_known_closer_only_what_differs_is_read() -> None:
    """
    With the ranges beside it, and no further than the plan went.
    """
    roughly = plan(Range(0, 100), Range(500, 600))

    closely = roughly.closer([Range(0, 8), Range(40, 48), Range(592, 600)], 8, context_ranges=1)

    assert list(closely.reads) == [Range(0, 16), Range(32, 56), Range(584, 600)]
    assert not closely.unread


def test_what_is_not_known_closer_is_not_read_and_counted() -> None:
    """
    What stands beside the last range that is known may belong to what is not.
    """
    roughly = replace(plan(Range(0, 100), Range(500, 600)), unread=[Range(900, 950)])

    closely = roughly.closer([Range(8, 16), Range(40, 48)], 8, context_ranges=1, known=48)

    assert list(closely.reads) == [Range(0, 24), Range(32, 48)]
    assert list(closely.unread) == [Range(48, 100), Range(500, 600), Range(900, 950)]


def test_in_closer_ranges_a_log_is_cut_at_one_of_them() -> None:
    (cut,) = limited([plan(Range(0, 16), Range(32, 64))], 45, width=8)

    assert list(cut.reads) == [Range(0, 16), Range(32, 56)]
    assert list(cut.unread) == [Range(56, 64)]


def test_a_log_of_which_all_differs_leaves_the_others_their_share() -> None:
    huge, small = limited([plan(stretch(0, 1000)), plan(stretch(5, 3))], 100 * RANGE_PLACES)

    assert (list(huge.reads), list(huge.unread)) == ([stretch(0, 97)], [stretch(97, 903)])
    assert not small.unread


@pytest.mark.parametrize(("logs", "named"), [(300, 300), (1_000, 1_000), (3_000, 1_953)])
def test_one_range_in_each_of_many_logs_is_read(logs: int, named: int) -> None:
    """
    As many as may be read, however small each one's share is.
    """
    plans = limited([plan(stretch(7, 1), partition=at) for at in range(logs)], 2_000_000)

    assert sum(bool(one.places) for one in plans) == named
    assert sum(size(one.unread) for one in plans) == (logs - named) * RANGE_PLACES


def record(offset: int, content: int, time: int = 0) -> Record:
    return Record(offset, offset, time, content, content, 0, 0)


@pytest.mark.parametrize("lost", [0, 1])
def test_where_reading_stops_nothing_is_called_missing_that_may_stand_behind(lost: int) -> None:
    """
    One record is missing or too many in the middle, so that all behind it are one place ahead or behind.
    """
    ends = RANGE_PLACES
    (cut,) = limited([plan(stretch(0, 2))], ends)
    longer = [record(at, content) for at, content in enumerate(range(ends))]
    shorter = [record(at, content) for at, content in enumerate([*range(50), *range(51, ends + 1)])]
    source, target = (longer, shorter) if lost else (shorter, longer)

    found = Naming(cut, Side(source, dict.fromkeys(range(ends))), Side(target, dict.fromkeys(range(ends))))

    compared = found.compared({})
    one, shifted = [finding.difference for finding in compared.findings]
    assert one.kind is (Kind.MISSING if lost else Kind.EXTRA)
    assert (shifted.kind, shifted.shift, shifted.records) == (Kind.SHIFTED, -1 if lost else 1, ends - 51)
    assert compared.unnamed == RANGE_PLACES


def test_of_a_log_with_other_times_throughout_the_first_records_are_named() -> None:
    (cut,) = limited([plan(stretch(0, 9))], RANGE_PLACES)
    source = [record(at, at) for at in range(RANGE_PLACES)]
    target = [record(at, at, time=7) for at in range(RANGE_PLACES)]
    keys = dict.fromkeys(range(RANGE_PLACES))

    compared = Naming(cut, Side(source, keys), Side(target, keys)).compared({})

    assert [finding.difference for finding in compared.findings] == [
        Difference(kind=Kind.CHANGED, source_offset=at, target_offset=at, parts=(Part.TIMESTAMP,))
        for at in range(RANGE_PLACES)
    ]
    assert compared.unnamed == 8 * RANGE_PLACES


@pytest.mark.parametrize(("lost", "contradicts"), [((), True), ((500,), False), ((RANGE_PLACES - 1,), False)])
def test_records_that_are_the_same_contradict_digests_that_are_not(
    lost: tuple[int, ...], contradicts: bool
) -> None:
    """
    Wherever one is missing, they do not.
    """
    reads = plan(stretch(0, 1))
    ends = Range(0, RANGE_PLACES)
    known = replace(
        reads, log=replace(reads.log, window=window(ends, ends, SameOffsets()), source_end_place=ends.end)
    )
    whole = [record(at, at) for at in range(RANGE_PLACES)]
    rest = [
        record(at, one.value, one.timestamp_ms)
        for at, one in enumerate(one for one in whole if one.offset not in lost)
    ]
    keys = dict.fromkeys(range(RANGE_PLACES))

    compared = Naming(known, Side(whole, keys), Side(rest, keys)).compared({})

    assert compared.contradicts is contradicts


def test_where_something_is_left_out_or_not_read_nothing_is_contradicted() -> None:
    """
    A source record whose place is where the target's log ends may be on its way; what is not read may differ.
    """
    reads, ends = plan(stretch(0, 1)), Range(0, RANGE_PLACES)
    log = replace(reads.log, window=window(ends, ends, SameOffsets()))
    known, cut = Plan(log, [Piece(*ends, shift=0)], reads.reads), replace(reads, unread=[stretch(7, 1)])
    whole, keys = [record(at, at) for at in range(RANGE_PLACES)], dict.fromkeys(range(RANGE_PLACES))
    on_its_way = whole[-1]._replace(place=RANGE_PLACES)

    left_out = Naming(known, Side([*whole[:-1], on_its_way], keys), Side(whole[:-1], keys)).compared({})
    not_read = Naming(cut, Side(whole, keys), Side(whole, keys)).compared({})

    assert [(found.findings, found.contradicts) for found in (left_out, not_read)] == [([], False)] * 2


def test_a_finding_has_the_key_of_its_record_and_a_row_has_none() -> None:
    """
    That of the source, where it has the record.
    """
    source = [record(at, at) for at in range(9)]
    target = [record(at, content) for at, content in enumerate([0, 99, 1, 2, 4, 5, 6, 8])]
    here, there = ({at: b"%s %d" % (side, at) for at in range(9)} for side in (b"source", b"target"))

    found = Naming(plan(stretch(0, 1)), Side(source, here), Side(target, there)).compared({}).findings

    assert [(one.difference.kind, one.key) for one in found] == [
        (Kind.EXTRA, b"target 1"),
        (Kind.SHIFTED, None),
        (Kind.MISSING, b"source 3"),
        (Kind.MISSING, b"source 7"),
        (Kind.SHIFTED, None),
    ]
