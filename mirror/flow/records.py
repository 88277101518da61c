"""A record as the slow path sees it."""

from __future__ import annotations

from typing import NamedTuple

from mirror.kafka.varint import decode_varint, encode_varint


class Record(NamedTuple):
    """One record; ``tail`` is key, value and headers exactly as format v2 encodes them, never looked into."""

    offset: int
    timestamp: int
    tail: bytes


def key_of(record: Record) -> bytes:
    """The key; b"" for null, which a compacted topic does not have."""
    length, at = decode_varint(record.tail, 0)
    return bytes(record.tail[at : at + max(0, length)])


def tombstone(record: Record, timestamp_ms: int) -> Record:
    """A record that deletes the key of another."""
    key = key_of(record)
    return Record(record.offset, timestamp_ms, encode_varint(len(key)) + key + encode_varint(-1) + b"\0")
