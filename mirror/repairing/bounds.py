"""How much goes into a batch that the target accepts, and how long a plan stays valid there. Pure.

Sources: KIP-98 (format v2), KIP-534 (when a tombstone may go), docs/reconcile.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mirror.flow.records import Record
from mirror.kafka.record_batch import HEADER_BYTES
from mirror.kafka.varint import encode_varint

BATCH_BYTES_MAX = 256 << 10
"""The size limit of a batch of several records."""
RECORD_BYTES_MAX = 480 << 10
"""That of a batch of one: it is written into the flow's state before it is appended, and must fit there."""
HEAD_BYTES_MAX = 20
"""What precedes the key of a record, at most: length, attributes, timestamp delta, offset delta."""
ALONE_HEAD_BYTES = 3
"""The same of the only record of a batch, without the length: both deltas are 0."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a topic at the target allows, as its settings say.

    Attributes:
        batch_bytes_max: Larger batches are refused (``max.message.bytes``).
        tombstones_kept_ms: How long a tombstone can be read at least (``delete.retention.ms``).
    """

    batch_bytes_max: int
    tombstones_kept_ms: int

    def fitting(self, records: Sequence[Record | None]) -> int:
        """How many of the first records fit into one batch; at least one. None takes no room."""
        sizes = [HEAD_BYTES_MAX + len(record.tail) if record else 0 for record in records]
        return fitting(sizes, min(self.batch_bytes_max, BATCH_BYTES_MAX) - HEADER_BYTES)

    def too_large(self, record: Record) -> str:
        """Why a record cannot be appended even alone; empty if it can."""
        size = bytes_alone(record)
        if size > self.batch_bytes_max:
            return f"{size} bytes, the target's topic accepts {self.batch_bytes_max} (max.message.bytes)"
        if size > RECORD_BYTES_MAX:
            return f"{size} bytes, a repair writes {RECORD_BYTES_MAX} at most"
        return ""

    def outlived(self, age_ms: int) -> str:
        """Why it cannot be known any more what was written in the last ``age_ms``; empty if it can."""
        if age_ms <= self.tombstones_kept_ms:
            return ""
        return (
            f"it was last read {age_ms // 1000} s ago, and a tombstone written since may be gone "
            f"after {self.tombstones_kept_ms // 1000} s: raise delete.retention.ms of the target's topic, "
            f"and reconcile again"
        )


def bounds_of(settings: Mapping[str, str | None]) -> Bounds:
    """What a topic's settings allow."""
    return Bounds(int(settings["max.message.bytes"] or 0), int(settings["delete.retention.ms"] or 0))


def bytes_alone(record: Record) -> int:
    """The size of a batch of this record alone."""
    body = ALONE_HEAD_BYTES + len(record.tail)
    return HEADER_BYTES + len(encode_varint(body)) + body


def fitting(sizes: Sequence[int], bytes_max: int) -> int:
    """How many of the first sizes fit into ``bytes_max``; at least one, if there are any."""
    total = 0
    for count, size in enumerate(sizes):
        total += size
        if count and total > bytes_max:
            return count
    return len(sizes)
