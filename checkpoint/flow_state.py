"""The durable state of one flow: loaded once, asked in memory, written through.

What is in memory is what was durable last: it changes only after a put has
succeeded. Puts of one process follow each other; another process's puts are seen
after :meth:`FlowState.load`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence

from checkpoint.map_chunk import changed_chunks, decode_map
from checkpoint.model import FLOW_KEY, FlowRecord, PartitionRecord, map_key, parse_map_key
from checkpoint.offset_map import OffsetMap, Run
from checkpoint.store import StateStore

Partition = tuple[str, int]
"""Source topic and partition number."""


class FlowState:
    """Everything a flow remembers. Call :meth:`load` first."""

    def __init__(self, store: StateStore) -> None:
        self.flow: FlowRecord | None = None
        self._store = store
        self._partitions: dict[Partition, PartitionRecord] = {}
        self._maps: dict[Partition, OffsetMap] = {}
        self._writing = asyncio.Lock()

    async def load(self) -> None:
        """Read everything, also what another process has written.

        Raises:
            CorruptStateError: What is stored cannot be trusted; memory is as it was.
            StateUnavailableError: It cannot be read just now; memory is as it was.
        """
        async with self._writing:
            items = await self._store.load()
            flow = FlowRecord.from_bytes(items[FLOW_KEY]) if FLOW_KEY in items else None
            records = [PartitionRecord.from_bytes(v) for k, v in items.items() if k.startswith("partition/")]
            maps = _maps({key: value for key, value in items.items() if key.startswith("map/")})
            self.flow = flow
            self._partitions = {(record.topic, record.partition): record for record in records}
            self._maps = maps

    def partition(self, topic: str, partition: int) -> PartitionRecord | None:
        """What is remembered of a partition."""
        return self._partitions.get((topic, partition))

    def map(self, topic: str, partition: int) -> OffsetMap:
        """The offset map of a partition, empty where there is none. To be read, not to be changed."""
        return self._maps.get((topic, partition)) or OffsetMap()

    async def save_flow(self, record: FlowRecord) -> None:
        """Write the flow's own record."""
        async with self._writing:
            await self._store.put({FLOW_KEY: record.to_bytes()})
            self.flow = record

    async def save_partitions(self, records: Iterable[PartitionRecord]) -> None:
        """Write the records of some partitions, in one put."""
        records = list(records)
        async with self._writing:
            await self._store.put({record.key: record.to_bytes() for record in records})
            self._partitions.update({(record.topic, record.partition): record for record in records})

    async def extend_maps(
        self, runs: Mapping[Partition, Sequence[Run]], *, drop_ahead_of: Mapping[Partition, int] | None = None
    ) -> None:
        """Add runs to the maps of some partitions, in one put.

        Args:
            drop_ahead_of: Target log ends beyond which runs were written ahead and never reached.

        Raises:
            ValueError: A run cannot be added; nothing was written.
        """
        ends = drop_ahead_of or {}
        async with self._writing:
            items: dict[str, bytes | None] = {}
            for where in {**runs, **ends}:
                before = self._maps.get(where, OffsetMap())
                changes = changed_chunks(before, runs.get(where, ()), drop_ahead_of=ends.get(where))
                items.update({map_key(*where, number): None for number in changes.gone})
                items.update({map_key(*where, number): data for number, data in changes.written.items()})
            if items:
                await self._store.put(items)
            for where in {**runs, **ends}:
                whole = self._maps.setdefault(where, OffsetMap())
                if where in ends:
                    whole.drop_ahead(ends[where])
                whole.extend(runs.get(where, ()))

    async def close(self) -> None:
        """Let go of the store."""
        await self._store.close()


def _maps(items: Mapping[str, bytes]) -> dict[Partition, OffsetMap]:
    chunks: dict[Partition, dict[int, bytes]] = {}
    for key, value in items.items():
        topic, partition, number = parse_map_key(key)
        chunks.setdefault((topic, partition), {})[number] = value
    return {where: decode_map(numbered) for where, numbered in chunks.items()}
