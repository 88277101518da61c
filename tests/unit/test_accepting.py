"""What a repair leaves as it is."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import pytest

from checkpoint.insertions import Inserted
from mirror.model import TopicPartition
from mirror.repairing.accepting import ACCEPTED_MAX, ACCEPTED_SPAN_MAX, acceptable, check_inserted
from mirror.repairing.model import RefusedError, Wanted
from spark_jobs.findings import Kind
from spark_jobs.plan import Beyond, Mend, PartitionPlan
from spark_jobs.window import Range

END = 100_000
"""Where the target's log was read to."""


def plan(beyond: Sequence[Beyond] = (), *, is_compacted: bool = False, unnamed: int = 0) -> PartitionPlan:
    return PartitionPlan(
        name=TopicPartition("orders", 0),
        target_topic="orders",
        topic_id="id",
        is_compacted=is_compacted,
        target_end=END,
        mends=[],
        beyond_repair=beyond,
        unnamed=unnamed,
        pending=Range(0, 0),
    )


def differs(source: int | None, target: int | None, kind: Kind = Kind.MISSING) -> Beyond:
    return Beyond(kind=kind, source_offset=source, target_offset=target, records=1)


def at_the_target(offset: int) -> int:
    """Five records of the source were never copied."""
    return offset - 5


@pytest.mark.parametrize(
    ("beyond", "accepted"),
    [
        ([], ()),
        ([differs(15, None)], ((10, 11),)),
        ([differs(None, 7, Kind.EXTRA)], ((7, 8),)),
        ([differs(15, 20)], ((10, 21),)),
        ([differs(25, 10), differs(26, None), differs(None, 40)], ((10, 22), (40, 41))),
    ],
    ids=["nothing", "missing", "extra", "moved", "several"],
)
def test_what_differs_is_accepted_where_it_stands_and_where_it_belongs(
    beyond: Sequence[Beyond], accepted: Sequence[Inserted]
) -> None:
    """
    All that a record that has moved has pushed aside is between the two.
    """
    assert acceptable(plan(beyond), at_the_target) == accepted


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (plan([differs(15, None)], unnamed=1), "more differs than records that are named"),
        (plan([differs(15, 15, Kind.SHIFTED)]), "more differs than records that are named"),
        (plan([differs(5, ACCEPTED_SPAN_MAX)]), "a record stands 1025 offsets from its place"),
        (
            plan([differs(None, 2 * at) for at in range(ACCEPTED_MAX + 1)]),
            "10001 places differ, 10000 is the most",
        ),
    ],
    ids=["not named", "shifted", "far away", "many"],
)
def test_nothing_is_accepted_that_would_hide_more_than_is_named(found: PartitionPlan, words: str) -> None:
    """
    What is accepted is not compared any more.
    """
    with pytest.raises(RefusedError, match=words):
        acceptable(found, at_the_target)


MAY_ALL = Wanted(to_mapped=True, accept=True)


@pytest.mark.parametrize(
    ("is_compacted", "wanted"), [(True, replace(MAY_ALL, accept=False)), (False, MAY_ALL)]
)
@pytest.mark.parametrize("keeps_offsets", [True, False])
def test_what_others_have_written_stays_where_it_does_no_harm_or_somebody_lets_it(
    is_compacted: bool, keeps_offsets: bool, wanted: Wanted
) -> None:
    found = plan(is_compacted=is_compacted)
    check_inserted(found, [(10, 12), (END - 1, END)], wanted, keeps_offsets=keeps_offsets)

    with pytest.raises(RefusedError, match="since the plan was made"):
        check_inserted(found, [(END, END + 1)], wanted, keeps_offsets=keeps_offsets)


@pytest.mark.parametrize(
    ("keeps_offsets", "wanted", "options"),
    [
        (False, Wanted(), "(--accept)"),
        (True, Wanted(), "(--accept --to-mapped)"),
        (True, Wanted(accept=True), "(--accept --to-mapped)"),
        (True, Wanted(to_mapped=True), "(--accept --to-mapped)"),
    ],
)
def test_what_others_have_written_to_a_log_does_not_stay_by_itself(
    keeps_offsets: bool, wanted: Wanted, options: str
) -> None:
    """
    Consumers of an append-only log go on seeing it, and what follows has another offset. All that lets it
    stay is said at once; keys, which could be written again, are not meant.
    """
    check_inserted(plan(), [], wanted, keeps_offsets=keeps_offsets)

    with pytest.raises(RefusedError, match=re.escape(options)) as refusal:
        check_inserted(plan(), [(10, 12)], wanted, keeps_offsets=keeps_offsets)

    assert "keys" not in str(refusal.value)


def test_keys_of_a_copy_with_the_same_offsets_are_not_put_right_by_themselves() -> None:
    keyed = plan(is_compacted=True)
    check_inserted(keyed, [(10, 12)], Wanted(), keeps_offsets=False)

    with pytest.raises(RefusedError, match=r"\(--to-mapped\), write the keys again at the source"):
        check_inserted(keyed, [(10, 12)], Wanted(), keeps_offsets=True)
    mends = [Mend(kind=Kind.MISSING, key=b"k", source_offset=1, target_offset=None)]
    with pytest.raises(RefusedError, match=r"\(--to-mapped\), write the keys again at the source"):
        check_inserted(replace(keyed, mends=mends), [], Wanted(), keeps_offsets=True)
