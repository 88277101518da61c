"""What the kernel says of a connection: of a real one, and of none or half of it."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirror.kafka.tcp_info import (
    RECEIVE_BUFFERS,
    TcpInfo,
    buffer_bytes_max,
    read_info,
    read_shortest,
    send_buffer_is_full,
    shortest_round_trip_seconds,
    tcp_info,
    unsent_bytes,
)

SENT_BYTES = 1 << 20


def test_a_connection_that_has_sent_something_says_so() -> None:
    """
    By this machine's own kernel: fields that stood somewhere else would be far from that.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        far, _ = listener.accept()
        with near, far:
            far.setblocking(False)
            left = SENT_BYTES
            near.setblocking(False)
            while left:
                left -= _send(near, left)
                _drain(far)
            found, shortest = tcp_info(near), shortest_round_trip_seconds(near)

    assert found.segments_sent is not None
    assert SENT_BYTES / 65_536 <= found.segments_sent <= SENT_BYTES / 500
    assert found.segments_resent is not None
    assert found.segments_resent <= found.segments_sent
    assert found.round_trip_seconds is not None
    assert 0 < found.round_trip_seconds < 1
    assert shortest is not None
    assert 0 < shortest <= found.round_trip_seconds
    assert found.busy_seconds is not None
    assert found.receive_window_limited_seconds is not None
    assert found.receive_window_limited_seconds <= found.busy_seconds < 10
    assert found.receive_window_bytes is not None
    assert 1_000 < found.receive_window_bytes < 1 << 30


def _send(sock: socket.socket, left: int) -> int:
    try:
        return sock.send(bytes(min(left, 65_536)))
    except BlockingIOError:
        return 0


def _drain(sock: socket.socket) -> None:
    try:
        while sock.recv(65_536):
            pass
    except BlockingIOError:
        return


def test_a_socket_that_is_no_tcp_says_nothing() -> None:
    """
    None, and no error: nobody is kept from anything by a kernel that does not know.
    """
    with socket.socket(socket.AF_UNIX) as other:
        assert set(_values(tcp_info(other))) == {None}
        assert shortest_round_trip_seconds(other) is None


@given(st.integers(0, 260))
def test_an_older_kernel_says_the_first_things_only(length: int) -> None:
    """
    What it has cut off is None; what is there is what stands there.
    """
    found = read_info(b"\x01" * length)

    assert (found.segments_resent is None) == (length < 104)
    assert (found.segments_sent is None) == (length < 160)
    assert (found.send_buffer_limited_seconds is None) == (length < 192)
    assert (found.receive_window_bytes is None) == (length < 232)
    assert {found.segments_sent, found.segments_resent} <= {None, 0x01010101}


def test_a_round_trip_that_was_never_measured_is_unknown() -> None:
    """
    The kernel writes 0 there, and the largest number for the shortest one.
    """
    assert read_info(bytes(240)).round_trip_seconds is None
    assert read_shortest(b"\xff" * 240) is None
    assert read_shortest(b"\x01" * 151) is None
    assert read_shortest(b"\x01" * 152) == 16.843009


@pytest.mark.parametrize(
    ("text", "bytes_max"),
    [("4096\t131072\t6291456\n", 6291456), ("", None), ("4096 131072", None), ("a b c", None)],
)
def test_the_last_of_three_numbers_is_how_large_a_buffer_may_grow(
    tmp_path: Path, text: str, bytes_max: int | None
) -> None:
    """
    Where the file is another one, or none, it is unknown.
    """
    file = tmp_path / "tcp_rmem"
    file.write_text(text)

    assert buffer_bytes_max(file) == bytes_max
    assert buffer_bytes_max(tmp_path / "none") is None


def test_this_machine_has_such_a_file() -> None:
    """
    Where the page about links says it is.
    """
    assert (buffer_bytes_max(RECEIVE_BUFFERS) or 0) > 4096


def _values(info: TcpInfo) -> list[float | None]:
    return [getattr(info, name) for name in TcpInfo.__dataclass_fields__]


def test_a_buffer_is_full_when_nothing_more_goes_in() -> None:
    """
    Nobody reads at the other end; before that it was not. A limit on what is unsent leaves room in it.
    """
    found = {}
    for lowat in (0, 4_096):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            near = socket.create_connection(listener.getsockname())
            far, _ = listener.accept()
            with near, far:
                near.setblocking(False)
                if lowat:
                    near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, lowat)
                assert send_buffer_is_full(near) is False
                while _send(near, SENT_BYTES):
                    pass
                found[lowat] = send_buffer_is_full(near)

    assert found == {0: True, 4_096: False}


def test_what_waits_for_its_place_on_the_wire() -> None:
    """
    Nothing at first, later what the other side has no room for; of a connection that is closed nobody knows.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        far, _ = listener.accept()
        with near, far:
            before = unsent_bytes(near)
            near.setblocking(False)
            while _send(near, SENT_BYTES):
                pass
            after = unsent_bytes(near)

    assert before == 0
    assert after
    assert unsent_bytes(near) is None
