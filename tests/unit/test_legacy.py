"""Message sets of formats v0 and v1, as old segments still hold them."""

from __future__ import annotations

import struct
import zlib
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirror.errors import CorruptBatchError, UnreadableBatchError
from mirror.flow.legacy import decode_legacy
from mirror.flow.records import Record
from mirror.kafka.record_batch import LOG_APPEND_TIME, walk
from mirror.kafka.varint import decode_varint
from tests.unit.batches import (
    CODECS,
    OLD_CODECS,
    Codec,
    Entry,
    Magic,
    compress,
    dense,
    entries,
    gapped,
    old,
    read_old,
)

BYTES_MAX = 1 << 20
APPENDED_MS = 1_600_000_000_000

magics = st.sampled_from(get_args(Magic))
old_codecs = st.sampled_from(OLD_CODECS)
each_magic = pytest.mark.parametrize("magic", get_args(Magic))
each_codec = pytest.mark.parametrize("codec", OLD_CODECS[1:])


def entry(record: Record) -> Entry:
    """A decoded record with its tail taken apart; it has no headers and nothing behind them."""
    key, at = field(record.tail, 0)
    value, at = field(record.tail, at)
    assert record.tail[at:] == b"\0"
    return Entry(record.offset, record.timestamp, key, value)


def field(tail: bytes, at: int) -> tuple[bytes | None, int]:
    size, at = decode_varint(tail, at)
    return (None, at) if size < 0 else (tail[at : at + size], at + size)


def decoded(data: memoryview) -> list[Entry]:
    """Every message of a set, through the walk that hands them out."""
    return [entry(r) for _, view in walk(data) for r in decode_legacy(view, BYTES_MAX)[0]]


def remade(data: memoryview) -> memoryview:
    """A message with the CRC that its bytes have now."""
    struct.pack_into(">I", data, 12, zlib.crc32(data[16:]))
    return data


@given(magic=magics, codec=old_codecs, records=gapped())
def test_old_records_are_read_as_kafka_python_reads_them(
    magic: Magic, codec: Codec, records: list[Entry]
) -> None:
    """
    One by one or compressed in one message, with absolute offsets (v0) or relative ones (v1).
    """
    bare = [record._replace(headers=()) for record in records]
    data = old(magic, bare, codec=codec)

    found = decoded(data)

    assert found == read_old(old(magic, bare) if (magic, codec) == (0, "lz4") else data)
    assert [(r.offset, r.key, r.value) for r in found] == [(r.offset, r.key, r.value) for r in records]


@given(codec=old_codecs, records=dense())
def test_a_time_of_format_v1_is_kept_and_one_of_v0_is_unknown(codec: Codec, records: list[Entry]) -> None:
    """
    Format v0 has no timestamps: consumers see -1.
    """
    bare = [record._replace(headers=()) for record in records]

    assert [r.timestamp_ms for r in decoded(old(1, bare, codec=codec))] == [r.timestamp_ms for r in records]
    assert {r.timestamp_ms for r in decoded(old(0, bare, codec=codec))} == {-1}


@pytest.mark.parametrize("codec", OLD_CODECS)
def test_records_have_the_time_the_broker_appended_them(codec: Codec) -> None:
    """
    With LogAppendTime that of the outer message stands for all within it.
    """
    data = old(1, entries(10, 4), codec=codec, log_append_ms=APPENDED_MS)

    found = decoded(data)

    assert found == read_old(data)
    assert {record.timestamp_ms for record in found} == {APPENDED_MS}


@each_codec
def test_a_compressed_set_may_have_lost_its_first_and_last_records(codec: Codec) -> None:
    """
    Compaction keeps the outer offset at that of the last record left; relative offsets count up to it.
    """
    left = [Entry(103), Entry(107), Entry(108)]

    assert [record.offset for record in decoded(old(1, left, codec=codec))] == [103, 107, 108]
    assert [record.offset for record in decoded(old(0, left, codec=codec))] == [103, 107, 108]


@each_codec
def test_messages_of_v0_in_a_set_of_v1_are_read_as_kafka_reads_them(codec: Codec) -> None:
    """
    The cleaner of Kafka 0.10.0 left relative offsets in such sets, and an append time of -1 (KAFKA-4298).
    """
    inner = old(0, [Entry(0, key=b"a"), Entry(2, key=b"b")])
    outer = old(1, [Entry(46, -1, key=None, value=compress(codec, bytes(inner)))])
    outer[17] = CODECS[codec] | LOG_APPEND_TIME

    assert decoded(remade(outer)) == [Entry(44, -1, b"a"), Entry(46, -1, b"b")]


@pytest.mark.parametrize("codec", OLD_CODECS)
@each_magic
def test_the_codec_of_a_message_is_told(magic: Magic, codec: Codec) -> None:
    """
    It is written again with the one it had.
    """
    data = old(magic, entries(0, 1), codec=codec)

    assert decode_legacy(data, BYTES_MAX)[1] == CODECS[codec]


