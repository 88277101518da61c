"""Fetch: ask a broker for record batches, and read its answer without copying them.

Version 13 of the API is used even where a broker offers newer ones. From 13 on
partitions are named by topic id, so that an answer can never belong to another
topic of the same name; nothing that came later matters to a consumer.

A *fetch session* makes the broker remember what is wanted. A request then names
only what has changed, and partitions without news cost nothing on either side.

Sources: KIP-227 (sessions), KIP-219 (quotas), KIP-320 and KIP-595 (epochs, divergence), KIP-482, KIP-516.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from mirror.errors import AnswerError
from mirror.kafka.wire import read_uvarint, skip_tags, uvarint

FETCH = 1
FETCH_VERSION = 13
FETCH_SESSION_ID_NOT_FOUND = 70
INVALID_FETCH_SESSION_EPOCH = 71
SESSION_CODES = frozenset({FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH, 106, 107, 111})

_REQUEST = struct.Struct(">iiiibii")
_PARTITION = struct.Struct(">iiqiqib")
_ANSWER = struct.Struct(">ihi")
_FETCHED = struct.Struct(">ihqqq")
_ABORTED = struct.Struct(">qq")
_EPOCH_END = struct.Struct(">iq")


class Isolation(IntEnum):
    """What a read may see."""

    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


class Key(NamedTuple):
    """A partition as the Fetch API names it."""

    topic_id: bytes
    partition: int


class Want(NamedTuple):
    """From where to read a partition. An epoch of -1 is not known, and not checked."""

    offset: int
    leader_epoch: int
    last_fetched_epoch: int
    bytes_max: int


class Fetched(NamedTuple):
    """One partition's part of an answer; ``records`` are whole batches and perhaps a torn last one.

    ``diverging`` is (epoch, end offset): the source's log holds nothing of that epoch beyond it. ``aborted``
    lists aborted transactions as (producer id, first offset).
    """

    key: Key
    error_code: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    diverging: tuple[int, int] | None
    aborted: list[tuple[int, int]]
    records: memoryview

    def readable_end(self, isolation: Isolation) -> int:
        """How far the broker lets a reader read; negative if it did not say."""
        return self.last_stable_offset if isolation is Isolation.READ_COMMITTED else self.high_watermark


class FetchAnswer(NamedTuple):
    throttle_ms: int
    error_code: int
    session_id: int
    partitions: list[Fetched]

    @property
    def says_nothing(self) -> bool:
        """Whether it says nothing, not even that the partitions it leaves out have nothing new.

        True when the request was refused, for example because the session is lost, and when a quota is used
        up and the broker left out everything.
        """
        return self.error_code != 0 or (self.throttle_ms > 0 and not self.partitions)


@dataclass(frozen=True, slots=True)
class FetchLimits:
    """How much one request may bring, and how long the broker may wait for it."""

    wait_ms_max: int = 500
    bytes_min: int = 1
    bytes_max: int = 8 << 20
    isolation: Isolation = Isolation.READ_COMMITTED


class FetchSession:
    """What one broker remembers of the partitions that we want, kept in step with the requests it got.

    One request at a time: the next may be made only after :meth:`answered` or :meth:`reset`.
    The cost of a request grows with what has changed, not with what is wanted.

    Attributes:
        wanted: Every partition that is wanted, and from where.
        told: What the broker knew of that as of the last request: its answer is for these.
        heard: Those of them for which it has answered: when an answer leaves one of these out, nothing has
            changed there. The reader of the answers adds to it; forgotten partitions are removed here.
    """

    def __init__(self) -> None:
        self.wanted: dict[Key, Want] = {}
        self.told: dict[Key, Want] = {}
        self.heard: set[Key] = set()
        self._changed: set[Key] = set()
        self._forgotten: set[Key] = set()
        self._session_id = 0
        self._epoch = 0

    def want(self, key: Key, want: Want, *, anew: bool = False) -> None:
        """Read this partition from now on, from there.

        Args:
            anew: The broker must answer for it even without news, as for a partition new to the session. If
                it has not been told yet to forget the partition, the next request tells it so, and the one
                after that carries this wish.
        """
        self.wanted[key] = want
        self._changed.add(key)
        if not anew:
            self._forgotten.discard(key)

    def forget(self, key: Key) -> None:
        """Do not read this partition from now on."""
        if self.wanted.pop(key, None) is not None:
            self._changed.discard(key)
            self._forgotten.add(key)

    def request(self, limits: FetchLimits) -> bytes:
        """The request that brings the broker up to date and asks for data."""
        if self._session_id == 0:
            changed, forgotten = dict(self.wanted), frozenset[Key]()
            self.told = {}
            self.heard.intersection_update(self.wanted)
        else:
            changed = {key: self.wanted[key] for key in self._changed - self._forgotten}
            forgotten = frozenset(self._forgotten)
            self.heard -= forgotten
        for key in forgotten:
            self.told.pop(key, None)
        self.told.update(changed)
        self._changed &= forgotten
        self._forgotten = set()
        return encode_request(
            limits, session=(self._session_id, self._epoch), changed=changed, forgotten=forgotten
        )

    def answered(self, answer: FetchAnswer) -> bool:
        """Take note of an answer; False when it is an error other than a lost session.

        After any error the next request begins a new session.
        """
        if answer.error_code:
            self.reset()
            return answer.error_code in SESSION_CODES
        self._session_id = answer.session_id
        self._epoch = 0 if answer.session_id == 0 else self._epoch % 0x7FFFFFFF + 1
        return True

    def reset(self) -> None:
        """Forget the session, for example with its connection; the next request is a full one."""
        self._session_id, self._epoch = 0, 0


def encode_request(
    limits: FetchLimits,
    *,
    session: tuple[int, int],
    changed: Mapping[Key, Want],
    forgotten: Iterable[Key],
) -> bytes:
    """The body of a Fetch request; ``session`` is (0, -1) for one outside any session."""
    out = bytearray(
        _REQUEST.pack(-1, limits.wait_ms_max, limits.bytes_min, limits.bytes_max, limits.isolation, *session)
    )
    topics: dict[bytes, list[tuple[int, Want]]] = {}
    for (topic_id, partition), want in changed.items():
        topics.setdefault(topic_id, []).append((partition, want))
    out += uvarint(len(topics) + 1)
    for topic_id, wants in topics.items():
        out += topic_id + uvarint(len(wants) + 1)
        for partition, (offset, leader_epoch, last_fetched_epoch, bytes_max) in wants:
            out += _PARTITION.pack(partition, leader_epoch, offset, last_fetched_epoch, -1, bytes_max, 0)
        out += b"\0"
    gone: dict[bytes, list[int]] = {}
    for topic_id, partition in forgotten:
        gone.setdefault(topic_id, []).append(partition)
    out += uvarint(len(gone) + 1)
    for topic_id, partitions in gone.items():
        out += topic_id + uvarint(len(partitions) + 1)
        out += struct.pack(f">{len(partitions)}i", *partitions) + b"\0"
    return bytes(out + b"\1\0")


def decode_answer(body: memoryview) -> FetchAnswer:
    """Read a Fetch answer. The records are views into ``body``.

    Raises:
        AnswerError: The bytes are not such an answer.
    """
    return _decoded(body)[0]


def decode_whole_answer(body: memoryview) -> FetchAnswer:
    """Read a Fetch answer, and check that nothing follows it.

    Raises:
        AnswerError: The bytes are not such an answer, or go on after it.
    """
    answer, at = _decoded(body)
    if bytes(body[at : at + 2]) != b"\0":
        raise AnswerError(f"a Fetch answer of {len(body)} bytes ends at byte {at}, or continues after it")
    return answer


def _decoded(body: memoryview) -> tuple[FetchAnswer, int]:
    try:
        return _decode_answer(body)
    except (ValueError, IndexError, struct.error) as error:
        raise AnswerError(f"truncated or invalid Fetch answer of {len(body)} bytes: {error}") from error


def _decode_answer(body: memoryview) -> tuple[FetchAnswer, int]:
    throttle_ms, error_code, session_id = _ANSWER.unpack_from(body, 0)
    topics, at = read_uvarint(body, _ANSWER.size)
    partitions: list[Fetched] = []
    for _ in range(topics - 1):
        topic_id = bytes(body[at : at + 16])
        count, at = read_uvarint(body, at + 16)
        for _ in range(count - 1):
            fetched, at = _decode_partition(body, at, topic_id)
            partitions.append(fetched)
        at = skip_tags(body, at)
    return FetchAnswer(throttle_ms, error_code, session_id, partitions), at


def _decode_partition(body: memoryview, at: int, topic_id: bytes) -> tuple[Fetched, int]:
    index, error_code, high_watermark, stable, log_start = _FETCHED.unpack_from(body, at)
    count, at = read_uvarint(body, at + _FETCHED.size)
    aborted = []
    for _ in range(count - 1):
        aborted.append(_ABORTED.unpack_from(body, at))
        at = skip_tags(body, at + _ABORTED.size)
    size, at = read_uvarint(body, at + 4)
    end = at + max(size - 1, 0)
    if end > len(body):
        raise ValueError(f"records end at byte {end} of an answer of {len(body)} bytes")
    records = body[at:end]
    diverging = None
    if body[end]:
        diverging, end = _read_divergence(body, end)
    else:
        end += 1
    new = tuple.__new__  # a NamedTuple's own constructor is a Python function
    key = new(Key, (topic_id, index))
    said = (key, error_code, high_watermark, stable, log_start, diverging, aborted, records)
    return new(Fetched, said), end


def _read_divergence(body: memoryview, at: int) -> tuple[tuple[int, int] | None, int]:
    diverging = None
    count, at = read_uvarint(body, at)
    for _ in range(count):
        tag, at = read_uvarint(body, at)
        size, at = read_uvarint(body, at)
        if tag == 0:
            epoch, end_offset = _EPOCH_END.unpack_from(body, at)
            diverging = (epoch, end_offset) if epoch >= 0 or end_offset >= 0 else None
        at += size
    return diverging, at
