"""Control markers at one broker: to which partitions they are sent, and what is known of them then."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mirror.errors import BrokerError
from mirror.flow import marking
from mirror.flow.context import Flow
from mirror.flow.marking import mark
from mirror.flow.partition import PartitionCopy
from mirror.flow.position import Proceed
from mirror.kafka.offsets import Marking
from mirror.model import Gap, OffsetMode, TopicPartition
from tests.unit.target_model import Hooks, source_batch

NOW = 1_000.0


def with_a_gap(number: int, offsets: int, *, in_front: int = 0) -> PartitionCopy:
    """A partition whose gap is next, behind so many records that are on their way."""
    tp = TopicPartition("orders", number)
    copy = PartitionCopy(tp, tp, b"t" * 16, in_flight_max=5)
    copy.proceed(Proceed(0, 0, 0, 3, 0), OffsetMode.SAME, -1, NOW)
    if in_front:
        copy.queue.push([source_batch(0, in_front)], (), None)
        copy.take()
    copy.queue.push([Gap(in_front, in_front + offsets)], (), None)
    return copy


class Target:
    """A broker that appends markers to empty logs.

    Attributes:
        ends: Where logs end.
        markings: What it was asked to append.
        loses: Of each request to a partition, so many.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ends: dict[TopicPartition, int] = {}
        self.markings: list[Mapping[TopicPartition, Marking]] = []
        self.loses: dict[TopicPartition, int] = {}
        for name in ("write_markers", "list_offsets"):
            monkeypatch.setattr(marking, name, getattr(self, name))

    async def write_markers(
        self, _connection: object, markings: Mapping[TopicPartition, Marking], **_: object
    ) -> dict[TopicPartition, BrokerError | None]:
        self.markings.append(markings)
        for tp, one in markings.items():
            self.ends[tp] = self.ends.get(tp, 0) + one.count - self.loses.get(tp, 0)
        return dict.fromkeys(markings)

    async def list_offsets(
        self, _cluster: object, tps: Collection[TopicPartition], *_: object, **__: object
    ) -> dict[TopicPartition, int]:
        return {tp: self.ends[tp] for tp in tps}

    async def mark(self, *partitions: PartitionCopy) -> Any:
        flow = SimpleNamespace(
            producer_id=4711, producer_epoch=0, target=None, room=asyncio.Event(), hooks=Hooks()
        )
        return await mark(cast(Flow, flow), cast(Any, None), 1, partitions, 0)


async def test_a_gap_is_filled_with_as_many_markers(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Of all partitions that wait for them, in one request.
    """
    target = Target(monkeypatch)
    several, single = with_a_gap(0, 7), with_a_gap(1, 1)

    found = await target.mark(several, single)

    assert found == {several.tp: 7, single.tp: 1}
    assert [{tp: one.count for tp, one in asked.items()} for asked in target.markings] == [found]
    assert [copy.markers_under_way for copy in (several, single)] == [False, False]


async def test_no_marker_is_sent_to_a_partition_of_which_something_is_on_its_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    It would land in front of that, at whatever offset the log ends.
    """
    target = Target(monkeypatch)
    waits, free = with_a_gap(0, 7, in_front=3), with_a_gap(1, 2)

    found = await target.mark(waits, free)

    assert found == {free.tp: 2}
    assert set(target.markings[0]) == {free.tp}
    assert not waits.markers_under_way


async def test_a_partition_whose_log_does_not_end_behind_its_markers_is_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    Nobody is told that they were appended: what follows would have the wrong offsets.
    """
    target = Target(monkeypatch)
    short, whole = with_a_gap(0, 7), with_a_gap(1, 5)
    target.loses[short.tp] = 1

    found = await target.mark(short, whole)

    assert found == {whole.tp: 5}
    assert (short.look_due_at is not None, whole.look_due_at) == (True, None)
