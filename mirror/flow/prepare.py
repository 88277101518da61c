"""Make an empty target partition start at a given offset.

Batches of null records are appended up to that offset; then DeleteRecords moves the start of the log there.
Each padding batch is a conditional append like any other, so two mirrors that prepare the same partition do
the work once.

Padding that cannot be deleted again would be visible to consumers, so the right to delete is tested before
the first padding record is written. Deleting would also remove what somebody else wrote in between, so every
batch is checked first.

Ten million offsets take a second or two: a batch holds a million records in some hundred kilobytes, and the
same bytes are sent each time.

Sources: KIP-107 (DeleteRecords), docs/design.md.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from mirror import broker_codes as codes
from mirror.errors import ConnectionFailedError, PartitionError, TwinsiteError
from mirror.failpoints import reach
from mirror.flow.context import Flow
from mirror.flow.position import SEQUENCES, Prepare
from mirror.flow.states import OF_RECORDS
from mirror.kafka.append import PRODUCE, PRODUCE_VERSION_MAX, decode_answer, encode_request
from mirror.kafka.connection import Connection
from mirror.kafka.failures import broker_error
from mirror.kafka.fetch import Want
from mirror.kafka.offsets import EARLIEST, delete_records, list_offsets
from mirror.kafka.peek import peek_at
from mirror.kafka.record_batch import null_batch, seal, walk
from mirror.model import Reason, TopicPartition

PADDING_RECORDS_MAX = 1_000_000
"""The most records in one padding batch; with zstd it stays well below any broker's batch limit."""
HEADERS_BYTES_MAX = 4 << 20
NO_PADDING = OF_RECORDS | {codes.UNSUPPORTED_COMPRESSION_TYPE}
"""Codes of a topic that takes no padding: it is compressed, and its records have no key."""
UNCERTAIN = frozenset(
    {codes.OUT_OF_ORDER_SEQUENCE_NUMBER, codes.DUPLICATE_SEQUENCE_NUMBER, codes.UNKNOWN_PRODUCER_ID}
)
"""Codes that say that the broker's memory of the producer has changed since the look: look again."""


class NotPreparableError(PartitionError):
    """The target refuses padding, or DeleteRecords, and the partition holds no padding yet.

    Attributes:
        target_log_end_offset: Where a mapped copy would begin in the partition as it is.
    """

    reason = Reason.PREPARATION_REFUSED

    def __init__(self, partition: TopicPartition, refusal: TwinsiteError, target_log_end_offset: int) -> None:
        super().__init__(partition, str(refusal), hint=refusal.hint)
        self.target_log_end_offset = target_log_end_offset


@dataclass(frozen=True, slots=True)
class _Spot:
    """Where the next padding batch goes."""

    offset: int
    sequence: int


async def prepare(flow: Flow, target: TopicPartition, decision: Prepare) -> None:
    """Pad the partition up to ``decision.start_offset`` and let its log start there.

    Raises:
        NotPreparableError: The broker refuses padding or DeleteRecords, and the partition holds no padding.
        PartitionError: The broker refuses, or somebody else has written there: see its reason.
        TwinsiteError: The broker cannot be reached, or cannot do it just now; look again, and go on from
            where the log then ends.
    """
    connection = await flow.writer(flow.target.info.leader(target), "prepare")
    await _try_to_delete(flow, target, decision.target_log_end_offset)
    spot = _Spot(decision.target_log_end_offset, decision.sequence)
    while spot.offset < decision.start_offset:
        spot = await _pad(flow, connection, target, spot, decision)
    reach("padded")
    await _expect_only_ours(flow, target, decision.target_log_start_offset, decision.start_offset)
    refusal = await _delete_below(flow, target, decision.start_offset)
    if refusal is not None:
        raise PartitionError(target, str(refusal), reason=Reason.PREPARATION_REFUSED, hint=refusal.hint)
    reach("trimmed")


