"""The judgement on a copy: what is wrong with which record, a function of two iterators.

``offsets="same"`` demands the source's offset of every record and its log start and end.
``offsets="mapped"`` demands the order and the content only.

Pure.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

OffsetMode = Literal["same", "mapped"]
Headers = tuple[tuple[str, bytes | None], ...]

SHOWN = 20
"""Faults named in one message; the rest is counted."""

LOOK_AHEAD = 2000
"""How far the judge looks for a record that is not where it belongs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One record as a consumer sees it."""

    offset: int
    timestamp_type: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()

    @property
    def content(self) -> tuple[object, ...]:
        """Everything but the place; the type of the timestamp is the topic's, not the record's."""
        return (self.timestamp_ms, self.key, self.value, self.headers)


class Fault(enum.Enum):
    """What can be wrong with one record of a copy."""

    LOST = "lost"
    DUPLICATED = "duplicated"
    REORDERED = "reordered"
    CHANGED = "changed"
    SHIFTED = "shifted"
    FOREIGN = "foreign"
    WATERMARK = "watermark"


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault at one place.

    Attributes:
        fault: Its kind.
        source_offset: Offset of the record at the source; -1 for a record it never had.
        target_offset: Offset on the target; -1 for a record that is not there.
        detail: What differs.
    """

    fault: Fault
    source_offset: int
    target_offset: int
    detail: str = ""

    def __str__(self) -> str:
        detail = f": {self.detail}" if self.detail else ""
        return f"{self.fault.value} source {self.source_offset} target {self.target_offset}{detail}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome for one partition."""

    records: int
    findings: tuple[Finding, ...]

    @property
    def exact(self) -> bool:
        return not self.findings


class NotExactError(AssertionError):
    """The copy differs; carries the verdict of each partition that does."""

    def __init__(self, verdicts: dict[str, Verdict]) -> None:
        lines = [
            f"{partition}: {finding}"
            for partition, verdict in verdicts.items()
            for finding in verdict.findings[:SHOWN]
        ]
        total = sum(len(verdict.findings) for verdict in verdicts.values())
        super().__init__(f"{total} faults\n" + "\n".join(lines))
        self.verdicts = verdicts


def judge(
    source: Iterable[Record], target: Iterable[Record], offsets: OffsetMode = "same", faults_max: int = 1000
) -> Verdict:
    """Compare two partitions record by record.

    Records are matched by content. A target record that is not the next one of the
    source is searched for among the next :data:`LOOK_AHEAD` of the source (those passed
    over were lost or come later) and among the last as many (it is a duplicate, or comes late).

    Args:
        source: Records of the source in the order of their offsets.
        target: Records of the target likewise.
        faults_max: Stop after this many.
    """
    return _Judge(iter(source), iter(target), offsets, faults_max).verdict()


class _Judge:
    """The state of one comparison: what is expected next, what was passed over, what was just seen."""

    def __init__(
        self, source: Iterator[Record], target: Iterator[Record], offsets: OffsetMode, faults_max: int
    ) -> None:
        self._source = source
        self._target = target
        self._same = offsets == "same"
        self._faults_max = faults_max
        self._expected: deque[Record] = deque()
        self._missing: dict[tuple[object, ...], list[Record]] = {}
        self._seen: deque[Record] = deque(maxlen=LOOK_AHEAD)
        self._findings: list[Finding] = []
        self._records = 0

    def verdict(self) -> Verdict:
        for copy in self._target:
            self._records += 1
            self._place(copy)
            if len(self._findings) >= self._faults_max:
                break
        else:
            self._missed(record for record in (*self._expected, *self._source))
            self._expected.clear()
        for waiting in self._missing.values():
            self._missed(waiting)
        self._findings.sort(key=lambda finding: max(finding.source_offset, finding.target_offset))
        return Verdict(self._records, tuple(self._findings))

    def _place(self, copy: Record) -> None:
        expected = self._next()
        if expected is not None and expected.content == copy.content:
            self._matched(self._expected.popleft(), copy)
        elif not (self._late(copy) or self._changed(copy) or self._ahead(copy) or self._repeated(copy)):
            self._find(Fault.FOREIGN, None, copy, "the source has no such record here")

    def _next(self) -> Record | None:
        if not self._expected:
            self._expected.extend(_take(self._source, 1))
        return self._expected[0] if self._expected else None

    def _matched(self, record: Record, copy: Record) -> None:
        self._seen.append(record)
        if self._same and record.offset != copy.offset:
            self._find(Fault.SHIFTED, record, copy)

    def _late(self, copy: Record) -> bool:
        """A record passed over before comes now."""
        waiting = self._missing.get(copy.content)
        if not waiting:
            return False
        record = waiting.pop(0)
        self._find(Fault.REORDERED, record, copy)
        self._seen.append(record)
        return True

    def _changed(self, copy: Record) -> bool:
        """The record stands at its place, with another content."""
        expected = self._next()
        if expected is None or not self._stands_for(expected, copy):
            return False
        self._find(Fault.CHANGED, expected, copy, _difference(expected, copy))
        self._seen.append(self._expected.popleft())
        return True

    def _stands_for(self, expected: Record, copy: Record) -> bool:
        if self._same:
            return expected.offset == copy.offset and not self._near(copy)
        return _likeness(expected, copy) >= 2 and not self._near(copy)

    def _near(self, copy: Record) -> bool:
        """Whether the source has this very record a little later, or had it a little before."""
        self._expected.extend(_take(self._source, LOOK_AHEAD - len(self._expected)))
        return any(record.content == copy.content for record in (*self._expected, *self._seen))

    def _ahead(self, copy: Record) -> bool:
        """The record belongs further on: those before it are missing until they turn up."""
        self._expected.extend(_take(self._source, LOOK_AHEAD - len(self._expected)))
        place = next((i for i, record in enumerate(self._expected) if record.content == copy.content), None)
        if place is None:
            return False
        for _ in range(place):
            passed = self._expected.popleft()
            self._missing.setdefault(passed.content, []).append(passed)
        self._matched(self._expected.popleft(), copy)
        return True

    def _repeated(self, copy: Record) -> bool:
        original = next((record for record in reversed(self._seen) if record.content == copy.content), None)
        if original is not None:
            self._find(Fault.DUPLICATED, original, copy)
        return original is not None

    def _missed(self, records: Iterable[Record]) -> None:
        for record in records:
            if len(self._findings) >= self._faults_max:
                return
            self._find(Fault.LOST, record, None)

    def _find(self, fault: Fault, record: Record | None, copy: Record | None, detail: str = "") -> None:
        where = record.offset if record else -1, copy.offset if copy else -1
        self._findings.append(Finding(fault, *where, detail))


def _take(records: Iterator[Record], count: int) -> Iterator[Record]:
    for _, record in zip(range(count), records, strict=False):
        yield record


def _likeness(one: Record, other: Record) -> int:
    return sum(a == b for a, b in zip(one.content, other.content, strict=True))


def _difference(record: Record, copy: Record) -> str:
    names = ("timestamp", "key", "value", "headers")
    pairs = zip(names, record.content, copy.content, strict=True)
    return "; ".join(f"{name} {a!r:.80} became {b!r:.80}" for name, a, b in pairs if a != b)


def watermark_findings(source: tuple[int, int], target: tuple[int, int]) -> list[Finding]:
    """Compare log start and end, as promised for the same offsets on both sides."""
    return [
        Finding(Fault.WATERMARK, ours, theirs, name)
        for name, ours, theirs in zip(("log start", "log end"), source, target, strict=True)
        if ours != theirs
    ]
