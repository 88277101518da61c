"""What a repair may leave as it is in a partition, though it is no copy of the source's. Pure: no I/O.

What others have written stays in a compacted topic, where keys are put right behind it; or where a person
lets it. So do differences in an append-only log, whose middle nothing puts right: only those that are
named, and not so many that hardly anything would be compared any more.

Ranges are of target offsets, half-open.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from checkpoint.insertions import Inserted, united
from mirror.repairing.model import RefusedError
from spark_jobs.findings import Kind
from spark_jobs.plan import Beyond, PartitionPlan

ACCEPTED_SPAN_MAX = 1_024
"""Offsets from the place of a record that has moved to where it stands, both included: all between differ in
place, are accepted with it, and are not compared any more."""
ACCEPTED_MAX = 10_000
"""Ranges of a partition: they are in one record of the flow's state."""

TargetOffset = Callable[[int], int]
"""Where a source offset belongs at the target."""


def check_foreign(plan: PartitionPlan, foreign: Sequence[Inserted], *, accept: bool) -> None:
    """See that what others have written may stay.

    Args:
        accept: A person lets it.

    Raises:
        RefusedError: It was not compared, or consumers would see it.
    """
    if any(end > plan.target_end for _, end in foreign):
        raise RefusedError(
            "others have written to it since the plan was made: take away their right to, and reconcile again"
        )
    if foreign and not (plan.is_compacted or accept):
        raise RefusedError(
            "others have written to it, and consumers go on seeing that: let it stay (--accept), or copy "
            "the topic anew"
        )


def acceptable(plan: PartitionPlan, target_offset: TargetOffset) -> Sequence[Inserted]:
    """What is accepted where a person lets all differences be as they are; nothing where there are none.

    Raises:
        RefusedError: That would hide more than what is named.
        UntranslatableError: It is not known where a record belongs.
    """
    beyond = plan.beyond_repair
    if not beyond:
        return ()
    if plan.unnamed or any(one.kind is Kind.SHIFTED for one in beyond):
        raise RefusedError("more differs than records that are named: copy the topic anew")
    places = [_place(one, target_offset) for one in beyond]
    if (apart := max(end - start for start, end in places)) > ACCEPTED_SPAN_MAX:
        raise RefusedError(
            f"a record stands {apart} offsets from its place, and all between would be accepted: "
            f"{ACCEPTED_SPAN_MAX} is the most: copy the topic anew"
        )
    accepted = united(places)
    if len(accepted) > ACCEPTED_MAX:
        raise RefusedError(f"{len(accepted)} places differ, {ACCEPTED_MAX} is the most: copy the topic anew")
    return accepted


def _place(beyond: Beyond, target_offset: TargetOffset) -> Inserted:
    """The target offsets a difference is about; of a record that has moved, all it has pushed aside."""
    places = [] if beyond.target_offset is None else [beyond.target_offset]
    if beyond.source_offset is not None:
        places.append(target_offset(beyond.source_offset))
    return min(places), max(places) + 1