async def _try_to_delete(flow: Flow, target: TopicPartition, end: int) -> None:
    """Test whether we may move the start of the log, by deleting up to offset 0.

    Raises:
        NotPreparableError: We may not, and the partition is empty.
        PartitionError: We may not, and the partition holds records.
        TwinsiteError: The broker cannot be asked, or cannot do it just now.
    """
    refusal = await _delete_below(flow, target, 0)
    if refusal is None:
        return
    start = (await list_offsets(flow.target, [target], EARLIEST))[target]
    if isinstance(start, TwinsiteError):
        raise start
    if start == end:
        raise NotPreparableError(target, refusal, end)
    raise PartitionError(target, str(refusal), reason=Reason.PREPARATION_REFUSED, hint=refusal.hint)


async def _delete_below(flow: Flow, target: TopicPartition, offset: int) -> TwinsiteError | None:
    """Let the log start at an offset; returns the broker's refusal, if it refuses for good.

    Raises:
        TwinsiteError: The broker cannot be asked, or cannot do it just now.
    """
    answer = (await delete_records(flow.target, {target: offset}))[target]
    if not isinstance(answer, TwinsiteError):
        return None
    if answer.retriable:
        raise answer
    return answer


async def _expect_only_ours(flow: Flow, target: TopicPartition, start: int, end: int) -> None:
    """Check by the batch headers that only this flow wrote between two target offsets.

    Raises:
        PartitionError: Another producer did.
        ConnectionFailedError: Part of it is not on all in-sync replicas yet.
        TwinsiteError: The broker cannot be asked, or refuses.
    """
    leader = flow.target.info.leader(target)
    while start < end:
        wants = {target: Want(start, -1, -1, HEADERS_BYTES_MAX)}
        fetched = (await peek_at(flow.target, leader, wants)).get(target)
        if fetched is None:
            raise ConnectionFailedError(f"{target}: offset {start} is not on all in-sync replicas yet")
        if fetched.error_code:
            raise broker_error(fetched.error_code, f"target: Fetch of the padding of {target}")
        for header, _ in walk(fetched.records):
            if header.base_offset < end and header.producer_id != flow.producer_id:
                raise PartitionError(
                    target,
                    f"target offset {header.base_offset}, in padding that is to be deleted, was written by "
                    f"producer id {header.producer_id}, this flow writes as {flow.producer_id}",
                    reason=Reason.FOREIGN_WRITE,
                )
            start = header.next_offset


async def _pad(
    flow: Flow, connection: Connection, target: TopicPartition, spot: _Spot, decision: Prepare
) -> _Spot:
    count = min(decision.start_offset - spot.offset, PADDING_RECORDS_MAX)
    view = null_batch(count, timestamp_ms=int(time.time() * 1000))
    seal(view, flow.producer_id, decision.producer_epoch, spot.sequence)
    version = connection.version(PRODUCE, PRODUCE_VERSION_MAX, "Produce")
    answer = decode_answer(await connection.send(PRODUCE, version, encode_request([(target, view)], 30_000)))
    reach("padding_sent")
    outcome = answer[target]
    if outcome.error_code:
        error = broker_error(outcome.error_code, f"padding of {target}", outcome.message)
        if error.retriable or outcome.error_code in UNCERTAIN:
            error.retriable = True
            raise error
        if outcome.error_code in NO_PADDING and spot.offset == decision.target_log_start_offset:
            raise NotPreparableError(target, error, spot.offset)
        raise PartitionError(target, str(error), reason=Reason.PREPARATION_REFUSED, hint=error.hint)
    if outcome.base_offset != spot.offset:
        raise PartitionError(
            target,
            f"padding for offset {spot.offset} landed at {outcome.base_offset}: something else writes there",
            reason=Reason.FOREIGN_WRITE,
        )
    return _Spot(spot.offset + count, (spot.sequence + count) % SEQUENCES)
