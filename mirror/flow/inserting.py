"""Append what is no copy: the records with which a repair corrects a compacted topic.

Such a batch begins a producer epoch of its partition's own. Once it is appended, the broker refuses writers
that have not heard of it, so nothing that does not take it into account can follow it; and its epoch
identifies it wherever it stands. The whole batch is in the flow's state before it is sent: a repair may end
at any moment, and the next look at the partition completes it.

It is appended wherever the log then ends. What was appended in between is read afterwards: what others have
written is no copy either, and a key that the mirror has written meanwhile gets its newer record again.

Sources: KIP-98 (epochs and sequences), docs/decisions/0009-repairs-begin-a-producer-epoch.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import structlog

from checkpoint.insertions import Inserted
from checkpoint.model import Insertion
from mirror.errors import ConnectionFailedError, PartitionError
from mirror.failpoints import reach
from mirror.flow.context import Flow
from mirror.flow.encode import DECODED_BYTES_MAX, decode, encode
from mirror.flow.reading import read_batches, read_records
from mirror.flow.records import Record, key_of
from mirror.flow.states import OF_RECORDS
from mirror.kafka.append import PRODUCE, PRODUCE_VERSION_MAX, Outcome, decode_answer, encode_request
from mirror.kafka.codecs import NONE
from mirror.kafka.failures import broker_error
from mirror.kafka.offsets import EARLIEST, LATEST, ProducerState, describe_producer, list_offsets
from mirror.kafka.record_batch import MAGIC_V2, BatchHeader, seal, walk
from mirror.model import Reason, TopicPartition

log = structlog.get_logger(__name__)

TIMEOUT_MS = 30_000
PRODUCER_EPOCH_MAX = 32_000
"""Of a partition; the field ends at 32 767 (KIP-98), and promoting the target takes one more."""


class InsertionMemory(Protocol):
    """The flow's durable state as insertions need it."""

    async def begin_insertion(self, tp: TopicPartition, insertion: Insertion) -> None:
        """Write down what is about to be appended."""

    async def end_insertion(
        self,
        tp: TopicPartition,
        insertion: Insertion,
        stands: Sequence[Inserted],
        following: Insertion | None = None,
    ) -> None:
        """Note the target offsets that are no copies, including those at which the insertion stands.

        Args:
            stands: Those offsets; empty when the insertion never will stand.
            following: What is to be appended next.
        """


@dataclass(frozen=True, slots=True)
class Standing:
    """What has become of an insertion.

    Attributes:
        at: The target offset at which it stands; None when it never will.
        refusal: Why the broker refuses it for good.
        overtaken: Keys in it for which a newer record was written meanwhile; that record counts.
        again: What has become of those newer records, which were appended again after it.
    """

    at: int | None
    refusal: str = ""
    overtaken: frozenset[bytes] = frozenset()
    again: Standing | None = None


def insertion_of(
    records: Sequence[Record], producer_id: int, producer_epoch: int, target_offset: int
) -> Insertion:
    """Records as a batch that is about to be appended.

    Args:
        producer_epoch: With which the partition is written to until then; the batch begins the next one.
        target_offset: Where its log ends.
    """
    run = [record._replace(offset=number) for number, record in enumerate(records)]
    batch = encode(run, NONE).view
    seal(batch, producer_id, producer_epoch + 1, 0)
    return Insertion(target_offset, len(run), producer_epoch + 1, bytes(batch))


