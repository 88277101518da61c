"""What a repair leaves as it is."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from checkpoint.insertions import Inserted
from mirror.model import TopicPartition
from mirror.repairing.accepting import ACCEPTED_MAX, ACCEPTED_SPAN_MAX, acceptable, check_foreign
from mirror.repairing.model import RefusedError
from spark_jobs.findings import Kind
from spark_jobs.plan import Beyond, PartitionPlan
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


@pytest.mark.parametrize(("is_compacted", "accept"), [(True, False), (False, True)])
def test_what_others_have_written_stays_where_it_does_no_harm_or_somebody_lets_it(
    is_compacted: bool, accept: bool
) -> None:
    check_foreign(plan(is_compacted=is_compacted), [(10, 12), (END - 1, END)], accept=accept)

    with pytest.raises(RefusedError, match="since the plan was made"):
        check_foreign(plan(is_compacted=is_compacted), [(END, END + 1)], accept=accept)


def test_what_others_have_written_does_not_stay_by_itself() -> None:
    """
    Consumers of an append-only log go on seeing it.
    """
    check_foreign(plan(), [], accept=False)

    with pytest.raises(RefusedError, match="let it stay"):
        check_foreign(plan(), [(10, 12)], accept=False)
