"""What the connections to a cluster tell of its brokers: which are silent, and since when."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from mirror.kafka.connection_pool import SILENT_SECONDS, ConnectionPool
from mirror.kafka.dial import Address

ONE = Address("one", 9092)
LONG = SILENT_SECONDS + 1


def connection(**said: object) -> Any:
    """One to a broker that owes nothing; or otherwise."""
    said["closed"] = said.get("closed_at") is not None
    quiet = {"answered_at": 100.0, "arriving_at": None, "closed_at": None, "unanswered_seconds": 0.0}
    return cast(Any, SimpleNamespace(address=ONE, **{**quiet, **said}))


@pytest.mark.parametrize(
    ("connections", "silence"),
    [
        ([connection()], {}),
        ([connection(unanswered_seconds=LONG)], {ONE: 100.0}),
        ([connection(closed_at=110.0)], {ONE: 100.0}),
        ([connection(closed_at=110.0), connection(answered_at=120.0)], {}),
        ([connection(unanswered_seconds=LONG), connection(answered_at=120.0)], {ONE: 120.0}),
        ([connection(unanswered_seconds=LONG, arriving_at=130.0)], {ONE: 130.0}),
        ([connection(unanswered_seconds=LONG), connection(arriving_at=130.0)], {ONE: 130.0}),
    ],
    ids=[
        "owes nothing",
        "owes an answer",
        "its connection ended",
        "another was answered since",
        "another is answered",
        "a long answer comes",
        "a long answer comes on another",
    ],
)
def test_a_broker_was_heard_last_when_something_came_on_any_connection(
    connections: list[Any], silence: dict[Address, float]
) -> None:
    """
    Over a slow link a long answer takes its time: whoever waits for it hears the broker all the while.
    """
    pool = ConnectionPool()
    for number, one in enumerate(connections):
        pool.keep((1, str(number)), one)
        pool.get((1, str(number)))

    assert pool.silence() == silence
    assert pool.silent() == set(silence)


def test_a_broker_of_which_nobody_wants_anything_is_not_waited_for() -> None:
    """
    It was started again while a partition was made ready at the other side, which may take minutes.
    """
    pool = ConnectionPool()
    pool.keep((1, "control"), connection(closed_at=110.0))

    before, doubtful = pool.silence(), pool.silent()
    pool.get((1, "control"))

    assert (before, doubtful) == ({}, {ONE})
    assert pool.silence() == {ONE: 100.0}
