"""A partition's files on a broker's disk: read batch by batch, replaced, damaged.

:func:`serve_segments` puts bare ``.log`` files where a broker keeps a partition and
lets it recover them, which is how a broker comes to hold batches no producer can send
any more: :func:`old_message_set` writes those of formats v0 and v1. :func:`damage` flips
a bit of a batch in place, as a failing disk would; brokers serve such a batch unchecked.
:func:`mend` puts it back.

Sources: KIP-31 (relative offsets), KIP-32 (timestamps), Kafka's ``LegacyRecord``.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import cramjam
import lz4.frame

from tests.harness.data import Row
from tests.harness.kafka import KafkaCluster

OldCodec = Literal["none", "gzip", "snappy", "lz4"]
Files = Mapping[int, bytes]
"""Content of each log file of a partition by the offset it starts at."""

_OVERHEAD = struct.Struct(">qi")
"""Offset and size stand before every batch of every format."""

_MAGIC_AT = 16
_CODEC_BITS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3}
_LOG_APPEND_TIME = 0x08
_XERIAL = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
"""Before the blocks of snappy as Java writes it."""

_RECOVERED_FROM = (".kafka_cleanshutdown", "recovery-point-offset-checkpoint", "log-start-offset-checkpoint")
"""What tells a broker that its logs need no recovery."""


class Disks(Protocol):
    """Anything that keeps partitions in folders."""

    def log_dir(self, node: int = 1) -> Path:
        """Where a node keeps its partitions."""


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """One batch, or message of an old format, as it lies in a file."""

    file: Path
    position: int
    offset: int
    magic: int
    data: bytes

    @property
    def attributes(self) -> int:
        """The attributes of a v2 batch, as bits: codec, timestamp type and so on."""
        return int.from_bytes(self.data[21:23], "big")

    @property
    def next_offset(self) -> int:
        """The offset after the last one that a v2 batch covers."""
        return self.offset + int.from_bytes(self.data[23:27], "big") + 1

    @property
    def producer_id(self) -> int:
        """The id of the producer of a v2 batch; -1: it was not idempotent."""
        return int.from_bytes(self.data[43:51], "big", signed=True)

    @property
    def records(self) -> int:
        """How many records a v2 batch holds, fewer than offsets after compaction."""
        return int.from_bytes(self.data[57:61], "big")


def segments(cluster: Disks, topic: str, partition: int = 0, node: int = 1) -> list[Path]:
    """The log files of a partition, oldest first."""
    return sorted((cluster.log_dir(node) / f"{topic}-{partition}").glob("*.log"))


def stored_batches(cluster: Disks, topic: str, partition: int = 0, node: int = 1) -> Iterator[StoredBatch]:
    """All batches of a partition as they lie on a node's disk."""
    for file in segments(cluster, topic, partition, node):
        yield from _batches(file, file.read_bytes())


def _batches(file: Path, data: bytes) -> Iterator[StoredBatch]:
    position = 0
    while position + _OVERHEAD.size <= len(data):
        offset, size = _OVERHEAD.unpack_from(data, position)
        end = position + _OVERHEAD.size + size
        if size == 0 or end > len(data):
            return
        yield StoredBatch(file, position, offset, data[position + _MAGIC_AT], data[position:end])
        position = end


def cleaned_up_to(cluster: Disks, topic: str, partition: int = 0, node: int = 1) -> int:
    """The offset up to which a node's cleaner has cleaned a partition; -1 before its first time."""
    file = cluster.log_dir(node) / "cleaner-offset-checkpoint"
    lines = file.read_text().splitlines() if file.exists() else []
    offsets = [line.rsplit(" ", 1)[1] for line in lines if line.startswith(f"{topic} {partition} ")]
    return int(offsets[0]) if offsets else -1


def is_clean(cluster: Disks, topic: str, partition: int = 0, node: int = 1) -> bool:
    """Whether a node's cleaner has cleaned all but the active segment."""
    active = segments(cluster, topic, partition, node)[-1]
    return cleaned_up_to(cluster, topic, partition, node) == int(active.stem)


def damage(batch: StoredBatch, at: int = -1, bit: int = 0) -> None:
    """Flip one bit of a batch on disk, in its last byte or in another one."""
    spoiled = bytearray(batch.data)
    spoiled[at] ^= 1 << bit
    _write(batch, spoiled)


def mend(batch: StoredBatch) -> None:
    """Write a damaged batch back as it was read."""
    _write(batch, batch.data)


def _write(batch: StoredBatch, data: bytes | bytearray | memoryview) -> None:
    with batch.file.open("r+b") as file:
        file.seek(batch.position)
        file.write(data)


async def serve_segments(
    cluster: KafkaCluster, topic: str, files: Files, partition: int = 0, node: int = 1
) -> None:
    """Replace what a node holds of an existing partition; the node is restarted and recovers it."""
    await serve_logs(cluster, topic, {partition: files}, node)


async def serve_logs(cluster: KafkaCluster, topic: str, logs: Mapping[int, Files], node: int = 1) -> None:
    """Replace what a node holds of some partitions; the node is restarted once and recovers them."""
    async with _recovering(cluster, node):
        for partition, files in logs.items():
            _write_segments(cluster.log_dir(node) / f"{topic}-{partition}", files)


