"""A record as the slow path handles it."""

from __future__ import annotations

from typing import NamedTuple

from mirror.kafka.varint import decode_varint, encode_varint


class Record(NamedTuple):
    """One record; ``tail`` is key, value and headers, exactly as format v2 encodes them."""

    offset: int
    timestamp: int
    tail: bytes


def key_of(record: Record) -> bytes | None:
    """The record's key; None for a null key, which no tombstone can delete."""
    length, at = decode_varint(record.tail, 0)
    return None if length < 0 else bytes(record.tail[at : at + length])


def tombstone(offset: int, key: bytes, timestamp_ms: int) -> Record:
    """A record that deletes a key."""
    return Record(offset, timestamp_ms, encode_varint(len(key)) + key + encode_varint(-1) + b"\0")
