"""What a comparison is given, and what results from it, partition by partition.

Topics and partitions have their names at the source. Pure.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from mirror.model import TopicPartition
from spark_jobs.findings import Difference
from spark_jobs.nothing import Nothing
from spark_jobs.places import Line
from spark_jobs.telling import Edges
from spark_jobs.window import Range, Window


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """One partition at both sites, and what of it is compared.

    Attributes:
        topic_id, target_topic_id: Of the source's topic and of the target's; a topic that was created again
            under the same name has another one.
        is_compacted: It is compared by the latest record of each key.
        window: What of it is compared, and what not.
        begin_place: The place of the first record that was ever copied.
        source_end_place: The place of the source's next record.
        acknowledged: The source offset up to which, by the word of a mirror, the target has everything; None
            where none was asked, or it did not know.
        lines: How source offsets become places; None where they are the same.
        accepted: Target offsets of an append-only log whose differences were accepted.
        nothing: Why nothing of it is compared; None where something is, or where it holds nothing.
    """

    name: TopicPartition
    target_topic: str
    topic_id: str
    target_topic_id: str
    is_compacted: bool
    window: Window
    begin_place: int
    source_end_place: int
    acknowledged: int | None = None
    lines: Sequence[Line] | None = None
    accepted: Sequence[Range] = ()
    nothing: Nothing | None = None

    @property
    def target_name(self) -> TopicPartition:
        return TopicPartition(self.target_topic, self.name.partition)

    @property
    def target_known(self) -> Range:
        """Target offsets of which it is known what should stand there.

        They include those beyond the source's end, where nothing should stand, and those that the target has
        lost with the end of its log, where nothing does.
        """
        window = self.window
        beyond = window.beyond
        return Range(window.target.start, max(window.target.end, beyond.end if beyond.offsets else 0))

    @property
    def target_read(self) -> Range:
        """The part of them that is read: a log that has lost its end is read up to its present end."""
        lost = self.window.lost
        return self.target_known.before(lost.start) if lost.offsets else self.target_known

    @property
    def ends_in_gap(self) -> bool:
        """Whether, by its map, the source has no records right before where the copy goes on.

        If it has one there after all, the place of that record is the end of the target's log, and it cannot
        be named before more is copied.
        """
        return self.lines is not None and any(not line.slope for line in self.lines[-1:])

    @property
    def lost(self) -> Range:
        """The source offsets whose records the target had, and has lost with the end of its log."""
        return self.source_offsets(self.window.lost)

    @property
    def edges(self) -> Edges:
        return Edges(
            source=self.window.target,
            target=self.target_known,
            begin=self.begin_place,
            source_end=self.source_end_place,
        )

    def source_offsets(self, places: Range) -> Range:
        """The source offsets within the window whose records should stand at these places."""
        asked = Range(self._first_at(places.start), self._first_at(places.end))
        return asked.within(self.window.source)

    def _first_at(self, place: int) -> int:
        """The first source offset with this place or a later one."""
        lines = self.lines
        if lines is None:
            return place
        at = bisect_left(lines, place, key=lambda line: line.place(line.end - 1))
        if at == len(lines):
            return self.window.source.end
        line = lines[at]
        return max(line.start, place - line.base) if line.slope else line.start


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A difference, and the key of the record it is about.

    Attributes:
        key: Its first bytes; None for a null key, and for a row of records.
    """

    difference: Difference
    key: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """What came out of a partition.

    Attributes:
        findings: What differs, in the order of the log.
        contradicts: Digests differ and records do not: one of the sites does not always answer the same.
        unread: Places that differ and were too many to be looked at.
        keys_unnamed: Keys of a compacted topic that differ and were too many to be looked at.
        source_records, target_records: Read and digested.
        source_bytes, target_bytes: Of their keys and values.
        ranges, ranges_differing: Number of the source's digests, and of ranges or buckets that differ.
        read_again: Offsets of both sites that were read to name what differs, counted each time.
        in_flight: Keys of a compacted topic that were written to after the window.
        superseded: Records at the source and at the target that compaction will remove.
    """

    log: Log
    findings: Sequence[Finding] = ()
    contradicts: bool = False
    unread: Sequence[Range] = ()
    keys_unnamed: int = 0
    source_records: int = 0
    target_records: int = 0
    source_bytes: int = 0
    target_bytes: int = 0
    ranges: int = 0
    ranges_differing: int = 0
    read_again: int = 0
    in_flight: int = 0
    superseded: tuple[int, int] = (0, 0)

    @property
    def unnamed(self) -> int:
        """Places or keys that differ and were too many to be looked at."""
        return self.keys_unnamed + sum(places.offsets for places in self.unread)

    @property
    def pending(self) -> int:
        """Source offsets that the copy has not reached."""
        return self.log.window.pending.offsets

    @property
    def never_copied(self) -> int:
        """Source offsets that the source deleted before they were copied."""
        return self.log.window.never_copied.offsets

    @property
    def expired(self) -> int:
        """Source offsets that only one side still has."""
        return self.log.window.expired_at_source.offsets + self.log.window.expired_at_target.offsets

    @property
    def leaving(self) -> int:
        """Source offsets that both have, and that one side is about to delete: too late to compare them."""
        return self.log.window.leaving.offsets

    @property
    def is_match(self) -> bool:
        return not self.findings and not self.unnamed
