"""The zigzag variable-length integers inside records of format v2 (KIP-98, Protocol Buffers)."""

from __future__ import annotations


def encode_varint(value: int) -> bytes:
    """A signed integer of up to 64 bits."""
    rest = (value << 1) ^ (value >> 63)
    if rest < 0x80:
        return bytes((rest,))
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def decode_varint(data: bytes, at: int) -> tuple[int, int]:
    """The integer at ``at`` and where the next field begins.

    Raises:
        IndexError: The data ends within it.
        ValueError: It is longer than ten bytes.
    """
    byte = data[at]
    at += 1
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), at
    value = byte & 0x7F
    shift = 7
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
        shift += 7
        if shift > 63:
            raise ValueError("a variable-length integer of more than ten bytes")
