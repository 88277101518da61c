"""Mirrors that wait for an owner: one takes its place, and the others let it."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from mirror.flow.owner import TAKEOVER_WAIT_SECONDS
from mirror.flow.succession import TAKE_OVER_AFTER_SECONDS, Succession
from mirror.kafka.transactions import Token

DEAD = Token(7, 0)


def test_an_owner_is_taken_for_gone_once_it_has_stood_still_for_so_long() -> None:
    succession = Succession()

    assert not succession.due(DEAD, 100.0, 100.0)
    assert not succession.due(DEAD, 100.0, 100.0 + TAKE_OVER_AFTER_SECONDS)
    assert succession.due(DEAD, 100.0, 100.1 + TAKE_OVER_AFTER_SECONDS)


def test_what_it_moves_gives_it_its_time_again() -> None:
    succession = Succession()
    succession.due(DEAD, 100.0, 100.0)

    assert not succession.due(DEAD, 104.0, 106.0)
    assert succession.due(DEAD, 104.0, 104.1 + TAKE_OVER_AFTER_SECONDS)


def test_a_new_owner_is_given_twice_the_time_of_the_one_that_moved_nothing() -> None:
    succession = Succession()
    succession.due(DEAD, 100.0, 100.0)
    new = Token(7, 1)

    assert not succession.due(new, 100.0, 106.0)
    assert not succession.due(new, 100.0, 106.0 + 2 * TAKE_OVER_AFTER_SECONDS)
    assert succession.due(new, 100.0, 106.1 + 2 * TAKE_OVER_AFTER_SECONDS)


def test_the_time_does_not_grow_for_ever_and_is_short_again_after_progress() -> None:
    succession = Succession()
    for epoch in range(20):
        succession.due(Token(7, epoch), 100.0, 100.0 + epoch)
    newest = Token(7, 19)

    assert succession.due(newest, 100.0, 119.1 + 16 * TAKE_OVER_AFTER_SECONDS)
    assert not succession.due(newest, 300.0, 300.0 + TAKE_OVER_AFTER_SECONDS)
    assert succession.due(newest, 300.0, 300.1 + TAKE_OVER_AFTER_SECONDS)


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
        elif waiter.succession.due(holder, 0.0, now):
            epoch += 1
            holder = waiter.token = Token(7, epoch)
            waiter.claimed_at = now
