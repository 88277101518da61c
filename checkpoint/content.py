"""All that is stored of a flow, decoded. Pure: no I/O.

What has not changed since the last read is not decoded again, so a load costs only as much as has changed.
Decoding long maps still takes seconds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

from checkpoint.errors import CorruptStateError
from checkpoint.map_chunk import CHUNK_RUNS, decode_map, from_chunk
from checkpoint.model import (
    FLOW_KEY,
    INSERTION_PREFIX,
    OWNER_KEY,
    PARTITION_PREFIX,
    FlowRecord,
    Insertion,
    OwnerRecord,
    PartitionRecord,
    map_key,
    parse_insertion_key,
    parse_map_key,
)
from checkpoint.offset_map import OffsetMap
from mirror.model import OffsetMode, TopicPartition


class Content(NamedTuple):
    """All that is stored, decoded."""

    flow: FlowRecord | None
    owner: OwnerRecord | None
    partitions: dict[TopicPartition, PartitionRecord]
    maps: dict[TopicPartition, OffsetMap]
    insertions: dict[TopicPartition, Insertion]

    def join_maps(self) -> None:
        """Set in each map where its partition begins.

        Raises:
            CorruptStateError: A ``mapped`` partition has no offset map; nothing was changed.
        """
        mapped = {tp: record for tp, record in self.partitions.items() if record.mode is OffsetMode.MAPPED}
        for tp in mapped:
            if tp not in self.maps:
                raise CorruptStateError(f"{tp}: its offsets are mapped, but it has no offset map")
        for tp, record in mapped.items():
            self.maps[tp].begins_at = None if self.maps[tp].forgotten else record.start_offset


def decode(
    items: Mapping[str, bytes],
    before: Mapping[str, bytes],
    partitions: Mapping[TopicPartition, PartitionRecord],
    maps: Mapping[TopicPartition, OffsetMap],
) -> Content:
    """Decode what is stored. The arguments are left as they are.

    Args:
        items: What was read now.
        before: What was read before.
        partitions, maps: What ``before`` was decoded into; objects that have not changed are used again.

    Raises:
        CorruptStateError: What is stored cannot be trusted.
    """
    chunks: dict[TopicPartition, dict[int, bytes]] = defaultdict(dict)
    known = {record.key: record for record in partitions.values()}
    records: list[PartitionRecord] = []
    insertions: dict[TopicPartition, Insertion] = {}
    flow = FlowRecord.from_bytes(items[FLOW_KEY]) if FLOW_KEY in items else None
    owner = OwnerRecord.from_bytes(items[OWNER_KEY]) if OWNER_KEY in items else None
    for key, value in items.items():
        if key in {FLOW_KEY, OWNER_KEY}:
            continue
        if key.startswith(PARTITION_PREFIX):
            unchanged = before.get(key) == value
            records.append(known[key] if unchanged else _partition_record(key, value))
        elif key.startswith(INSERTION_PREFIX):
            insertions[TopicPartition(*parse_insertion_key(key))] = Insertion.from_bytes(value)
        else:
            topic, partition, chunk = parse_map_key(key)
            chunks[TopicPartition(topic, partition)][chunk] = value
    decoded = {tp: _decode_map(tp, numbered, before, maps.get(tp)) for tp, numbered in chunks.items()}
    return Content(flow, owner, {record.tp: record for record in records}, decoded, insertions)


def _decode_map(
    tp: TopicPartition, chunks: dict[int, bytes], before: Mapping[str, bytes], offsets: OffsetMap | None
) -> OffsetMap:
    """The known map if it has not changed; else another one, for which only changed chunks are decoded."""
    first, same = min(chunks), 0
    known = from_chunk(offsets, first)
    while known and before.get(map_key(*tp, first + same)) == chunks.get(first + same, b""):
        same += 1
    if known is not None and same == len(chunks) and len(known) <= same * CHUNK_RUNS:
        return known
    try:
        return decode_map(chunks, known, same=same)
    except CorruptStateError as error:
        raise CorruptStateError(f"{tp}: {error}") from error


def _partition_record(key: str, value: bytes) -> PartitionRecord:
    try:
        record = PartitionRecord.from_bytes(value)
    except CorruptStateError as error:
        raise CorruptStateError(f"{key}: {error}") from error
    if record.key != key:
        raise CorruptStateError(f"{key} holds the record of {record.key}")
    return record
