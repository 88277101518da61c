"""Batches that do not come out as they were: what else may be recoded for the way."""

from __future__ import annotations

from mirror.kafka.fetch import Key
from mirror.link.recodable import (
    ODD_MAX,
    ODD_WITHIN_SECONDS,
    REST_SECONDS,
    RESTORING_ABOVE,
    RESTORING_SECONDS,
    Recodable,
)

ONE, OTHER = Key(bytes(16), 0), Key(bytes(16), 1)


def test_what_comes_behind_an_odd_batch_is_recoded_again() -> None:
    """
    And what comes before it is not, nor is another partition concerned.
    """
    recodable = Recodable()

    recodable.met(ONE, 50, now=1_000.0)

    assert not recodable.allows(ONE, 49, now=1_000.0)
    assert recodable.allows(ONE, 50, now=1_000.0)
    assert recodable.allows(OTHER, 0, now=1_000.0)


def test_a_partition_of_which_many_are_odd_is_left_as_it_is_for_a_while() -> None:
    """
    Then it is tried again, as often.
    """
    recodable = Recodable()
    met_at = [1_000.0 + number for number in range(ODD_MAX)]
    for number, now in enumerate(met_at):
        assert recodable.allows(ONE, number, now)
        recodable.met(ONE, number + 1, now)
    later = met_at[-1] + REST_SECONDS

    assert not recodable.allows(ONE, 1_000, met_at[-1])
    assert not recodable.allows(ONE, 1_000, later - 1)
    assert recodable.allows(ONE, 1_000, later)
    recodable.met(ONE, 2_000, later)
    assert recodable.allows(ONE, 2_000, later)


def test_a_few_that_come_now_and_then_are_borne() -> None:
    """
    One a minute costs less than it gives.
    """
    recodable = Recodable()

    for number in range(5 * ODD_MAX):
        now = 1_000.0 + number * (ODD_WITHIN_SECONDS + 1)
        recodable.met(ONE, number, now)
        assert recodable.allows(ONE, number, now)


def restoring(recodable: Recodable, share: float) -> set[Key]:
    """Partitions that rest after batches were restored for such a share of the time."""
    for number in range(1, 101):
        now = 1_000.0 + number * RESTORING_SECONDS / 50
        resting = recodable.restored([ONE], share * RESTORING_SECONDS / 50, now)
        if resting:
            return set(resting)
    return set()


def test_what_takes_longer_to_restore_than_it_saves_is_left_as_it_is_for_a_while() -> None:
    """
    Those whose batches were restored, and no others.
    """
    recodable = Recodable()

    assert restoring(recodable, RESTORING_ABOVE + 0.1) == {ONE}

    later = 1_000.0 + 2 * RESTORING_SECONDS
    assert not recodable.allows(ONE, 1 << 40, later)
    assert recodable.allows(OTHER, 0, later)
    assert recodable.allows(ONE, 0, later + REST_SECONDS)


def test_while_there_is_time_for_it_batches_are_restored() -> None:
    """
    And what took long once, an hour ago, tells nothing.
    """
    recodable = Recodable()

    assert restoring(recodable, RESTORING_ABOVE - 0.1) == set()
    assert recodable.restored([ONE], RESTORING_SECONDS, 4_600.0) == ()
    assert recodable.allows(ONE, 0, 4_600.0)
