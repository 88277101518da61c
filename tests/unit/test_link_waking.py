"""When a connection wakes us up: seldom, but never later than for the last byte that is certain to come."""

from __future__ import annotations

import selectors
import socket
import ssl
from unittest.mock import create_autospec

from hypothesis import given
from hypothesis import strategies as st

from mirror.link.waking import TLS_RECORD_BYTES, WAKE_BYTES_MAX, Waking


def told(kind: type[socket.socket], steps: list[tuple[int, float]]) -> list[int]:
    """What the kernel is told at last after each of the steps: bytes that are left, and seconds that pass."""
    sock, now, found = create_autospec(kind, instance=True), 0.0, []
    waking = Waking(sock)
    for left, seconds in steps:
        now += seconds
        waking.received(left, now)
        calls = sock.setsockopt.call_args_list
        found.append(calls[-1].args[2] if calls else 1)
    return found


def test_what_comes_fast_is_looked_at_a_slice_at_a_time() -> None:
    """
    And packet by packet again where it comes slowly: that something comes is news of its own.
    """
    fast = [(1 << 20, 0.001)] * 20
    slow = [(1 << 20, 1.0)] * 20

    seen = told(socket.socket, fast + slow)

    assert seen[19] == WAKE_BYTES_MAX
    assert seen[-1] == 1


@given(st.lists(st.tuples(st.integers(0, 1 << 20), st.floats(0, 2)), max_size=40))
def test_nothing_is_waited_for_that_may_never_come(steps: list[tuple[int, float]]) -> None:
    """
    With TLS a part of a record may be out of the kernel already.
    """
    plain, secured = told(socket.socket, steps), told(ssl.SSLSocket, steps)

    assert all(1 <= at <= max(left, 1) for at, (left, _) in zip(plain, steps, strict=True))
    assert all(
        1 <= at <= max(left - TLS_RECORD_BYTES, 1) for at, (left, _) in zip(secured, steps, strict=True)
    )


def test_a_socket_wakes_for_as_much_as_was_said() -> None:
    """
    A real one: readable when so much is there, and when the other side has ended.
    """
    with socket.create_server(("127.0.0.1", 0)) as server:
        theirs = socket.create_connection(server.getsockname())
        ours, _ = server.accept()
    with ours, theirs:
        waking = Waking(ours)
        for _ in range(20):
            waking.received(1000, 0.0)

        theirs.sendall(bytes(999))
        assert not readable(ours, seconds=0.1)
        theirs.sendall(b"x")
        assert readable(ours, seconds=20)
        ours.recv(1000)
        theirs.close()
        assert readable(ours, seconds=20)


def readable(sock: socket.socket, *, seconds: float) -> bool:
    with selectors.DefaultSelector() as selector:
        selector.register(sock, selectors.EVENT_READ)
        return bool(selector.select(seconds))
