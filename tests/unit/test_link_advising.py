"""What an operator is told to do about a link, and that nothing is said of one that is as it should be."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mirror.link.advising import BUFFER_CEILING, HERE, THERE, advice, enough_buffer_bytes, window_wanted_bytes
from mirror.link.measuring import Clock, Limit, Rate, RoundTrips
from tests.unit.links import MB, REPORT, a_link

WINDOW_BYTES = 16 << 20


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"clock": Clock(-0.9, 0.05)},
        {"clock": Clock(1.4, 0.5)},
        {"loss": 0.05},
        {"loss": None},
        {"loaded_wire_seconds": None},
        {"loaded_wire_seconds": 0.5},
        {"idle": RoundTrips(3, 0.3, 0.3, 0.3), "loaded_wire_seconds": 0.85},
        {"receive_buffer_bytes_max": 500_000, "send_buffer_bytes_max": 500_000},
        {"receive_buffer_bytes_max": None, "send_buffer_bytes_max": None},
        {"rate": Rate(160 * MB, 8.0, None, None), "loaded": None},
    ],
)
def test_nothing_is_said_of_a_link_that_is_as_it_should_be(changes: dict[str, Any]) -> None:
    """
    A clock that is a few seconds off is not, nor a queue that makes a link three times as long, and half a
    second longer.
    """
    link = replace(a_link(), **({"clock": Clock(0.9, 0.05)} | changes))

    assert advice(link, WINDOW_BYTES) == []


@pytest.mark.parametrize(
    ("available", "begins_with"),
    [(("reno", "cubic"), "modprobe tcp_bbr"), (None, "modprobe tcp_bbr"), (("cubic", "bbr"), "sysctl -w")],
)
def test_without_bbr_it_is_said_how_to_have_it(available: tuple[str, ...] | None, begins_with: str) -> None:
    """
    The module where it is not loaded, the setting in any case: it also lets users who are not root have it.
    """
    link = replace(a_link(), congestion="cubic", congestion_available=available, clock=Clock(0.0, 0.05))

    [found] = advice(link, WINDOW_BYTES)

    assert (found.about, found.where) == ("congestion", THERE)
    assert found.words.startswith("the relay's kernel uses cubic")
    assert found.commands[0].startswith(begins_with)
    assert found.commands[-1] == "sysctl -w net.ipv4.tcp_congestion_control=bbr"


@pytest.mark.parametrize(
    ("changes", "about", "where", "command", "words"),
    [
        (
            {"limit": Limit.RECEIVE_BUFFER, "receive_buffer_bytes_max": 6 << 20},
            "receive buffer",
            HERE,
            f'sysctl -w net.ipv4.tcp_rmem="4096 131072 {32 << 20}"',
            "the receive buffer of a connection may grow to 6.3 MB: it limits the link",
        ),
        (
            {"limit": Limit.SEND_BUFFER, "send_buffer_bytes_max": 4 << 20},
            "send buffer",
            THERE,
            f'sysctl -w net.ipv4.tcp_wmem="4096 16384 {16 << 20}"',
            "the send buffer of a connection may grow to 4.2 MB: it limits the link",
        ),
        (
            {"buffer_bytes_wanted": 5 << 20, "send_buffer_bytes_max": 4 << 20},
            "send buffer",
            THERE,
            f'sysctl -w net.ipv4.tcp_wmem="4096 16384 {16 << 20}"',
            "the send buffer of a connection may grow to 4.2 MB: the data in flight needs 5.2 MB",
        ),
        (
            {
                "buffer_bytes_wanted": 7 << 20,
                "receive_buffer_bytes_max": 6 << 20,
                "send_buffer_bytes_max": 8 << 20,
            },
            "receive buffer",
            HERE,
            f'sysctl -w net.ipv4.tcp_rmem="4096 131072 {16 << 20}"',
            "the receive buffer of a connection may grow to 6.3 MB: the data in flight needs 7.3 MB",
        ),
        (
            {"limit": Limit.RECEIVE_BUFFER, "receive_buffer_bytes_max": None},
            "receive buffer",
            HERE,
            f'sysctl -w net.ipv4.tcp_rmem="4096 131072 {1 << 20}"',
            "may grow to a size that the kernel does not report: it limits the link",
        ),
        ({"limit": Limit.PROGRAMS}, "processors", "", None, "the link could carry more"),
        ({"loss": 0.08}, "loss", "", None, "8.0 % of all segments were retransmitted"),
        ({"loaded_wire_seconds": 2.0}, "queue", "", None, "waits 1.9 s in a queue"),
        ({"clock": Clock(-3.0, 0.05)}, "clock", "on both machines", "chronyc tracking", "differ by 3.0 s"),
    ],
)
def test_each_thing_has_its_way_out(
    changes: dict[str, Any], about: str, where: str, command: str | None, words: str
) -> None:
    """
    What it is about, at which machine, the command, and what was measured.
    """
    link = replace(a_link(), **({"clock": Clock(0.0, 0.05)} | changes))

    [found] = advice(link, WINDOW_BYTES)

    assert (found.about, found.where) == (about, where)
    assert found.commands == (() if command is None else (command,))
    assert words in found.words


def test_a_window_that_is_too_small_is_said_with_one_that_is_not() -> None:
    """
    Of a round trip under load, as frames wait behind what the relay has handed over.
    """
    link = replace(a_link(20 * MB), clock=Clock(0.0, 0.05))

    [found] = advice(link, 2 << 20)

    assert window_wanted_bytes(link) == pytest.approx(4 * MB)
    assert found.about == "window"
    assert found.words == "link.window_bytes is 2.1 MB: a full link has 4.0 MB in flight"
    assert found.commands == ("link: {window_bytes: 8 MiB}",)


def test_buffers_have_room_and_a_ceiling() -> None:
    """
    Twice what is carried, four times what was too small, a power of two, and no more than TCP can use.
    """
    assert enough_buffer_bytes(100, None) == 1 << 20
    assert enough_buffer_bytes(3 << 20, None) == 8 << 20
    assert enough_buffer_bytes(100, 6 << 20) == 32 << 20
    assert enough_buffer_bytes(1 << 40, None) == BUFFER_CEILING


def test_what_was_not_measured_is_no_reason_to_change_anything() -> None:
    """
    A load that was over too soon.
    """
    link = a_link(arrivals=(), loaded=(), report=replace(REPORT, kernel=None))

    assert [one.about for one in advice(link, WINDOW_BYTES)] == ["clock"]
