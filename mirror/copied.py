"""What of a partition is a copy, and how its offsets relate to those of the source.

Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from checkpoint.insertions import Insertions, LogMap
from checkpoint.offset_map import OffsetMap
from spark_jobs.places import Line, lines_of_runs, lines_past
from spark_jobs.window import Range, SameOffsets, Translation


@dataclass(frozen=True, slots=True)
class Copied:
    """What the flow knows of a partition.

    Attributes:
        offsets: The offset map; None where offsets are the same.
        start: Source offset at which the copy began.
        target_start: Where that is at the target.
        insertions: What the target holds that is no copy.
        accepted: Ranges of target offsets whose content was accepted as it is.
    """

    offsets: OffsetMap | None
    start: int
    target_start: int
    insertions: Insertions
    accepted: Sequence[tuple[int, int]] = ()

    def translation(self, target_end: int) -> Translation:
        """How source and target offsets correspond, given where the target's log ends, or once ended."""
        return SameOffsets() if self.offsets is None else _Mapped(self.offsets, self.insertions, target_end)

    def lines(self, source: Range) -> list[Line] | None:
        """How source offsets become places; None where offsets are the same."""
        if self.offsets is None:
            return None
        lines = lines_of_runs(self.offsets, source)
        return lines_past(lines, self.insertions.dense_starts, self.insertions.in_log)


class _Mapped:
    """An offset map, given where the target's log ends."""

    def __init__(self, offsets: OffsetMap, insertions: Insertions, target_end: int) -> None:
        self._offsets, self._end = LogMap(offsets, insertions), target_end

    def to_target(self, source_offset: int) -> int:
        reached = self._offsets.position(self._end)
        if source_offset >= reached:
            return self._end + source_offset - reached
        return self._offsets.committed_to_target(source_offset, self._end)

    def to_source(self, target_offset: int) -> int:
        return self._offsets.committed_to_source(target_offset, self._end)