async def finish(
    flow: Flow, memory: InsertionMemory, tp: TopicPartition, target: TopicPartition, insertion: Insertion
) -> Standing:
    """Complete an insertion, whoever began it and however far it got.

    Raises:
        PartitionError: It was appended and is not there any more, or the log ends before where it was to
            stand.
        TwinsiteError: It is not known just now what has become of it; it may stand.
    """
    found = await _found(flow, target, insertion)
    if found is None:
        outcome = await _send(flow, target, insertion)
        if outcome.error_code:
            error = broker_error(outcome.error_code, f"append to {target}", outcome.message)
            if outcome.error_code not in OF_RECORDS:
                raise error
            await memory.end_insertion(tp, insertion, ())
            log.warning("insertion_refused", topic=target.topic, partition=target.partition, error=str(error))
            return Standing(None, str(error))
        found = outcome.base_offset
    foreign, newer = await _between(flow, target, insertion, found)
    stands = [*foreign, (found, found + insertion.records)]
    if newer:
        records, end = [*newer.values()], found + insertion.records
        again = insertion_of(records, flow.producer_id, insertion.producer_epoch, end)
        await memory.end_insertion(tp, insertion, stands, again)
        standing = await finish(flow, memory, tp, target, again)
    else:
        await memory.end_insertion(tp, insertion, stands)
        standing = None
    log.info("inserted", topic=target.topic, partition=target.partition, target_offsets=stands)
    return Standing(found, overtaken=frozenset(newer), again=standing)


async def _found(flow: Flow, target: TopicPartition, insertion: Insertion) -> int | None:
    """Where the insertion already stands; None when it does not."""
    starts = await list_offsets(flow.target, [target], EARLIEST)
    ends = await list_offsets(flow.target, [target], LATEST)
    states = await describe_producer(flow.target, [target], flow.producer_id)
    start, end, state = starts[target], ends[target], states[target]
    for answer in (start, end, state):
        if isinstance(answer, Exception):
            raise answer
    assert isinstance(start, int)
    assert isinstance(end, int)
    first = max(start, insertion.target_offset)
    at = await stands_at(flow, target, insertion.producer_epoch, [(first, end)])
    if at is not None:
        return at
    stood = isinstance(state, ProducerState) and state.producer_epoch >= insertion.producer_epoch
    if stood or end < insertion.target_offset:
        raise PartitionError(
            target,
            f"what a repair appended at or after target offset {insertion.target_offset} is gone, and nobody "
            f"knows where it stood",
            reason=Reason.TARGET_TRUNCATED,
        )
    return None


async def stands_at(
    flow: Flow, target: TopicPartition, producer_epoch: int, ranges: Iterable[Inserted]
) -> int | None:
    """Where in these target offsets the insertion that began a producer epoch stands; None if nowhere."""
    for start, end in ranges:
        async for header, _ in read_batches(flow.target, target, start, end):
            if _begins(header, flow.producer_id, producer_epoch):
                return header.base_offset
    return None


def _begins(header: BatchHeader, producer_id: int, producer_epoch: int) -> bool:
    ours = header.magic == MAGIC_V2 and header.producer_id == producer_id
    return ours and header.producer_epoch == producer_epoch and header.base_sequence == 0


async def _send(flow: Flow, target: TopicPartition, insertion: Insertion) -> Outcome:
    connection = await flow.writer(flow.target.info.leader(target), "insert")
    version = connection.version(PRODUCE, PRODUCE_VERSION_MAX, "Produce")
    request = encode_request([(target, memoryview(insertion.batch))], TIMEOUT_MS)
    outcome = decode_answer(await connection.send(PRODUCE, version, request)).get(target)
    reach("insertion_sent")
    if outcome is None:
        raise ConnectionFailedError(f"the answer to an append to {target} omits the partition")
    return outcome


async def _between(
    flow: Flow, target: TopicPartition, insertion: Insertion, at: int
) -> tuple[list[Inserted], dict[bytes, Record]]:
    """What others appended between the look and the insertion, and newer records of its keys, by key."""
    batches = read_batches(flow.target, target, insertion.target_offset, at)
    foreign = [
        (header.base_offset, header.next_offset)
        async for header, _ in batches
        if header.producer_id != flow.producer_id
    ]
    ours, _ = decode(*next(walk(memoryview(insertion.batch))), DECODED_BYTES_MAX)
    keys = {key_of(record) for record in ours}
    newer = {
        key: record
        async for record in read_records(flow.target, target, insertion.target_offset, at)
        if (key := key_of(record)) is not None and key in keys
    }
    return foreign, newer
