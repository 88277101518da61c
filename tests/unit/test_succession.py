"""Mirrors that wait for an owner: one takes its place, and the others let it."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from mirror.flow.announcing import REPEAT_SECONDS
from mirror.flow.owner import TAKEOVER_WAIT_SECONDS
from mirror.flow.succession import (
    TAKE_OVER_AFTER_SECONDS,
    WORD_COUNTS_SECONDS,
    Succession,
    Word,
    standby_look_seconds,
)
from mirror.kafka.transactions import Token

DEAD = Token(7, 0)


def due(succession: Succession, holder: Token, since: float | None, now: float) -> bool:
    """Whether its time is over, of one that has said where it runs; it was looked at just now."""
    return succession.due(holder, word(holder, now), None if since is None else (since, now), now)


def word(holder: Token, heard_at: float) -> Word:
    """It says where it runs."""
    return Word(holder.epoch, heard_at)


def test_an_owner_is_taken_for_gone_once_it_has_stood_still_for_so_long() -> None:
    succession = Succession()

    assert not due(succession, DEAD, 100.0, 100.0)
    assert not due(succession, DEAD, 100.0, 100.0 + TAKE_OVER_AFTER_SECONDS)
    assert due(succession, DEAD, 100.0, 100.1 + TAKE_OVER_AFTER_SECONDS)


def test_what_it_moves_gives_it_its_time_again() -> None:
    succession = Succession()
    due(succession, DEAD, 100.0, 100.0)

    assert not due(succession, DEAD, 104.0, 106.0)
    assert due(succession, DEAD, 104.0, 104.1 + TAKE_OVER_AFTER_SECONDS)


def test_an_owner_with_nothing_to_copy_is_left_alone() -> None:
    succession = Succession()

    assert not any(due(succession, DEAD, None, now) for now in range(100, 200))
    assert not due(succession, DEAD, 199.0, 200.0)


def test_an_owner_is_not_gone_because_a_look_found_it_between_two_records() -> None:
    """
    With many partitions the next look comes when the patience is at its end.
    """
    succession = Succession()
    now = 100.2 + TAKE_OVER_AFTER_SECONDS
    succession.due(DEAD, word(DEAD, 100.0), None, 100.0)

    assert not succession.due(DEAD, word(DEAD, now), (100.0, 100.0), now)
    assert succession.due(DEAD, word(DEAD, now), (100.0, now), now + TAKE_OVER_AFTER_SECONDS)


def test_one_that_takes_its_word_back_has_ended() -> None:
    """
    Nobody waits for it, and nothing need be there to copy.
    """
    succession = Succession()
    due(succession, DEAD, None, 100.0)

    assert succession.due(DEAD, None, None, 101.0)


@pytest.mark.parametrize("said", [None, Word(3, 100.0)])
def test_one_that_does_not_say_where_it_runs_is_given_its_time_to(said: Word | None) -> None:
    """
    The word of an owner before it is none of its own.
    """
    succession = Succession()
    for now in range(100, 106):
        assert not succession.due(DEAD, said, None, float(now))

    assert succession.due(DEAD, said, None, 105.1)


def test_one_that_no_longer_repeats_where_it_runs_has_died_though_nothing_is_to_be_copied() -> None:
    """
    Or nothing that this mirror looks at. Two words in a row may be lost.
    """
    succession, lives_until = Succession(), 100 + int(WORD_COUNTS_SECONDS)
    for now in range(100, lives_until + 1):
        said = 100 + (now - 100) // int(REPEAT_SECONDS) * REPEAT_SECONDS
        assert not succession.due(DEAD, word(DEAD, said), None, float(now))
    dies_at = said + WORD_COUNTS_SECONDS
    waits = range(lives_until + 1, int(dies_at + 1 + TAKE_OVER_AFTER_SECONDS) + 1)

    assert dies_at - said > 2 * REPEAT_SECONDS
    assert not any(succession.due(DEAD, word(DEAD, said), None, float(now)) for now in waits)
    assert succession.due(DEAD, word(DEAD, said), None, waits[-1] + 1.0)


def test_who_could_not_read_for_long_gives_the_owner_time_to_repeat_its_word() -> None:
    """
    The topic of the state had no leader: the owner could not write there either.
    """
    succession = Succession()
    succession.due(DEAD, word(DEAD, 100.0), None, 100.0)

    assert not any(succession.due(DEAD, word(DEAD, 100.0), None, 300.0 + after) for after in range(90))


def test_who_has_stood_still_itself_does_not_hold_that_against_the_owner() -> None:
    succession = Succession()
    due(succession, DEAD, 100.0, 100.0)

    assert not due(succession, DEAD, 100.0, 160.0)
    assert due(succession, DEAD, 100.0, 160.1 + TAKE_OVER_AFTER_SECONDS)


def test_a_new_owner_is_given_twice_the_time_of_the_one_that_moved_nothing() -> None:
    succession = Succession()
    due(succession, DEAD, 100.0, 100.0)
    new = Token(7, 1)

    assert not due(succession, new, 100.0, 106.0)
    assert not due(succession, new, 100.0, 106.0 + 2 * TAKE_OVER_AFTER_SECONDS)
    assert due(succession, new, 100.0, 106.1 + 2 * TAKE_OVER_AFTER_SECONDS)


def test_the_time_does_not_grow_for_ever_and_is_short_again_after_progress() -> None:
    succession = Succession()
    for epoch in range(20):
        due(succession, Token(7, epoch), 100.0, 100.0 + epoch)
    newest = Token(7, 19)
    longest = 16 * TAKE_OVER_AFTER_SECONDS

    assert not any(due(succession, newest, 100.0, 119.0 + after) for after in range(int(longest)))
    assert due(succession, newest, 100.0, 119.1 + longest)
    assert not due(succession, newest, 200.0, 200.0 + TAKE_OVER_AFTER_SECONDS)
    assert due(succession, newest, 200.0, 200.1 + TAKE_OVER_AFTER_SECONDS)


def test_a_look_at_many_partitions_is_taken_less_often() -> None:
    """
    In seconds; five at most, however many they are.
    """
    assert [standby_look_seconds(count) for count in (0, 64, 500, 5_000)] == [1.0, 1.0, 2.5, 5.0]


@dataclass
class Waiter:
    """A mirror that looks once a second or so, and learns by then only whether it is still the owner."""

    slow: float
    look_at: float
    succession: Succession = field(default_factory=Succession)
    token: Token | None = None
    claimed_at: float = 0.0


@pytest.mark.parametrize("seed", range(50))
def test_of_many_that_are_slow_one_gets_the_right_for_long_enough(seed: int) -> None:
    """
    After the wait for the one before it an owner needs some seconds more to begin: up to twenty on a busy
    machine. Nobody who waits takes the right from it for ever.
    """
    draw = random.Random(seed)
    waiters = [Waiter(draw.uniform(0.5, 20.0), draw.uniform(0.0, 1.0)) for _ in range(draw.randint(2, 5))]
    holder, epoch = DEAD, 0

    while True:
        waiter = min(waiters, key=lambda one: one.look_at)
        now = waiter.look_at
        assert now < 600, "they take it from each other"
        waiter.look_at += draw.uniform(1.0, 2.0)
        if waiter.token == holder:
            if now > waiter.claimed_at + TAKEOVER_WAIT_SECONDS + waiter.slow:
                break
        elif waiter.token is not None and now < waiter.claimed_at + TAKEOVER_WAIT_SECONDS:
            continue  # it has not asked since
        elif due(waiter.succession, holder, 0.0, now):
            epoch += 1
            holder = waiter.token = Token(7, epoch)
            waiter.claimed_at = now
