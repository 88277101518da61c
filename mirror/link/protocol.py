"""What a mirror and a relay say to each other in a stream: the kinds of messages, and the payloads of bytes.

How messages are framed is in :mod:`mirror.link.messages`, what those of JSON say in
:mod:`mirror.link.greeting`. PING and PONG are the same in a probe.

Pure. Source: docs/protocol.md.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from enum import IntEnum
from typing import Any, NamedTuple

from mirror.errors import AnswerError
from mirror.kafka.fetch import Key
from mirror.link.messages import SLICE, message

PROTOCOL = "twinsite-frames/1"
PATH = "/v1/frames"
JOIN, CARRIES = "join", "carries"
"""Parameters with which a connection joins a stream: by its token, and for ``live`` or ``bulk``."""

_WANT = struct.Struct(">16siIqiBB")
_KEY = struct.Struct(">16si")
_RANK = struct.Struct(">16siB")
_TAKEN = struct.Struct(">BQ")
_NUMBER = struct.Struct(">Q")
_PONG = struct.Struct(">QQQ")
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
    SLICE = SLICE
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
