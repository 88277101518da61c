"""A source that is a copy itself, and not ready yet: when a topic of it is begun."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

import mirror.sync.source_topics
from mirror.kafka.fetch import Fetched, Want
from mirror.kafka.offsets import EARLIEST, Answers
from mirror.kafka.record_batch import null_batch
from mirror.model import Reason, TopicPartition
from mirror.sync import preparing
from mirror.sync.preparing import PREPARING_CONFIGS
from mirror.sync.topics import Conflict
from tests.unit.batches import entries, v2
from tests.unit.target_side import Cluster, Side, a_topic


class Logs:
    """What the partitions of the source begin with, for who has to look."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, side: Side) -> None:
        self.side = side
        self.starts: dict[TopicPartition, int] = {}
        self.batches: dict[TopicPartition, memoryview] = {}
        self.peeks = 0
        self.hangs = False
        monkeypatch.setattr(preparing, "list_offsets", self.list_offsets)
        monkeypatch.setattr(preparing, "peek_at", self.peek_at)

    def hold(self, number: int, batch: memoryview | None, *, start: int = 0, end: int = 0) -> None:
        tp = TopicPartition("orders", number)
        self.starts[tp], self.side.source.ends[tp] = start, end
        if batch is not None:
            self.batches[tp] = batch

    async def list_offsets(self, _: object, tps: Collection[TopicPartition], timestamp: int) -> Answers[int]:
        if self.hangs:
            await asyncio.Event().wait()
        known = self.starts if timestamp == EARLIEST else self.side.source.ends
        return {tp: known[tp] for tp in tps}

    async def peek_at(
        self, _: object, _node: int, wants: Mapping[TopicPartition, Want]
    ) -> dict[TopicPartition, Fetched]:
        """One partition an answer, as where batches are large."""
        self.peeks += 1
        tp = next(iter(wants))
        return {tp: cast(Any, SimpleNamespace(error_code=0, records=self.batches[tp]))}


RECORDS = v2(entries(0, 3))
PADDING = null_batch(1000, timestamp_ms=0)


@pytest.fixture
def chain(monkeypatch: pytest.MonkeyPatch) -> tuple[Side, Logs]:
    """The source topic has two partitions, and has just been made by a flow that copies into it."""
    side = Side(Cluster("source", orders=PREPARING_CONFIGS), Cluster("target"), sync_configs=False)
    side.source.topics["orders"] = a_topic("orders", 2)
    logs = Logs(monkeypatch, side)
    logs.hold(0, None)
    logs.hold(1, None)
    return side, logs


async def test_a_topic_that_another_flow_makes_ready_is_begun_once_it_is(chain: tuple[Side, Logs]) -> None:
    """
    The copy gets the settings that the topic has by then. Nothing of padding is copied.
    """
    side, logs = chain

    def stopped(conflicts: Mapping[str, Conflict]) -> list[tuple[str, Reason, int]]:
        return [(name, one.reason, one.first_partition) for name, one in conflicts.items()]

    waiting = [("orders", Reason.SOURCE_BEING_PREPARED, 0)]
    fresh = stopped(await side.topics.bring_up(side.source.topics))
    logs.hold(0, PADDING, end=1000)
    padded = stopped(await side.topics.bring_up(side.source.topics))
    unasked = logs.peeks
    logs.hold(1, RECORDS, end=1)
    beside = stopped(await side.topics.bring_up(side.source.topics))
    logs.hold(0, None, start=1000, end=1000)
    logs.hold(1, None)
    half = (await side.topics.bring_up(side.source.topics))["orders"]
    made_early = dict(side.target.topics)
    logs.hold(1, RECORDS, end=1)
    side.source.configs["orders"] = {"delete.retention.ms": "7"}
    ready = stopped(await side.topics.bring_up(side.source.topics))

    assert fresh == padded == beside == waiting
    assert unasked == 0, "a partition that was never written to says enough"
    assert "partition 1 was never written to, or begins with padding" in half.detail
    assert (made_early, ready) == ({}, [])
    assert side.target.configs["orders"]["delete.retention.ms"] == "7"


async def test_a_topic_that_cannot_be_seen_to_be_ready_does_not_hold_up_a_pass(
    chain: tuple[Side, Logs], monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    It is not ready, and looked at again at the next one.
    """
    side, logs = chain
    monkeypatch.setattr(mirror.sync.source_topics, "STARTS_SECONDS", 0.05)
    logs.hold(0, RECORDS, end=1)
    logs.hold(1, RECORDS, end=1)
    logs.hangs = True

    late = await asyncio.wait_for(side.topics.bring_up(side.source.topics), 5)
    logs.hangs = False
    ready = await side.topics.bring_up(side.source.topics)

    assert [one.reason for one in late.values()] == [Reason.SOURCE_BEING_PREPARED]
    assert ready == {}


async def test_a_topic_that_keeps_such_settings_is_copied(chain: tuple[Side, Logs]) -> None:
    """
    Where nobody may take them back, or somebody has set them: as soon as every partition was written to.
    """
    side, logs = chain
    logs.hold(0, RECORDS, end=1)
    logs.hold(1, RECORDS, start=7, end=8)

    conflicts = await side.topics.bring_up(side.source.topics)

    assert (conflicts, logs.peeks) == ({}, 2)
    assert "orders" in side.target.topics


async def test_a_copy_that_was_begun_waits_for_no_settings(chain: tuple[Side, Logs]) -> None:
    """
    What is copied already goes on, whatever its source is set to since.
    """
    side, logs = chain
    side.begin()

    assert await side.topics.bring_up(side.source.topics) == {}
    assert logs.peeks == 0
