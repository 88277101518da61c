"""Kafka's compression codecs, with a bound on what comes out.

Only the slow path inflates anything. A decompression bomb ends in a CodecError, not
in an exhausted machine: no function here inflates to more than it is allowed to.

Sources: Kafka's ``CompressionType``; the lz4 frame format (independent blocks, as
Kafka's Java reader insists); snappy-java's stream framing ("xerial").
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from functools import partial

import cramjam
import lz4.frame
import zstandard

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
BytesLike = bytes | bytearray | memoryview
_XERIAL_HEADER = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES = 32 * 1024
_GZIP_MAGIC = b"\x1f\x8b"
_GZIP_BITE_BYTES, _ZSTD_BITE_BYTES = 4096, 1024


class CodecError(ValueError):
    """The data is not what its codec says, or inflates beyond the bound."""


def inflate(codec: int, data: memoryview, bytes_max: int, *, old_lz4: bool = False) -> bytes:
    """Decompress. Data without compression is returned as it is, whatever the bound.

    Args:
        codec: The codec bits of a batch's attributes.
        bytes_max: More than this is refused. A negative bound refuses everything: to decoders it would mean
            no bound.
        old_lz4: The data is of message format v0, whose lz4 frames carry a wrong header checksum.

    Raises:
        CodecError: Unknown codec, broken data, or too much of it.
    """
    if codec == NONE:
        return bytes(data)
    reader = _INFLATERS.get(codec)
    if reader is None:
        raise CodecError(f"unknown compression codec {codec}")
    if bytes_max < 0:
        raise CodecError(f"{NAMES[codec]}: no room for the decompressed data")
    source = _mend_old_lz4(bytes(data)) if old_lz4 and codec == LZ4 else bytes(data)
    try:
        out = reader(source, bytes_max)
    except (ValueError, RuntimeError, EOFError, zlib.error, zstandard.ZstdError, struct.error) as error:
        raise CodecError(f"{NAMES[codec]}: {error}") from error
    except cramjam.DecompressionError as error:
        raise CodecError(f"{NAMES[codec]}: {error}") from error
    if len(out) > bytes_max:
        raise CodecError(f"{NAMES[codec]}: {len(data)} bytes decompress to more than {bytes_max} bytes")
    return out


def deflate(codec: int, data: BytesLike) -> bytes:
    """Compress as Kafka's own clients do."""
    return _DEFLATERS[codec](data)


def deflate_harder(codec: int, data: BytesLike) -> bytes:
    """Compress as clients do that are set to a high level: it takes ten times as long or more."""
    return _HARDER.get(codec, _DEFLATERS[codec])(data)


def _gunzip(data: bytes, bytes_max: int) -> bytes:
    """All members in sequence, in bites: else the rest would be copied for each of thousands of members.

    What follows the last member is ignored, as in Java.
    """
    out = bytearray()
    reader = zlib.decompressobj(wbits=31)
    at = 0
    while at < len(data) and len(out) <= bytes_max:
        bite = data[at : at + _GZIP_BITE_BYTES]
        out += reader.decompress(bite, bytes_max + 1 - len(out))
        at += len(bite) - len(reader.unused_data)
        if reader.eof:
            if not data.startswith(_GZIP_MAGIC, at):
                return bytes(out)
            reader = zlib.decompressobj(wbits=31)
    if len(out) <= bytes_max:
        raise CodecError("the data is truncated")
    return bytes(out)


def _gzip(data: BytesLike, level: int = zlib.Z_DEFAULT_COMPRESSION) -> bytes:
    writer = zlib.compressobj(level, wbits=31)
    return writer.compress(data) + writer.flush()


GZIP_HEAD_BYTES = 10
_GZIP_LEVELS = {2: 9, 4: 1}
"""The level that a header states in its byte 8 (XFL, RFC 1952). Java states none."""
_GZIP_LEVEL = 6


def is_plain_gzip(data: memoryview) -> bool:
    """Whether data begins with a gzip header of ten bytes, without a file name or other optional fields."""
    return data[:4] == _GZIP_MAGIC + b"\x08\x00" and len(data) > GZIP_HEAD_BYTES


def gzip_behind(head: bytes, data: BytesLike) -> bytes:
    """Compress as zlib does, after the header of another encoder: each encoder names its system there.

    Args:
        head: The header, ten bytes; the level that it states is used.
    """
    level = _GZIP_LEVELS.get(head[8], _GZIP_LEVEL)
    writer = zlib.compressobj(level, wbits=-15)
    end = struct.pack("<II", zlib.crc32(data), len(data) & 0xFFFFFFFF)
    return b"".join((head, writer.compress(data), writer.flush(), end))


def is_xerial(data: memoryview) -> bool:
    """Whether the data is framed in snappy-java's blocks, as Kafka's Java clients write it."""
    return data[: len(_XERIAL_HEADER)] == _XERIAL_HEADER


