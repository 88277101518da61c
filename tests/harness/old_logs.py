"""Logs of a broker that was upgraded from Kafka 0.9 to 0.10, for newer brokers to serve.

Real producers wrote them, through real brokers of that time:

``codecs``, ``append-time``, ``broker-gzip``, ``broker-snappy``, ``broker-lz4``
    begin in format v0 and go on in v1, compressed by the producer or by the broker. LZ4 frames in v0
    have the wrong checksum of KAFKA-3160.
``old-producer``
    is what 0.10 makes of a batch in v0: messages of v1 without a time.
``cleaned-v0``, ``cleaned-v1``
    have gaps inside compressed sets.
``cleaned-across``
    was written by 0.9 and cleaned by 0.10, whose cleaner put messages of v0 into sets of v1 that claim to
    have been appended at -1 (KAFKA-4298). Kafka's own consumers read them. librdkafka skips some, so
    :func:`written_across` says what is there.
"""

from __future__ import annotations

import asyncio
import fcntl
import itertools
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.harness.daemon import until
from tests.harness.data import Row, edge_rows, json_rows
from tests.harness.judging import Record
from tests.harness.loading import load
from tests.harness.old_kafka import PRODUCER, PRODUCER_0_9, OldKafka, running_old_kafka
from tests.harness.segments import Files, OldCodec, cleaned_up_to, segments

RECORDS: Mapping[str, int] = {
    "append-time": 128,
    "broker-gzip": 300,
    "broker-lz4": 300,
    "broker-snappy": 300,
    "cleaned-across": 47,
    "cleaned-v0": 47,
    "cleaned-v1": 47,
    "codecs": 128,
    "old-producer": 64,
}
"""How many records each log holds."""

CODECS: tuple[OldCodec, ...] = ("none", "gzip", "snappy", "lz4")
START_MS = 1_400_000_000_000
FILE_BYTES = 9_000
"""Size of a file of a log that is cleaned: room for what is to be cleaned, not for what comes after it."""

_ROWS = [replace(row, timestamp_ms=START_MS + n) for n, row in enumerate(json_rows(40, 120))]
_AGAIN = _ROWS[32:]
_ODD = [row for row in edge_rows(START_MS) if not row.headers]
_MANY = [replace(row, timestamp_ms=START_MS + n) for n, row in enumerate(json_rows(150, 1000))]
_AFTER = _MANY[:7]
_ONE_BATCH: Mapping[str, Any] = {"linger_ms": 10_000, "batch_size": 900_000}


def logs_of_old_brokers(folder: Path) -> dict[str, Files]:
    """Every log by its name; brokers run to write them only if the folder does not exist yet.

    Processes that share a folder wait for the first of them.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            asyncio.run(_write(folder))
    return {
        log.name: {int(file.stem): file.read_bytes() for file in sorted(log.iterdir())}
        for log in sorted(folder.iterdir())
    }


def written_across() -> list[Record]:
    """What ``cleaned-across`` holds, known from what was written."""
    left = [
        *((16 * number + 2 * at, row, -1) for number in range(4) for at, row in enumerate(_once(number))),
        *((64 + at, row, -1) for at, row in enumerate(_AGAIN)),
        *((72 + at, row, row.timestamp_ms) for at, row in enumerate(_AFTER)),
    ]
    return [
        Record(offset=offset, timestamp_type=0, timestamp_ms=time_ms, key=row.key, value=row.value)
        for offset, row, time_ms in left
    ]


async def _write(folder: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="old-kafka-") as work_dir:
        async with running_old_kafka("0.9", Path(work_dir)) as broker:
            _create_topics(broker)
            _load_both(broker, PRODUCER_0_9)
            await _load_and_clean(broker, "cleaned-v0", PRODUCER_0_9)
            _load_repeated(broker, "cleaned-across", PRODUCER_0_9)
            await broker.upgrade("0.10")
            _load_both(broker, PRODUCER)
            _load_codecs(broker, "old-producer", PRODUCER_0_9)
            await _load_and_clean(broker, "cleaned-v1", PRODUCER)
            await _clean(broker, "cleaned-across", PRODUCER)
            await broker.stop()
            _keep(broker, folder)


def _create_topics(broker: OldKafka) -> None:
    cleaned = {
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": 0.0,
        "segment.bytes": FILE_BYTES,
    }
    broker.create_topic("codecs")
    broker.create_topic("append-time", {"message.timestamp.type": "LogAppendTime"})
    broker.create_topic("old-producer")
    for codec in CODECS[1:]:
        broker.create_topic(f"broker-{codec}", {"compression.type": codec})
    for name in ("cleaned-v0", "cleaned-v1", "cleaned-across"):
        broker.create_topic(name, cleaned)


def _load_both(broker: OldKafka, producer: Mapping[str, Any]) -> None:
    """Write what both versions write into the same logs."""
    _load_codecs(broker, "codecs", producer)
    _load_codecs(broker, "append-time", producer)
    for codec in CODECS[1:]:
        load(broker.bootstrap, f"broker-{codec}", _MANY, **_ONE_BATCH, **producer)


def _load_codecs(broker: OldKafka, topic: str, producer: Mapping[str, Any]) -> None:
    for codec in CODECS:
        load(broker.bootstrap, topic, _ODD, codec, **_ONE_BATCH, **producer)


async def _load_and_clean(broker: OldKafka, topic: str, producer: Mapping[str, Any]) -> None:
    _load_repeated(broker, topic, producer)
    await _clean(broker, topic, producer)


def _load_repeated(broker: OldKafka, topic: str, producer: Mapping[str, Any]) -> None:
    """Write one file of sets in which every second record comes again in the next set.

    Uncompressed messages come first: the cleaner of 0.10 stops at a set of both formats that comes first.
    """
    for number, codec in enumerate(CODECS):
        rows = itertools.chain.from_iterable(zip(_once(number), _AGAIN, strict=True))
        load(broker.bootstrap, topic, rows, codec, **_ONE_BATCH, **producer)
    load(broker.bootstrap, topic, _AGAIN, **_ONE_BATCH, **producer)


def _once(number: int) -> list[Row]:
    """The records of a set that the cleaner leaves, a tombstone among them."""
    rows = _ROWS[8 * number : 8 * number + 8]
    return [*rows[:3], replace(rows[3], value=None), *rows[4:]]


async def _clean(broker: OldKafka, topic: str, producer: Mapping[str, Any]) -> None:
    """Begin another file, so that the cleaner cleans the first; once, as it may stop at its own output."""
    load(broker.bootstrap, topic, _AFTER, **_ONE_BATCH, **producer)

    def is_clean() -> bool:
        return cleaned_up_to(broker, topic) == int(segments(broker, topic)[-1].stem) > 0

    await until(is_clean, f"{topic} is clean")


def _keep(broker: OldKafka, folder: Path) -> None:
    unfinished = folder.with_suffix(".unfinished")
    for log in broker.log_dir().glob("*-0"):
        kept = unfinished / log.name.removesuffix("-0")
        kept.mkdir(parents=True)
        for file in log.glob("*.log"):
            shutil.copy(file, kept)
    unfinished.rename(folder)
