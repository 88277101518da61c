"""What settings are made of, before anything runs."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest
from prometheus_client import CollectorRegistry

from checkpoint.flow_state import FlowState
from checkpoint.model import FlowRecord
from mirror.config import parse
from mirror.flow.memory import FlowMemory
from mirror.flow.owner import Owner
from mirror.flow.turn import Turn
from mirror.kafka.transactions import Token
from mirror.patience import Patience
from mirror.taking_part import flow_of, take_part
from tests.harness.memory_store import MemoryStore


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


async def test_a_flow_is_claimed_when_its_owner_has_written_again_what_was_deleted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    The owner could not do so afterwards.
    """
    items: dict[str, bytes] = {}
    state = FlowState(MemoryStore(items))
    claims: list[tuple[FlowRecord | None, bool]] = []

    async def open_memory(*_: object) -> FlowMemory:
        await state.load()
        return FlowMemory(state)

    async def holder(_: Owner) -> Token:
        items["flow"] = FlowRecord(7, 0, "source-id", "target-id", 0).to_bytes()
        return Token(7, 3)

    async def claim(_: Owner, *, new_flow: bool) -> None:
        claims.append((state.flow, new_flow))

    async def introduce(*_: object) -> None:
        """It is known by then."""

    monkeypatch.setattr("mirror.taking_part.open_memory", open_memory)
    monkeypatch.setattr("mirror.taking_part.introduce", introduce)
    monkeypatch.setattr("mirror.flow.introducing.PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(Owner, "holder", holder)
    monkeypatch.setattr(Owner, "claim", claim)
    source, target = (Mock(info=Mock(cluster_id=f"{name}-id")) for name in ("source", "target"))
    settings = parse(
        {
            "source": {"bootstrap_servers": "127.0.0.1:1"},
            "target": {"bootstrap_servers": "127.0.0.1:2"},
            "topics": {"include": [".*"]},
        }
    )

    await take_part(settings, source, target, Patience(lambda _: None, once=True))

    [(known, new_flow)] = claims
    assert known is not None
    assert not new_flow
