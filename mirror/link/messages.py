"""Messages between a mirror and a relay: how they are framed, and what the short ones say.

A message is four bytes of length, one of kind, a payload of ``length - 5`` bytes, and the CRC-32C of what
stands before. A slice has none: frames have digests. Integers are big-endian, as in Kafka's protocol.

Pure. Source: docs/protocol.md.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import IntEnum
from typing import Any, NamedTuple

from crc32c import crc32c

from mirror.errors import AnswerError
from mirror.kafka.fetch import Key

PROTOCOL = "twinsite-frames/1"
PATH = "/v1/frames"
JOIN, CARRIES = "join", "carries"
"""Parameters with which a connection joins a stream: by its token, and for ``live`` or ``bulk``."""
MESSAGE_BYTES_MAX = 4 << 20
"""A mirror that wants a hundred thousand partitions sends as much; frames are cut into far less."""

DOCUMENT_BYTES_MAX = 64 << 10
"""Of JSON: what is said in it is short, and what becomes of it in memory is not."""
WORDS_MAX = 1_000
"""So many characters are taken of what the other side says to people."""

_HEAD = struct.Struct(">IB")
_CRC_BYTES = 4
_WANT = struct.Struct(">16siIqiBB")
_KEY = struct.Struct(">16si")
_RANK = struct.Struct(">16siB")
_TAKEN = struct.Struct(">BQ")
_NUMBER = struct.Struct(">Q")
_PONG = struct.Struct(">QQQ")
_SLICE = struct.Struct(">BQ")
_MOVED = struct.Struct(">16siI")
MOVED_BYTES = _MOVED.size
"""What it takes to say of one partition that it moves."""
CHANNELS_MAX = 32
"""Of one stream, at the same time."""
TOKEN_BYTES = 16
"""Of what names a stream to further connections."""
RANK_LAST = 255


class Up(IntEnum):
    """What a mirror says."""

    HELLO = 1
    WANT = 2
    FORGET = 3
    TAKEN = 4
    PING = 5
    RANK = 6
    LIMIT = 7


class Down(IntEnum):
    """What a relay says."""

    WELCOME = 1
    SLICE = 2
    TROUBLE = 3
    BYE = 4
    PONG = 5
    CHOICE = 6
    SHARED = 7
    MOVED = 8
    ENDED = 9


class Channel(IntEnum):
    """Frames of one channel keep their order. Every stream has these; others it shares with other streams,
    and they are as urgent as LIVE.
    """

    LIVE = 0
    BULK = 1


class Position(NamedTuple):
    """From where a partition is read.

    ``number`` tells it from everything else that was wanted of the partition: what comes of it has the same.
    ``fetched_epoch`` is the leader epoch of the last record before it, -1 where that is not known; with
    ``recode`` its batches may be recoded. While partitions are behind those of the lowest ``rank``, 0 to 255,
    are sent, and no others.
    """

    key: Key
    number: int
    offset: int
    fetched_epoch: int
    recode: bool
    rank: int = 0


OnSlice = Callable[[int, int, memoryview], None]
"""Told of a channel, of how many bytes of its frames come before, and of what comes there."""


class Messages:
    """The bytes that come become messages, wherever the network has cut them.

    Args:
        on_slice: Told what comes of slices, as it comes and until that is overwritten: so nothing is gathered
            here that belongs into a frame. None: there are no slices.
    """

    def __init__(self, bytes_max: int = MESSAGE_BYTES_MAX, on_slice: OnSlice | None = None) -> None:
        self._bytes_max = bytes_max
        self._on_slice = on_slice
        self._torn = bytearray()
        self._slice = (0, 0)
        """Channel and place of what comes next of the slice that has begun."""
        self._left = 0
        """Bytes of it."""

    def received(self, data: bytes | memoryview) -> Iterator[tuple[int, memoryview]]:
        """What is whole now, as (kind, payload); a payload is there until ``data`` is overwritten. That of a
        slice of which somebody was told is empty.

        Raises:
            AnswerError: A length cannot be true, or what came is not what was said; the rest means nothing.
        """
        came = memoryview(data)
        while came:
            if self._left:
                piece, came = came[: self._left], came[self._left :]
                self._tell(piece)
                if not self._left:
                    yield Down.SLICE, piece[:0]
                continue
            whole, came = self._cut(came)
            if whole is None:
                return
            if self._on_slice is not None and whole[4] == Down.SLICE:
                self._slice = _SLICE.unpack_from(whole, _HEAD.size)
                self._left = int.from_bytes(whole[:4], "big") - 1 - _SLICE.size
            else:
                yield whole[4], _payload(whole)

    @property
    def left(self) -> int:
        """So many bytes at least are still to come of what has begun: a slice of which somebody is told."""
        return self._left

    def _tell(self, piece: memoryview) -> None:
        assert self._on_slice is not None, "only then a slice begins"
        channel, at = self._slice
        self._slice = channel, at + len(piece)
        self._left -= len(piece)
        self._on_slice(channel, at, piece)

    def _cut(self, came: memoryview) -> tuple[memoryview | None, memoryview]:
        """What belongs together at the beginning, None while some of it is missing; and what follows."""
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
        """How many bytes belong together, as far as can be told: a message, or how a slice begins."""
        if len(came) < _HEAD.size:
            return _HEAD.size
        length = int.from_bytes(came[:4], "big")
        if not 1 <= length <= self._bytes_max:
            raise AnswerError(f"a message of {length} bytes came, the most is {self._bytes_max}")
        if self._on_slice is None or came[4] != Down.SLICE:
            return 4 + length
        if length - 1 <= _SLICE.size:
            raise AnswerError(f"a slice of {length - 1} bytes")
        return _HEAD.size + _SLICE.size


def message(kind: IntEnum, payload: bytes | memoryview) -> bytes:
    """A message as it goes over the link."""
    said = _HEAD.pack(1 + len(payload) + _CRC_BYTES, kind) + payload
    return said + int(crc32c(said)).to_bytes(_CRC_BYTES, "big")


def _payload(whole: memoryview) -> memoryview:
    """That of a message.

    Raises:
        AnswerError: Its CRC is not that of the rest: TCP has not seen what became of it on its way.
    """
    said, crc = whole[:-_CRC_BYTES], whole[-_CRC_BYTES:]
    if len(said) < _HEAD.size or crc32c(said) != int.from_bytes(crc, "big"):
        raise AnswerError(f"a message of kind {whole[4]} and {len(whole)} bytes was spoiled on its way")
    return said[_HEAD.size :]


# -- what the payloads say -----------------------------------------------------------------------


def document(payload: bytes | memoryview) -> dict[str, Any]:
    """The JSON object of a message.

    Raises:
        AnswerError: It is none, or a long one.
    """
    if len(payload) > DOCUMENT_BYTES_MAX:
        raise AnswerError(f"{len(payload)} bytes of JSON, the most is {DOCUMENT_BYTES_MAX}")
    try:
        found = json.loads(bytes(payload))
    except (ValueError, RecursionError) as error:
        raise AnswerError(f"{len(payload)} bytes that are no JSON: {error}") from error
    if not isinstance(found, dict):
        raise AnswerError(f"a JSON object was due, {type(found).__name__} came")
    return found


def words(said: object) -> str:
    """As much of what the other side says to people as a line has room for."""
    text = str(said)
    return text if len(text) <= WORDS_MAX else f"{text[:WORDS_MAX]}.."


def say(kind: IntEnum, document: Mapping[str, Any]) -> bytes:
    """A message of a JSON object."""
    return message(kind, json.dumps(document, separators=(",", ":")).encode())


def want(positions: Iterable[Position]) -> bytes:
    """Read these partitions, from there on."""
    return message(Up.WANT, b"".join(_WANT.pack(*p.key, *p[1:]) for p in positions))


def read_want(payload: bytes | memoryview) -> list[Position]:
    """
    Raises:
        AnswerError: The payload is cut, a partition or an offset is negative, or whether batches may be
            recoded is neither 0 nor 1.
    """
    found = [
        Position(_key(topic_id, partition), *where) for topic_id, partition, *where in _each(_WANT, payload)
    ]
    for position in found:
        if position.offset < 0 or position.recode not in {0, 1}:
            raise AnswerError(f"no partition is read at {position}")
    return found


def forget(keys: Iterable[Key]) -> bytes:
    """Read these partitions no more."""
    return message(Up.FORGET, b"".join(_KEY.pack(*key) for key in keys))


def read_forget(payload: bytes | memoryview) -> list[Key]:
    """
    Raises:
        AnswerError: The payload is cut, or a partition is negative.
    """
    return [_key(topic_id, partition) for topic_id, partition in _each(_KEY, payload)]


def taken(channel: int, wire_bytes: int) -> bytes:
    """Frames of so many bytes, since the channel began, are off the wire and out of the way."""
    return message(Up.TAKEN, _TAKEN.pack(channel, wire_bytes))


def read_taken(payload: bytes | memoryview) -> tuple[int, int]:
    """
    Raises:
        AnswerError: The payload is cut.
    """
    ((channel, wire_bytes),) = _only(_TAKEN, payload)
    return channel, wire_bytes


def rank(ranks: Iterable[tuple[Key, int]]) -> bytes:
    """From now on these partitions have another rank."""
    return message(Up.RANK, b"".join(_RANK.pack(*key, rank) for key, rank in ranks))


def read_rank(payload: bytes | memoryview) -> list[tuple[Key, int]]:
    """
    Raises:
        AnswerError: The payload is cut, or a partition is negative.
    """
    return [(_key(topic_id, partition), rank) for topic_id, partition, rank in _each(_RANK, payload)]


def limit(bytes_per_second: int) -> bytes:
    """Send no more than this; 0: as much as there is room for."""
    return message(Up.LIMIT, _NUMBER.pack(bytes_per_second))


def ping(token: int) -> bytes:
    """Answer this."""
    return message(Up.PING, _NUMBER.pack(token))


def read_number(payload: bytes | memoryview) -> int:
    """What a ping or a limit says.

    Raises:
        AnswerError: The payload is cut.
    """
    ((number,),) = _only(_NUMBER, payload)
    return int(number)


class Pong(NamedTuple):
    """The answer to a ping: its token, the relay's clock in milliseconds since 1970, and a clock of it that
    is never set, in microseconds since some moment.
    """

    token: int
    clock_ms: int
    steady_us: int


NOT_ASKED = (1 << 64) - 1
"""The number of a PONG that answers nothing: a mirror passes over it."""


def pong(token: int, clock_ms: int, steady_us: int) -> bytes:
    """A message of a :class:`Pong`."""
    return message(Down.PONG, _PONG.pack(token, clock_ms, steady_us))


def read_pong(payload: bytes | memoryview) -> Pong:
    """
    Raises:
        AnswerError: The payload is cut.
    """
    return Pong(*_only(_PONG, payload)[0])


def slice_of(channel: int, at: int, *pieces: bytes | memoryview) -> bytes:
    """Bytes of a channel's frames; ``at`` is how many of them come before."""
    head = _HEAD.pack(1 + _SLICE.size + sum(map(len, pieces)), Down.SLICE)
    return b"".join((head, _SLICE.pack(channel, at), *pieces))