def _unsnappy(data: bytes, bytes_max: int) -> bytes:
    if not data.startswith(_XERIAL_HEADER[:8]):
        return _unsnappy_block(data, 0, bytes_max)
    out = bytearray()
    at = len(_XERIAL_HEADER)
    if len(data) < at:
        raise CodecError("the data is truncated")
    while at < len(data):
        (size,) = struct.unpack_from(">i", data, at)
        if size < 0 or at + 4 + size > len(data):
            raise CodecError(f"a block of {size} bytes does not fit")
        out += _unsnappy_block(data[at + 4 : at + 4 + size], len(out), bytes_max)
        at += 4 + size
    return bytes(out)


def _unsnappy_block(data: bytes, bytes_before: int, bytes_max: int) -> bytes:
    if bytes_before + cramjam.snappy.decompress_raw_len(data) > bytes_max:
        raise CodecError(f"the data decompresses to more than {bytes_max} bytes")
    return bytes(cramjam.snappy.decompress_raw(data))


def _snappy(data: BytesLike) -> bytes:
    out = bytearray(_XERIAL_HEADER)
    for at in range(0, len(data), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(data[at : at + _XERIAL_BLOCK_BYTES]))
        out += len(block).to_bytes(4, "big") + block
    return bytes(out)


def _unlz4(data: bytes, bytes_max: int) -> bytes:
    reader = lz4.frame.LZ4FrameDecompressor()
    out: bytes = reader.decompress(data, max_length=bytes_max + 1)
    if not reader.eof and len(out) <= bytes_max:
        raise CodecError("the frame is truncated")
    return out


def _lz4(data: BytesLike, level: int = 0) -> bytes:
    blocks = lz4.frame.BLOCKSIZE_MAX64KB
    packed: bytes = lz4.frame.compress(
        data, compression_level=level, block_size=blocks, block_linked=False, store_size=False
    )
    return packed


def _unzstd(data: bytes, bytes_max: int) -> bytes:
    """All frames in sequence, in small bites: one bite may become 32 MiB before it is counted."""
    out = bytearray()
    reader = zstandard.ZstdDecompressor().decompressobj()
    at = 0
    while at < len(data) and len(out) <= bytes_max:
        if reader.eof:
            reader = zstandard.ZstdDecompressor().decompressobj()
        bite = data[at : at + _ZSTD_BITE_BYTES]
        out += reader.decompress(bite)
        at += len(bite) - len(reader.unused_data)
    if not reader.eof and len(out) <= bytes_max:
        raise CodecError("the data is truncated")
    return bytes(out)


def _zstd(data: BytesLike, level: int = 3) -> bytes:
    return zstandard.ZstdCompressor(level=level).compress(data)


def _mend_old_lz4(data: bytes) -> bytes:
    """Put in the right header checksum: Kafka's first lz4 writer computed it over the magic as well."""
    if len(data) < 7:
        return data
    size = 6 + (8 if data[4] & 0x08 else 0)
    checksum = (_xxh32_short(data[4:size]) >> 8) & 0xFF
    return data[:size] + bytes((checksum,)) + data[size + 1 :]


def _xxh32_short(data: bytes) -> int:
    """xxHash32 with seed 0 of less than 16 bytes, enough for an lz4 frame descriptor."""
    mask, p1, p2, p3, p4, p5 = 0xFFFFFFFF, 2654435761, 2246822519, 3266489917, 668265263, 374761393
    value = (p5 + len(data)) & mask
    whole = len(data) // 4 * 4
    for (word,) in struct.iter_unpack("<I", data[:whole]):
        value = (value + word * p3) & mask
        value = ((value << 17 | value >> 15) & mask) * p4 & mask
    for byte in data[whole:]:
        value = (value + byte * p5) & mask
        value = ((value << 11 | value >> 21) & mask) * p1 & mask
    value = (value ^ value >> 15) * p2 & mask
    value = (value ^ value >> 13) * p3 & mask
    return value ^ value >> 16


NAMES = {NONE: "none", GZIP: "gzip", SNAPPY: "snappy", LZ4: "lz4", ZSTD: "zstd"}
_INFLATERS: dict[int, Callable[[bytes, int], bytes]] = {
    GZIP: _gunzip,
    SNAPPY: _unsnappy,
    LZ4: _unlz4,
    ZSTD: _unzstd,
}
_DEFLATERS: dict[int, Callable[[BytesLike], bytes]] = {
    NONE: bytes,
    GZIP: _gzip,
    SNAPPY: _snappy,
    LZ4: _lz4,
    ZSTD: _zstd,
}
_HARDER: dict[int, Callable[[BytesLike], bytes]] = {
    GZIP: partial(_gzip, level=9),
    LZ4: partial(_lz4, level=12),
    ZSTD: partial(_zstd, level=19),
}
