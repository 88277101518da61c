"""Batches that do not come out as they were: what else may be recoded for the way."""

from __future__ import annotations

from mirror.kafka.fetch import Key
from mirror.link.recodable import ODD_MAX, ODD_WITHIN_SECONDS, REST_SECONDS, Recodable

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


def test_a_partition_that_is_forgotten_is_like_one_that_was_never_seen() -> None:
    """
    However many of its batches were odd.
    """
    recodable = Recodable()
    for number in range(3):
        recodable.met(ONE, 10 + number, now=float(number))

    recodable.forget(ONE)

    assert recodable.allows(ONE, 0, now=3.0)


def test_a_few_that_come_now_and_then_are_borne() -> None:
    """
    One a minute costs less than it gives.
    """
    recodable = Recodable()

    for number in range(5 * ODD_MAX):
        now = 1_000.0 + number * (ODD_WITHIN_SECONDS + 1)
        recodable.met(ONE, number, now)
        assert recodable.allows(ONE, number, now)
