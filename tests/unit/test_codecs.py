"""Compression: what we write others read, what others write we read, and nothing more than allowed."""

from __future__ import annotations

import gzip
import struct
import tracemalloc
import zlib
from typing import Any

import cramjam
import lz4.frame
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from mirror.kafka.codecs import LZ4, CodecError, deflate, inflate
from tests.unit.batches import CODECS, Codec, codecs, compress, decompress

BYTES_MAX = 1 << 20
PACKED: tuple[Codec, ...] = ("gzip", "snappy", "lz4", "zstd")
LETTERS = b"abcdefgh" * 20_000
"""More than one block of any codec."""

payloads = st.binary(max_size=300) | st.builds(
    lambda part, times: part * times, st.binary(), st.integers(0, 500)
)
each_packed = pytest.mark.parametrize("codec", PACKED)


def unpacked(codec: Codec, data: bytes, bytes_max: int = BYTES_MAX) -> bytes:
    return inflate(CODECS[codec], memoryview(data), bytes_max)


@given(codec=codecs, data=payloads)
def test_what_kafka_python_compresses_is_read(codec: Codec, data: bytes) -> None:
    """
    With every codec, from nothing at all to many blocks.
    """
    assert unpacked(codec, compress(codec, data)) == data


@given(codec=codecs, data=payloads.filter(bool))
def test_what_is_compressed_here_kafka_python_reads(codec: Codec, data: bytes) -> None:
    """
    The codec of a batch that is written anew stays the one it had.
    """
    packed = deflate(CODECS[codec], data)

    assert decompress(codec, packed) == data
    assert unpacked(codec, packed) == data


@each_packed
def test_many_blocks_go_both_ways(codec: Codec) -> None:
    """
    No codec's block size is a limit.
    """
    ours, theirs = deflate(CODECS[codec], LETTERS), compress(codec, LETTERS)

    assert decompress(codec, ours) == LETTERS
    assert unpacked(codec, theirs) == LETTERS


def test_snappy_without_framing_is_read() -> None:
    """
    librdkafka and others write one raw block.
    """
    assert unpacked("snappy", bytes(cramjam.snappy.compress_raw(LETTERS))) == LETTERS


def test_snappy_is_written_with_the_framing_that_java_knows() -> None:
    """
    Magic, version and compatible version stand in front of blocks of 32 KiB.
    """
    packed = deflate(CODECS["snappy"], LETTERS)

    assert packed[:16] == b"\x82SNAPPY\0\0\0\0\1\0\0\0\1"
    (first,) = struct.unpack_from(">i", packed, 16)
    assert len(cramjam.snappy.decompress_raw(packed[20 : 20 + first])) == 32 * 1024


def test_lz4_is_written_in_blocks_that_do_not_lean_on_each_other() -> None:
    """
    Kafka's Java reader refuses linked blocks.
    """
    info = lz4.frame.get_frame_info(deflate(LZ4, LETTERS))

    assert info["block_linked"] is False


@pytest.mark.parametrize("linked", [True, False])
def test_lz4_is_read_however_it_was_written(linked: bool) -> None:
    """
    With the size of the content, checksums and blocks of any size.
    """
    packed = lz4.frame.compress(
        LETTERS, block_linked=linked, store_size=True, content_checksum=True, block_checksum=True
    )

    assert unpacked("lz4", packed) == LETTERS


@given(data=payloads, checksum=st.integers(0, 255), store_size=st.booleans())
def test_the_wrong_checksum_of_old_lz4_frames_is_mended(data: bytes, checksum: int, store_size: bool) -> None:
    """
    Message format v0 was written with another checksum in the frame's header; the library sees a right one.
    """
    packed = lz4.frame.compress(data, store_size=store_size)
    at = 14 if store_size and data else 6
    wrong = packed[:at] + bytes((checksum,)) + packed[at + 1 :]

    assert inflate(LZ4, memoryview(wrong), BYTES_MAX, old_lz4=True) == data


def test_a_wrong_checksum_of_a_newer_lz4_frame_is_an_error() -> None:
    """
    Only format v0 has the excuse.
    """
    packed = lz4.frame.compress(LETTERS, store_size=False)
    wrong = packed[:6] + bytes((packed[6] ^ 1,)) + packed[7:]

    with pytest.raises(CodecError, match="lz4"):
        unpacked("lz4", wrong)


def test_several_parts_of_gzip_and_zstd_are_read_as_one() -> None:
    """
    Java's readers go on behind the end of a gzip member or a zstd frame, so must we.
    """
    assert unpacked("gzip", gzip.compress(b"first") + gzip.compress(b"second")) == b"firstsecond"
    zstd = zstandard.ZstdCompressor()
    assert unpacked("zstd", zstd.compress(b"first") + zstd.compress(b"second")) == b"firstsecond"


