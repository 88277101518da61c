"""What can be done about what was found, as a document and as records."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from mirror.errors import UsageError
from mirror.flow.records import Record, key_of, tombstone
from mirror.kafka.varint import encode_varint
from mirror.model import TopicPartition
from spark_jobs.algorithms import Algorithm, Hashing
from spark_jobs.asking import about_ranges, askable
from spark_jobs.extent import Extent
from spark_jobs.findings import Difference, Kind
from spark_jobs.logs import Compared, Finding, Log
from spark_jobs.plan import Beyond, Mend, plan_of, plan_of_document, plan_to_document
from spark_jobs.result import Result
from spark_jobs.stretches import without
from spark_jobs.window import ALL, Range, SameOffsets, window


def log(
    topic: str,
    *,
    is_compacted: bool,
    copied: int = 100,
    acknowledged: int = 0,
    accepted: tuple[Range, ...] = (),
    starts: int = 0,
) -> Log:
    copy = Range(0, copied)
    return Log(
        name=TopicPartition(topic, 0),
        target_topic=f"east.{topic}",
        topic_id="id",
        target_topic_id="id-there",
        is_compacted=is_compacted,
        window=window(Range(starts, 100), copy, SameOffsets(), end=ALL.end, acknowledged=acknowledged),
        begin_place=0,
        source_end_place=100,
        accepted=accepted,
    )


def found(kind: Kind, source: int | None, target: int | None) -> Finding:
    return Finding(difference=Difference(kind=kind, source_offset=source, target_offset=target), key=b"\xffk")


def result(*compared: Compared) -> Result:
    return Result(
        run="r1",
        flow="east",
        source_cluster_id="a",
        target_cluster_id="b",
        started_at_ms=1_700_000_000_000,
        seconds=1.0,
        extent=Extent(),
        compared=compared,
        algorithm=Algorithm.XXHASH64,
    )


PLANNED = plan_of(
    result(
        Compared(log=log("same", is_compacted=False)),
        Compared(log=log("state", is_compacted=True), findings=[found(Kind.STALE, 5, 3)], keys_unnamed=2),
        Compared(log=log("log", is_compacted=False), findings=[found(Kind.MISSING, 7, None)]),
        Compared(log=log("late", is_compacted=False, copied=60)),
    )
)


def test_keys_are_mended_logs_are_listed_and_what_matches_has_its_place_too() -> None:
    same, state, append_only, late = PLANNED.partitions

    assert (same.mends, same.beyond_repair, same.target_end) == ([], [], 100)
    assert [one.is_compacted for one in PLANNED.partitions] == [False, True, False, False]
    assert state.mends == [Mend(kind=Kind.STALE, key=b"\xffk", source_offset=5, target_offset=3)]
    assert (state.beyond_repair, state.unnamed) == ([], 2)
    missing = Beyond(kind=Kind.MISSING, source_offset=7, target_offset=None, records=1)
    assert (append_only.mends, append_only.beyond_repair) == ([], [missing])
    assert (late.mends, late.beyond_repair, late.pending) == ([], [], Range(60, 100))


def test_what_the_source_has_deleted_before_it_was_copied_is_still_to_come() -> None:
    """
    A repair that puts keys right is not complete then: the mirror stands before a loss.
    """
    gone, cut = (log("log", is_compacted=False, copied=60, starts=at) for at in (100, 80))

    plans = plan_of(result(Compared(log=gone), Compared(log=cut))).partitions

    assert [plan.pending for plan in plans] == [Range(60, 100), Range(60, 100)]


def test_what_was_lost_at_the_end_is_copied_again_and_not_beyond_repair() -> None:
    """
    With all that follows it; what differs before it stays what it is, and so does what has no record there.
    """
    state = log("state", is_compacted=True, copied=60, acknowledged=80)
    append_only = log("log", is_compacted=False, copied=60, acknowledged=80)
    findings = [found(Kind.STALE, 59, 3), found(Kind.RESURRECTED, None, 9)]
    lost = [found(Kind.STALE, 60, 4), found(Kind.NOT_YET_DELETED, 70, 5), found(Kind.MISSING, 79, None)]
    missing = [found(Kind.MISSING, offset, None) for offset in (59, 60, 79)]

    mended, listed = plan_of(
        result(
            Compared(log=state, findings=[*findings, *lost]),
            Compared(log=append_only, findings=missing, unread=[Range(80, 83)]),
        )
    ).partitions

    assert [mend.source_offset for mend in mended.mends] == [59, None]
    assert [one.source_offset for one in listed.beyond_repair] == [59]
    assert mended.pending == listed.pending == Range(60, 100)
    assert mended.target_end == listed.target_end == 60


def test_a_log_is_not_read_where_it_has_lost_its_end() -> None:
    """
    A broker refuses to; the source is read there as everywhere.
    """
    one = log("log", is_compacted=False, copied=60, acknowledged=80)

    here, there = askable(about_ranges([one], Hashing()), [one])

    assert (here.ranges, there.ranges) == ({one.name: [Range(0, 80)]}, {one.name: [Range(0, 60)]})
    assert (one.target_known, one.target_read) == (Range(0, 80), Range(0, 60))
    assert one.lost == Range(60, 80)


@pytest.mark.parametrize(
    ("source", "target", "end", "known", "expired"),
    [
        (Range(0, 7), Range(0, 10), None, Range(0, 10), 0),
        (Range(0, 12), Range(0, 7), 5, Range(0, 5), 0),
        (Range(2, 10), Range(5, 10), None, Range(5, 10), 3),
        (Range(5, 10), Range(2, 10), None, Range(5, 10), 3),
    ],
    ids=["beyond the source", "an end was asked for", "gone at the target", "gone at the source"],
)
def test_the_target_is_read_to_its_end_unless_less_was_asked_for(
    source: Range, target: Range, end: int | None, known: Range, expired: int
) -> None:
    """
    What somebody else wrote behind the copy is found; what only one side still has is counted, whichever it
    is.
    """
    one = replace(log("log", is_compacted=False), window=window(source, target, SameOffsets(), end=end))

    assert one.target_known == one.target_read == known
    assert Compared(log=one).expired == expired


def test_a_plan_is_read_as_it_was_written() -> None:
    document = json.loads(json.dumps(plan_to_document(PLANNED)))

    assert plan_of_document(document, "plan.json") == PLANNED


@pytest.mark.parametrize(
    "document",
    [[], {"schema": 2}, {"schema": 1, "run": "r"}, plan_to_document(PLANNED) | {"schema": 2}],
    ids=["a list", "nothing", "half of one", "of another version"],
)
def test_what_is_no_plan_is_refused_by_name(document: object) -> None:
    with pytest.raises(UsageError, match=r"some/plan\.json"):
        plan_of_document(document, "some/plan.json")


def test_accepted_offsets_are_asked_of_neither_site() -> None:
    one = log("log", is_compacted=False, accepted=(Range(5, 6), Range(90, 200)))

    here, there = askable(about_ranges([one], Hashing()), [one])

    assert here.ranges == there.ranges == {one.name: [Range(0, 5), Range(6, 90)]}


def test_what_is_taken_out_of_ranges_is_not_in_them() -> None:
    assert without([Range(0, 10), Range(20, 30)], [Range(8, 22), Range(25, 26)]) == [
        Range(0, 8),
        Range(22, 25),
        Range(26, 30),
    ]
    assert without([Range(0, 10)], [Range(0, 10)]) == []
    assert without([Range(3, 10)], [Range(0, 2)]) == [Range(3, 10)]


def test_a_tombstone_has_the_key_and_nothing_else() -> None:
    deleted = tombstone(9, b"key", 77)

    assert deleted == Record(9, 77, encode_varint(3) + b"key" + encode_varint(-1) + b"\x00")
    assert key_of(deleted) == b"key"
