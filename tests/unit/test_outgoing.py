"""Pieces of requests leave in order, however little the socket takes at a time."""

from __future__ import annotations

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirror.kafka.outgoing import SEND_BUFFERS_MAX, Outgoing, WithheldError

KERNEL_BYTES = 4096


@given(sizes=st.lists(st.integers(0, 40) | st.integers(1, 30_000), max_size=12), copies=st.integers(1, 60))
def test_everything_leaves_once_and_in_order(sizes: list[int], copies: int) -> None:
    """
    What the socket does not take now waits for the next call, also the rest of a piece.
    """
    pieces = [bytes([number % 251]) * size for number, size in enumerate(sizes * copies)][
        : 2 * SEND_BUFFERS_MAX
    ]
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, KERNEL_BYTES)
        ours.setblocking(False)
        theirs.setblocking(False)
        outgoing = Outgoing(ours)
        outgoing.buffers.extend(pieces)
        come = bytearray()

        while outgoing.buffers:
            try:
                outgoing.send()
            except BlockingIOError:
                assert outgoing.buffers, "what is sent is not blocked"
            while outgoing.bytes_sent > len(come):
                come += theirs.recv(1 << 20)

    assert come == b"".join(pieces)
    assert outgoing.bytes_sent == len(come)


@pytest.mark.parametrize("pieces", [[b""], [b"end", b""], [b"", b"end"], [b"", b"end", *[b""] * 300]])
def test_an_empty_piece_is_sent_with_its_neighbours(pieces: list[bytes]) -> None:
    """
    The socket takes no byte of it, and nothing waits for that.
    """
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        outgoing = Outgoing(ours)
        asked = [True] * (len(pieces) + 1)
        outgoing.may_send = lambda: asked.pop()
        outgoing.buffers.extend(pieces)

        outgoing.send()

        assert not outgoing.buffers
        assert outgoing.bytes_sent == len(b"".join(pieces))


def test_the_rest_of_a_request_stays_when_it_must_not_be_sent_any_more() -> None:
    """
    It is asked before each write, so also between two parts of one request.
    """
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, KERNEL_BYTES)
        ours.setblocking(False)
        outgoing = Outgoing(ours)
        answers = [True, False]
        outgoing.may_send = lambda: answers.pop(0)
        outgoing.buffers.append(bytes(1 << 20))

        with pytest.raises(WithheldError):
            outgoing.send()

        assert 0 < outgoing.bytes_sent < 1 << 20
        assert len(theirs.recv(1 << 20)) <= outgoing.bytes_sent


def test_what_the_kernel_still_has_is_undelivered_and_so_may_be_what_it_does_not_say() -> None:
    """
    Of two processes on one machine the kernel counts what was not read.
    """
    ours, theirs = socket.socketpair()
    with theirs:
        outgoing = Outgoing(ours)
        seen = [outgoing.undelivered]
        outgoing.buffers.append(b"request")
        seen.append(outgoing.undelivered)
        outgoing.send()
        seen.append(outgoing.undelivered)
        theirs.recv(100)
        seen.append(outgoing.undelivered)
        ours.close()
        seen.append(outgoing.undelivered)

    assert seen == [False, True, True, False, True]
