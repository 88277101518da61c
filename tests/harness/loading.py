"""Write records to a topic: as they are, in transactions, or offset by offset.

All loaders write with confluent-kafka and return when every record is acknowledged by
all in-sync replicas; they raise :class:`NotLoadedError` for a record that is not.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from tests.harness.data import Aborted, Edge, Entry, NotLoadedError, Row, size_of

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
FLUSH_SECONDS = 120.0
QUEUE_KIB = 65536
"""The most a loader holds in memory."""
UNTIL_FULL_MS = 10_000
"""How long a batch waits to be full, or flushed, where its contents are settled: so a loader that gets no
processor for some milliseconds ends none too early.
"""


def load(bootstrap: str, topic: str, rows: Iterable[Row], codec: str = "none", **settings: object) -> int:
    """Write records in order, partition by partition exactly once.

    Args:
        codec: One of :data:`CODECS`.
        settings: More settings of the producer, dots written as underscores. With ``batch_num_messages`` all
            batches have that many records, except the last of a partition.

    Returns:
        How many were written.
    """
    if "batch_num_messages" in settings:
        settings = {"linger_ms": UNTIL_FULL_MS, **settings}
    with _Writer(bootstrap, codec, settings) as writer:
        return writer.write(topic, rows)


def load_topics(bootstrap: str, topics: Iterable[str], rows: Iterable[Row]) -> int:
    """Write the same records to each of many topics, all by one producer."""
    kept = list(rows)
    with _Writer(bootstrap, "none", {}) as writer:
        return sum(writer.write(topic, kept) for topic in topics)


def load_every_codec(bootstrap: str, topic: str, rows: Iterable[Row]) -> int:
    """Write the same records once with each codec."""
    kept = list(rows)
    return sum(load(bootstrap, topic, kept, codec) for codec in CODECS)


def load_compacted(
    bootstrap: str, topic: str, rows: Iterable[Row], tombstone_every: int = 50, codec: str = "lz4"
) -> int:
    """Write keyed records and, for one in ``tombstone_every``, a tombstone right after it."""

    def with_tombstones() -> Iterator[Row]:
        for number, row in enumerate(rows):
            yield row
            if number % tombstone_every == tombstone_every - 1:
                yield Row(key=row.key, value=None)

    return load(bootstrap, topic, with_tombstones(), codec)


def load_transactions(
    bootstrap: str,
    topic: str,
    rows: Iterable[Row],
    per_transaction: int = 100,
    aborted_every: int = 4,
    transactional_id: str = "loader",
    codec: str = "none",
) -> int:
    """Write records in transactions; every ``aborted_every``-th is written, aborted, and written again.

    A transaction writes one batch to each partition, if it fits.

    Returns:
        How many records were committed; they can be read.

    Raises:
        NotLoadedError: Something keeps them from being read.
    """
    settings: dict[str, object] = {"transactional.id": transactional_id, "linger.ms": UNTIL_FULL_MS}
    with _Writer(bootstrap, codec, settings) as writer:
        writer.producer.init_transactions(FLUSH_SECONDS)
        total = 0
        for number, part in enumerate(_parts(rows, per_transaction)):
            if number % aborted_every == aborted_every - 1:
                _transaction(writer, topic, part, writer.producer.abort_transaction)
            total += _transaction(writer, topic, part, writer.producer.commit_transaction)
    _wait_for_markers(bootstrap, topic)
    return total


def leave_open(
    bootstrap: str, topic: str, rows: Iterable[Row], transactional_id: str, timeout_ms: int
) -> None:
    """Write records in a transaction that nobody ends; the broker aborts it after that time.

    Kafka 4.3.0 forgets it if it has no leader for the partition just then (KAFKA-20734): it stays open.
    """
    settings = {"transactional.id": transactional_id, "transaction.timeout.ms": timeout_ms}
    with _Writer(bootstrap, "none", settings) as writer:
        writer.producer.init_transactions(FLUSH_SECONDS)
        _transaction(writer, topic, rows, lambda _: None)


def load_aborted(bootstrap: str, topic: str, count: int) -> None:
    """Take ``count`` + 1 offsets of partition 0: records of a transaction that is aborted, and its marker."""
    with _Writer(bootstrap, "none", {"transactional.id": f"{topic}-aborted"}) as writer:
        writer.producer.init_transactions(FLUSH_SECONDS)
        gone = [Row(key=b"never happened", value=b"", partition=0)] * count
        _transaction(writer, topic, gone, writer.producer.abort_transaction)


def load_log(bootstrap: str, topic: str, entries: Iterable[Entry]) -> None:
    """Write partition 0 of a log offset by offset, as its entries say; they must leave no transaction open.

    Raises:
        NotLoadedError: A marker was not written, or something else was.
    """
    transactional: dict[str, object] = {"transactional.id": f"{topic}-committed"}
    reader = _reader(bootstrap, "read_uncommitted")
    _, end = reader.get_watermark_offsets(TopicPartition(topic, 0), FLUSH_SECONDS)
    with _Writer(bootstrap, "none", {}) as plain, _Writer(bootstrap, "none", transactional) as committing:
        committing.producer.init_transactions(FLUSH_SECONDS)
        writer = plain
        for is_row, some in itertools.groupby(entries, lambda entry: isinstance(entry, Row)):
            if is_row:
                end += writer.write(
                    topic, (replace(row, partition=0) for row in some if isinstance(row, Row))
                )
                writer.flush()
                continue
            for entry in some:
                end += size_of(entry)
                if isinstance(entry, Aborted):
                    load_aborted(bootstrap, topic, entry.records)
                elif entry is Edge.BEGIN:
                    committing.producer.begin_transaction()
                    writer = committing
                else:
                    committing.producer.commit_transaction(FLUSH_SECONDS)
                    writer = plain
                _wait_for_end(reader, topic, end)
    reader.close()


def _reader(bootstrap: str, isolation: str) -> Consumer:
    settings = {"bootstrap.servers": bootstrap, "group.id": "loader", "isolation.level": isolation}
    return Consumer({**settings, "log_level": 0})


def _wait_for_markers(bootstrap: str, topic: str) -> None:
    """Wait until a ``read_committed`` consumer sees all that is there now."""
    written, committed = _reader(bootstrap, "read_uncommitted"), _reader(bootstrap, "read_committed")
    for partition in written.list_topics(topic, FLUSH_SECONDS).topics[topic].partitions:
        where = TopicPartition(topic, partition)
        _, end = written.get_watermark_offsets(where, FLUSH_SECONDS)
        deadline = time.monotonic() + FLUSH_SECONDS
        while (stable := committed.get_watermark_offsets(where, FLUSH_SECONDS)[1]) < end:
            if time.monotonic() > deadline:
                raise NotLoadedError(f"{topic}-{partition}: committed up to {stable}, written up to {end}")
            time.sleep(0.002)
    written.close()
    committed.close()


def _wait_for_end(reader: Consumer, topic: str, end: int) -> None:
    """Wait until the log ends there: markers are written a little after the producer's call returns."""
    deadline = time.monotonic() + FLUSH_SECONDS
    while (found := reader.get_watermark_offsets(TopicPartition(topic, 0), FLUSH_SECONDS)[1]) != end:
        if found > end or time.monotonic() > deadline:
            raise NotLoadedError(f"{topic}-0 ends at {found}, and should at {end}")
        time.sleep(0.002)


