"""The emulated wire: when packets arrive, in which order, and which of them do not."""

from __future__ import annotations

import random
from itertools import pairwise

from tests.harness.wan_router import Direction, Wire


def wire(**how: float | bool) -> Wire:
    """One direction without traffic yet; rates are in bytes a second."""
    return Wire(Direction(**how), random.Random("seed 5"))  # type: ignore[arg-type]


def arrivals(one: Wire, until: float = 1e9) -> list[tuple[float, bytes]]:
    """Everything that is on its way, each with the moment in which it arrives."""
    found = []
    while (at := one.next_at) is not None and at <= until:
        found += [(at, packet) for packet in one.arrived(at)]
    return found


def test_packets_wait_for_those_before_them_and_then_take_the_delay() -> None:
    """
    A thousand bytes a second: each of a hundred takes a tenth of one to leave.
    """
    slow = wire(rate=1_000, delay_seconds=0.5)

    for number in range(3):
        slow.take(bytes([number]) * 100, now=10.0)

    assert [(round(at, 3), packet[0]) for at, packet in arrivals(slow)] == [(10.6, 0), (10.7, 1), (10.8, 2)]
    assert (slow.counted.packets, slow.counted.bytes) == (3, 300)


def test_what_a_full_queue_has_no_room_for_is_dropped() -> None:
    """
    The one that is leaving does not count; the queue empties at the rate.
    """
    slow = wire(rate=1_000, queue_bytes=250)

    for _ in range(5):
        slow.take(bytes(100), now=0.0)
    slow.take(bytes(100), now=0.1)

    assert len(arrivals(slow)) == 4
    assert slow.counted.dropped == 2


def test_the_same_seed_loses_the_same_packets_and_as_many_as_it_is_told() -> None:
    """
    So that a run that found something can be had again.
    """
    lost = []
    for _ in range(2):
        lossy = wire(loss=0.1)
        for number in range(2_000):
            lossy.take(number.to_bytes(2), now=float(number))
        lost.append([packet for _, packet in arrivals(lossy)])

    assert lost[0] == lost[1]
    assert 1_700 < len(lost[0]) < 1_900


def test_jitter_keeps_the_order_and_reordering_does_not() -> None:
    """
    What overtakes leaves everything behind that waits for the rate.
    """
    late, mixed = wire(jitter_seconds=0.5), wire(rate=10_000, delay_seconds=0.1, reorder=0.1)
    for one in (late, mixed):
        for number in range(500):
            one.take(number.to_bytes(2), now=number / 100)

    behind = [packet for _, packet in arrivals(late)]
    ahead = [packet for _, packet in arrivals(mixed)]

    assert behind == sorted(behind)
    assert ahead != sorted(ahead) == behind
    assert 20 < sum(one > other for one, other in pairwise(ahead)) < 100


def test_a_cut_takes_what_comes_and_what_is_on_its_way() -> None:
    """
    Both are counted.
    """
    one = wire(delay_seconds=1.0)
    one.take(b"on its way", now=0.0)

    one.direction = Direction(is_cut=True)
    one.take(b"too late", now=0.5)

    assert arrivals(one) == []
    assert one.counted.cut == 2
