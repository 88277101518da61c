"""What to expect of a copy over a link: figures that can be checked by hand, and none where nobody knows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mirror.link.expecting import NOT_FILLED, Production, Sample, expected, produced
from mirror.link.measuring import Limit
from mirror.model import TopicPartition
from tests.unit.links import MB, a_link

ORDERS, AUDIT = TopicPartition("orders", 0), TopicPartition("audit", 0)
PRODUCTION = Production(
    topics=2,
    partitions=2,
    partitions_unknown=0,
    seconds=10.0,
    records_per_second=1_000.0,
    bytes_per_second=MB,
    sample_bytes=500_000,
    wire_share=0.5,
    unknown={},
)


def test_a_link_with_room_keeps_up() -> None:
    """
    2.5 MB/s of halved bytes are 5 MB/s of records, five times what is produced: an hour takes a quarter.
    """
    found = expected(a_link(2.5 * MB), PRODUCTION, "")

    assert found.carries_bytes_per_second == pytest.approx(5 * MB)
    assert found.times_production == pytest.approx(5.0)
    assert found.outage_hour_seconds == pytest.approx(900.0)
    assert (found.missing_bytes_per_second, found.lag_growth_seconds_per_hour) == (0.0, 0.0)
    assert not found.too_slow
    assert found.unknown == {}


def test_what_is_up_to_date_is_half_a_round_trip_behind() -> None:
    """
    While the link is full the way there is longer, and the way back is not.
    """
    found = expected(a_link(), PRODUCTION, "")

    assert found.lag_seconds == pytest.approx(0.051)
    assert found.lag_while_full_seconds == pytest.approx(0.2 - 0.051)


def test_a_link_that_is_too_slow_says_by_how_much() -> None:
    """
    A quarter of what is needed: of each hour three quarters are left behind.
    """
    found = expected(a_link(0.125 * MB), PRODUCTION, "")

    assert found.too_slow
    assert found.times_production == pytest.approx(0.25)
    assert found.missing_bytes_per_second == pytest.approx(0.375 * MB)
    assert found.lag_growth_seconds_per_hour == pytest.approx(2700.0)
    assert found.outage_hour_seconds is None
    assert "never caught up" in found.unknown["outage_hour_seconds"]


def test_a_link_that_was_not_filled_is_never_called_too_slow() -> None:
    """
    It carries at least what it was given; where that is not enough nobody knows.
    """
    enough = replace(a_link(2.5 * MB), limit=Limit.RATE_MAX)
    too_little = replace(a_link(0.125 * MB), limit=Limit.RATE_MAX)

    good, unknown = (expected(link, PRODUCTION, "") for link in (enough, too_little))

    assert good.at_least
    assert good.times_production == pytest.approx(5.0)
    assert good.unknown == {"lag_while_full_seconds": NOT_FILLED}
    assert unknown.times_production is None
    assert not unknown.too_slow
    assert unknown.unknown["missing_bytes_per_second"] == f"{NOT_FILLED} is less than what is produced"


def test_a_link_is_judged_within_its_limits() -> None:
    """
    By night it may be filled, by day it carries what the contract allows, and that is what falls behind.
    """
    found = expected(a_link(2.5 * MB), PRODUCTION, "", rate_limit=0.125 * MB)

    assert found.too_slow
    assert found.times_production == pytest.approx(0.25)
    assert found.limit_bytes_per_second == 0.125 * MB


def test_what_a_relay_may_not_send_does_not_come() -> None:
    """
    A link of which no more was asked than may be sent carries no more: that is enough, or it is too slow.
    """
    full = replace(a_link(0.124 * MB), limit=Limit.RATE_MAX, rate_limit=0.125 * MB)
    asked_less = replace(a_link(0.05 * MB), limit=Limit.RATE_MAX, rate_limit=0.125 * MB)

    too_slow, unknown = (expected(link, PRODUCTION, "") for link in (full, asked_less))

    assert too_slow.too_slow
    assert not too_slow.at_least
    assert too_slow.lag_while_full_seconds is None
    assert too_slow.limit_bytes_per_second == 0.125 * MB
    assert unknown.times_production is None


def test_without_production_there_is_only_the_way() -> None:
    """
    And the reason it is not known.
    """
    found = expected(a_link(), None, "nobody named any topics")

    assert found.times_production is None
    assert found.missing_bytes_per_second is None
    assert found.unknown["times_production"] == "nobody named any topics"
    assert found.lag_seconds == pytest.approx(0.051)


def test_where_nothing_is_produced_nothing_is_missing() -> None:
    """
    How many times nothing a link carries nobody can say.
    """
    quiet = replace(PRODUCTION, records_per_second=0.0, bytes_per_second=0.0, wire_share=None)

    found = expected(a_link(), quiet, "")

    assert (found.missing_bytes_per_second, found.lag_growth_seconds_per_hour) == (0.0, 0.0)
    assert found.times_production is None
    assert found.unknown["times_production"] == "nothing was produced meanwhile"


def test_production_is_what_came_between_two_looks() -> None:
    """
    Bytes a record as in the samples, each partition with the weight of its news.
    """
    made = produced(
        ["orders", "audit"],
        {ORDERS: 100, AUDIT: 1_000},
        {ORDERS: 400, AUDIT: 1_100},
        10.0,
        {ORDERS: Sample(2_000, 20), AUDIT: Sample(500, 1)},
        0.3,
    )

    assert made.records_per_second == 40.0
    assert made.bytes_per_second == pytest.approx(40 * (300 * 100 + 100 * 500) / 400)
    assert made.sample_bytes == 2_500
    assert (made.topics, made.partitions, made.partitions_unknown) == (2, 2, 0)
    assert made.unknown == {}


def test_partitions_nobody_can_tell_are_counted_and_named_so() -> None:
    """
    One without an end at first, one without an end at last; a log that was cut is no production.
    """
    cut = TopicPartition("cut", 0)

    made = produced(
        ["orders", "audit", "cut"],
        {ORDERS: None, AUDIT: 1_000, cut: 50},
        {ORDERS: 400, AUDIT: None, cut: 10},
        10.0,
        {},
        None,
    )

    assert made.partitions_unknown == 2
    assert (made.records_per_second, made.bytes_per_second) == (0.0, 0.0)


def test_what_was_produced_and_cannot_be_read_is_not_nothing() -> None:
    """
    Records are counted, their bytes are unknown.
    """
    made = produced(["orders"], {ORDERS: 100}, {ORDERS: 400}, 10.0, {}, None)
    found = expected(a_link(), made, "")

    assert made.records_per_second == 30.0
    assert made.bytes_per_second is None
    assert "could be read" in made.unknown["bytes_per_second"]
    assert found.missing_bytes_per_second is None
    assert "could be read" in found.unknown["times_production"]
