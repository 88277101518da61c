"""CRC-32C beyond checking: what a CRC becomes when bits at the beginning of the data are flipped.

A CRC is linear over the bits of its data. Its remainder after ``n`` zero bytes is the remainder before, times
``x**(8n)`` modulo the polynomial: a fixed map of 32 bits to 32, which four tables of 256 entries hold.

Sources: RFC 3720 appendix B.4 (the polynomial), zlib's ``crc32_combine`` (the idea).
"""

from __future__ import annotations

from array import array
from functools import lru_cache

from crc32c import crc32c

STRIDE_BYTES = 4096
"""Zeros go by table in multiples of this; the rest goes through the CRC itself."""
STRIDES_MAX = 64
_ZEROS = memoryview(bytes(STRIDES_MAX * STRIDE_BYTES))
_ALL_BITS = 0xFFFFFFFF

Tables = tuple["array[int]", "array[int]", "array[int]", "array[int]"]
"""What each value of the remainder's four bytes contributes, the lowest byte first."""


def difference_at_end(difference: int, size: int) -> int:
    """The difference of two CRCs after the same ``size`` bytes, given their difference before them.

    The bytes themselves do not matter: the result is what as many zeros make of a remainder.
    """
    strides, rest = size // STRIDE_BYTES, size % STRIDE_BYTES
    while strides:
        step = strides if strides < STRIDES_MAX else STRIDES_MAX
        low, second, third, high = _tables(step)
        difference = (
            low[difference & 255]
            ^ second[difference >> 8 & 255]
            ^ third[difference >> 16 & 255]
            ^ high[difference >> 24]
        )
        strides -= step
    crc: int = crc32c(_ZEROS[:rest], difference ^ _ALL_BITS)
    return crc ^ _ALL_BITS


@lru_cache(maxsize=STRIDES_MAX)
def _tables(strides: int) -> Tables:
    """What this many strides of zeros make of a remainder."""
    zeros = _ZEROS[: strides * STRIDE_BYTES]
    of_bit = [int(crc32c(zeros, 1 << bit ^ _ALL_BITS) ^ _ALL_BITS) for bit in range(32)]
    return tuple(_table(of_bit[at : at + 8]) for at in (0, 8, 16, 24))  # type: ignore[return-value]


def _table(of_bit: list[int]) -> array[int]:
    table = array("I", [0])
    for contribution in of_bit:
        table.extend([entry ^ contribution for entry in table])
    return table
