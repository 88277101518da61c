"""Frames: the bodies of one channel, compressed with a window that continues from each to the next.

So what repeats over megabytes crosses the link once. A frame is a header and compressed bytes. Its digest
covers both as they cross the link, keyed with a key that only this channel has. A frame that is corrupt, out
of order or of another channel is refused before anything reads it, zstd included.

No I/O. Sources: RFC 8878 (zstd, flushed blocks), the BLAKE3 paper (keyed hashing), docs/protocol.md.
"""

from __future__ import annotations

import math
import secrets
import struct
from collections.abc import Callable, Sequence
from typing import BinaryIO, NamedTuple, cast

import zstandard
from blake3 import blake3

from mirror.errors import AnswerError
from mirror.kafka.buffers import Buffer, BufferPool

MAGIC, STORED = b"tsf1", b"tsf0"
"""Of a frame with a compressed body, and of one with a body stored as it is, which is not in the window."""
BODY_BYTES_MAX = 136 << 20
"""Room for a batch of 128 MiB, the largest that is read, and for what precedes it."""
KEY_BYTES = 32
READ_BYTES = 128 << 10

_FIELDS = struct.Struct(">4sQiQII")
_DIGEST_BYTES = 32
_EMPTY_BLOCK = b"\0\0\0"
"""A zstd block that is not the last one (RFC 8878, 3.1.1.2). Output left of earlier blocks comes first."""
HEADER_BYTES = _FIELDS.size + _DIGEST_BYTES


class Header(NamedTuple):
    """What precedes the body of a frame.

    Attributes:
        sequence: Its number in the channel, from 0.
        node: Id of the broker that was read, or RELAY_ITSELF (:mod:`mirror.link.protocol`).
        read_us: When the broker answered, in microseconds of the relay's steady clock.
        body_bytes: Size of the body before compression.
        wire_bytes: Size of the body as it crosses the link.
        stored: The body is not compressed.
    """

    sequence: int
    node: int
    read_us: int
    body_bytes: int
    wire_bytes: int
    digest: bytes
    stored: bool = False

    @property
    def magic(self) -> bytes:
        return STORED if self.stored else MAGIC


class Compression(NamedTuple):
    """How a channel is compressed.

    Attributes:
        level: zstd's; 0: not compressed.
        window_log: Base-2 logarithm of the window in bytes.
        long: Repeats are searched for in the whole window, which slides ("long distance matching"), not only
            nearby. Without it a new window begins when this one is full: zstd takes longer where it has to
            search across the wrap of its buffer.
    """

    level: int = 2
    window_log: int = 24
    long: bool = False

    @property
    def long_bytes(self) -> int:
        """What repeats within this many bytes is sent once; 0: such repeats are not searched for."""
        return 1 << self.window_log if self.level and self.long else 0


class Sealer:
    """Makes the frames of one channel, in their order.

    Attributes:
        key: The channel's key; the other side needs it.
    """

    def __init__(self, compression: Compression) -> None:
        self.key = secrets.token_bytes(KEY_BYTES)
        self._level = compression.level
        self._window: _Window | None = _Window(compression)
        self._next: Compression | None = None
        self._sequence = 0

    @property
    def stores(self) -> bool:
        """Whether the next frames are stored, not compressed."""
        return not self._level

    def change(self, compression: Compression) -> None:
        """Compress the next frames another way, with an empty window; at level 0 they are stored."""
        self._level = compression.level
        if compression.level:
            self._next = compression

    def close(self) -> None:
        """Release zstd's memory, tens of megabytes; further frames are stored."""
        self._level = 0
        self._window = self._next = None

    def seal(self, node: int, read_us: int, body: Sequence[bytes | memoryview]) -> list[bytes | memoryview]:
        """The next frame, in pieces.

        Args:
            node: Id of the broker that was read, or RELAY_ITSELF (:mod:`mirror.link.protocol`).
            read_us: When it answered, in microseconds of our steady clock.
            body: In pieces, which are not copied.
        """
        stored = self.stores or not any(body)
        wire = list(body) if stored else self._deflated(body)
        magic = STORED if stored else MAGIC
        sizes = sum(map(len, body)), sum(map(len, wire))
        fields = _FIELDS.pack(magic, self._sequence, node, read_us, *sizes)
        self._sequence += 1
        return [fields + _digest(self.key, fields, wire), *wire]

    def _deflated(self, body: Sequence[bytes | memoryview]) -> list[bytes | memoryview]:
        assert self._window is not None, "what is closed stores"
        if self._next is None:
            return self._window.compressed(body)
        end = self._window.end()
        self._window, self._next = _Window(self._next), None
        return [end, *self._window.compressed(body)]


