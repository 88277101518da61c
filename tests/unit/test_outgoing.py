"""Pieces of requests leave in order, however little the socket takes at a time."""

from __future__ import annotations

import socket

from hypothesis import given
from hypothesis import strategies as st

from mirror.kafka.outgoing import SEND_BUFFERS_MAX, Outgoing

KERNEL_BYTES = 4096


@given(sizes=st.lists(st.integers(1, 40) | st.integers(1, 30_000), max_size=12), copies=st.integers(1, 60))
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
