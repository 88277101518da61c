"""The few primitives of Kafka's flexible encoding that hand-coded messages need (KIP-482)."""

from __future__ import annotations

BITS_MAX = 63
"""Where the last byte of the longest integer begins."""


def uvarint(value: int) -> bytes:
    """An unsigned variable-length integer, seven bits a byte, least significant first."""
    if value < 0x80:
        return bytes((value,))
    if 0x4000 <= value < 0x200000:  # the size of most batches
        return bytes((value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14))
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_uvarint(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """The integer at ``at`` and where the next field begins.

    Raises:
        IndexError: The data ends within it.
        ValueError: It is longer than ten bytes.
    """
    value = data[at]
    if value < 0x80:
        return value, at + 1
    value &= 0x7F
    shift = 7
    while True:
        at += 1
        byte = data[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at + 1
        shift += 7
        if shift > BITS_MAX:
            raise ValueError("a variable-length integer of more than ten bytes")


def skip_tags(data: memoryview, at: int) -> int:
    """Where the next field begins after a section of tagged fields."""
    count, at = read_uvarint(data, at)
    for _ in range(count):
        _, at = read_uvarint(data, at)
        size, at = read_uvarint(data, at)
        at += size
    return at


def compact_string(text: str) -> bytes:
    data = text.encode()
    return uvarint(len(data) + 1) + data


def read_compact_string(data: memoryview, at: int) -> tuple[str | None, int]:
    """A string, or None, and where the next field begins."""
    size, at = read_uvarint(data, at)
    if size == 0:
        return None, at
    end = at + size - 1
    return str(data[at:end], "utf-8"), end
