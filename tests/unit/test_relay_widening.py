"""More connections are asked for where each has too little room, and only there."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from typing import Any, cast

import pytest

from mirror.kafka.tcp_info import SO_MEMINFO
from mirror.relay.widening import CONNECTIONS_MAX, LOOKS, Held, Widening, held

ROOM = Held(0.0, 0.0, buffer_full=False)
Part = Callable[[float], Held]
"""What a connection says after so many seconds."""


def narrow_window(seconds: float) -> Held:
    return Held(0.9 * seconds, 0.0, buffer_full=False)


def narrow_buffer(seconds: float) -> Held:
    return Held(0.0, 0.9 * seconds, buffer_full=True)


def late_relay(seconds: float) -> Held:
    return Held(0.0, 0.9 * seconds, buffer_full=False)


def full_link(seconds: float) -> Held:
    return Held(0.1 * seconds, 0.1 * seconds, buffer_full=True)


def looks(
    widening: Widening, *parts: Part, count: int = LOOKS + 1, began: int = 0, late: bool = False
) -> list[bool]:
    """Once a second at all of these connections."""
    return [
        widening.look({n: part(at) for n, part in enumerate(parts)}, 50.0 + at, mirror_is_late=late)
        for at in range(began, began + count)
    ]


@pytest.mark.parametrize("part", [narrow_window, narrow_buffer])
def test_one_that_has_no_room_most_of_the_time_is_made_two(part: Part) -> None:
    """
    Once it was so in three looks, and that is said once.
    """
    widening = Widening()

    assert looks(widening, part, count=10) == [False] * LOOKS + [True] + [False] * 6
    assert widening.connections == 2


@pytest.mark.parametrize("part", [late_relay, full_link])
def test_what_the_link_or_the_relay_holds_back_stays_one(part: Part) -> None:
    widening = Widening()

    assert not any(looks(widening, part, count=20))
    assert widening.connections == 0


@pytest.mark.parametrize(
    ("shares", "widens"), [([0.8, 0.2, 0.7], True), ([0.6, 0.1, 0.6], False), ([0.5, 0.5, 0.5], True)]
)
def test_what_counts_is_the_time_of_three_looks_together(shares: list[float], widens: bool) -> None:
    """
    A buffer that all of a round trip is needed for is not always full: it empties in bursts.
    """
    widening, seconds = Widening(), 0.0
    widening.look({0: ROOM}, 50.0, mirror_is_late=False)

    for at, share in enumerate(shares, 1):
        seconds += share
        held = Held(0.0, seconds, buffer_full=at % 2 == 1)
        widened = widening.look({0: held}, 50.0 + at, mirror_is_late=False)

    assert widened is widens


def test_a_moment_in_which_the_mirror_is_late_counts_for_none() -> None:
    """
    The others still count: two of three in which there was no room at all are enough.
    """
    widening = Widening()

    widened = [
        widening.look({0: narrow_window(at)}, 50.0 + at, mirror_is_late=at % 3 == 0) for at in range(4)
    ]

    assert widened == [False, False, False, True]


def test_a_mirror_that_is_late_gets_no_more() -> None:
    """
    Its window is closed because it does not read.
    """
    assert not any(looks(Widening(), narrow_window, count=20, late=True))


def test_two_are_made_four_once_both_have_found_their_pace() -> None:
    """
    What a connection did while it was alone says nothing of the two.
    """
    widening = Widening()
    looks(widening, narrow_window)

    joined = looks(widening, narrow_window, narrow_window, began=4, count=LOOKS + 1)

    assert joined == [False] * LOOKS + [True]
    assert widening.connections == 4


def test_there_is_an_end_to_it() -> None:
    widening = Widening()
    for count in (1, 2, 4, 8, 16, 32):
        looks(widening, *[narrow_window] * count)

    assert widening.connections == CONNECTIONS_MAX


def test_some_that_have_room_make_up_for_one_that_has_none() -> None:
    assert not any(looks(Widening(), narrow_window, full_link, full_link, count=10))


def test_a_buffer_that_is_full_now_says_nothing_of_before() -> None:
    """
    Seconds in which the relay was late do not count because it is not late now.
    """
    widening = Widening()
    for at in range(1, 20):
        held = Held(0.0, 0.9 * min(at, 16), buffer_full=at >= 16)
        assert not widening.look({0: held}, 50.0 + at, mirror_is_late=False)


def test_without_connections_there_is_nothing_to_say() -> None:
    assert not any(looks(Widening(), count=10))
    assert ROOM.since(ROOM) == 0


class Kernel:
    """Has held a connection back for two seconds by its window, and for three by its buffer."""

    def __init__(self, *, room: int, taken: int) -> None:
        self._memory = struct.pack("=6I", 0, 0, 0, room, 0, taken)

    def getsockopt(self, _: int, option: int, __: int) -> bytes:
        if option == SO_MEMINFO:
            return self._memory
        info = bytearray(240)
        struct.pack_into("=2Q", info, 176, 2_000_000, 3_000_000)
        return bytes(info)


@pytest.mark.parametrize(("taken", "full"), [(90, True), (10, False)])
def test_what_holds_a_connection_back_is_what_its_kernel_says(taken: int, full: bool) -> None:
    assert held(cast(Any, Kernel(room=100, taken=taken))) == Held(2.0, 3.0, buffer_full=full)


def test_of_a_connection_of_which_nothing_is_said_nothing_holds_it_back() -> None:
    """
    No more connections are made because a kernel is old.
    """
    with socket.socket(socket.AF_UNIX) as nothing_of_tcp:
        nothing_of_tcp.close()

        assert held(nothing_of_tcp) == ROOM
