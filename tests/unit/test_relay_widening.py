"""More connections are asked for where each has too little room, and only there."""

from __future__ import annotations

import math
import socket
import struct
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest

from mirror.kafka.tcp_info import SO_MEMINFO
from mirror.relay.calming import TCP_CC_INFO
from mirror.relay.widening import (
    BEGINS_LOOKS,
    CONNECTIONS_MAX,
    LOOK_SECONDS,
    LOOKS,
    LOOKS_WITHOUT_QUEUE,
    Held,
    Widening,
    held,
)

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


def on_a_way(*, stretched: float, begins: bool = True) -> Part:
    """Its buffer is too small, and the round trip so many times the shortest."""
    return lambda seconds: narrow_buffer(seconds)._replace(stretched=stretched, begins=begins)


def looks(
    widening: Widening, *parts: Part, count: int = LOOKS + 1, began: int = 0, late: bool = False
) -> list[bool]:
    """What each of so many looks at all of these connections says."""
    return [
        widening.look(
            {n: part(at * LOOK_SECONDS) for n, part in enumerate(parts)},
            50.0 + at * LOOK_SECONDS,
            mirror_is_late=late,
        )
        for at in range(began, began + count)
    ]


def test_one_whose_buffer_has_no_room_most_of_the_time_is_made_two() -> None:
    """
    Once it was so for three seconds, and that is said once.
    """
    widening = Widening()

    assert looks(widening, narrow_buffer, count=LOOKS + 7) == [False] * LOOKS + [True] + [False] * 6
    assert widening.connections == 2


def test_so_is_one_whose_window_has_none_once_that_has_not_grown_for_a_while() -> None:
    """
    What came before that counts for none, and what there is of three seconds may be enough by then.
    """
    widening, short = Widening(), Widening()

    widened = looks(widening, narrow_window, count=40)
    quickly = looks(short, lambda at: narrow_window(at)._replace(stretched=1.0), count=40)

    assert widened.index(True) == LOOKS
    assert quickly.index(True) == BEGINS_LOOKS + 2
    assert (widening.connections, short.connections) == (2, 2)


def test_a_window_that_grows_is_no_limit() -> None:
    """
    The other side gives a connection that begins more with each round trip, some of which are long.
    """

    def growing(seconds: float) -> Held:
        return narrow_window(seconds)._replace(window_bytes=65_536 * 2 ** int(seconds / 0.7), stretched=1.0)

    assert not any(looks(Widening(), growing, count=40))


@pytest.mark.parametrize("part", [late_relay, full_link])
def test_what_the_link_or_the_relay_holds_back_stays_one(part: Part) -> None:
    widening = Widening()

    assert not any(looks(widening, part, count=80))
    assert widening.connections == 0


def shares(shares: Sequence[float]) -> bool:
    """Whether more are asked for when a full buffer holds one back for such parts of looks."""
    widening, seconds = Widening(), 0.0
    widening.look({0: ROOM}, 50.0, mirror_is_late=False)
    widened = False
    for at, share in enumerate(shares, 1):
        seconds += share * LOOK_SECONDS
        now = Held(0.0, seconds, buffer_full=at % 2 == 1)
        widened = widening.look({0: now}, 50.0 + at * LOOK_SECONDS, mirror_is_late=False)
    return widened


