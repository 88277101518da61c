"""What a repair may do, and what has become of each difference."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from checkpoint.insertions import Inserted
from mirror.errors import TwinsiteError
from spark_jobs.plan import Mend, PartitionPlan


class RefusedError(TwinsiteError):
    """Nothing may be written to a partition; the message says why."""


class Status(StrEnum):
    """What has become of a difference."""

    PLANNED = "planned"
    """It would be appended."""
    BEGUN = "begun"
    """It is not known whether it was appended. If its batch was written into the flow's state, the next
    repair, or the mirror, completes it; if not, the next repair tries again, unless ``why_not`` stands
    against it.
    """
    APPENDED = "appended"
    MOVED_ON = "moved_on"
    """The key was written since the plan was made, by a repair or by the mirror: it is left as it is."""
    NOT_THERE = "not_there"
    """The record that the plan names is gone, or has another key."""
    TOO_LARGE = "too_large"
    REFUSED = "refused"
    """The broker rejects the record, for the reason given; or nothing may be written to the partition."""

    @property
    def is_settled(self) -> bool:
        """Whether this plan has nothing left to do about it."""
        return self in {Status.APPENDED, Status.MOVED_ON}


@dataclass(frozen=True, slots=True)
class Step:
    """One difference, and what has become of it.

    Attributes:
        at: The target offset of the record that puts it right.
        why: What is in the way, if the status does not say it all.
    """

    mend: Mend
    status: Status
    at: int | None = None
    why: str = ""


@dataclass(slots=True)
class Repaired:
    """What has become of one partition.

    Attributes:
        why_not: Why nothing may be written to it; empty if it may.
        foreign: Ranges of target offsets that somebody else has written, and that stay.
        accepted: Ranges of target offsets that are to stay although they differ.
        becomes_mapped: Whether it has to give up the source's offsets because of what is inserted.
    """

    plan: PartitionPlan
    why_not: str = ""
    foreign: Sequence[Inserted] = ()
    accepted: Sequence[Inserted] = ()
    becomes_mapped: bool = False
    steps: list[Step] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a repair may do.

    Attributes:
        apply: Write; else only look.
        to_mapped: Let partitions that keep the source's offsets become mapped, if that is needed.
        accept: Accept append-only logs as they are: differences are recorded, and no longer compared.
    """

    apply: bool = False
    to_mapped: bool = False
    accept: bool = False

    def concerns(self, plan: PartitionPlan) -> bool:
        """Whether there is something to do about a partition."""
        return bool(plan.mends or (self.accept and (plan.beyond_repair or plan.unnamed)))


@dataclass(frozen=True, slots=True)
class Begun:
    """A batch that an earlier repair announced, without reporting its end.

    Attributes:
        target_offset: Where the log ended: if the batch was appended, it stands there or later.
        producer_epoch: The one that began with it.
    """

    target_offset: int
    producer_epoch: int
    records: int


Note = Callable[[Mapping[str, object]], None]
"""Called with each thing that is written, before and after."""
