"""Says whether a copy is exact, using no code of the project.

Both logs are read with confluent-kafka as any consumer would (read_committed), one
partition at a time, and compared record by record while they stream; memory stays flat
whatever the size. What counts as exact: :mod:`tests.harness.judging`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Protocol

from confluent_kafka import (
    OFFSET_BEGINNING,
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    KafkaError,
    Message,
    TopicPartition,
)

from tests.harness.judging import (
    Fault,
    Finding,
    NotExactError,
    OffsetMode,
    Record,
    Verdict,
    judge,
    watermark_findings,
)

COMMITTED, UNCOMMITTED = "read_committed", "read_uncommitted"
READ_SECONDS = 60.0
"""The longest a read may stand still before the check gives up."""

_NOTHING: Mapping[int, Iterable[Record]] = MappingProxyType({})


class Rename(Protocol):
    """Gives the name of a source topic on the target."""

    def __call__(self, topic: str, /) -> str: ...


class ReadStalledError(Exception):
    """A log could not be read to its end."""


def read_partition(bootstrap: str, topic: str, partition: int) -> Iterator[Record]:
    """All committed records of a partition up to the log end it has now, in order.

    Raises:
        ReadStalledError: Nothing came for :data:`READ_SECONDS`, or reading failed.
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
        ReadStalledError: Nothing came for :data:`READ_SECONDS`, or reading failed.
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
    """Log start and end of every partition; with ``read_committed`` the end is the last stable offset."""
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