@pytest.mark.parametrize(
    ("thirds", "widens"), [([0.8, 0.2, 0.7], True), ([0.6, 0.1, 0.6], False), ([0.5, 0.5, 0.5], True)]
)
def test_what_counts_is_the_time_of_three_seconds_together(thirds: list[float], widens: bool) -> None:
    """
    A buffer that all of a round trip is needed for is not always full: it empties in bursts.
    """
    assert shares([share for share in thirds for _ in range(LOOKS // 3)]) is widens


def test_a_moment_in_which_the_mirror_is_late_counts_for_none() -> None:
    """
    The others still count: two of three in which there was no room at all are enough.
    """
    widening = Widening()

    widened = [
        widening.look(
            {0: narrow_buffer(at * LOOK_SECONDS)}, 50.0 + at * LOOK_SECONDS, mirror_is_late=at % 3 == 0
        )
        for at in range(LOOKS + 1)
    ]

    assert widened == [False] * LOOKS + [True]


def test_a_mirror_that_is_late_gets_no_more() -> None:
    """
    Its window is closed because it does not read.
    """
    assert not any(looks(Widening(), narrow_window, count=80, late=True))


# -- where nothing waits on the way ----------------------------------------------------------------------


@pytest.mark.parametrize(("stretched", "wanted"), [(1.01, 4), (1.04, 2), (1.09, 2)])
def test_three_looks_are_enough_where_nothing_waits_on_the_way(stretched: float, wanted: int) -> None:
    """
    Where BBR still begins, 2.9 times what arrives had room on the way: four times as many are asked for.
    """
    widening = Widening()

    widened = looks(widening, on_a_way(stretched=stretched))

    assert widened.index(True) == LOOKS_WITHOUT_QUEUE
    assert widening.connections == wanted


def test_once_bbr_has_begun_a_short_round_trip_says_less() -> None:
    """
    It sends a quarter more than what arrives at most, and CUBIC says nothing of what it sends.
    """
    widening = Widening()
    looks(widening, on_a_way(stretched=1.0, begins=False))

    assert widening.connections == 2


def test_of_several_it_says_less() -> None:
    """
    They do not send all they may in the same moment.
    """
    widening = Widening()
    looks(widening, *[on_a_way(stretched=1.0)] * 4)

    assert widening.connections == 8


@pytest.mark.parametrize("stretched", [1.3, math.inf])
def test_where_something_waits_on_the_way_it_takes_three_seconds(stretched: float) -> None:
    """
    Others may have put it there; or the kernel does not say what the shortest round trip was.
    """
    widening = Widening()

    assert looks(widening, on_a_way(stretched=stretched)).index(True) == LOOKS
    assert widening.connections == 2


def test_each_of_the_looks_and_connections_has_to_say_so() -> None:
    widening = Widening()

    def for_a_moment(seconds: float) -> Held:
        return on_a_way(stretched=1.3 if seconds < 2 * LOOK_SECONDS else 1.0)(seconds)

    widened = looks(widening, on_a_way(stretched=1.0), for_a_moment, count=LOOKS_WITHOUT_QUEUE + 2)

    assert widened == [False] * (LOOKS_WITHOUT_QUEUE + 1) + [True]


# -- more of them ----------------------------------------------------------------------------------------


def test_two_are_made_four_once_both_have_found_their_pace() -> None:
    """
    What a connection did while it was alone says nothing of the two.
    """
    widening = Widening()
    looks(widening, narrow_buffer)

    joined = looks(widening, narrow_buffer, narrow_buffer, began=LOOKS + 1)

    assert joined == [False] * LOOKS + [True]
    assert widening.connections == 4


def test_there_is_an_end_to_it() -> None:
    widening = Widening()
    for count in (1, 2, 4, 8, 16, 32):
        looks(widening, *[narrow_buffer] * count)

    assert widening.connections == CONNECTIONS_MAX


def test_some_that_have_room_make_up_for_one_that_has_none() -> None:
    assert not any(looks(Widening(), narrow_buffer, full_link, full_link, count=40))


def test_a_buffer_that_is_full_now_says_nothing_of_before() -> None:
    """
    Seconds in which the relay was late do not count because it is not late now.
    """
    widening = Widening()
    for at in range(1, 20):
        now = Held(0.0, 0.9 * LOOK_SECONDS * min(at, 16), buffer_full=at >= 16)
        assert not widening.look({0: now}, 50.0 + at * LOOK_SECONDS, mirror_is_late=False)


def test_without_connections_there_is_nothing_to_say() -> None:
    assert not any(looks(Widening(), count=40))
    assert ROOM.since(ROOM, ROOM) == 0


# -- what a kernel says ----------------------------------------------------------------------------------


class Kernel:
    """Has held a connection back for two seconds by its window, and for three by its buffer; it sends by BBR,
    over a way of 100 ms on which as much as that waits.

    Args:
        gain: As BBR has it; 0: it is another congestion control.
    """

    def __init__(self, *, room: int = 100, taken: int = 10, gain: float = 0) -> None:
        self._memory = struct.pack("=6I", 0, 0, 0, room, 0, taken)
        self._bbr = struct.pack("=5I", 12_000_000, 0, 100_000, int(gain * 256), 739) if gain else b""

    def getsockopt(self, _: int, option: int, __: int) -> bytes:
        if option == SO_MEMINFO:
            return self._memory
        if option == TCP_CC_INFO:
            return self._bbr
        info = bytearray(240)
        struct.pack_into("=2Q", info, 176, 2_000_000, 3_000_000)
        struct.pack_into("=I", info, 228, 65_536)
        for at, round_trip_us in (68, 200_000), (148, 100_000):
            struct.pack_into("=I", info, at, round_trip_us)
        return bytes(info)


def of_kernel(**said: float) -> Held:
    return held(cast(Any, Kernel(**cast(Any, said))))


@pytest.mark.parametrize(("taken", "full"), [(90, True), (10, False)])
def test_what_holds_a_connection_back_is_what_its_kernel_says(taken: int, full: bool) -> None:
    assert of_kernel(room=100, taken=taken) == Held(2.0, 3.0, full, window_bytes=65_536, stretched=2.0)


@pytest.mark.parametrize(("gain", "begins"), [(2.887, True), (1.25, False), (0, False)])
def test_so_is_whether_it_still_begins(gain: float, begins: bool) -> None:
    assert of_kernel(gain=gain).begins is begins


def test_of_a_connection_of_which_nothing_is_said_nothing_holds_it_back() -> None:
    """
    No more connections are made because a kernel is old.
    """
    with socket.socket(socket.AF_UNIX) as nothing_of_tcp:
        nothing_of_tcp.close()

        assert held(nothing_of_tcp) == ROOM
