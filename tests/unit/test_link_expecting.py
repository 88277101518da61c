"""What to expect of a copy over a link: figures that can be checked by hand, and none where nobody knows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mirror.link.expecting import (
    AT_LIMIT,
    NOT_FILLED,
    NOTHING_PRODUCED,
    NOTHING_READ,
    Production,
    Sample,
    expected,
    produced,
)
from mirror.link.measuring import Limit
from mirror.link.probe import Echo
from mirror.model import TopicPartition
from tests.unit.links import MB, a_link

ORDERS, AUDIT = TopicPartition("orders", 0), TopicPartition("audit", 0)
PRODUCTION = Production(
    topics=2,
    topics_left_out=0,
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


def test_nothing_that_comes_is_less_than_half_a_round_trip_behind() -> None:
    """
    Answers that came faster under load than before it say nothing against that.
    """
    found = expected(a_link(loaded=(Echo(0.08, 5.0),)), PRODUCTION, "")

    assert found.lag_while_full_seconds == found.lag_seconds == pytest.approx(0.051)


def test_a_load_to_which_no_answer_came_says_nothing_of_the_lag() -> None:
    found = expected(a_link(loaded=()), PRODUCTION, "")

    assert found.lag_while_full_seconds is None
    assert found.unknown == {"lag_while_full_seconds": "no answer came during the load"}


@pytest.mark.parametrize(("times", "outage_hour_seconds"), [(1.0, None), (1.5, 7_200.0)])
def test_an_hour_is_caught_up_with_what_a_link_carries_beside_what_is_produced(
    times: float, outage_hour_seconds: float | None
) -> None:
    """
    One that carries just that keeps up, and makes nothing good.
    """
    found = expected(a_link(), replace(PRODUCTION, wire_share=1.0), "", rate_limit=times * MB)

    assert (found.times_production, found.too_slow) == (times, False)
    assert (found.missing_bytes_per_second, found.lag_growth_seconds_per_hour) == (0.0, 0.0)
    assert found.outage_hour_seconds == outage_hour_seconds


@pytest.mark.parametrize(
    "production",
    [
        replace(PRODUCTION, bytes_per_second=None, unknown={"bytes_per_second": NOTHING_READ}),
        replace(PRODUCTION, wire_share=None, unknown={"wire_share": NOTHING_READ}),
    ],
)
def test_where_a_part_of_what_is_produced_is_not_known_nothing_follows(production: Production) -> None:
    found = expected(a_link(), production, "")

    assert (found.times_production, found.missing_bytes_per_second) == (None, None)
    assert found.unknown["times_production"] == NOTHING_READ


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
    assert "never catches up" in found.unknown["outage_hour_seconds"]


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
    assert too_slow.unknown["lag_while_full_seconds"] == AT_LIMIT
    assert too_slow.limit_bytes_per_second == 0.125 * MB
    assert unknown.times_production is None


def test_a_link_whose_rate_is_not_known_is_judged_by_nothing() -> None:
    """
    The reason is that of the rate, whatever was produced; the way there is known all the same.
    """
    link = a_link(arrivals=())

    found = expected(link, PRODUCTION, "", rate_limit=1.0 * MB)

    assert (found.carries_bytes_per_second, found.times_production) == (None, None)
    assert not found.too_slow
    assert found.unknown["carries_bytes_per_second"] == link.unknown["rate"]
    assert found.unknown["outage_hour_seconds"] == link.unknown["rate"]
    assert found.lag_seconds == pytest.approx(0.051)


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
    assert found.unknown["times_production"] == "nothing was produced during the measurement"


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


def test_samples_of_which_nothing_follows_count_for_nothing() -> None:
    """
    One without records, of a partition that stands still, and of one whose end is not known any more.
    """
    still, gone = TopicPartition("still", 0), TopicPartition("gone", 0)

    made = produced(
        ["orders", "audit", "still", "gone"],
        {ORDERS: 100, AUDIT: 1_000, still: 7, gone: 5},
        {ORDERS: 400, AUDIT: 1_100, still: 7, gone: None},
        10.0,
        {ORDERS: Sample(2_000, 20), AUDIT: Sample(70, 0), still: Sample(900, 1), gone: Sample(900, 1)},
        0.3,
    )

    assert made.bytes_per_second == pytest.approx(40 * 100)


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
    assert made.unknown == {"wire_share": NOTHING_PRODUCED}


def test_what_was_produced_and_cannot_be_read_is_not_nothing() -> None:
    """
    Records are counted, their bytes are unknown.
    """
    made = produced(["orders"], {ORDERS: 100}, {ORDERS: 400}, 10.0, {}, None)
    found = expected(a_link(), made, "")

    assert made.records_per_second == 30.0
    assert made.bytes_per_second is None
    assert made.unknown == dict.fromkeys(("bytes_per_second", "wire_share"), NOTHING_READ)
    assert found.missing_bytes_per_second is None
    assert "could be read" in found.unknown["times_production"]
