"""A topic that is written at an even rate, and when each of its records was at the source and in the copy.

::

    with trickling(source.bootstrap, target.bootstrap, "live", per_second=20) as records:
        ...
        late = [one.read_at - one.acknowledged_at for one in records]

The topic has one partition on either side and nothing in it. Producer and consumer run in this process, each
in a thread of its own, so all times are of one clock: monotonic, in seconds.
"""

from __future__ import annotations

import itertools
import math
import os
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

NUMBER_BYTES, REST = 20, b"." * 80
FLUSH_SECONDS, POLL_SECONDS = 30.0, 0.2


@dataclass(slots=True)
class Written:
    """When a record was handed to the producer, acknowledged by the source, and read from the target.

    The time of what has not happened yet is infinite.
    """

    handed_at: float
    acknowledged_at: float = math.inf
    read_at: float = math.inf


class Bursts(NamedTuple):
    """How a topic is written: as many records every so many seconds, each with so much noise."""

    every_seconds: float
    records: int
    noise_bytes: int


def came(records: Sequence[Written], count: int) -> bool:
    """Whether the first ``count`` records have been read."""
    return len(records) >= count and records[count - 1].read_at < math.inf


@contextmanager
def trickling(
    source: str, target: str, topic: str, per_second: float, *, at_once: int = 1, noise_bytes: int = 0
) -> Iterator[Sequence[Written]]:
    """Write and read as long as the block lasts; yields the records, a list that grows.

    Args:
        source, target: Where the topic is written and read.
        at_once: How many records come one right after the other.
        noise_bytes: What each has besides a hundred bytes, and nothing makes smaller.

    Raises:
        KafkaException: A record was not accepted.
    """
    records: list[Written] = []
    bursts = Bursts(at_once / per_second, at_once, noise_bytes)
    enough = threading.Event()
    with ThreadPoolExecutor(2) as threads:
        reading = threads.submit(_read, target, topic, records, enough)
        writing = threads.submit(_write, source, topic, bursts, records, enough)
        try:
            yield records
        finally:
            enough.set()
    for one in (writing, reading):
        one.result()


def _write(
    bootstrap: str, topic: str, bursts: Bursts, records: list[Written], enough: threading.Event
) -> None:
    """Between two records the producer is polled all the time: acknowledgements are noted as they arrive."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, "log_level": 0})
    began = time.monotonic()
    for number in itertools.count():
        due = began + number // bursts.records * bursts.every_seconds
        while (left := due - time.monotonic()) > 0 and not enough.is_set():
            producer.poll(left)
        if enough.is_set():
            break
        records.append(record := Written(time.monotonic()))
        value = b"%0*d" % (NUMBER_BYTES, number) + REST + os.urandom(bursts.noise_bytes)
        producer.produce(topic, value, on_delivery=partial(_acknowledged, record))
        producer.poll(0)
    producer.flush(FLUSH_SECONDS)


def _acknowledged(record: Written, failure: KafkaError | None, _: Message) -> None:
    record.acknowledged_at = time.monotonic()
    if failure is not None:
        raise KafkaException(failure)


def _read(bootstrap: str, topic: str, records: Sequence[Written], enough: threading.Event) -> None:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": topic, "log_level": 0})
    try:
        consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        while not enough.is_set():
            message = consumer.poll(POLL_SECONDS)
            value = message.value() if message is not None and message.error() is None else None
            if isinstance(value, bytes):
                record = records[int(value[:NUMBER_BYTES])]
                record.read_at = min(record.read_at, time.monotonic())
    finally:
        consumer.close()
