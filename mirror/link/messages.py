"""How messages between a mirror and a relay are framed, in a stream and in a probe.

A message is four bytes of length, one of kind, a payload of ``length - 5`` bytes, and the CRC-32C of all
before it. A slice has no CRC: frames have digests. Integers are big-endian, as in Kafka's protocol. What the
messages say is in :mod:`mirror.link.protocol` and :mod:`mirror.link.probe`.

Pure. Source: docs/protocol.md.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator, Mapping
from enum import IntEnum
from typing import Any

from crc32c import crc32c

from mirror.errors import AnswerError

MESSAGE_BYTES_MAX = 4 << 20
"""Room for a WANT of a hundred thousand partitions; slices are far smaller."""
DOCUMENT_BYTES_MAX = 64 << 10
"""Of JSON: what it says is short, and parsed it takes far more memory than its bytes."""
WORDS_MAX = 1_000
"""Characters that are taken of a text for people from the other side."""
SLICE = 2
"""The kind of a slice, which only a relay sends, and only in a stream."""

_HEAD = struct.Struct(">IB")
_CRC_BYTES = 4
_SLICE_HEAD = struct.Struct(">BQ")

OnSlice = Callable[[int, int, memoryview], None]
"""Called with a channel, with how many bytes of its frames come before, and with the bytes."""


class Messages:
    """Makes messages of received bytes, wherever the network has cut them.

    Args:
        bytes_max: The most that the length of a message may be.
        on_slice: Called with the bytes of slices as they arrive, which are valid during the call: so nothing
            is collected here that belongs in a frame. None: there are no slices.
    """

    def __init__(self, bytes_max: int = MESSAGE_BYTES_MAX, on_slice: OnSlice | None = None) -> None:
        self._bytes_max = bytes_max
        self._on_slice = on_slice
        self._torn = bytearray()
        self._slice = (0, 0)
        """Of the slice that has begun: its channel, and the position of its next byte."""
        self._left = 0
        """Bytes of it that are still to come."""

    def received(self, data: bytes | memoryview) -> Iterator[tuple[int, memoryview]]:
        """Yield (kind, payload) of the messages that are complete now; a payload is valid until ``data`` is
        overwritten. A slice that went to ``on_slice`` has an empty payload.

        Raises:
            AnswerError: A length is impossible, or a CRC is wrong; what follows cannot be read. Also what
                ``on_slice`` raises.
        """
        came = memoryview(data)
        while came:
            if self._left:
                piece, came = came[: self._left], came[self._left :]
                self._tell(piece)
                if not self._left:
                    yield SLICE, piece[:0]
                continue
            whole, came = self._cut(came)
            if whole is None:
                return
            if self._on_slice is not None and whole[4] == SLICE:
                self._slice = _SLICE_HEAD.unpack_from(whole, _HEAD.size)
                self._left = int.from_bytes(whole[:4], "big") - 1 - _SLICE_HEAD.size
            else:
                yield whole[4], _payload(whole)

    @property
    def left(self) -> int:
        """Bytes that are still to come of a slice that goes to ``on_slice``; 0 outside of one."""
        return self._left

    def _tell(self, piece: memoryview) -> None:
        assert self._on_slice is not None, "only then a slice begins"
        channel, at = self._slice
        self._slice = channel, at + len(piece)
        self._left -= len(piece)
        self._on_slice(channel, at, piece)

    def _cut(self, came: memoryview) -> tuple[memoryview | None, memoryview]:
        """What belongs together at the beginning, None while some of it is missing; and what follows it."""
        wanted = self._wanted(self._torn or came)
        if not self._torn and wanted <= len(came):
            return came[:wanted], came[wanted:]
        while came and wanted > len(self._torn):
            missing = wanted - len(self._torn)
            self._torn += came[:missing]
            came = came[missing:]
            wanted = self._wanted(self._torn)
        if wanted > len(self._torn):
            return None, came
        whole, self._torn = memoryview(self._torn), bytearray()
        return whole, came

    def _wanted(self, came: bytearray | memoryview) -> int:
        """How many bytes belong together, as far as is known: a message, or the head of a slice.

        Raises:
            AnswerError: The length is impossible.
        """
        if len(came) < _HEAD.size:
            return _HEAD.size
        length = int.from_bytes(came[:4], "big")
        if not 1 <= length <= self._bytes_max:
            raise AnswerError(f"a message of {length} bytes; the limit is {self._bytes_max}")
        if self._on_slice is None or came[4] != SLICE:
            return 4 + length
        if length - 1 <= _SLICE_HEAD.size:
            raise AnswerError(f"a slice of {length - 1} bytes")
        return _HEAD.size + _SLICE_HEAD.size


def message(kind: IntEnum, payload: bytes | memoryview) -> bytes:
    """A message as it crosses the link."""
    said = _HEAD.pack(1 + len(payload) + _CRC_BYTES, kind) + payload
    return said + int(crc32c(said)).to_bytes(_CRC_BYTES, "big")


def slice_of(channel: int, at: int, *pieces: bytes | memoryview) -> bytes:
    """A SLICE with bytes of a channel's frames; ``at`` is how many bytes of them come before."""
    head = _HEAD.pack(1 + _SLICE_HEAD.size + sum(map(len, pieces)), SLICE)
    return b"".join((head, _SLICE_HEAD.pack(channel, at), *pieces))


def _payload(whole: memoryview) -> memoryview:
    """The payload of a message.

    Raises:
        AnswerError: The CRC is wrong: the message was corrupted without TCP noticing.
    """
    said, crc = whole[:-_CRC_BYTES], whole[-_CRC_BYTES:]
    if len(said) < _HEAD.size or crc32c(said) != int.from_bytes(crc, "big"):
        raise AnswerError(f"a message of kind {whole[4]} and {len(whole)} bytes was corrupted in transit")
    return said[_HEAD.size :]


# -- JSON, and words ---------------------------------------------------------------------------------


def document(payload: bytes | memoryview) -> dict[str, Any]:
    """The JSON object of a message.

    Raises:
        AnswerError: It is not a JSON object, or longer than ``DOCUMENT_BYTES_MAX``.
    """
    if len(payload) > DOCUMENT_BYTES_MAX:
        raise AnswerError(f"{len(payload)} bytes of JSON; the limit is {DOCUMENT_BYTES_MAX}")
    try:
        found = json.loads(bytes(payload))
    except (ValueError, RecursionError) as error:
        raise AnswerError(f"{len(payload)} bytes that are not JSON: {error}") from error
    if not isinstance(found, dict):
        raise AnswerError(f"expected a JSON object, received {type(found).__name__}")
    return found


def words(said: object) -> str:
    """A text for people from the other side, cut to what a log line has room for."""
    text = str(said)
    return text if len(text) <= WORDS_MAX else f"{text[:WORDS_MAX]}.."


def say(kind: IntEnum, document: Mapping[str, Any]) -> bytes:
    """A message whose payload is a JSON object."""
    return message(kind, json.dumps(document, separators=(",", ":")).encode())