def load_interleaved(bootstrap: str, topic: str, rows: Iterable[Row], producers: int = 3) -> int:
    """Several transactional producers write in turns, all open at once; at the end every third one aborts.

    Returns:
        How many records were committed; they can be read.

    Raises:
        NotLoadedError: Something keeps them from being read.
    """
    writers = [_Writer(bootstrap, "none", {"transactional.id": f"{topic}-{i}"}) for i in range(producers)]
    for writer in writers:
        writer.producer.init_transactions(FLUSH_SECONDS)
        writer.producer.begin_transaction()
    counts = [0] * producers
    for number, part in enumerate(_parts(rows, 10)):
        writer = writers[number % producers]
        counts[number % producers] += writer.write(topic, part)
        writer.flush()
    for number, writer in enumerate(writers):
        aborts = number % 3 == 2
        (writer.producer.abort_transaction if aborts else writer.producer.commit_transaction)(FLUSH_SECONDS)
    _wait_for_markers(bootstrap, topic)
    return sum(count for number, count in enumerate(counts) if number % 3 != 2)


def _transaction(writer: _Writer, topic: str, rows: Iterable[Row], end: Callable[[float], None]) -> int:
    writer.producer.begin_transaction()
    written = writer.write(topic, rows)
    writer.flush()
    end(FLUSH_SECONDS)
    return written


def _parts(rows: Iterable[Row], size: int) -> Iterator[list[Row]]:
    rest = iter(rows)
    while part := list(itertools.islice(rest, size)):
        yield part


class _Writer:
    """A producer that remembers the first failure and raises it when asked."""

    def __init__(self, bootstrap: str, codec: str, settings: dict[str, object]) -> None:
        self._failure: KafkaError | None = None
        self.producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "compression.type": codec,
                "enable.idempotence": True,
                "linger.ms": 5,
                "queue.buffering.max.kbytes": QUEUE_KIB,
                "log_level": 0,
                **{key.replace("_", ".") if key != "log_level" else key: x for key, x in settings.items()},
            }
        )

    def __enter__(self) -> _Writer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is None:
            self.flush()

    def write(self, topic: str, rows: Iterable[Row]) -> int:
        """Queue records, waiting while the queue is full."""
        count = 0
        for count, row in enumerate(rows, 1):  # noqa: B007  # the last number is the answer
            while not self._queued(topic, row):
                self.producer.poll(0.1)
            self.producer.poll(0)
            self._check()
        return count

    def flush(self) -> None:
        """Wait until everything queued is acknowledged.

        Raises:
            NotLoadedError: It was not.
        """
        left = self.producer.flush(FLUSH_SECONDS)
        self._check()
        if left:
            raise NotLoadedError(f"{left} records not acknowledged after {FLUSH_SECONDS:g} s")

    def _queued(self, topic: str, row: Row) -> bool:
        where = {"partition": row.partition} if row.partition >= 0 else {}
        try:
            self.producer.produce(
                topic,
                row.value,
                row.key,
                headers=list(row.headers),
                timestamp=row.timestamp_ms,
                on_delivery=self._delivered,
                **where,
            )
        except BufferError:
            return False
        return True

    def _delivered(self, failure: KafkaError | None, _: Message) -> None:
        self._failure = self._failure or failure

    def _check(self) -> None:
        if self._failure is not None:
            raise NotLoadedError(str(self._failure))
