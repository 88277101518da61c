"""Integers of variable length: those inside records, and those of the flexible encoding."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.schemas.fields.codecs import UnsignedVarInt32
from kafka.record import util

from mirror.kafka.varint import decode_varint, encode_varint
from mirror.kafka.wire import (
    compact_string,
    read_compact_string,
    read_uvarint,
    skip_tags,
    uvarint,
)

int64 = st.integers(-(2**63), 2**63 - 1) | st.integers(-200, 200)
uint32 = st.integers(0, 2**31 - 1) | st.integers(0, 300)


@given(value=int64)
def test_a_signed_integer_is_encoded_as_kafka_python_does(value: int) -> None:
    """
    Byte for byte, from the smallest to the largest.
    """
    expected = bytearray()
    util.encode_varint(value, expected.append)

    encoded = encode_varint(value)

    assert encoded == bytes(expected)


@given(value=int64, before=st.binary(max_size=5), after=st.binary(max_size=5))
def test_a_signed_integer_is_read_where_it_stands(value: int, before: bytes, after: bytes) -> None:
    """
    The position returned is that of what follows it.
    """
    data = before + encode_varint(value) + after

    assert decode_varint(data, len(before)) == (value, len(data) - len(after))
    assert decode_varint(data, len(before)) == util.decode_varint(bytearray(data), len(before))


@given(value=int64.filter(lambda value: not -64 <= value < 64))
def test_a_signed_integer_that_is_cut_off_is_an_error(value: int) -> None:
    """
    Whoever reads records knows that their data has ended.
    """
    data = encode_varint(value)[:-1]

    with pytest.raises(IndexError):
        decode_varint(data, 0)


def test_an_integer_without_end_is_an_error() -> None:
    """
    More than ten bytes cannot be one of 64 bits.
    """
    endless = b"\xff" * 11 + b"\0"

    with pytest.raises(ValueError, match="more than ten bytes"):
        decode_varint(endless, 0)
    with pytest.raises(ValueError, match="more than ten bytes"):
        read_uvarint(memoryview(endless), 0)


def test_of_ten_bytes_64_bits_are_taken() -> None:
    """
    As Java does: the bits above are dropped.
    """
    assert decode_varint(b"\xff" * 9 + b"\x7f", 0) == (-(2**63), 10)


@given(value=uint32, before=st.binary(max_size=5), after=st.binary(max_size=5))
def test_an_unsigned_integer_goes_there_and_back(value: int, before: bytes, after: bytes) -> None:
    """
    It is encoded as in kafka-python's flexible messages, and read where it stands.
    """
    data = before + uvarint(value) + after

    assert uvarint(value) == UnsignedVarInt32.encode(value)
    assert read_uvarint(memoryview(data), len(before)) == (value, len(data) - len(after))


@given(text=st.text(max_size=200))
def test_a_string_goes_there_and_back(text: str) -> None:
    """
    Its length is one more than its bytes in UTF-8; none at all is length zero.
    """
    data = compact_string(text)

    assert read_compact_string(memoryview(data + b"rest"), 0) == (text, len(data))
    assert read_compact_string(memoryview(b"\0rest"), 0) == (None, 1)


@given(tags=st.dictionaries(uint32, st.binary(max_size=150), max_size=5))
def test_tagged_fields_are_skipped_whatever_they_hold(tags: dict[int, bytes]) -> None:
    """
    What a newer broker adds is in nobody's way.
    """
    data = uvarint(len(tags)) + b"".join(uvarint(tag) + uvarint(len(v)) + v for tag, v in tags.items())

    assert skip_tags(memoryview(data + b"rest"), 0) == len(data)
