"""Read what a partition holds at given offsets, outside any fetch session. Not for the hot path.

Sources: KIP-74 (an answer holds at least one whole batch), docs/design.md.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection

from mirror.errors import ConnectionFailedError
from mirror.flow.encode import DECODED_BYTES_MAX, decode
from mirror.flow.records import Record
from mirror.kafka.cluster import Cluster
from mirror.kafka.failures import broker_error
from mirror.kafka.fetch import Want
from mirror.kafka.peek import peek_at
from mirror.kafka.record_batch import CONTROL, MAGIC_V2, BatchHeader, walk
from mirror.model import TopicPartition

RANGE_BYTES, FEW_BYTES = 1 << 20, 64 << 10
"""Asked for at once: when a whole range is read, and when only a few records are."""
Batches = list[tuple[BatchHeader, memoryview]]


async def read_batches(
    cluster: Cluster, tp: TopicPartition, start: int, end: int
) -> AsyncIterator[tuple[BatchHeader, memoryview]]:
    """The batches that hold offsets ``[start, end)``, in order; nothing for offsets that were compacted away.

    Raises:
        BrokerError: The broker refuses; also if the log begins after ``start``.
        ConnectionFailedError: The broker does not answer, or the log ends before ``end`` just now.
        BatchError: A batch of an old format cannot be read.
    """
    at = start
    while at < end:
        batches = await _batches_at(cluster, tp, at, RANGE_BYTES)
        for header, view in batches:
            if header.base_offset < end:
                yield header, view
        if not batches:
            raise ConnectionFailedError(f"{cluster.name}: {tp} currently ends before offset {end}")
        at = _next_offset(*batches[-1])


async def read_records(cluster: Cluster, tp: TopicPartition, start: int, end: int) -> AsyncIterator[Record]:
    """The records of offsets ``[start, end)``, committed or not; without control records.

    Raises:
        BatchError: A batch cannot be read.
        TwinsiteError: As :func:`read_batches`.
    """
    async for header, view in read_batches(cluster, tp, start, end):
        for record in _records(header, view):
            if start <= record.offset < end:
                yield record


async def read_some(cluster: Cluster, tp: TopicPartition, offsets: Collection[int]) -> dict[int, Record]:
    """The records at these offsets, by offset; an offset without a record is left out.

    Raises:
        TwinsiteError: As :func:`read_records`.
    """
    found: dict[int, Record] = {}
    left = sorted(offsets, reverse=True)
    while left:
        batches = await _batches_at(cluster, tp, left[-1], FEW_BYTES)
        for header, view in batches:
            next_offset = _next_offset(header, view)
            wanted = set()
            while left and left[-1] < next_offset:
                wanted.add(left.pop())
            if wanted:
                found.update({one.offset: one for one in _records(header, view) if one.offset in wanted})
        if not batches:
            break
    return found


async def _batches_at(cluster: Cluster, tp: TopicPartition, offset: int, bytes_max: int) -> Batches:
    """The batch that holds an offset, or the next one, and some batches after it; none at the log's end.

    Raises:
        BrokerError: The broker refuses.
        ConnectionFailedError: It does not answer, or its answer holds no batch from that offset on.
    """
    want = Want(offset, -1, -1, bytes_max)
    fetched = (await peek_at(cluster, cluster.info.leader(tp), {tp: want})).get(tp)
    if fetched is None:
        return []
    if fetched.error_code:
        raise broker_error(fetched.error_code, f"{cluster.name}: Fetch of {tp} from offset {offset}")
    found = [one for one in walk(fetched.records) if offset < _next_offset(*one)]
    if not found:
        raise ConnectionFailedError(f"{cluster.name}: {tp} cannot be read from offset {offset} on")
    return found


def _next_offset(header: BatchHeader, view: memoryview) -> int:
    if header.magic == MAGIC_V2:
        return header.next_offset
    return decode(header, view, DECODED_BYTES_MAX)[0][-1].offset + 1


def _records(header: BatchHeader, view: memoryview) -> list[Record]:
    control = header.magic == MAGIC_V2 and header.attributes & CONTROL
    return [] if control else decode(header, view, DECODED_BYTES_MAX)[0]
