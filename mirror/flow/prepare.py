"""Make an empty target partition start at a given offset.

Batches of null records are appended up to that offset, then DeleteRecords moves
the start of the log there. Each padding batch is a conditional append like any
other, so two mirrors preparing the same partition do the work once.

Ten million offsets take a second or two: a batch holds a million records in some
hundred kilobytes, and the same bytes are sent each time.

Sources: KIP-107 (DeleteRecords), docs/design.md.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from mirror.errors import PartitionError, TwinsiteError
from mirror.failpoints import reach
from mirror.flow.context import Flow
from mirror.flow.position import SEQUENCES, Prepare
from mirror.kafka.append import PRODUCE, PRODUCE_VERSION_MAX, decode_answer, encode_request
from mirror.kafka.cluster import broker_error
from mirror.kafka.connection import Connection
from mirror.kafka.offsets import delete_records
from mirror.kafka.record_batch import null_batch, seal
from mirror.model import Reason, TopicPartition

PADDING_RECORDS_MAX = 1_000_000
"""Records of one padding batch; its zstd form stays well below any broker's batch limit."""


@dataclass(frozen=True, slots=True)
class _Spot:
    """Where the next padding batch goes."""

    offset: int
    sequence: int


async def prepare(flow: Flow, target: TopicPartition, decision: Prepare) -> None:
    """Pad the partition up to ``decision.start_offset`` and let its log start there.

    Raises:
        PartitionError: The broker refuses: see its reason.
        ConnectionFailedError: The broker is away; look again and go on from where the log then ends.
    """
    info = flow.target.info.partition(target)
    connection = await flow.target.connection(info.leader if info else -1, "prepare")
    spot = _Spot(decision.target_log_end_offset, decision.sequence)
    while spot.offset < decision.start_offset:
        spot = await _pad(flow, connection, target, spot, decision.start_offset - spot.offset)
    reach("padded")
    answer = (await delete_records(flow.target, {target: decision.start_offset}))[target]
    if isinstance(answer, TwinsiteError):
        raise PartitionError(target, str(answer), reason=Reason.PREPARATION_REFUSED, hint=answer.hint)
    reach("trimmed")


async def _pad(flow: Flow, connection: Connection, target: TopicPartition, spot: _Spot, left: int) -> _Spot:
    count = min(left, PADDING_RECORDS_MAX)
    view = null_batch(count, timestamp_ms=int(time.time() * 1000))
    seal(view, flow.producer_id, flow.producer_epoch, spot.sequence)
    version = connection.version(PRODUCE, PRODUCE_VERSION_MAX, "Produce")
    answer = decode_answer(await connection.send(PRODUCE, version, encode_request([(target, view)], 30_000)))
    reach("padding_sent")
    outcome = answer[target]
    if outcome.error_code:
        error = broker_error(outcome.error_code, f"padding of {target}", outcome.message)
        if error.retriable or outcome.error_code in {45, 46, 59}:
            error.retriable = True
            raise error
        raise PartitionError(target, str(error), reason=Reason.PREPARATION_REFUSED, hint=error.hint)
    if outcome.base_offset != spot.offset:
        raise PartitionError(
            target,
            f"padding for offset {spot.offset} landed at {outcome.base_offset}: something else writes there",
            reason=Reason.FOREIGN_WRITE,
        )
    return _Spot(spot.offset + count, (spot.sequence + count) % SEQUENCES)
