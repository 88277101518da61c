"""What a repair may do, and what has become of what."""

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
    APPENDED = "appended"
    MOVED_ON = "moved_on"
    """The key was written to since the plan was made, by a repair or by the mirror: it is left as it is."""
    NOT_THERE = "not_there"
    """The record to go by is not there any more, or is another."""
    TOO_LARGE = "too_large"
    REFUSED = "refused"
    """The broker will not have the record, as is said with it; or nothing may be written to the partition."""

    @property
    def is_settled(self) -> bool:
        """Nothing is left to be done about it by this plan."""
        return self in {Status.APPENDED, Status.MOVED_ON}


@dataclass(frozen=True, slots=True)
class Step:
    """One difference, and what has become of it.

    Attributes:
        at: The target offset at which the record stands that puts it right.
        why: What stands in the way, where the status does not say it all.
    """

    mend: Mend
    status: Status
    at: int | None = None
    why: str = ""


@dataclass(slots=True)
class Repaired:
    """One partition.

    Attributes:
        why_not: Why nothing may be written to it; empty where it may.
        foreign: Target offsets that somebody else has written, and that stay.
        accepted: Target offsets that are to stay as they are, though they differ.
        becomes_mapped: It cannot keep the source's offsets with what is appended.
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
        to_mapped: Let partitions that keep the source's offsets become mapped, where that is needed.
        accept: Let append-only logs be as they are: what differs is noted, and not compared any more.
    """

    apply: bool = False
    to_mapped: bool = False
    accept: bool = False

    def concerns(self, plan: PartitionPlan) -> bool:
        """Whether there is something to be done about a partition."""
        return bool(plan.mends or (self.accept and (plan.beyond_repair or plan.unnamed)))


@dataclass(frozen=True, slots=True)
class Begun:
    """A batch that an earlier repair has said it appends, and of which it has said no more.

    Attributes:
        target_offset: Where the log ended: it stands there or behind, if it stands.
        producer_epoch: Which it began.
    """

    target_offset: int
    producer_epoch: int
    records: int


Note = Callable[[Mapping[str, object]], None]
"""Told of everything that is written, before and after."""
