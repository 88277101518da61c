"""What is known of a flow while its state is not whole: somebody writes it, or nobody will."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast
from uuid import UUID

import pytest

from checkpoint.model import FlowRecord, PartitionRecord
from mirror.flow.other_flows import OtherFlows
from mirror.kafka.cluster_info import ClusterInfo, PartitionInfo, TopicInfo
from mirror.model import OffsetMode

STATE = "__twinsite_state.old"
LEADER = PartitionInfo(1, 0, (1,), (1,))
OWN = {"flow": FlowRecord(4000, 0, "source-id", "target-id", 0, "").to_bytes()}
RECORDS = [
    {one.key: one.to_bytes()}
    for one in (
        PartitionRecord("orders", n, str(UUID(int=9)), "orders", OffsetMode.SAME, True, 0, 0)
        for n in range(2)
    )
]
NOTHING: Mapping[str, bytes] = {}
PART, MORE = RECORDS[0], RECORDS[0] | RECORDS[1]
WHOLE = MORE | OWN
GONE = None
DAY = 24 * 3600.0
KNOWN, NOT_YET, NONE = "known", "not known yet", "none"


@dataclass
class Clock:
    """Where a day passes at once."""

    now: float = 1_000.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return 1_700_000_000 + self.now


class Site:
    """A cluster to which one flow writes, and somebody who looks what that has written down."""

    name = "target"

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = Clock()
        self.items: Mapping[str, bytes] | None = GONE
        self.topic_id = UUID(int=1)
        self.written_at_ms: int | None = None
        self.said: list[str] = []
        monkeypatch.setattr("mirror.flow.other_flows.time", self.clock)
        monkeypatch.setattr("mirror.flow.other_flows.TopicStore", lambda _: self)
        monkeypatch.setattr("mirror.flow.other_flows.TopicLog", lambda *_, **__: self)
        self.relevant = True
        self.flows = OtherFlows(
            cast(Any, self),
            relevant=lambda _: self.relevant,
            unread=lambda _, error: self.said.append(str(error)),
        )

    def write(self, items: Mapping[str, bytes] | None, ago_seconds: float = 0.0) -> None:
        """What is there from now on; the topic that is there again is another one."""
        if self.items is GONE:
            self.topic_id = UUID(int=self.topic_id.int + 1)
        self.items, self.written_at_ms = items, int((self.clock.time() - ago_seconds) * 1000)

    async def end(self) -> int:
        return 1

    async def load(self) -> Mapping[str, bytes]:
        assert self.items is not None
        return self.items

    async def look(self) -> str:
        there = {} if self.items is GONE else {STATE: TopicInfo(STATE, self.topic_id, False, {0: LEADER})}
        self.flows.see(ClusterInfo("target-id", 1, {}, there))
        known = bool(await self.flows.read())
        assert self.flows.awaits == (not known and self.flows.unanswered is not None)
        if known:
            return KNOWN
        return NONE if self.flows.unanswered is None else NOT_YET


Story = list[tuple[float, Mapping[str, bytes] | None, str]]
"""Seconds that pass, what is there then, and what is known of the flow."""


@pytest.mark.parametrize(
    "story",
    [
        pytest.param([(0, NOTHING, NONE), (0, WHOLE, KNOWN)], id="a flow that begins"),
        pytest.param([(0, NOTHING, NONE), (0, PART, NOT_YET), (60, WHOLE, KNOWN)], id="written again"),
        pytest.param([(0, PART, NOT_YET), (119, MORE, NOT_YET), (119, WHOLE, KNOWN)], id="and slowly"),
        pytest.param([(0, PART, NOT_YET), (0, NOTHING, NOT_YET), (0, WHOLE, KNOWN)], id="from the start"),
        pytest.param([(0, PART, NOT_YET), (0, GONE, NOT_YET), (9, PART, NOT_YET)], id="deleted once more"),
        pytest.param([(0, PART, NOT_YET), (119, PART, NOT_YET), (1, PART, NONE)], id="given up"),
        pytest.param([(0, PART, NOT_YET), (0, GONE, NOT_YET), (120, GONE, NONE)], id="deleted by hand"),
        pytest.param([(0, PART, NOT_YET), (120, PART, NONE), (9, MORE, NOT_YET)], id="taken up"),
    ],
)
async def test_a_part_is_waited_for_as_long_as_there_is_news_of_it(
    monkeypatch: pytest.MonkeyPatch, story: Story
) -> None:
    """
    The flow's own record comes last. For what a mirror has left that died before it, nobody waits for ever.
    """
    site = Site(monkeypatch)

    assert await told(site, story) == [known for _, _, known in story]


@pytest.mark.parametrize(
    "story",
    [
        pytest.param([(0, NOTHING, KNOWN), (9, PART, KNOWN), (9, WHOLE, KNOWN)], id="made again"),
        pytest.param([(0, GONE, KNOWN), (119, PART, KNOWN), (119, MORE, KNOWN)], id="slowly"),
        pytest.param([(0, GONE, KNOWN), (119, GONE, KNOWN), (1, GONE, NONE)], id="deleted for good"),
        pytest.param([(0, NOTHING, KNOWN), (120, NOTHING, NONE)], id="never written again"),
        pytest.param([(0, PART, KNOWN), (119, PART, KNOWN), (1, PART, NONE)], id="never written to its end"),
    ],
)
async def test_a_flow_that_was_known_is_known_as_long_as_there_is_news_of_it(
    monkeypatch: pytest.MonkeyPatch, story: Story
) -> None:
    """
    That its state topic was deleted is news, too, though the flow was copying for days before.
    """
    site = Site(monkeypatch)
    site.write(WHOLE)
    before = await site.look()
    site.clock.now += DAY

    assert before == KNOWN
    assert await told(site, story) == [known for _, _, known in story]
    assert site.said == []


@pytest.mark.parametrize(
    ("ago_seconds", "first", "later"),
    [
        (DAY, NONE, NONE),
        (120, NONE, NONE),
        (119, NOT_YET, NONE),
        (0, NOT_YET, NOT_YET),
        (-DAY, NOT_YET, NOT_YET),
    ],
)
async def test_what_was_left_long_ago_holds_nothing_up(
    monkeypatch: pytest.MonkeyPatch, ago_seconds: float, first: str, later: str
) -> None:
    """
    Who starts, for a single copy perhaps, does not see how long nothing has come of it. A clock that is
    behind makes it wait, and no longer than one who has looked on.
    """
    site = Site(monkeypatch)
    site.write(PART, ago_seconds)

    found = [await site.look()]
    for seconds in (60, 60):
        site.clock.now += seconds
        found.append(await site.look())

    assert found == [first, later, NONE]


async def test_a_state_that_was_made_again_unseen_is_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    With the same part in it as before. And no clock is asked how long ago that was, once something was seen.
    """
    site = Site(monkeypatch)
    site.write(PART)
    found = [await site.look()]

    for seconds, items, ago_seconds in ((119, PART, 0.0), (119, MORE, DAY), (119, MORE, DAY), (1, MORE, DAY)):
        site.clock.now += seconds
        if items is PART:
            site.write(GONE)
        site.write(items, ago_seconds)
        found.append(await site.look())

    assert found == [NOT_YET, NOT_YET, NOT_YET, NOT_YET, NONE]


async def test_a_flow_that_is_no_concern_of_ours_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    Whatever becomes of its state.
    """
    site = Site(monkeypatch)
    site.relevant = False

    assert await told(site, [(0, WHOLE, NONE), (9, GONE, NONE), (9, GONE, NONE)]) == [NONE, NONE, NONE]


async def test_that_a_state_is_not_whole_is_said_and_until_when_it_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    site = Site(monkeypatch)
    site.write(PART)

    await site.look()

    assert site.flows.unanswered is not None
    assert site.flows.unanswered.retriable
    assert site.said == [str(site.flows.unanswered)]
    assert "the state of flow old is incomplete" in site.said[0]
    assert "until nothing new of it has come for 120 s" in site.said[0]


async def told(site: Site, story: Story) -> list[str]:
    """What is known in each step of a story."""
    found = []
    for seconds, items, _ in story:
        site.clock.now += seconds
        if items is not site.items:
            site.write(items)
        found.append(await site.look())
    return found