class _Window:
    """What zstd may refer to. Unless it slides (``Compression.long``), a new one begins when it is full."""

    def __init__(self, compression: Compression) -> None:
        parameters = zstandard.ZstdCompressionParameters.from_level(
            compression.level, window_log=compression.window_log, enable_ldm=compression.long
        )
        self._compressor = zstandard.ZstdCompressor(compression_params=parameters)
        self._zstd = self._compressor.compressobj()
        self._bytes_max = math.inf if compression.long else 1 << compression.window_log
        self._bytes = 0

    def compressed(self, body: Sequence[bytes | memoryview]) -> list[bytes | memoryview]:
        """The body compressed, in pieces, and flushed so that the other side can decompress all of it."""
        size, end = sum(map(len, body)), b""
        if self._bytes + size > self._bytes_max:
            end = self.end()
            self._zstd, self._bytes = self._compressor.compressobj(), 0
        self._bytes += size
        compress = self._zstd.compress
        return [end, *map(compress, body), self._zstd.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)]

    def end(self) -> bytes:
        """The end of the zstd frame, which precedes the next window."""
        return self._zstd.flush()


class Opener:
    """Opens the frames of one channel, in their order; not to be used after an error.

    Args:
        key: The channel's key.
        window_log_max: Base-2 logarithm of the largest window accepted, in bytes.
    """

    def __init__(self, key: bytes, window_log_max: int) -> None:
        self._key = key
        self._left = _Left()
        zstd = zstandard.ZstdDecompressor(max_window_size=1 << window_log_max)
        self._zstd: zstandard.ZstdDecompressionReader | None = zstd.stream_reader(
            cast(BinaryIO, self._left), read_size=READ_BYTES, read_across_frames=True
        )
        self._sequence = 0

    def close(self) -> None:
        """Release zstd's memory, tens of megabytes; no compressed frame can be opened any more."""
        self._zstd = None

    def open(self, header: Header, wire: memoryview, room: memoryview) -> memoryview:
        """The body of a frame: decompressed into ``room``, which is ``header.body_bytes`` long; or ``wire``
        itself, if the frame is stored.

        Raises:
            AnswerError: It is not the next frame, its digest or its sizes are wrong, it cannot be
                decompressed, or it needs too large a window.
        """
        if header.sequence != self._sequence:
            raise AnswerError(f"received frame {header.sequence}, expected {self._sequence}")
        self._sequence += 1
        fields = _FIELDS.pack(header.magic, *header[:5])
        if not secrets.compare_digest(_digest(self._key, fields, [wire]), header.digest):
            raise AnswerError(f"frame {header.sequence} is not what was sent: its digest does not match")
        if header.stored:
            if len(wire) != header.body_bytes:
                raise AnswerError(f"a stored frame of {header.body_bytes} bytes has {len(wire)}")
            return wire
        assert self._zstd is not None, "nothing is opened after the end"
        self._inflate(self._zstd, wire, room)
        return room

    def _inflate(self, zstd: zstandard.ZstdDecompressionReader, wire: memoryview, body: memoryview) -> None:
        left = self._left
        left.rest = wire
        filled = 0
        try:
            while filled < len(body):
                filled += zstd.readinto(body[filled:])
            goes_on = bool(left.rest) or self._holds_more(zstd)
        except _NothingLeftError as error:
            raise AnswerError(f"a frame of {len(body)} bytes is truncated") from error
        except zstandard.ZstdError as error:
            raise AnswerError(f"a frame cannot be decompressed: {error}") from error
        if goes_on:
            raise AnswerError(f"a frame of {len(body)} bytes continues after its end")

    def _holds_more(self, zstd: zstandard.ZstdDecompressionReader) -> bool:
        """Whether zstd has more output than fits into the body."""
        self._left.rest = memoryview(_EMPTY_BLOCK)
        try:
            return bool(zstd.readinto(bytearray(1)))
        except _NothingLeftError:
            return False


