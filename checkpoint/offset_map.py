"""The exact offset map of one partition whose records are dense at the target.

A *run* is a stretch of records without gaps at the source: it begins at (source start, target start) and
ends, at the target, where the next run begins. The last run is open and reaches up to the target's log end.
A run is stored before its first record is appended, so after any crash the map and the log end give exactly
the source offset to go on with:

    source     0 1 2 . . 5 6 . . 9          runs (0, 0), (5, 3), (9, 5)
    target     0 1 2     3 4     5          log end 6: go on with source offset 10

Runs that were noted ahead and not reached stay, because batches of the mirror that noted them may still
arrive. What is read next supersedes them: it may have more gaps (compaction) or others (a source that lost
its end). Before a record without a gap in front of it is appended where a run was to begin,
:meth:`OffsetMap.drop_ahead` is called.

Runs that cover only records the target has deleted may be forgotten, the oldest first
(:meth:`OffsetMap.below`, :meth:`OffsetMap.forget`): the map then begins later.

Nothing is extrapolated: an offset is translated exactly or refused. A lookup is a binary search.
:mod:`checkpoint.runs` keeps a run in two or three bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from checkpoint.errors import UntranslatableError
from checkpoint.runs import Run, Runs

AHEAD_RUNS = 1_000
"""The most runs ahead that :meth:`OffsetMap.runs_after` returns: millions may have been noted."""


class OffsetMap:
    """Runs in order, and the questions they answer.

    Args:
        runs: Runs to begin with, added one by one.
        begins_at: Source offset at which the copy began: offsets between it and the first run are known to
            hold no record. None if not known, and once runs were forgotten: then all offsets before the
            first run are before the map.
        forgotten: How many runs there were before the first one.
    """

    def __init__(self, runs: Iterable[Run] = (), *, begins_at: int | None = None, forgotten: int = 0) -> None:
        self.begins_at = begins_at
        self.forgotten = forgotten
        self._runs = Runs()
        self.extend(runs)

    def __len__(self) -> int:
        return len(self._runs)

    def __iter__(self) -> Iterator[Run]:
        return iter(self._runs)

    def tail(self, index: int) -> OffsetMap:
        """A map of its own that holds the runs from the ``index``-th on."""
        copy = OffsetMap(forgotten=self.forgotten + index)
        copy._runs = self._runs.from_index(index)
        return copy

    def head(self, count: int) -> OffsetMap:
        """A map of its own that holds the first ``count`` runs."""
        copy = OffsetMap(begins_at=self.begins_at, forgotten=self.forgotten)
        copy._runs = self._runs.from_index(0)
        copy._runs.truncate(count)
        return copy

    def reached(self, target_offset: int) -> int:
        """How many runs begin below a target offset."""
        return self._runs.below(target_offset)

    def holds(self, run: Run) -> bool:
        """True when the map has this run: adding it changes nothing."""
        index = self.reached(run[1])
        return index < len(self) and self._runs[index] == run

    # -- growing ---------------------------------------------------------------------------------

    def add(self, source_start: int, target_start: int) -> None:
        """Add a run that begins here.

        Runs that begin at this target offset or later had been noted ahead and never reached: they are
        dropped, unless this run is one of them. A run that only continues the one before it is not added.

        Raises:
            ValueError: The run before reaches beyond ``source_start``, or was forgotten; nothing is changed.
        """
        if self.holds((source_start, target_start)):
            return
        kept = self.reached(target_start)
        self._keep_some(kept)
        expected = self._expected(kept, target_start)
        if source_start < expected:
            raise ValueError(
                f"a run cannot begin at source offset {source_start}, target offset {target_start}: "
                f"the run before it reaches source offset {expected}"
            )
        self._runs.truncate(kept)
        if kept and source_start == expected:
            return
        self._runs.append(source_start, target_start)

    def extend(self, runs: Iterable[Run]) -> None:
        """Add several runs, one after the other.

        Raises:
            ValueError: As for :meth:`add`; the runs before the bad one have been added.
        """
        for source_start, target_start in runs:
            self.add(source_start, target_start)

    def join(self, runs: Sequence[Run]) -> None:
        """Add many runs, each known to begin after a gap that follows the one before.

        Raises:
            ValueError: The first one does not continue this map.
        """
        self.extend(runs[:1])
        self._runs.extend(runs[1:])

    def drop_ahead(self, target_log_end: int) -> None:
        """Drop the runs that begin beyond the log end: what is read next may have other gaps.

        Raises:
            ValueError: Only they are left, as the runs before them were forgotten; the map is unchanged.
        """
        kept = len(self) - self.ahead_of(target_log_end)
        self._keep_some(kept)
        self._runs.truncate(kept)

    def runs_after(self, target_offset: int) -> list[Run]:
        """The runs that begin beyond a target offset, the first AHEAD_RUNS of them."""
        return list(islice(self._runs.from_index(self._runs.up_to(target_offset)), AHEAD_RUNS))

    def ahead_of(self, target_log_end: int) -> int:
        """How many runs begin beyond a log end."""
        return len(self) - self._runs.up_to(target_log_end)

    def _keep_some(self, kept: int) -> None:
        """Refuse to keep no runs of a map of which runs were forgotten: it could continue anywhere.

        Raises:
            ValueError: So it would be.
        """
        if self.forgotten and len(self) and not kept:
            raise ValueError(f"the offset map {self._beginning()}, and what was before that is forgotten")

    def _expected(self, kept: int, target_start: int) -> int:
        """The source offset that continues the first ``kept`` runs at a target offset."""
        if not kept:
            return 0
        source, target = self._runs[kept - 1]
        return source + target_start - target

    # -- forgetting ------------------------------------------------------------------------------

    def below(self, target_log_start: int) -> int:
        """How many of the first runs cover only records below the start of the target's log.

        The run that holds the last record below it does not count: while the log is empty it ends there too,
        and a run noted to begin at that end may still be superseded.
        """
        return max(0, self.reached(target_log_start) - 1)

    def forget(self, count: int) -> None:
        """Forget the first ``count`` runs: offsets before the next run are then before the map.

        Raises:
            ValueError: That is all of them, or more, or less than none.
        """
        if not 0 <= count < max(1, len(self)):
            raise ValueError(f"{count} of {len(self)} runs cannot be forgotten")
        if count:
            self._runs = self._runs.from_index(count)
            self.forgotten += count
            self.begins_at = None

    # -- where to go on --------------------------------------------------------------------------

    def position(self, target_log_end: int) -> int:
        """The source offset to go on with when the target's log ends here.

        Raises:
            UntranslatableError: The log ends before the first run begins.
        """
        index = self._runs.up_to(target_log_end) - 1
        if index < 0:
            raise UntranslatableError(f"the offset map {self._beginning()}, the log ends at {target_log_end}")
        source, target = self._runs[index]
        return source + target_log_end - target

    # -- records ---------------------------------------------------------------------------------

    def target_of(self, source_offset: int, target_log_end: int) -> int:
        """The target offset of the record with this source offset.

        Raises:
            UntranslatableError: It is before the map, in a gap, or not copied yet.
        """
        target, gap = self._locate(source_offset, target_log_end)
        if gap is not None:
            raise UntranslatableError(f"source offset {source_offset} is in the gap [{gap[0]}, {gap[1]})")
        if target >= target_log_end:
            raise UntranslatableError(
                f"source offset {source_offset} is not copied yet: the copy has reached "
                f"{self.position(target_log_end)}"
            )
        return target

    def source_of(self, target_offset: int, target_log_end: int) -> int:
        """The source offset of the record with this target offset.

        Raises:
            UntranslatableError: It is before the map, or at or beyond the log end.
        """
        if target_offset >= target_log_end:
            raise UntranslatableError(
                f"target offset {target_offset} is not written yet: the log ends at {target_log_end}"
            )
        return self._source_at(target_offset)

    # -- committed offsets of groups -------------------------------------------------------------

    def committed_to_target(self, source_offset: int, target_log_end: int) -> int:
        """Where a group that has committed ``source_offset`` at the source goes on at the target.

        For an offset in a gap that is the next record; for the position of the copy, the log end.

        Raises:
            UntranslatableError: The offset is before the map, or beyond what is copied.
        """
        target, _ = self._locate(source_offset, target_log_end)
        if target > target_log_end:
            raise UntranslatableError(
                f"committed source offset {source_offset} is not copied yet: "
                f"the copy has reached {self.position(target_log_end)}"
            )
        return target

    def committed_to_source(self, target_offset: int, target_log_end: int) -> int:
        """Where a group that has committed ``target_offset`` at the target goes on at the source.

        Raises:
            UntranslatableError: The offset is before the map, or beyond the log end.
        """
        if target_offset > target_log_end:
            raise UntranslatableError(
                f"committed target offset {target_offset} is beyond the log end {target_log_end}"
            )
        return self._source_at(target_offset)

    # -- searching -------------------------------------------------------------------------------

    def _locate(self, source_offset: int, target_log_end: int) -> tuple[int, tuple[int, int] | None]:
        """The target offset at which a source offset is, or would be, and the source gap [from, to) it is in.

        For an offset in a gap, that of the next record after the gap. Runs that begin beyond the log end do
        not count: they may still be superseded.

        Raises:
            UntranslatableError: The offset is before the map.
        """
        known = self._runs.up_to(target_log_end)
        index = min(self._runs.up_to_source(source_offset), known) - 1
        if index < 0:
            return self._locate_before(source_offset, known)
        source_start, target_start = self._runs[index]
        target = target_start + source_offset - source_start
        if index + 1 < known:
            next_source, next_target = self._runs[index + 1]
            if target >= next_target:
                return next_target, (self._expected(index + 1, next_target), next_source)
        return target, None

    def _source_at(self, target_offset: int) -> int:
        """The source offset of a target offset that is not beyond the log end.

        Raises:
            UntranslatableError: The offset is before the map.
        """
        if not len(self) or target_offset < self._runs[0][1]:
            raise UntranslatableError(f"target offset {target_offset}: the offset map {self._beginning()}")
        return self.position(target_offset)

    def _locate_before(self, source_offset: int, known: int) -> tuple[int, tuple[int, int]]:
        if not known or self.begins_at is None or source_offset < self.begins_at:
            raise UntranslatableError(f"source offset {source_offset}: the offset map {self._beginning()}")
        first_source, first_target = self._runs[0]
        return first_target, (self.begins_at, first_source)

    def _beginning(self) -> str:
        if not len(self):
            return "is empty"
        source, target = self._runs[0]
        source = source if self.begins_at is None else self.begins_at
        return f"begins at source offset {source}, target offset {target}"


__all__ = ["OffsetMap", "Run"]
