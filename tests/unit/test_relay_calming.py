"""BBR that does not end its beginning is held to less than what arrives, until it does; nothing else is."""

from __future__ import annotations

import struct

import pytest

from mirror.relay.calming import HELD_LOOKS_MAX, Bbr, Calmed, read_bbr

RATE = 12_000_000
BEGINNING, LATER = Bbr(RATE, 2.887), Bbr(RATE, 1.25)


def test_what_the_kernel_says() -> None:
    """
    Bandwidth in two halves, gains in 256ths, as linux/inet_diag.h has them.
    """
    assert read_bbr(struct.pack("=5I", 7, 2, 100_000, 739, 739)) == Bbr((2 << 32) + 7, 739 / 256)


@pytest.mark.parametrize("info", [b"", bytes(19)])
def test_a_kernel_that_does_not_say(info: bytes) -> None:
    """
    Another congestion control, or none that says anything.
    """
    assert read_bbr(info) is None


def test_it_is_held_while_it_begins_and_loses() -> None:
    """
    From the look on that sees it, to the one that sees the end of it.
    """
    calmed, rates = Calmed(), []
    for bbr, sent, resent in [
        (BEGINNING, 1000, 0),
        (BEGINNING, 2000, 300),
        (BEGINNING, 3000, 300),
        (LATER, 4000, 300),
        (LATER, 5000, 600),
    ]:
        calmed.look(bbr, sent, resent)
        rates.append(calmed.rate)

    assert rates == [None, RATE * 9 // 10, RATE * 9 // 10, None, None]


def test_who_begins_and_loses_nothing_is_left_alone() -> None:
    """
    It has little to send, or the link carries all of it.
    """
    calmed = Calmed()
    for look in range(1, 100):
        calmed.look(BEGINNING, look * 1000, look * 10)
        assert calmed.rate is None


def test_it_is_not_held_for_ever() -> None:
    """
    Where that does not help it is let go, and held again when it goes on to lose.
    """
    calmed, rates = Calmed(), []
    for look in range(1, HELD_LOOKS_MAX + 4):
        calmed.look(BEGINNING, look * 1000, look * 100)
        rates.append(calmed.rate)

    assert rates.count(None) == 1
    assert rates[HELD_LOOKS_MAX + 1] is None
