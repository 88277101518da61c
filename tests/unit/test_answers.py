"""Bytes that come in pieces become answers; no socket and no event loop take part."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirror.errors import ConnectionFailedError, TlsRefusedError
from mirror.kafka.answers import ANSWER_BYTES_MAX, READ_AHEAD_BYTES, Answers, Due, Ended

EDGES = [0, 1, READ_AHEAD_BYTES - 10, READ_AHEAD_BYTES - 9, READ_AHEAD_BYTES - 8, 3 * READ_AHEAD_BYTES]
"""Bodies that end just before, at and behind what is received ahead; nine bytes stand before each."""


class Asker:
    """Waits for answers, and notes what it is told and how large a buffer it was asked for."""

    def __init__(self) -> None:
        self.answers = Answers("broker:9092")
        self.heard: list[bytes] = []
        self.buffers: list[memoryview] = []

    def asks(self, number: int, header_bytes: int = 5) -> None:
        self.answers.due.append(Due(number, self.hears, 0.0, self.allocates, header_bytes))

    def hears(self, answer: memoryview | Ended) -> None:
        assert isinstance(answer, memoryview)
        self.heard.append(bytes(answer))

    def allocates(self, size: int) -> memoryview:
        self.buffers.append(memoryview(bytearray(size)))
        return self.buffers[-1]


def framed(number: int, body: bytes) -> bytes:
    return struct.pack(">iib", len(body) + 5, number, 0) + body


def pieces(stream: bytes, sizes: list[int]) -> Iterator[bytes]:
    """The stream, cut into pieces of these sizes; what is left over comes last."""
    at = 0
    for size in [*sizes, len(stream)]:
        yield stream[at : at + size]
        at += size


def received(answers: Answers, piece: bytes) -> Ended | None:
    """What a socket does: fill the room there is, as often as it takes."""
    while piece:
        count = min(len(piece), len(answers.room))
        answers.room[:count] = piece[:count]
        piece = piece[count:]
        ended = answers.received(count)
        if ended is not None:
            return ended
        assert len(answers.room) > 0, "a socket that is given no room says that the connection is over"
    return None


@given(
    sizes=st.lists(st.sampled_from(EDGES) | st.integers(0, 3000), min_size=1, max_size=8),
    cuts=st.lists(st.integers(1, 12) | st.integers(1, 2500), max_size=20),
)
def test_answers_are_whole_wherever_they_are_cut(sizes: list[int], cuts: list[int]) -> None:
    """
    A cut may fall within a length; each answer gets one buffer, of exactly its size.
    """
    bodies = [bytes([number % 251]) * size for number, size in enumerate(sizes)]
    stream = b"".join(framed(number, body) for number, body in enumerate(bodies, 1))
    asker = Asker()
    for number in range(1, len(bodies) + 1):
        asker.asks(number)

    ends = [received(asker.answers, piece) for piece in pieces(stream, cuts)]

    assert not any(ends)
    assert asker.heard == bodies
    assert [len(buffer) for buffer in asker.buffers] == [len(body) + 5 for body in bodies]
    assert not asker.answers.due


@given(cuts=st.lists(st.integers(1, 40), max_size=8))
def test_an_answer_is_handed_over_with_its_last_byte_and_not_before(cuts: list[int]) -> None:
    """
    After each piece, as many were told as answers have wholly come.
    """
    stream = b"".join(framed(number, bytes(number)) for number in range(1, 9))
    ends = [len(b"".join(framed(n, bytes(n)) for n in range(1, last + 1))) for last in range(1, 9)]
    asker = Asker()
    for number in range(1, 9):
        asker.asks(number)
    come = 0

    for piece in pieces(stream, cuts):
        received(asker.answers, piece)
        come += len(piece)

        assert len(asker.heard) == sum(end <= come for end in ends)


def test_a_long_answer_is_received_where_it_stays() -> None:
    """
    Behind what came ahead, the room is the buffer itself: nothing is copied once more.
    """
    asker = Asker()
    asker.asks(1)
    stream = framed(1, bytes(100_000))

    received(asker.answers, stream[:READ_AHEAD_BYTES])

    [buffer] = asker.buffers
    assert asker.answers.room.obj is buffer.obj
    assert len(asker.answers.room) == len(stream) - READ_AHEAD_BYTES


def test_a_header_that_is_not_flexible_is_a_byte_shorter() -> None:
    """
    Where the body begins depends on the request, not on the bytes.
    """
    asker = Asker()
    asker.asks(1, header_bytes=4)

    received(asker.answers, struct.pack(">ii", 7, 1) + b"abc")

    assert asker.heard == [b"abc"]


@pytest.mark.parametrize("size", [-1, 0, 3, ANSWER_BYTES_MAX + 1])
def test_a_length_that_no_answer_has_ends_the_connection(size: int) -> None:
    """
    No buffer is asked for, and whoever waits still waits: it is for the connection to tell.
    """
    asker = Asker()
    asker.asks(1)

    ended = received(asker.answers, struct.pack(">i", size))

    assert isinstance(ended, ConnectionFailedError)
    assert "is not the start of a Kafka answer" in str(ended)
    assert (asker.heard, asker.buffers) == ([], [])
    assert [due.correlation_id for due in asker.answers.give_up()] == [1]


def test_an_alert_tells_that_the_port_speaks_tls() -> None:
    """
    What a TLS listener answers to plain text is known by its first two bytes.
    """
    asker = Asker()
    asker.asks(1)

    ended = received(asker.answers, b"\x15\x03\x03\x00\x02\x02\x46")

    assert isinstance(ended, TlsRefusedError)


def test_an_answer_nobody_asked_for_ends_the_connection() -> None:
    """
    Also right behind one that somebody did ask for.
    """
    asker = Asker()
    asker.asks(1)

    ended = received(asker.answers, framed(1, b"one") + framed(2, b"two"))

    assert isinstance(ended, ConnectionFailedError)
    assert asker.heard == [b"one"]


@pytest.mark.parametrize("length", [3, 3 * READ_AHEAD_BYTES])
def test_an_answer_to_another_request_ends_the_connection(length: int) -> None:
    """
    It is told to nobody, whoever was due among them: that one learns of the end like all others.
    """
    asker = Asker()
    asker.asks(1)
    asker.asks(2)

    ended = received(asker.answers, framed(2, bytes(length)))

    assert str(ended) == "broker:9092: received answer 2, expected 1"
    assert asker.heard == []
    assert [due.correlation_id for due in asker.answers.give_up()] == [1, 2]


def test_nobody_is_told_an_answer_after_the_end() -> None:
    """
    Whoever is called back may end the connection: the answers behind are not taken.
    """
    asker = Asker()
    waited: list[int] = []

    def gives_up(_: memoryview | Ended) -> None:
        waited.extend(due.correlation_id for due in asker.answers.give_up())

    asker.answers.due.append(Due(1, gives_up, 0.0, asker.allocates, 5))
    asker.asks(2)

    ended = received(asker.answers, framed(1, b"one") + framed(2, b"two"))

    assert ended is None
    assert waited == [2]
    assert asker.heard == []