async def lose_ends(cluster: KafkaCluster, ends: Mapping[str, int], node: int = 1) -> None:
    """Cut off the end of logs with one segment, as an older backup of the disk would have them.

    Args:
        ends: The new end of partition 0, by topic; a batch must begin there.
    """
    async with _recovering(cluster, node):
        for topic, end in ends.items():
            left = [batch.data for batch in stored_batches(cluster, topic, node=node) if batch.offset < end]
            _write_segments(cluster.log_dir(node) / f"{topic}-0", {0: b"".join(left)})


def batches_in(files: Files) -> Iterator[StoredBatch]:
    """All batches of a log that no broker holds."""
    for base_offset in sorted(files):
        yield from _batches(Path(f"{base_offset:020d}.log"), files[base_offset])


def rolled(files: Files) -> Files:
    """A log of an old format that goes on in an empty file, so that a cleaner may go over all there is."""
    *_, last = batches_in(files)
    return {**files, last.offset + 1: b""}


@asynccontextmanager
async def _recovering(cluster: KafkaCluster, node: int) -> AsyncIterator[None]:
    """Stop a node for the block; afterwards it starts, and recovers its logs from their files."""
    broker = cluster.broker(node)
    await broker.stop()
    yield
    for mark in _RECOVERED_FROM:
        (cluster.log_dir(node) / mark).unlink(missing_ok=True)
    await broker.start()


def _write_segments(folder: Path, files: Files) -> None:
    for file in folder.iterdir():
        if file.name != "partition.metadata":
            file.unlink()
    for base_offset, content in files.items():
        (folder / f"{base_offset:020d}.log").write_bytes(content)


def old_message_set(
    magic: Literal[0, 1],
    first_offset: int,
    rows: Sequence[Row],
    codec: OldCodec = "none",
    log_append_ms: int | None = None,
) -> bytes:
    """Records of format v0 or v1 as an old broker has them on disk.

    Uncompressed they are messages one after the other. Compressed they are the value of
    one message with the offset of the last; inside, v0 has absolute offsets and v1
    relative ones.

    Args:
        rows: No headers: the formats have none. Timestamps are kept by v1 only.
        log_append_ms: The time the broker gave them instead of their own; v1 only.
    """
    if codec == "none":
        bits = _LOG_APPEND_TIME if log_append_ms is not None else 0
        return b"".join(
            _message(magic, first_offset + number, bits, _stamped(row, log_append_ms), row.key, row.value)
            for number, row in enumerate(rows)
        )
    inner_first = first_offset if magic == 0 else 0
    inner = old_message_set(magic, inner_first, rows)
    newest_ms = max(row.timestamp_ms for row in rows) if log_append_ms is None else log_append_ms
    bits = _CODEC_BITS[codec] | (_LOG_APPEND_TIME if log_append_ms is not None else 0)
    return _message(
        magic, first_offset + len(rows) - 1, bits, newest_ms, None, _compressed(magic, codec, inner)
    )


def _stamped(row: Row, log_append_ms: int | None) -> int:
    return row.timestamp_ms if log_append_ms is None else log_append_ms


def _compressed(magic: int, codec: OldCodec, data: bytes) -> bytes:
    if codec == "gzip":
        return gzip.compress(data)
    if codec == "snappy":
        block = bytes(cramjam.snappy.compress_raw(data))
        return _XERIAL + struct.pack(">i", len(block)) + block
    frame = bytes(lz4.frame.compress(data, store_size=False))
    return _with_old_checksum(frame) if magic == 0 else frame


def _message(
    magic: int, offset: int, attributes: int, timestamp_ms: int, key: bytes | None, value: bytes | None
) -> bytes:
    timestamp = struct.pack(">q", timestamp_ms) if magic == 1 else b""
    body = struct.pack(">bb", magic, attributes) + timestamp + _sized(key) + _sized(value)
    return _OVERHEAD.pack(offset, 4 + len(body)) + struct.pack(">I", zlib.crc32(body)) + body


def _sized(data: bytes | None) -> bytes:
    return struct.pack(">i", -1) if data is None else struct.pack(">i", len(data)) + data


def _with_old_checksum(frame: bytes) -> bytes:
    """An LZ4 frame whose header's checksum wrongly includes the frame's magic, as v0 demands (KAFKA-3160)."""
    return frame[:6] + bytes([_xxh32(frame[:6]) >> 8 & 0xFF]) + frame[7:]


def _xxh32(data: bytes) -> int:
    """xxHash of 32 bits with seed 0, of fewer than 16 bytes."""
    words = len(data) // 4 * 4
    mixed = 0x165667B1 + len(data)
    for (word,) in struct.iter_unpack("<I", data[:words]):
        mixed = _rotated(mixed + word * 0xC2B2AE3D, 17) * 0x27D4EB2F
    for byte in data[words:]:
        mixed = _rotated(mixed + byte * 0x165667B1, 11) * 0x9E3779B1
    mixed &= 0xFFFFFFFF
    mixed = (mixed ^ mixed >> 15) * 0x85EBCA77 & 0xFFFFFFFF
    mixed = (mixed ^ mixed >> 13) * 0xC2B2AE3D & 0xFFFFFFFF
    return mixed ^ mixed >> 16


def _rotated(number: int, bits: int) -> int:
    number &= 0xFFFFFFFF
    return number << bits | number >> 32 - bits
