"""Which topics a comparison takes for those of a flow."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from checkpoint.flow_state import FlowState
from checkpoint.model import PartitionRecord
from mirror import offline
from mirror.errors import TwinsiteError
from mirror.kafka.cluster_info import ClusterInfo, TopicInfo
from mirror.model import OffsetMode
from mirror.offline import NoRecordError, NoStateError
from mirror.proving import asking
from mirror.proving.wanted import Wanted
from tests.harness.memory_store import MemoryStore
from tests.unit.target_side import ORDERS_ID, a_topic

SETTINGS = cast(Any, SimpleNamespace(flow="back"))
CHOSEN = {"orders": "orders", "audit": "audit"}


def holding(*names: str) -> ClusterInfo:
    topics: dict[str, TopicInfo] = {name: a_topic(name) for name in names}
    return ClusterInfo("c", 1, {}, topics)


class Target:
    """It has topics of both names."""

    async def describe_topics(self, names: object) -> ClusterInfo:
        return holding(*CHOSEN)


async def remembered() -> FlowState:
    """What the flow knows: it copies one of them."""
    state = FlowState(MemoryStore())
    await state.load()
    await state.begin(PartitionRecord("audit", 0, str(ORDERS_ID), "audit", OffsetMode.SAME, True, 0, 0))
    return state


@pytest.mark.parametrize(
    ("at_source", "begun"),
    [(["orders", "audit"], {"orders", "audit"}), (["orders", "audit", "__twinsite_state.out"], {"audit"})],
)
async def test_where_others_copy_to_the_source_a_topic_is_begun_that_the_flow_remembers(
    monkeypatch: pytest.MonkeyPatch, at_source: list[str], begun: set[str]
) -> None:
    """
    With the same names both ways the original stands at the target under the copy's name.
    """

    async def flow_state(*_: object) -> FlowState:
        return await remembered()

    monkeypatch.setattr(offline, "flow_state", flow_state)

    found = await asking._begun(SETTINGS, holding(*at_source), CHOSEN, cast(Any, Target()))

    assert set(found) == begun


@pytest.mark.parametrize("error", [NoStateError, NoRecordError])
async def test_what_has_no_state_is_compared_where_the_offsets_are_said_to_be_the_same(
    monkeypatch: pytest.MonkeyPatch, error: type[TwinsiteError]
) -> None:
    """
    Nor is its record needed to tell which topics are meant. Else it is an error, which names that way, too.
    """

    async def flow_state(*_: object) -> FlowState:
        raise error("there is none")

    for module in (asking, offline):
        monkeypatch.setattr(module, "flow_state", flow_state)
    target, topics = cast(Any, Target()), holding("orders", "audit", "__twinsite_state.out")

    same = await asking._state(SETTINGS, target, Wanted(same_offsets=True))
    begun = await asking._begun(SETTINGS, topics, CHOSEN, target)
    with pytest.raises(error, match="there is none") as refused:
        await asking._state(SETTINGS, target, Wanted())

    assert same is None
    assert set(begun) == {"orders", "audit"}
    assert refused.value.hint.startswith(f"{error.hint}; ")
    assert "--same-offsets" in refused.value.hint


@pytest.mark.parametrize(
    ("target_id", "prefix", "chosen"),
    [
        ("c", "b.", {"audit"}),
        ("d", "b.", {"audit", "b.audit"}),
        ("c", None, {"audit", "b.audit"}),
    ],
)
def test_what_a_flow_within_one_cluster_writes_is_not_read_again(
    target_id: str, prefix: str | None, chosen: set[str]
) -> None:
    """
    Its copies match its own lists. That is known without its state, as the mirror itself knows it. A cluster
    that is compared with a backup of itself has no copies.
    """
    settings = cast(Any, SimpleNamespace(topics=SimpleNamespace(include=[".*"], exclude=[], prefix=prefix)))
    source, target = (
        cast(Any, SimpleNamespace(info=ClusterInfo(one, 1, {}, {}))) for one in ("c", target_id)
    )

    found = asking._selector(settings, source, target).select(["audit", "b.audit"])

    assert set(found.chosen) == chosen
