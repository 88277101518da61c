"""The state of a flow of two partitions, over a store that breaks where it is told to."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from checkpoint.errors import StateUnavailableError
from checkpoint.flow_state import FlowState
from checkpoint.model import FlowRecord, OwnerRecord, PartitionRecord
from checkpoint.store import apply
from mirror.model import OffsetMode, TopicPartition
from tests.harness.memory_store import MemoryStore

ORDERS_0 = TopicPartition("orders", 0)
ORDERS_1 = TopicPartition("orders", 1)
FLOW = FlowRecord(4000, 2, "source-id", "target-id", 1_700_000_000_000)
OWNER = OwnerRecord(5, "west-3", 4711, "http://west-3:9640", 1_700_000_000_000)


def record(tp: TopicPartition = ORDERS_0, mode: OffsetMode = OffsetMode.MAPPED) -> PartitionRecord:
    return PartitionRecord(
        topic=tp.topic,
        partition=tp.partition,
        topic_id="8c9ad3c1-0000-0000-0000-000000000001",
        target_topic="orders",
        mode=mode,
        prepared=True,
        start_offset=100,
        target_start_offset=0,
    )


class BreakingStore(MemoryStore):
    """A store that writes a few more items and then fails, leaving what it has written.

    Attributes:
        items_left: So many items are written; None: as many as there are.
    """

    def __init__(self, items: dict[str, bytes] | None = None) -> None:
        self.items = {} if items is None else items
        super().__init__(self.items)
        self.items_left: int | None = None
        self.puts = 0

    async def put(self, items: Mapping[str, bytes | None]) -> None:
        self.puts += 1
        for key, value in items.items():
            await asyncio.sleep(0)
            if self.items_left == 0:
                raise StateUnavailableError("the broker is gone")
            apply(self.items, key, value)
            if self.items_left is not None:
                self.items_left -= 1


async def begun(store: MemoryStore) -> FlowState:
    state = FlowState(store)
    await state.load()
    await state.begin(record(), [(100, 0)])
    return state


def runs(state: FlowState, tp: TopicPartition = ORDERS_0) -> list[tuple[int, int]]:
    offsets = state.map(tp)
    assert offsets is not None
    return list(offsets)
