"""What a probe says of a link: by figures that can be checked by hand, and by none where nobody knows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mirror.link.measuring import Limit, load_for, measured, rate
from mirror.link.probe import Arrival, Echo, Load
from tests.unit.links import KERNEL, MB, REPORT, a_link, kernel, observed, steadily


def test_the_rate_is_that_after_the_start_of_tcp() -> None:
    """
    The slow second at the beginning is left out, and the seconds after it are alike.
    """
    found = a_link(2.5 * MB).rate

    assert found is not None
    assert found.bytes_per_second == pytest.approx(2.5 * MB)
    assert found.seconds == pytest.approx(8.0)
    assert found.slowest == pytest.approx(2.5 * MB)
    assert found.fastest == pytest.approx(2.5 * MB)


def test_a_stretch_without_anything_is_seen() -> None:
    """
    Three seconds of silence in the middle: the mean is less, and the slowest stretch is next to nothing.
    """
    before, after = steadily(MB, 5, 0), [Arrival(one.at + 3, one.bytes) for one in steadily(MB, 10, 0)[51:]]

    found = rate([*before, *after], 0.0)

    assert found is not None
    assert found.bytes_per_second == pytest.approx(10 * MB / 13)
    assert found.slowest == pytest.approx(0.1 * MB / 3.1)
    assert found.fastest == pytest.approx(MB)


def test_one_second_alone_has_no_slowest() -> None:
    """
    It would be said to be the slowest and the fastest, and be neither.
    """
    found = rate(steadily(MB, 1.9, 0), 0.0)

    assert found is not None
    assert (found.slowest, found.fastest) == (None, None)


def test_two_seconds_have_a_slowest() -> None:
    found = rate(steadily(MB, 2.1, 0), 0.0)

    assert found is not None
    assert (found.slowest, found.fastest) == pytest.approx((MB, MB))


def test_what_came_in_a_moment_has_no_rate() -> None:
    """
    However many pieces it was noted in.
    """
    assert rate([Arrival(100.0, 0), Arrival(103.0, MB), Arrival(103.0, 2 * MB)], 2.0) is None


def test_round_trips_are_those_before_the_load_and_those_meanwhile() -> None:
    """
    The clock is told by the shortest of all, and is as uncertain as that is long.
    """
    link = a_link()

    assert (link.idle.min_seconds, link.idle.median_seconds, link.idle.max_seconds) == (0.1, 0.102, 0.104)
    assert link.loaded is not None
    assert (link.loaded.count, link.loaded.median_seconds) == (3, 0.2)
    assert link.loaded_wire_seconds == 0.12
    assert link.clock.offset_seconds == 5.0
    assert link.clock.uncertainty_seconds == pytest.approx(0.051)


def test_what_is_lost_is_what_was_sent_again() -> None:
    """
    Of all segments with data, these included.
    """
    assert a_link().loss == pytest.approx(0.01)


@pytest.mark.parametrize(
    "counted",
    [{"segments_sent": None}, {"segments_sent": 0, "segments_resent": 0}, {"segments_resent": None}],
)
def test_what_is_lost_is_not_known_of_a_kernel_that_does_not_count_both(
    counted: dict[str, int | None],
) -> None:
    """
    Nor where nothing was sent.
    """
    link = a_link(report=kernel(**counted))

    assert link.loss is None
    assert "does not report retransmissions" in link.unknown["loss"]


def test_what_is_on_its_way_is_bandwidth_times_delay() -> None:
    """
    Buffers have to be twice as large, as the kernel counts them; a window is what comes in a round trip.
    """
    link = a_link(2.5 * MB)

    assert link.bandwidth_delay_bytes == pytest.approx(250_000)
    assert link.buffer_bytes_wanted == pytest.approx(500_000)
    assert link.receive_window_allows == pytest.approx(30 * MB)


@pytest.mark.parametrize(
    ("changes", "receive_buffer_bytes_max", "limit"),
    [
        ({}, 6 << 20, Limit.LINK),
        ({"report": kernel(receive_window_limited_seconds=6.0)}, 500_000, Limit.RECEIVE_BUFFER),
        ({"report": kernel(receive_window_limited_seconds=6.0)}, None, Limit.RECEIVE_BUFFER),
        ({"report": kernel(receive_window_limited_seconds=6.0)}, 32 << 20, Limit.PROGRAMS),
        ({"report": kernel(receive_window_limited_seconds=1.0)}, 500_000, Limit.LINK),
        (
            {"report": kernel(receive_window_limited_seconds=None, send_buffer_limited_seconds=None)},
            500_000,
            Limit.LINK,
        ),
        ({"report": kernel(0.9, send_buffer_limited_seconds=1.0)}, 6 << 20, Limit.LINK),
        ({"report": kernel(send_buffer_limited_seconds=6.0)}, 6 << 20, Limit.PROGRAMS),
        ({"report": kernel(0.9, send_buffer_limited_seconds=6.0)}, 6 << 20, Limit.SEND_BUFFER),
        ({"report": kernel(None, send_buffer_limited_seconds=6.0)}, 6 << 20, Limit.SEND_BUFFER),
        ({"report": kernel(busy_seconds=3.0)}, 6 << 20, Limit.PROGRAMS),
        ({"load": Load(10.0, 2.0, rate_max=2_600_000)}, 6 << 20, Limit.RATE_MAX),
        ({"load": Load(10.0, 2.0, rate_max=9_000_000)}, 6 << 20, Limit.LINK),
        ({"report": replace(REPORT, rate_limit=2_600_000.0)}, 6 << 20, Limit.RATE_MAX),
        ({"report": kernel(busy_seconds=None)}, 6 << 20, None),
        ({"report": replace(REPORT, kernel=None)}, 6 << 20, None),
        ({"arrivals": (), "load": Load(10.0, 2.0, rate_max=2_600_000)}, 6 << 20, None),
    ],
)
def test_what_holds_the_link_back_is_said(
    changes: dict[str, Any], receive_buffer_bytes_max: int | None, limit: Limit | None
) -> None:
    """
    As the relay's kernel has counted it. A window that is closed in a large buffer is a mirror that is slow,
    and nothing to send with room for it a relay that is.
    """
    assert a_link(2.5 * MB, receive_buffer_bytes_max, **changes).limit is limit


def test_a_load_that_was_over_early_is_no_relay_without_time() -> None:
    """
    A gigabit is filled with the most there may be in half a minute, of a minute that was asked for.
    """
    filled = steadily(120 * MB, seconds=36)
    load = Load(60.0, 2.0)

    full, slow = (
        a_link(arrivals=filled, load=load, report=kernel(busy_seconds=busy)) for busy in (33.5, 20.0)
    )

    assert full.limit is Limit.LINK
    assert slow.limit is Limit.PROGRAMS


def test_what_an_old_kernel_does_not_say_is_unknown_and_says_why() -> None:
    """
    None and a reason, never zero.
    """
    silent = replace(KERNEL, **dict.fromkeys(KERNEL.__dataclass_fields__))
    report = replace(REPORT, kernel=silent, congestion_available=None, send_buffer_bytes_max=None)

    link = measured(observed(report=report), None)

    for name in (
        "loaded_wire_seconds", "loss", "limit", "receive_window_bytes", "receive_window_allows",
        "receive_buffer_bytes_max", "send_buffer_bytes_max", "congestion_available",
    ):  # fmt: skip
        assert getattr(link, name) is None
        assert "does not report" in link.unknown[name]
    assert link.rate is not None
    assert set(link.unknown) == {
        name for name in link.__dataclass_fields__ if getattr(link, name) is None
    } - {"tls", "rate_limit"}


@pytest.mark.parametrize("arrivals", [(), (Arrival(100.0, 1),), steadily(MB, 1)])
def test_a_load_that_was_over_too_soon_says_nothing_of_the_rate(arrivals: tuple[Arrival, ...]) -> None:
    """
    And nothing of what depends on it; the way out is more time.
    """
    link = measured(observed(arrivals=arrivals, loaded=(), report=replace(REPORT, kernel=None)), 6 << 20)

    assert link.rate is None
    assert link.bandwidth_delay_bytes is None
    assert link.loss is None
    assert "raise --seconds" in link.unknown["rate"]
    assert "raise --seconds" in link.unknown["loss"]
    assert link.unknown["loaded"] == "no answer came during the load"


@pytest.mark.parametrize(
    ("round_trip_seconds", "seconds", "settle_seconds"),
    [(0.0001, 10, 1), (0.1, 10, 3), (0.3, 10, 5), (0.3, 60, 9)],
)
def test_a_long_link_has_more_time_to_find_its_pace(
    round_trip_seconds: float, seconds: float, settle_seconds: float
) -> None:
    """
    Thirty round trips, the longest of all, a second at least, and half of what there is at most.
    """
    echoes = [Echo(round_trip_seconds / 2, 0.0), Echo(round_trip_seconds, 0.0)]

    load = load_for(echoes, seconds, 5)

    assert load.settle_seconds == pytest.approx(settle_seconds)
    assert (load.seconds, load.rate_max) == (seconds, 5)