# -- what cannot be right ------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["none", "gzip"])
@each_magic
def test_any_flipped_bit_behind_the_crc_is_noticed(magic: Magic, codec: Codec) -> None:
    """
    From the format on to the last byte of the value.
    """
    data = old(magic, entries(40, 1), codec=codec)

    for at in range(12, len(data)):
        for bit in range(8):
            data[at] ^= 1 << bit
            with pytest.raises(CorruptBatchError):
                decode_legacy(data, BYTES_MAX)
            data[at] ^= 1 << bit
    assert decoded(data) == read_old(data)


@each_magic
def test_a_message_that_is_cut_off_is_corrupt(magic: Magic) -> None:
    """
    Wherever it is cut, its offset is named.
    """
    data = old(magic, entries(40, 1))

    for end in range(8, len(data)):
        with pytest.raises(CorruptBatchError) as refused:
            decode_legacy(data[:end], BYTES_MAX)
        assert refused.value.offset == 40


@pytest.mark.parametrize("size", [-2, 2**31 - 1, -(2**31), 5_000])
@pytest.mark.parametrize("which", ["key", "value"])
@each_magic
def test_a_field_whose_length_lies_is_corrupt_or_null(magic: Magic, which: str, size: int) -> None:
    """
    A length behind the end is not followed; a negative one is a null, as Kafka has it.
    """
    data = old(magic, [Entry(40, key=b"abcd", value=b"efgh")])
    key_at = 18 if magic == 0 else 26
    struct.pack_into(">i", data, key_at if which == "key" else key_at + 8, size)

    if which == "value" and size < 0:
        assert decoded(remade(data)) == [
            Entry(40, -1 if magic == 0 else Entry(0).timestamp_ms, b"abcd", None)
        ]
    else:
        with pytest.raises(CorruptBatchError, match="does not fit"):
            decode_legacy(remade(data), BYTES_MAX)


@each_codec
@each_magic
def test_a_damaged_message_inside_a_good_one_is_corrupt(magic: Magic, codec: Codec) -> None:
    """
    The inner CRCs count as well.
    """
    inner = bytearray(old(magic, entries(0, 2)))
    inner[-1] ^= 1
    outer = old(magic, [Entry(1, key=None, value=compress(codec, bytes(inner)))])
    outer[17] = CODECS[codec]

    with pytest.raises(CorruptBatchError, match="CRC-32"):
        decode_legacy(remade(outer), BYTES_MAX)


@each_magic
def test_a_compressed_message_inside_a_compressed_one_is_refused(magic: Magic) -> None:
    """
    No Kafka writes or reads such a thing, and its bytes must not pass for a record's value.
    """
    inner = old(magic, entries(0, 2), codec="gzip")
    outer = old(magic, [Entry(1, key=None, value=compress("gzip", bytes(inner)))])
    outer[17] = CODECS["gzip"]

    with pytest.raises(CorruptBatchError, match="compressed"):
        decode_legacy(remade(outer), BYTES_MAX)


@each_magic
def test_zstd_is_unknown_to_the_old_formats(magic: Magic) -> None:
    """
    Kafka refuses it there, and so codec bits that no codec has.
    """
    data = old(magic, [Entry(40, key=None, value=compress("zstd", bytes(old(magic, entries(0, 1)))))])

    data[17] = 6
    with pytest.raises(UnreadableBatchError, match="unknown compression codec 6"):
        decode_legacy(remade(data), BYTES_MAX)
    data[17] = CODECS["zstd"]
    with pytest.raises(UnreadableBatchError, match="zstd"):
        decode_legacy(remade(data), BYTES_MAX)


@each_codec
@each_magic
def test_a_compressed_message_without_a_value_is_unreadable(magic: Magic, codec: Codec) -> None:
    """
    There is nothing to inflate; it is not taken for a set of no records.
    """
    data = old(magic, [Entry(40, key=None, value=None)])
    data[17] = CODECS[codec]

    with pytest.raises(UnreadableBatchError) as refused:
        decode_legacy(remade(data), BYTES_MAX)

    assert refused.value.offset == 40


@each_magic
def test_a_bomb_is_unreadable(magic: Magic) -> None:
    """
    More than the bound never comes out.
    """
    data = old(magic, [Entry(0, value=bytes(BYTES_MAX))], codec="gzip")

    assert len(data) < 10_000
    with pytest.raises(UnreadableBatchError, match=f"more than {BYTES_MAX} bytes"):
        decode_legacy(data, BYTES_MAX)


@each_magic
@given(records=dense(3), at=st.integers(0, 2**16), byte=st.integers(0, 255))
def test_one_wrong_byte_never_ends_in_another_error(
    magic: Magic, records: list[Entry], at: int, byte: int
) -> None:
    """
    Even with a CRC that agrees with it: records, or a named error.
    """
    data = old(magic, [record._replace(headers=()) for record in records[:1]])
    data[12 + at % (len(data) - 12)] = byte

    for view in (data, remade(data)):
        try:
            found, _ = decode_legacy(view, BYTES_MAX)
        except (CorruptBatchError, UnreadableBatchError):
            continue

        assert len(found) == 1
