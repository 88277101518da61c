"""What a relay reports of a probe: read as it is meant, or refused."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirror.errors import AnswerError
from mirror.kafka.tcp_info import TcpInfo
from mirror.link.probe import read_report, since
from tests.unit.links import KERNEL, REPORT

WRITTEN: dict[str, Any] = json.loads(json.dumps(asdict(REPORT)))
anything: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


def test_a_report_is_read_as_it_was_written() -> None:
    """
    Over JSON, also where the relay's kernel knows nothing.
    """
    silent = replace(REPORT, kernel=None, congestion_available=None, send_buffer_bytes_max=None)

    for report in (REPORT, silent):
        assert read_report(json.loads(json.dumps(asdict(report)))) == report


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"bytes": None}, "without the number of bytes"),
        ({"bytes": -1}, "bytes is -1"),
        ({"bytes": 1.5}, "bytes is 1.5"),
        ({"bytes": True}, "bytes is True"),
        ({"bytes": 10**400}, "bytes is 1000"),
        ({"relay": 7}, "relay is 7"),
        ({"congestion": None}, "congestion is None"),
        ({"congestion_available": [1]}, "congestion_available is [1]"),
        ({"kernel": []}, "kernel is []"),
        ({"kernel": {"busy_seconds": float("nan")}}, "busy_seconds is nan"),
        ({"kernel": {"segments_sent": "many"}}, "segments_sent is 'many'"),
    ],
)
def test_a_report_that_cannot_be_true_is_refused(changes: dict[str, Any], words: str) -> None:
    """
    By the name of what is wrong with it, and its value.
    """
    with pytest.raises(AnswerError) as refused:
        read_report(WRITTEN | changes)

    assert words in str(refused.value)


@given(st.dictionaries(st.sampled_from(list(REPORT.__dataclass_fields__)), anything))
def test_whatever_a_relay_reports_it_is_read_or_refused(changes: dict[str, Any]) -> None:
    """
    No other error, whoever is at the other end.
    """
    try:
        read_report(WRITTEN | changes)
    except AnswerError:
        return


def test_what_was_counted_between_two_looks() -> None:
    """
    Counts are the difference; a window and a round trip are as they were at the end. What one of the looks
    does not know is not known.
    """
    before = replace(
        KERNEL, segments_sent=4_000, segments_resent=None, busy_seconds=3.0, receive_window_bytes=1
    )

    found = since(before, KERNEL)

    assert found == TcpInfo(
        segments_sent=6_000,
        segments_resent=None,
        round_trip_seconds=KERNEL.round_trip_seconds,
        busy_seconds=5.0,
        receive_window_limited_seconds=0.0,
        send_buffer_limited_seconds=0.0,
        receive_window_bytes=KERNEL.receive_window_bytes,
    )