def shared(channel: int, key: bytes) -> bytes:
    """From now on there is this channel, whose frames others get too; ``key`` is that of their digests."""
    return message(Down.SHARED, bytes([channel]) + key)


def moved(channel: int, wanted: Iterable[tuple[Key, int]]) -> bytes:
    """What was wanted of these partitions, by the number it was wanted with, comes by a shared channel."""
    return message(Down.MOVED, bytes([channel]) + b"".join(_MOVED.pack(*key, one) for key, one in wanted))


def ended(channel: int) -> bytes:
    """Nothing more comes by this shared channel."""
    return message(Down.ENDED, bytes([channel]))


def read_channel(payload: memoryview) -> tuple[int, memoryview]:
    """The channel that a message speaks of, and the rest of it.

    Raises:
        AnswerError: There is none.
    """
    if not payload:
        raise AnswerError("a message about no channel")
    return payload[0], payload[1:]


def read_moved(payload: memoryview) -> tuple[int, list[tuple[Key, int]]]:
    """
    Raises:
        AnswerError: The payload is cut.
    """
    channel, rest = read_channel(payload)
    return channel, [(Key(topic_id, partition), one) for topic_id, partition, one in _each(_MOVED, rest)]


def _key(topic_id: bytes, partition: int) -> Key:
    if partition < 0:
        raise AnswerError(f"there is no partition {partition}")
    return Key(topic_id, partition)


def _each(layout: struct.Struct, payload: bytes | memoryview) -> list[tuple[Any, ...]]:
    try:
        return list(layout.iter_unpack(payload))
    except struct.error as error:
        raise AnswerError(f"{len(payload)} bytes in entries of {layout.size}: {error}") from error


def _only(layout: struct.Struct, payload: bytes | memoryview) -> list[tuple[Any, ...]]:
    if len(payload) != layout.size:
        raise AnswerError(f"{len(payload)} bytes came where {layout.size} were due")
    return _each(layout, payload)
