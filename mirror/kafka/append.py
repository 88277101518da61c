"""Produce: send record batches to a broker unchanged, and read what became of each.

A request carries at most one batch per partition (brokers refuse more). It is a
list of buffers: short pieces of framing between the batches, which are not copied.

Sources: KIP-98 (idempotence), KIP-467 (error messages), KIP-482, Kafka's ProduceRequest.json.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from mirror.errors import AnswerError
from mirror.kafka.wire import compact_string, read_compact_string, read_uvarint, skip_tags, uvarint
from mirror.model import TopicPartition

PRODUCE = 0
PRODUCE_VERSION_MAX = 12
"""The last version that names topics; from 13 on topic ids are used."""

_OUTCOME = struct.Struct(">ihqqq3s")
"""The fixed fields of a partition and the three bytes after them, usually ``_NOTHING_TO_SAY``."""
_THROTTLE_MS = struct.Struct(">i")
_NOTHING_TO_SAY = b"\1\0\0"
"""No bad records, no message, no tagged fields."""


class Outcome(NamedTuple):
    """What a broker says of one batch. ``base_offset`` is -1 when it was refused.

    Attributes:
        repeated: The broker had appended a batch with these sequences before, and answers where. It is
            detected by a time in the answer, that of the batch; otherwise only topics with LogAppendTime
            answer with one, and there every batch counts as repeated. A repeated batch without timestamps
            is not detected.
    """

    error_code: int
    base_offset: int
    log_start_offset: int
    message: str | None
    repeated: bool = False


def encode_request(
    batches: Sequence[tuple[TopicPartition, memoryview]], timeout_ms: int
) -> list[memoryview | bytes]:
    """The body of a Produce request with acks=all, in pieces.

    Args:
        batches: At most one batch per partition; sealed (header rewritten, CRC right).
        timeout_ms: How long the leader may wait for its in-sync replicas.
    """
    topics: dict[str, list[tuple[int, memoryview]]] = {}
    for (topic, partition), view in batches:
        topics.setdefault(topic, []).append((partition, view))
    parts: list[memoryview | bytes] = []
    head = struct.pack(">bhi", 0, -1, timeout_ms) + uvarint(len(topics) + 1)
    for topic, partitions in topics.items():
        head += compact_string(topic) + uvarint(len(partitions) + 1)
        for partition, view in partitions:
            parts.append(head + partition.to_bytes(4, "big") + uvarint(len(view) + 1))
            parts.append(view)
            head = b"\0"
        head += b"\0"
    parts.append(head + b"\0")
    return parts


def decode_answer(body: memoryview) -> dict[TopicPartition, Outcome]:
    """What became of each batch, from a Produce answer of versions 9 to 12.

    Raises:
        AnswerError: The bytes are not such an answer.
    """
    return decode_throttled_answer(body)[0]


def decode_throttled_answer(body: memoryview) -> tuple[dict[TopicPartition, Outcome], int]:
    """As :func:`decode_answer`; also returns for how many milliseconds a quota throttles us.

    Raises:
        AnswerError: The bytes are not such an answer.
    """
    try:
        return _decode_answer(body)
    except (ValueError, IndexError, struct.error) as error:
        raise AnswerError(f"truncated or invalid Produce answer of {len(body)} bytes: {error}") from error


def _decode_answer(body: memoryview) -> tuple[dict[TopicPartition, Outcome], int]:
    outcomes: dict[TopicPartition, Outcome] = {}
    new = tuple.__new__  # a NamedTuple's own constructor is a Python function
    topics, at = read_uvarint(body, 0)
    for _ in range(topics - 1):
        name, at = read_compact_string(body, at)
        topic = name or ""
        count, at = read_uvarint(body, at)
        for _ in range(count - 1):
            index, code, base, time_ms, log_start, tail = _OUTCOME.unpack_from(body, at)
            at += _OUTCOME.size
            message = None
            if tail != _NOTHING_TO_SAY:
                message, at = _read_messages(body, at - len(tail))
            repeated = code == 0 and time_ms >= 0
            said = new(Outcome, (code, base, log_start, message, repeated))
            outcomes[new(TopicPartition, (topic, index))] = said
        at = skip_tags(body, at)
    return outcomes, _THROTTLE_MS.unpack_from(body, at)[0]


def _read_messages(body: memoryview, at: int) -> tuple[str | None, int]:
    """The message for the batch, or that of its first bad record, and where the next field begins."""
    first: str | None = None
    count, at = read_uvarint(body, at)
    for _ in range(count - 1):
        text, at = read_compact_string(body, at + 4)
        first = first or text
        at = skip_tags(body, at)
    message, at = read_compact_string(body, at)
    return message or first, skip_tags(body, at)
