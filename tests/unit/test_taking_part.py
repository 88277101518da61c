"""What settings are made of, before anything runs."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest
from prometheus_client import CollectorRegistry

from mirror.config import parse
from mirror.flow.turn import Turn
from mirror.taking_part import flow_of


@pytest.mark.parametrize(
    ("way", "wait_ms"),
    [
        ({"source": {"bootstrap_servers": "127.0.0.1:1"}}, 30_000),
        ({"link": {"relays": "127.0.0.1:3"}}, 500),
    ],
)
def test_behind_a_relay_news_take_as_long_as_the_relay_is_silent_at_most(
    way: dict[str, Any], wait_ms: int
) -> None:
    """
    However long brokers are to hold requests back that are asked directly: lag would be 0 for as long.
    """
    settings = parse(
        {
            **way,
            "target": {"bootstrap_servers": "127.0.0.1:2"},
            "topics": {"include": [".*"]},
            "read": {"fetch_wait_ms_max": 30_000},
        }
    )

    flow = flow_of(settings, Mock(), Mock(), Mock(), Turn(), Mock(), CollectorRegistry())

    assert flow.limits.fetch.wait_ms_max == wait_ms
