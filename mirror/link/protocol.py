"""The messages of a stream between a mirror and a relay: their kinds, and the payloads that are not JSON.

How messages are framed is in :mod:`mirror.link.messages`; payloads of JSON are in
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
"""Query parameters with which a connection joins a stream: its token, and ``live`` or ``bulk``."""

_WANT = struct.Struct(">16siIqiBB")
_KEY = struct.Struct(">16si")
_RANK = struct.Struct(">16siB")
_TAKEN = struct.Struct(">BQ")
_NUMBER = struct.Struct(">Q")
_PONG = struct.Struct(">QQQ")
_MOVED = struct.Struct(">16siI")
MOVED_BYTES = _MOVED.size
"""Bytes that MOVED has for each partition."""
CHANNELS_MAX = 32
"""Of one stream, at the same time."""
TOKEN_BYTES = 16
"""Of the token by which further connections join a stream."""
RANK_LAST = 255
RELAY_ITSELF = -1
"""In place of a broker's id: the relay speaks for itself, or reads no broker at all."""


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
    """The channels that every stream has. Channels that it shares with other streams have higher numbers, and
    are as urgent as LIVE. Frames of one channel keep their order.
    """

    LIVE = 0
    BULK = 1


class Position(NamedTuple):
    """Where a partition is read from.

    ``number`` tells this from everything else that was wanted of the partition: its parts carry it.
    ``fetched_epoch`` is the leader epoch of the last record before ``offset``, -1 if not known. With
    ``recode`` its batches may be recoded. Of the partitions that are behind, only those of the lowest
    ``rank``, 0 to 255, are sent.
    """

    key: Key
    number: int
    offset: int
    fetched_epoch: int
    recode: bool
    rank: int = 0


def want(positions: Iterable[Position]) -> bytes:
    """WANT: read these partitions from these offsets on."""
    return message(Up.WANT, b"".join(_WANT.pack(*p.key, *p[1:]) for p in positions))


def read_want(payload: bytes | memoryview) -> list[Position]:
    """
    Raises:
        AnswerError: The payload has a wrong size, a partition or an offset is negative, or ``recode`` is
            neither 0 nor 1.
    """
    found = [
        Position(_key(topic_id, partition), *where) for topic_id, partition, *where in _each(_WANT, payload)
    ]
    for position in found:
        if position.offset < 0 or position.recode not in {0, 1}:
            raise AnswerError(f"invalid position: {position}")
    return found


def forget(keys: Iterable[Key]) -> bytes:
    """FORGET: stop reading these partitions."""
    return message(Up.FORGET, b"".join(_KEY.pack(*key) for key in keys))


def read_forget(payload: bytes | memoryview) -> list[Key]:
    """
    Raises:
        AnswerError: The payload has a wrong size, or a partition is negative.
    """
    return [_key(topic_id, partition) for topic_id, partition in _each(_KEY, payload)]


def taken(channel: int, wire_bytes: int) -> bytes:
    """TAKEN: frames of this many bytes, headers included, were taken since the channel began."""
    return message(Up.TAKEN, _TAKEN.pack(channel, wire_bytes))


def read_taken(payload: bytes | memoryview) -> tuple[int, int]:
    """
    Raises:
        AnswerError: The payload has a wrong size.
    """
    ((channel, wire_bytes),) = _only(_TAKEN, payload)
    return channel, wire_bytes


def rank(ranks: Iterable[tuple[Key, int]]) -> bytes:
    """RANK: these partitions have another rank from now on."""
    return message(Up.RANK, b"".join(_RANK.pack(*key, rank) for key, rank in ranks))


def read_rank(payload: bytes | memoryview) -> list[tuple[Key, int]]:
    """
    Raises:
        AnswerError: The payload has a wrong size, or a partition is negative.
    """
    return [(_key(topic_id, partition), rank) for topic_id, partition, rank in _each(_RANK, payload)]


def limit(bytes_per_second: int) -> bytes:
    """LIMIT: send no more than this; 0: no limit."""
    return message(Up.LIMIT, _NUMBER.pack(bytes_per_second))


def ping(token: int) -> bytes:
    """PING: answer with this token."""
    return message(Up.PING, _NUMBER.pack(token))


def read_number(payload: bytes | memoryview) -> int:
    """The number in a PING or a LIMIT.

    Raises:
        AnswerError: The payload has a wrong size.
    """
    ((number,),) = _only(_NUMBER, payload)
    return int(number)


class Pong(NamedTuple):
    """The answer to a PING: its token, the relay's clock in milliseconds since 1970, and its steady clock,
    which is never set, in microseconds since an arbitrary moment.
    """

    token: int
    clock_ms: int
    steady_us: int


NOT_ASKED = (1 << 64) - 1
"""The token of a PONG that answers no PING: a mirror ignores it."""


def pong(token: int, clock_ms: int, steady_us: int) -> bytes:
    """PONG; the arguments are those of :class:`Pong`."""
    return message(Down.PONG, _PONG.pack(token, clock_ms, steady_us))


def read_pong(payload: bytes | memoryview) -> Pong:
    """
    Raises:
        AnswerError: The payload has a wrong size.
    """
    return Pong(*_only(_PONG, payload)[0])


def shared(channel: int, key: bytes) -> bytes:
    """SHARED: from now on there is this channel, whose frames other mirrors get too; ``key`` is its key."""
    return message(Down.SHARED, bytes([channel]) + key)


def moved(channel: int, wanted: Iterable[tuple[Key, int]]) -> bytes:
    """MOVED: from now on these partitions, each with the number it was wanted with, come by this channel."""
    return message(Down.MOVED, bytes([channel]) + b"".join(_MOVED.pack(*key, one) for key, one in wanted))


def ended(channel: int) -> bytes:
    """ENDED: nothing more comes by this shared channel."""
    return message(Down.ENDED, bytes([channel]))


def read_channel(payload: memoryview) -> tuple[int, memoryview]:
    """The channel that a message is about, and the rest of its payload.

    Raises:
        AnswerError: The payload is empty.
    """
    if not payload:
        raise AnswerError("a message without a channel")
    return payload[0], payload[1:]


def read_moved(payload: memoryview) -> tuple[int, list[tuple[Key, int]]]:
    """
    Raises:
        AnswerError: The payload has a wrong size.
    """
    channel, rest = read_channel(payload)
    return channel, [(Key(topic_id, partition), one) for topic_id, partition, one in _each(_MOVED, rest)]


def _key(topic_id: bytes, partition: int) -> Key:
    if partition < 0:
        raise AnswerError(f"invalid partition {partition}")
    return Key(topic_id, partition)


def _each(layout: struct.Struct, payload: bytes | memoryview) -> list[tuple[Any, ...]]:
    try:
        return list(layout.iter_unpack(payload))
    except struct.error as error:
        raise AnswerError(f"{len(payload)} bytes in entries of {layout.size}: {error}") from error


def _only(layout: struct.Struct, payload: bytes | memoryview) -> list[tuple[Any, ...]]:
    if len(payload) != layout.size:
        raise AnswerError(f"received {len(payload)} bytes, expected {layout.size}")
    return _each(layout, payload)
