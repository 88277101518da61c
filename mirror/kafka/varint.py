"""The zigzag variable-length integers inside records of format v2 (KIP-98, Protocol Buffers)."""

from __future__ import annotations

from mirror.kafka.wire import read_uvarint, uvarint

_MASK = (1 << 64) - 1


def encode_varint(value: int) -> bytes:
    """A signed integer of up to 64 bits."""
    return uvarint((value << 1) ^ (value >> 63))


def decode_varint(data: bytes, at: int) -> tuple[int, int]:
    """The integer at ``at`` and where the next field begins; ten bytes are cut to 64 bits, as in Java.

    Raises:
        IndexError: The data ends within it.
        ValueError: It is longer than ten bytes.
    """
    byte = data[at]
    if byte < 0x80:  # most of them, and read a record at a time
        return (byte >> 1) ^ -(byte & 1), at + 1
    value, at = read_uvarint(data, at)
    value &= _MASK
    return (value >> 1) ^ -(value & 1), at
