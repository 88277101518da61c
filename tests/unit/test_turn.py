"""Whose turn it is to append, by what the coordinator said and when it was asked."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from mirror.flow.holding import HOLD_SECONDS, LATE_SECONDS, LOOK_SECONDS
from mirror.flow.owner import TAKEOVER_WAIT_SECONDS
from mirror.flow.turn import COUNTS_FOR_SECONDS, Turn


@dataclass
class Clock:
    """Tells the time it is told."""

    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass(eq=False)
class Connection:
    """Notes what becomes of it."""

    withdrawn: int = 0
    asked: list[bool] = field(default_factory=list)

    def send_while(self, may_send: Any, *_: str) -> None:
        self.asked.append(may_send())

    def withdraw(self) -> None:
        self.withdrawn += 1


def a_turn() -> tuple[Turn, Clock, Connection]:
    clock, connection = Clock(), Connection()
    turn = Turn(clock)
    turn.guard(cast(Any, connection))
    return turn, clock, connection


def test_it_is_nobodys_before_it_is_proven() -> None:
    """
    That nobody answers proves nothing.
    """
    turn, clock, connection = a_turn()
    turn.withdraw()
    before = turn.is_ours()

    turn.proven(clock.now)

    assert (before, turn.is_ours(), connection.asked) == (False, True, [False])


def test_a_proof_counts_from_when_it_was_asked_for_and_for_less_than_a_new_owner_waits() -> None:
    """
    The answer may have been read much later.
    """
    turn, clock, connection = a_turn()
    turn.proven(clock.now - COUNTS_FOR_SECONDS + 0.1)
    at_first = turn.is_ours()

    clock.now += 0.2

    assert (at_first, turn.is_ours(), connection.withdrawn) == (True, False, 0)
    assert turn.proof_age_seconds == pytest.approx(COUNTS_FOR_SECONDS + 0.1)
    turn.withdraw()
    assert (turn.is_ours(), connection.withdrawn) == (False, 1)
    assert HOLD_SECONDS + LATE_SECONDS + LOOK_SECONDS < COUNTS_FOR_SECONDS < TAKEOVER_WAIT_SECONDS


def test_a_proof_that_comes_too_late_takes_back_what_waits() -> None:
    """
    It was asked for while it was our turn, and read when it is another's, perhaps.
    """
    turn, clock, connection = a_turn()
    asked_at = clock.now
    turn.proven(asked_at)
    clock.now += COUNTS_FOR_SECONDS

    turn.proven(asked_at)

    assert (turn.is_ours(), connection.withdrawn) == (False, 1)


def test_an_old_answer_takes_nothing_back() -> None:
    """
    As that of a question which hung while we went on.
    """
    turn, clock, _ = a_turn()
    turn.proven(clock.now)

    turn.proven(clock.now - HOLD_SECONDS)
    clock.now += COUNTS_FOR_SECONDS - 0.1

    assert turn.is_ours()


def test_when_it_is_lost_what_waits_is_withdrawn_and_only_proof_gives_it_back() -> None:
    """
    A look at the time gives nothing back.
    """
    turn, clock, connection = a_turn()
    turn.proven(clock.now)

    turn.lost()
    turn.withdraw()
    lost = turn.is_ours()
    turn.proven(clock.now)

    assert (lost, turn.is_ours()) == (False, True)
    assert connection.withdrawn == 2


def test_it_is_not_ours_while_another_may_still_write_whatever_is_proven() -> None:
    turn, clock, _ = a_turn()
    turn.since = clock.now + 1
    turn.proven(clock.now)
    too_soon = turn.is_ours()

    clock.now += 1

    assert (too_soon, turn.is_ours()) == (False, True)
