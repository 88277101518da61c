"""What a repair may leave in a partition although it is not a copy of the source's. Pure: no I/O.

What others have written stays in a compacted topic, where the keys are put right after it; elsewhere it stays
if the operator accepts it. Differences in an append-only log cannot be put right, and stay if the operator
accepts them: only those that the plan names, and not so many that hardly anything would still be compared.

Ranges are half-open, of target offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from checkpoint.insertions import Inserted, united
from mirror.repairing.model import RefusedError, Wanted
from spark_jobs.findings import Kind
from spark_jobs.plan import Beyond, PartitionPlan

ACCEPTED_SPAN_MAX = 1_024
"""The most offsets from a moved record's place to where it stands, both included. All between differ in
place, are accepted with it, and are no longer compared."""
ACCEPTED_MAX = 10_000
"""The most ranges of a partition: they are stored in one record of the flow's state."""

TargetOffset = Callable[[int], int]
"""Takes a source offset and returns where it belongs at the target."""


def check_inserted(
    plan: PartitionPlan, foreign: Sequence[Inserted], wanted: Wanted, *, keeps_offsets: bool
) -> None:
    """Check that what others have written may stay, and that what is inserted may shift what follows.

    Args:
        keeps_offsets: The copy has the source's offsets.

    Raises:
        RefusedError: It came after the comparison; or the operator has not allowed it.
    """
    if any(end > plan.target_end for _, end in foreign):
        raise RefusedError(
            "others have written to it since the plan was made: revoke their write access, "
            "and reconcile again"
        )
    shifts = keeps_offsets and bool(plan.mends or foreign)
    if plan.is_compacted:
        if shifts and not wanted.to_mapped:
            raise RefusedError(
                "it keeps the source's offsets, and what is appended would shift what follows: let it become "
                "mapped (--to-mapped), write the keys again at the source, or copy the topic again"
            )
    elif foreign and not (wanted.accept and (wanted.to_mapped or not shifts)):
        also = ", and what follows loses the source's offsets" if shifts else ""
        raise RefusedError(
            f"others have written to it, and consumers go on seeing that{also}: "
            f"let it stay (--accept{' --to-mapped' if shifts else ''}), or copy the topic again"
        )


def acceptable(plan: PartitionPlan, target_offset: TargetOffset) -> Sequence[Inserted]:
    """What is accepted if the operator accepts all differences; nothing if there are none.

    Raises:
        RefusedError: That would hide more than the differences that the plan names, or there are too many.
        UntranslatableError: It is not known where a record belongs.
    """
    beyond = plan.beyond_repair
    if not beyond:
        return ()
    if plan.unnamed or any(one.kind is Kind.SHIFTED for one in beyond):
        raise RefusedError("more differs than records that are named: copy the topic again")
    places = [_place(one, target_offset) for one in beyond]
    if (apart := max(end - start for start, end in places)) > ACCEPTED_SPAN_MAX:
        raise RefusedError(
            f"a record stands {apart} offsets from its place, and all between would be accepted: "
            f"{ACCEPTED_SPAN_MAX} is the most: copy the topic again"
        )
    accepted = united(places)
    if len(accepted) > ACCEPTED_MAX:
        raise RefusedError(f"{len(accepted)} places differ, {ACCEPTED_MAX} is the most: copy the topic again")
    return accepted


def _place(beyond: Beyond, target_offset: TargetOffset) -> Inserted:
    """The target offsets of a difference; for a moved record all from its place to where it stands."""
    places = [] if beyond.target_offset is None else [beyond.target_offset]
    if beyond.source_offset is not None:
        places.append(target_offset(beyond.source_offset))
    return min(places), max(places) + 1
