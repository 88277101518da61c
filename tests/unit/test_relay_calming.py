"""BBR that does not end its beginning is held to less than what arrives, until it does; nothing else is."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest

from mirror.relay.calming import HELD_SECONDS_MAX, Bbr, Calmed, read_bbr

RATE = 12_000_000
BEGINNING, LATER = Bbr(RATE, 2.887, 0.1), Bbr(RATE, 1.25, 0.1)
LOOK_SECONDS = 0.25


def looks(calmed: Calmed, bbr: Bbr, *, count: int, resent: int, began: int = 0) -> Iterator[int | None]:
    """To what it is held, look by look; a thousand segments are sent between two, so many of them again."""
    for look in range(began, began + count):
        calmed.look(bbr, look * 1000, look * resent, 100 + look * LOOK_SECONDS)
        yield calmed.rate


def test_what_the_kernel_says() -> None:
    """
    Bandwidth in two halves, microseconds, gains in 256ths, as linux/inet_diag.h has them.
    """
    assert read_bbr(struct.pack("=5I", 7, 2, 100_000, 739, 739)) == Bbr((2 << 32) + 7, 739 / 256, 0.1)


@pytest.mark.parametrize("info", [b"", bytes(19)])
def test_a_kernel_that_does_not_say(info: bytes) -> None:
    """
    Another congestion control, or none that says anything.
    """
    assert read_bbr(info) is None


def test_it_is_held_when_no_more_arrives_and_much_is_lost() -> None:
    """
    A second after the last time more arrived; and let go when its beginning has ended.
    """
    calmed = Calmed()

    held = list(looks(calmed, BEGINNING, count=8, resent=100))
    later = list(looks(calmed, LATER, count=20, resent=100, began=8))

    assert held == [None] * 4 + [RATE * 9 // 10] * 4
    assert later == [None] * 20


def test_over_a_long_way_it_takes_longer() -> None:
    """
    Eight round trips of 300 ms.
    """
    held = list(looks(Calmed(), BEGINNING._replace(round_trip_seconds=0.3), count=12, resent=100))

    assert held == [None] * 10 + [RATE * 9 // 10] * 2


def test_what_still_grows_is_left_alone() -> None:
    """
    Over a lossy link it takes a while, and each time it is stopped it would be slower for long.
    """
    calmed = Calmed()
    for look in range(40):
        growing = BEGINNING._replace(rate=int(100_000 * 1.1**look))
        calmed.look(growing, look * 1000, look * 50, 100 + look * LOOK_SECONDS)
        assert calmed.rate is None


@pytest.mark.parametrize("resent", [0, 10, 20])
def test_who_loses_little_is_left_alone(resent: int) -> None:
    """
    It has little to send, or the link loses a packet of a hundred.
    """
    assert set(looks(Calmed(), BEGINNING, count=100, resent=resent)) == {None}


def test_it_is_not_held_for_ever() -> None:
    """
    Where that does not help it is let go, and held again when it goes on to lose.
    """
    held = list(looks(Calmed(), BEGINNING, count=60, resent=100))

    first = held.index(RATE * 9 // 10)
    released = held.index(None, first)
    assert (released - first) * LOOK_SECONDS == HELD_SECONDS_MAX
    assert held[released:][:5] == [None] * 4 + [RATE * 9 // 10]