class _NothingLeftError(Exception):
    """A frame has fewer bytes than zstd asks for. An end of file would end the stream of all frames."""


class _Left:
    """The rest of a frame's compressed bytes, as a file."""

    def __init__(self) -> None:
        self.rest = memoryview(b"")

    def read(self, size: int = -1) -> bytes:
        if not self.rest:
            raise _NothingLeftError
        piece = bytes(self.rest[:size])
        self.rest = self.rest[size:]
        return piece


class Arrived(NamedTuple):
    """A frame that is complete; whoever takes it releases the buffer."""

    header: Header
    buffer: Buffer

    @property
    def wire(self) -> memoryview:
        """The body as it crossed the link."""
        return self.buffer.memory[: self.header.wire_bytes]


def _without_bound(_: int) -> None:
    return


class Frames:
    """Reassembles the frames of one channel from its bytes.

    Args:
        body_bytes_max: A frame that claims a larger body is refused before anything is done with it.
        pool: Provides the buffers for frames.
        claim: Called with the size of a frame's body on the wire before a buffer is taken for it; raises if
            there is no room.
    """

    def __init__(
        self,
        pool: BufferPool,
        body_bytes_max: int = BODY_BYTES_MAX,
        claim: Callable[[int], None] = _without_bound,
    ) -> None:
        self._body_bytes_max = body_bytes_max
        self._pool = pool
        self._claim = claim
        self._torn = bytearray()
        self._header: Header | None = None
        self._buffer = pool.take_uncounted(0)
        self._left = memoryview(b"")
        """The part of the buffer that is not filled yet."""

    @property
    def torn(self) -> bool:
        """Whether a frame has arrived in part."""
        return self._header is not None or bool(self._torn)

    @property
    def missing_bytes(self) -> int:
        """Bytes that the frame that has begun still lacks; its buffer already has room for them."""
        return len(self._left)

    def received(self, data: bytes | memoryview) -> list[Arrived]:
        """Take in the next bytes of the channel; returns the frames that are complete now.

        Raises:
            AnswerError: The bytes are no frame, the frame is too large, or ``claim`` refuses it.
        """
        came = memoryview(data)
        found: list[Arrived] = []
        while True:
            if self._header is None:
                missing = HEADER_BYTES - len(self._torn)
                self._torn += came[:missing]
                came = came[missing:]
                if len(self._torn) < HEADER_BYTES:
                    return found
                header = self._read_header(self._torn)
                self._claim(header.wire_bytes)
                self._header = header
                self._buffer = self._pool.take_uncounted(self._header.wire_bytes)
                self._left = self._buffer.memory[: self._header.wire_bytes]
                self._torn.clear()
            piece = came[: len(self._left)]
            self._left[: len(piece)] = piece
            self._left, came = self._left[len(piece) :], came[len(piece) :]
            if self._left:
                return found
            found.append(Arrived(self._header, self._buffer))
            self._header = None

    def _read_header(self, came: bytearray) -> Header:
        magic, sequence, node, read_us, body_bytes, wire_bytes = _FIELDS.unpack_from(came)
        if magic not in {MAGIC, STORED}:
            raise AnswerError(f"received {magic!r} instead of a frame")
        wire_bytes_max = wire_bound(min(body_bytes, self._body_bytes_max))
        if body_bytes > self._body_bytes_max or wire_bytes > wire_bytes_max:
            raise AnswerError(f"frame {sequence} is too large: {body_bytes} bytes, {wire_bytes} compressed")
        digest = bytes(came[_FIELDS.size : HEADER_BYTES])
        return Header(sequence, node, read_us, body_bytes, wire_bytes, digest, magic == STORED)


def wire_bound(body_bytes: int) -> int:
    """The most bytes that zstd makes of a body, flushes included."""
    return body_bytes + body_bytes // 128 + 4096


def _digest(key: bytes, fields: bytes, wire: Sequence[bytes | memoryview]) -> bytes:
    digest = blake3(fields, key=key)
    for piece in wire:
        digest.update(piece)
    return digest.digest()