def test_zstd_that_does_not_state_its_size_is_read() -> None:
    """
    Producers write it as a stream.
    """
    stream = zstandard.ZstdCompressor(write_content_size=False).compressobj()

    assert unpacked("zstd", stream.compress(LETTERS) + stream.flush()) == LETTERS


# -- bounds --------------------------------------------------------------------------------------


@each_packed
def test_exactly_as_much_as_allowed_comes_out(codec: Codec) -> None:
    """
    One byte less allowed is refused, and said in so many words.
    """
    packed = compress(codec, LETTERS)

    assert unpacked(codec, packed, len(LETTERS)) == LETTERS
    with pytest.raises(CodecError, match=f"more than {len(LETTERS) - 1} bytes"):
        unpacked(codec, packed, len(LETTERS) - 1)


@each_packed
def test_where_less_than_nothing_is_allowed_nothing_is_inflated(codec: Codec) -> None:
    """
    Decoders take a negative bound for no bound at all.
    """
    bomb = deflate(CODECS[codec], bytes(16 << 20))

    tracemalloc.start()
    with pytest.raises(CodecError, match=codec):
        unpacked(codec, bomb, -1)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak_bytes < BYTES_MAX


@each_packed
def test_a_bomb_is_refused(codec: Codec) -> None:
    """
    Sixty-four megabytes out of a few kilobytes end in an error.
    """
    with pytest.raises(CodecError, match="more than"):
        unpacked(codec, deflate(CODECS[codec], bytes(64 << 20)), BYTES_MAX)


@each_packed
def test_data_that_is_cut_off_is_an_error(codec: Codec) -> None:
    """
    Nothing is taken for the end that is not one.
    """
    packed = compress(codec, b"some text, some more text " * 30)
    framing_alone = 16 if codec == "snappy" else -1  # a stream of no blocks, and right

    for end in range(1, len(packed)):
        if end != framing_alone:
            with pytest.raises(CodecError, match=codec):
                unpacked(codec, packed[:end])


def test_thousands_of_gzip_members_take_thousands_of_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Not millions: what is behind a member is not taken in hand again for each of them.
    """
    handed_bytes = 0

    class Reader:
        def __init__(self, reader: Any) -> None:
            self._reader = reader

        def decompress(self, data: bytes, length_max: int) -> bytes:
            nonlocal handed_bytes
            handed_bytes += len(data)
            out: bytes = self._reader.decompress(data, length_max)
            return out

        def __getattr__(self, name: str) -> Any:
            return getattr(self._reader, name)

    begin = zlib.decompressobj
    monkeypatch.setattr(zlib, "decompressobj", lambda wbits: Reader(begin(wbits=wbits)))
    members = 5_000
    packed = gzip.compress(b"") * members + gzip.compress(b"last")

    assert unpacked("gzip", packed) == b"last"
    assert handed_bytes <= 4096 * (members + 1)


def test_what_follows_the_last_gzip_member_is_ignored() -> None:
    """
    Java's reader does so, and with it every consumer.
    """
    assert unpacked("gzip", gzip.compress(b"first") + bytes(8)) == b"first"


@each_packed
@given(
    data=st.binary(max_size=200),
    text=st.binary(max_size=100),
    at=st.integers(0, 2**16),
    bit=st.integers(0, 7),
)
def test_whatever_is_not_compressed_data_is_a_named_error(
    codec: Codec, data: bytes, text: bytes, at: int, bit: int
) -> None:
    """
    Noise, or good data with one bit flipped: it comes out within bounds or is refused, nothing else.
    """
    flipped = bytearray(compress(codec, text * 5))
    flipped[at % len(flipped)] ^= 1 << bit

    for broken in (data, bytes(flipped)):
        try:
            out = unpacked(codec, broken)
        except CodecError as error:
            out = str(error).encode()

        assert len(out) <= BYTES_MAX


def test_a_snappy_block_that_lies_about_its_length_is_an_error() -> None:
    """
    Neither a negative length nor one behind the end is followed.
    """
    packed = compress("snappy", b"text" * 100)
    for size in (-1, 2**31 - 1):
        with pytest.raises(CodecError, match="does not fit"):
            unpacked("snappy", packed[:16] + struct.pack(">i", size) + packed[20:])


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_an_unknown_codec_is_named(codec: int) -> None:
    """
    A codec of years to come is not guessed at.
    """
    with pytest.raises(CodecError, match=f"unknown compression codec {codec}"):
        inflate(codec, memoryview(zlib.compress(b"x")), BYTES_MAX)
