"""Says whether a copy is exact, with nothing of the project in it.

Both logs are read with confluent-kafka as any consumer would (read_committed), one
partition at a time, and compared record by record while they stream; memory stays flat
whatever the size. :func:`judge` is the whole judgement, a function of two iterators.

``offsets="same"`` demands the source's offset of every record and its log start and end.
``offsets="mapped"`` demands the order and the content only.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, Protocol

from confluent_kafka import (
    OFFSET_BEGINNING,
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    KafkaError,
    Message,
    TopicPartition,
)

OffsetMode = Literal["same", "mapped"]
Headers = tuple[tuple[str, bytes | None], ...]

COMMITTED, UNCOMMITTED = "read_committed", "read_uncommitted"
READ_SECONDS = 60.0
"""The longest a read may stand still before the check gives up."""

SHOWN = 20
"""Faults named in one message; the rest is counted."""

LOOK_AHEAD = 2000
"""How far the judge looks for a record that is not where it belongs."""

_NOTHING: Mapping[int, Iterable[Record]] = MappingProxyType({})


class Rename(Protocol):
    """Gives the name of a source topic on the target."""

    def __call__(self, topic: str, /) -> str: ...


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


class ReadStalledError(Exception):
    """A log could not be read to its end."""


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


def read_partition(bootstrap: str, topic: str, partition: int) -> Iterator[Record]:
    """All committed records of a partition up to the log end it has now, in order.

    Raises:
        ReadStalledError: Nothing came for :data:`READ_SECONDS`.
    """
    with _consumer(bootstrap) as consumer:
        where = TopicPartition(topic, partition, OFFSET_BEGINNING)
        low, high = consumer.get_watermark_offsets(where, timeout=READ_SECONDS)
        if low == high:
            return
        consumer.assign([where])
        while True:
            message = consumer.poll(READ_SECONDS)
            if message is None:
                raise ReadStalledError(f"{topic}-{partition}: nothing for {READ_SECONDS:g} s before {high}")
            failure = message.error()
            if failure is not None and failure.code() != KafkaError._PARTITION_EOF:
                raise ReadStalledError(f"{topic}-{partition}: {failure}")
            if failure is not None or message.offset() >= high:
                return
            yield _record(message)


def read_together(
    bootstrap: str, partitions: Iterable[tuple[str, int]]
) -> dict[tuple[str, int], list[Record]]:
    """All committed records of many small partitions, by one consumer; it all stays in memory.

    Raises:
        ReadStalledError: Nothing came for :data:`READ_SECONDS`.
    """
    found: dict[tuple[str, int], list[Record]] = {where: [] for where in partitions}
    unread = set(found)
    with _consumer(bootstrap) as consumer:
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for topic, partition in found])
        while unread:
            message = consumer.poll(READ_SECONDS)
            if message is None:
                raise ReadStalledError(f"nothing for {READ_SECONDS:g} s before the ends of {sorted(unread)}")
            failure = message.error()
            if failure is None:
                found[message.topic(), message.partition()].append(_record(message))
            elif failure.code() == KafkaError._PARTITION_EOF:
                unread.discard((message.topic(), message.partition()))
            else:
                raise ReadStalledError(str(failure))
    return found


def _record(message: Message) -> Record:
    kind, timestamp_ms = message.timestamp()
    return Record(
        offset=message.offset(),
        timestamp_type=kind,
        timestamp_ms=-1 if kind == TIMESTAMP_NOT_AVAILABLE else timestamp_ms,
        key=message.key(),
        value=message.value(),
        headers=tuple(message.headers() or ()),
    )


def watermarks(bootstrap: str, topic: str, isolation_level: str = COMMITTED) -> dict[int, tuple[int, int]]:
    """Log start and end of every partition; what is committed ends where a transaction is open."""
    with _consumer(bootstrap, isolation_level) as consumer:
        partitions = consumer.list_topics(topic, timeout=READ_SECONDS).topics[topic].partitions
        return {
            partition: consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=READ_SECONDS)
            for partition in sorted(partitions)
        }


@contextmanager
def _consumer(bootstrap: str, isolation_level: str = COMMITTED) -> Iterator[Consumer]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "checker",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": isolation_level,
            "auto.offset.reset": "error",
            "check.crcs": True,
            "fetch.wait.max.ms": 20,
            "queued.max.messages.kbytes": 16384,
            "log_level": 0,
        }
    )
    try:
        yield consumer
    finally:
        consumer.close()


def compare_topic(
    source_bootstrap: str,
    target_bootstrap: str,
    topic: str,
    copy: str,
    offsets: OffsetMode = "same",
    known: Mapping[int, Iterable[Record]] = _NOTHING,
) -> dict[str, Verdict]:
    """The verdict on every partition of a topic and its copy, by partition name.

    Args:
        known: What the source holds in partitions that librdkafka does not read as Kafka does.
    """
    source_marks = watermarks(source_bootstrap, topic)
    target_marks = watermarks(target_bootstrap, copy, UNCOMMITTED)
    if len(source_marks) != len(target_marks):
        detail = f"{len(source_marks)} partitions became {len(target_marks)}"
        return {topic: Verdict(0, (Finding(Fault.WATERMARK, -1, -1, detail),))}
    verdicts = {}
    for partition, marks in source_marks.items():
        verdict = judge(
            known.get(partition) or read_partition(source_bootstrap, topic, partition),
            read_partition(target_bootstrap, copy, partition),
            offsets,
        )
        more = watermark_findings(marks, target_marks[partition]) if offsets == "same" else []
        verdicts[f"{topic}-{partition}"] = Verdict(verdict.records, (*more, *verdict.findings))
    return verdicts


def assert_exact(
    source_bootstrap: str,
    target_bootstrap: str,
    topics: Iterable[str],
    offsets: OffsetMode = "same",
    rename: Rename = lambda topic: topic,
    known: Mapping[int, Iterable[Record]] = _NOTHING,
) -> int:
    """Demand that every topic's copy is exact.

    Args:
        known: As for :func:`compare_topic`, for every topic.

    Returns:
        How many records were compared.

    Raises:
        NotExactError: It is not; says which record of which partition is wrong in what way.
    """
    verdicts: dict[str, Verdict] = {}
    for topic in topics:
        verdicts |= compare_topic(source_bootstrap, target_bootstrap, topic, rename(topic), offsets, known)
    wrong = {partition: verdict for partition, verdict in verdicts.items() if not verdict.exact}
    if wrong:
        raise NotExactError(wrong)
    return sum(verdict.records for verdict in verdicts.values())
