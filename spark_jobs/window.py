"""What of a partition can be compared, what cannot be compared yet, and what no longer can.

Compared is what both sides can still read and the copy has reached. What only one side still has is expired
at the other. What the source has beyond the copy is pending, and what it has deleted there never arrives.
What the target has beyond the source's end is extra.

A target that has lost its end does not say how far the copy had reached: that must be known from before
(``acknowledged``). Ask for ends at the target first: then a working copy is never ahead of its source.

All ranges are half-open. Pure.

Sources: KIP-98 (last stable offset), docs/reconcile.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol


class Range(NamedTuple):
    """Offsets ``[start, end)``; empty where both are equal."""

    start: int
    end: int

    @property
    def offsets(self) -> int:
        return self.end - self.start

    def holds(self, offset: int) -> bool:
        return self.start <= offset < self.end

    def within(self, other: Range) -> Range:
        """What both have; where that is nothing, an empty range within this one, as near as can be."""
        start = min(max(self.start, other.start), self.end)
        return Range(start, max(start, min(self.end, other.end)))

    def before(self, offset: int) -> Range:
        """The part below an offset."""
        end = min(self.end, offset)
        return Range(min(self.start, end), end)

    def after(self, offset: int) -> Range:
        """The part at an offset or above."""
        start = max(self.start, offset)
        return Range(start, max(self.end, start))


ALL = Range(0, 2**63 - 1)
"""Every possible offset."""


class Translation(Protocol):
    """How offsets of the two sides correspond."""

    def to_target(self, source_offset: int) -> int:
        """The target offset of the record, or of the next one where there is none.

        Raises:
            UntranslatableError: It is not known.
        """

    def to_source(self, target_offset: int) -> int:
        """The source offset of the record, or the one at which the copy goes on.

        Raises:
            UntranslatableError: It is not known.
        """


class SameOffsets:
    """Every record has the same offset at both sides."""

    def to_target(self, source_offset: int) -> int:
        return source_offset

    def to_source(self, target_offset: int) -> int:
        return target_offset


@dataclass(frozen=True, slots=True)
class Window:
    """What is compared of a partition, and what is not and why.

    Attributes:
        source: Source offsets that are compared.
        target: The target offsets that belong to them.
        lost: Those target offsets that its log no longer reaches: nothing stands there.
        expired_at_source: Source offsets of what the target still has and the source has deleted.
        expired_at_target: Source offsets of what the source still has and the target has deleted.
        leaving: Source offsets of what both have, and one of them is about to delete.
        never_copied: Source offsets that the copy had not reached when the source deleted them.
        pending: Source offsets that the copy has not reached.
        beyond: Target offsets beyond the source's end: no record of the source can stand there.
    """

    source: Range
    target: Range
    lost: Range
    expired_at_source: Range
    expired_at_target: Range
    leaving: Range
    never_copied: Range
    pending: Range
    beyond: Range


def window(
    source: Range,
    target: Range,
    translation: Translation,
    *,
    start: int = 0,
    end: int | None = None,
    acknowledged: int = 0,
    leaving: int = 0,
    standing: bool = True,
) -> Window:
    """What can be compared.

    Args:
        source: The source's log, from its start to where it can be read: the last stable offset, or the high
            watermark where all is copied. To be asked for after ``target``.
        target: Likewise of the target, in its own offsets.
        start: Nothing before this source offset is wanted, or was copied.
        end: Nothing from this source offset on is wanted; None leaves it open.
        acknowledged: An end that the target's log is known to have had before ``target`` was asked for, in
            its own offsets.
        leaving: What is before this source offset cannot be read in time: one side is about to delete it.
        standing: The target's log still had the same end when ``source`` was known. If it has grown, it may
            have copied what the source has deleted meanwhile.

    Raises:
        UntranslatableError: Offsets of one side cannot be translated into those of the other.
    """
    reached = Range(target.start, max(target.end, acknowledged))
    copied = Range(*(translation.to_source(offset) for offset in reached))
    held_end = translation.to_source(target.end)
    wanted = Range(start, max(start, source.end, copied.end) if end is None else max(start, end))
    here, there = source.within(wanted), copied.within(wanted)
    both = there.within(here)
    compared = both.after(min(leaving, both.end))

    def at_target(copied_offsets: Range) -> Range:
        return Range(*(translation.to_target(offset) for offset in copied_offsets))

    there_too = at_target(compared)
    return Window(
        source=compared,
        target=there_too,
        lost=there_too.after(target.end),
        expired_at_source=there.before(min(source.start, held_end)),
        expired_at_target=here.before(copied.start),
        leaving=both.before(compared.start),
        never_copied=Range(copied.end, max(copied.end, source.start if standing else 0)).within(wanted),
        pending=here.after(copied.end),
        beyond=at_target(there.within(there.after(source.end))).before(target.end),
    )
