"""Append what is no copy: the records with which a repair puts right what a compacted topic says.

Such a batch is a conditional append like any other. Its sequence continues the log that was looked at when it
was written down (:class:`checkpoint.model.Insertion`): it is appended there, or never, however often and by
whomever it is sent. So a repair may end at any moment, and whoever looks at the partition next brings it to
its end.

Sources: KIP-98 (sequences), docs/design.md.
"""

from __future__ import annotations

from dataclasses import dataclass

from checkpoint.model import Insertion
from mirror.failpoints import reach
from mirror.flow.context import Flow
from mirror.flow.encode import DECODED_BYTES_MAX, decode
from mirror.flow.reading import read_records
from mirror.kafka.append import PRODUCE, PRODUCE_VERSION_MAX, Outcome, decode_answer, encode_request
from mirror.kafka.cluster import broker_error
from mirror.kafka.record_batch import walk
from mirror.model import TopicPartition

TIMEOUT_MS = 30_000
OVERTAKEN = frozenset({45, 46, 59})
"""OUT_OF_ORDER_SEQUENCE_NUMBER, DUPLICATE_SEQUENCE_NUMBER, UNKNOWN_PRODUCER_ID: the log has gone on."""


@dataclass(frozen=True, slots=True)
class Appended:
    """What has become of an insertion.

    Attributes:
        at: The target offset at which it stands; None when it never will.
        refusal: Why the broker will not have it; empty when the log has gone on meanwhile.
    """

    at: int | None
    refusal: str = ""


async def insert(flow: Flow, target: TopicPartition, insertion: Insertion) -> Appended:
    """Append the batch if it does not stand yet, and see that it does.

    An answer alone does not say so: to the broker a batch with the same sequences is the same batch,
    whatever is in it. What stands there is read.

    Raises:
        TwinsiteError: It is not known what has become of it; it may stand.
    """
    outcome = await _send(flow, target, insertion)
    error = broker_error(outcome.error_code, f"append to {target}", outcome.message)
    if outcome.error_code and error.retriable and outcome.error_code not in OVERTAKEN:
        raise error
    at = insertion.target_offset if outcome.error_code else outcome.base_offset
    stands = await _stands(flow, target, insertion, at)
    if stands is None:  # compacted since
        stands = not outcome.error_code
    if stands:
        return Appended(at)
    refused = outcome.error_code and outcome.error_code not in OVERTAKEN
    return Appended(None, str(error) if refused else "")


async def _send(flow: Flow, target: TopicPartition, insertion: Insertion) -> Outcome:
    info = flow.target.info.partition(target)
    connection = await flow.target.connection(info.leader if info else -1, "insert")
    version = connection.version(PRODUCE, PRODUCE_VERSION_MAX, "Produce")
    request = encode_request([(target, memoryview(insertion.batch))], TIMEOUT_MS)
    answer = decode_answer(await connection.send(PRODUCE, version, request))
    reach("insertion_sent")
    return answer[target]


async def _stands(flow: Flow, target: TopicPartition, insertion: Insertion, at: int) -> bool | None:
    """Whether its records are the ones at a target offset; None when none are there."""
    ours, _ = decode(*next(walk(memoryview(insertion.batch))), DECODED_BYTES_MAX)
    tails = [record.tail for record in ours]
    end = at + insertion.records
    there = [record async for record in read_records(flow.target, target, at, end)]
    return all(record.tail == tails[record.offset - at] for record in there) if there else None
