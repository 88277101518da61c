"""How much is asked for at a time: nothing is asked for again and again that cannot come in time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirror.flow.portion import (
    FAR_AFTER,
    PORTION_BYTES_MIN,
    SLOW_SECONDS,
    Nearness,
    Portion,
    next_bytes,
    share,
)

MIB = 1 << 20
PATIENCE = 30.0


def test_what_did_not_come_in_time_is_asked_for_in_halves() -> None:
    """
    However slow the link is, a little is asked for still.
    """
    portion, seen = Portion(4 * MIB, PATIENCE), []

    for _ in range(20):
        portion.lost(10 * PATIENCE)
        seen.append(portion.bytes)

    assert seen[:2] == [2 * MIB, MIB]
    assert seen[-1] == PORTION_BYTES_MIN


def test_a_limit_below_the_least_portion_is_kept() -> None:
    """
    Nobody asks for more because an answer was lost.
    """
    portion = Portion(PORTION_BYTES_MIN // 2, PATIENCE)

    portion.lost(PATIENCE)

    assert portion.bytes == PORTION_BYTES_MIN // 2


def test_a_broker_that_ends_a_connection_at_once_is_asked_for_as_much() -> None:
    """
    That says nothing of the link.
    """
    portion = Portion(4 * MIB, PATIENCE)

    portion.lost(PATIENCE / 2)

    assert portion.bytes == 4 * MIB


def test_more_is_asked_for_again_as_far_as_it_comes_in_time() -> None:
    """
    Up to what may be asked for at all; not where twice as much would be late.
    """
    portion = Portion(4 * MIB, PATIENCE)
    portion.lost(PATIENCE)
    portion.lost(PATIENCE)

    portion.came(PATIENCE / 2)
    late = portion.bytes
    portion.came(PATIENCE / 3)
    in_time = portion.bytes
    for _ in range(5):
        portion.came(PATIENCE / 3)

    assert (late, in_time, portion.bytes) == (MIB, 2 * MIB, 4 * MIB)


@given(st.integers(1_000, 10 * MIB))
def test_on_a_steady_link_hardly_anything_is_thrown_away(bytes_per_second: int) -> None:
    """
    An answer is waited for ten times as long as its bytes may be missing; some are lost in the beginning.
    """
    portion, lost = Portion(128 * MIB, PATIENCE), 0

    for _ in range(50):
        seconds = portion.bytes / bytes_per_second
        if seconds < 10 * PATIENCE:
            portion.came(seconds)
        else:
            portion.lost(10 * PATIENCE)
            lost += 1

    assert lost <= 11
    assert portion.bytes / bytes_per_second < 10 * PATIENCE


@pytest.mark.parametrize(
    ("behind", "near", "expected"),
    [
        (0, False, 4 * MIB),
        (1, False, 4 * MIB),
        (4, False, MIB),
        (64, False, 256 << 10),
        (1, True, MIB),
        (2, True, MIB // 2),
        (4, True, 256 << 10),
        (64, True, 256 << 10),
    ],
)
def test_an_answer_holds_some_of_all_that_are_behind(behind: int, near: bool, expected: int) -> None:
    """
    Never so little of each that it costs more; of a broker that is near no more than stays in the caches.
    """
    assert share(4 * MIB, behind, near=near) == expected


def test_a_broker_whose_answers_all_take_longer_than_their_bytes_is_far() -> None:
    """
    Some may be late because the machine is busy. What waited for news, or is large, says nothing. One that
    comes in time is enough: it could not from far away.
    """
    nearness = Nearness()
    at_first, busy = nearness.near, set()
    for _ in range(2):
        for _ in range(FAR_AFTER - 1):
            nearness.came(MIB, 0.010)
            busy.add(nearness.near)
        nearness.came(MIB, 0.003)
    for _ in range(FAR_AFTER):
        nearness.came(1_000, 0.500)
        nearness.came(4 * MIB, 0.100)
    unknown = nearness.near
    for _ in range(FAR_AFTER):
        nearness.came(MIB, 0.010)
    far = nearness.near
    nearness.came(MIB, 0.003)

    assert (at_first, busy, unknown, far, nearness.near) == (True, {True}, True, False, True)


@pytest.mark.parametrize("bytes_per_second", [1 << 14, 190 << 10, 1 << 20, 1 << 30])
def test_what_comes_slowly_is_asked_for_in_answers_that_are_soon_there(bytes_per_second: int) -> None:
    """
    Of a source that is slow a relay has a word for its mirrors every second, but for the least it asks for;
    of another one answers are as large as they may be.
    """
    asked, before = 64 << 10, 0
    for _ in range(20):
        before, asked = asked, next_bytes(asked, asked, asked / bytes_per_second, 4 * MIB)

    assert asked == before
    assert asked == PORTION_BYTES_MIN or asked / bytes_per_second <= SLOW_SECONDS
    assert asked == 4 * MIB or 2 * asked / bytes_per_second > SLOW_SECONDS


def test_a_source_that_becomes_slow_is_asked_for_less_and_then_for_more_again() -> None:
    """
    An answer with little in it changes nothing, however long it was waited for.
    """
    slow = next_bytes(4 * MIB, 4 * MIB, 20.0, 4 * MIB)

    assert slow == 2 * MIB
    assert next_bytes(slow, MIB, 20.0, 4 * MIB) == slow
    assert next_bytes(slow, 2 * MIB, 0.1, 4 * MIB) == 4 * MIB
    assert next_bytes(1000, 1000, 20.0, 4 * MIB) == 1000
