"""The judge of copies sees every kind of fault that was planted, and none that was not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.harness.judging import (
    Fault,
    Finding,
    NotExactError,
    OffsetMode,
    Record,
    Verdict,
    judge,
    watermark_findings,
)


def log(count: int, first: int = 0) -> list[Record]:
    """Records of different content."""
    return [
        Record(
            offset=offset,
            timestamp_type=1,
            timestamp_ms=1_700_000_000_000 + offset,
            key=b"k%d" % (offset % 3),
            value=b"value %d" % offset,
            headers=(("h", b"%d" % offset),),
        )
        for offset in range(first, first + count)
    ]


def faults(verdict: Verdict) -> list[tuple[Fault, int]]:
    return [(finding.fault, finding.source_offset) for finding in verdict.findings]


def renumbered(records: list[Record], first: int = 0) -> list[Record]:
    """The same contents at offsets without gaps, as a target appends them."""
    return [replace(record, offset=first + place) for place, record in enumerate(records)]


@pytest.mark.parametrize("offsets", ["same", "mapped"])
def test_an_exact_copy_has_no_findings(offsets: OffsetMode) -> None:
    """
    Equal logs are exact in either mode, and every record was looked at.
    """
    verdict = judge(log(50), log(50), offsets)

    assert verdict == Verdict(50, ())


def test_two_empty_logs_are_exact() -> None:
    """
    Nothing copied from nothing is a copy.
    """
    assert judge([], []).exact


@pytest.mark.parametrize("lost", [0, 7, 19])
@pytest.mark.parametrize("offsets", ["same", "mapped"])
def test_a_lost_record_is_named(lost: int, offsets: OffsetMode) -> None:
    """
    A record missing at the start, in the middle or at the end is lost, and nothing else is wrong.
    """
    copies = log(20)
    del copies[lost]

    assert faults(judge(log(20), copies, offsets)) == [(Fault.LOST, lost)]


def test_a_record_lost_and_the_rest_moved_up_is_lost_and_shifted() -> None:
    """
    With the same offsets promised, closing the gap is a fault of its own for every later record.
    """
    copies = log(10)
    del copies[6]

    verdict = judge(log(10), renumbered(copies), "same")

    assert set(faults(verdict)) == {
        (Fault.LOST, 6),
        (Fault.SHIFTED, 7),
        (Fault.SHIFTED, 8),
        (Fault.SHIFTED, 9),
    }


def test_a_gap_is_no_fault_where_offsets_are_mapped() -> None:
    """
    Offsets of the source with gaps become offsets without: the same records in the same order.
    """
    source = [record for record in log(40) if record.offset % 7]

    assert judge(source, renumbered(source, first=3), "mapped").exact


@pytest.mark.parametrize("distance", [1, 5])
def test_a_record_that_came_twice_is_a_duplicate(distance: int) -> None:
    """
    A record appended again, at once or after others, is named with its first place.
    """
    source = log(20)
    copies = source[:10] + source[10 - distance : 11 - distance] + source[10:]

    verdict = judge(source, renumbered(copies), "mapped")

    assert faults(verdict) == [(Fault.DUPLICATED, 10 - distance)]


def test_two_equal_records_of_the_source_are_not_duplicates() -> None:
    """
    Producers may write the same content twice; both must arrive.
    """
    source = log(5) + [replace(record, offset=record.offset + 5) for record in log(5)]

    assert judge(source, source).exact
    assert faults(judge(source, source[:9])) == [(Fault.LOST, 9)]


@pytest.mark.parametrize("offsets", ["same", "mapped"])
def test_records_that_changed_places_are_reordered(offsets: OffsetMode) -> None:
    """
    Two neighbours swapped: one of them is out of order, none is lost.
    """
    copies = log(20)
    copies[8], copies[9] = copies[9], copies[8]

    kinds = {fault for fault, _ in faults(judge(log(20), renumbered(copies), offsets))}

    assert Fault.REORDERED in kinds
    assert kinds <= {Fault.REORDERED, Fault.SHIFTED}


@pytest.mark.parametrize(
    "change",
    [
        {"key": None},
        {"key": b""},
        {"value": None},
        {"value": b"other"},
        {"timestamp_ms": 1},
        {"headers": ()},
        {"headers": (("h", None),)},
    ],
)
@pytest.mark.parametrize("offsets", ["same", "mapped"])
def test_a_changed_record_is_named_with_what_changed(change: dict[str, object], offsets: OffsetMode) -> None:
    """
    Any part of a record that differs, null against empty too, is a change of that record alone.
    """
    copies = log(20)
    copies[5] = replace(copies[5], **change)  # type: ignore[arg-type]

    verdict = judge(log(20), copies, offsets)

    assert faults(verdict) == [(Fault.CHANGED, 5)]
    assert next(iter(change)).removesuffix("_ms") in verdict.findings[0].detail


def test_a_record_the_source_never_had_is_foreign() -> None:
    """
    Somebody else wrote to the copy.
    """
    stranger = Record(offset=4, timestamp_type=1, timestamp_ms=5, key=b"x", value=b"y")
    copies = [*log(4), stranger, *log(4, first=5)]
    source = log(4) + log(4, first=5)

    assert judge(source, copies).findings == (
        Finding(Fault.FOREIGN, -1, 4, "the source has no such record here"),
    )


def test_a_copy_that_ends_early_has_lost_the_rest() -> None:
    """
    The judge does not stop at the shorter of the two.
    """
    assert faults(judge(log(10), log(7))) == [(Fault.LOST, 7), (Fault.LOST, 8), (Fault.LOST, 9)]


def test_the_judge_stops_at_the_limit_of_faults() -> None:
    """
    A hopeless copy costs a bounded list.
    """
    assert len(judge(log(5000), [], faults_max=10).findings) == 10


def test_watermarks_are_compared_one_by_one() -> None:
    """
    A copy may hold every record and still start or end elsewhere.
    """
    assert watermark_findings((5, 9), (5, 9)) == []
    assert watermark_findings((5, 9), (0, 9)) == [Finding(Fault.WATERMARK, 5, 0, "log start")]
    assert watermark_findings((5, 9), (5, 8)) == [Finding(Fault.WATERMARK, 9, 8, "log end")]


def test_the_error_names_partition_and_record() -> None:
    """
    Whoever reads the failure of a test learns where to look.
    """
    verdict = judge(log(3), log(2))

    assert "orders-0: lost source 2" in str(NotExactError({"orders-0": verdict}))


@given(st.lists(st.integers(0, 29), max_size=40), st.sampled_from(["same", "mapped"]))
def test_only_the_log_itself_is_exact(order: list[int], offsets: OffsetMode) -> None:
    """
    Any selection of the records in any order is exact only if it is the log.
    """
    source = log(30)
    copies = renumbered([source[place] for place in order])

    assert judge(source, copies, offsets).exact == (copies == source)


@given(st.sets(st.integers(0, 59), max_size=20))
def test_every_lost_record_is_counted_and_no_other(lost: set[int]) -> None:
    """
    The findings are exactly the records left out.
    """
    source = log(60)
    copies = [record for record in source if record.offset not in lost]

    assert faults(judge(source, copies)) == [(Fault.LOST, offset) for offset in sorted(lost)]
