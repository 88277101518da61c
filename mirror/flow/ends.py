"""Whether the last record at the target is the one the source has at that place.

The log end gives the position only while every record is where it belongs. A broker that
had forgotten the producer appends a batch twice, a foreign record shifts what follows it,
a marker may arrive late: relying on the log end alone would then skip source records
silently. So before a partition goes on, its last batch is compared with the source's: by
count, time and CRC of the records. Where these are not the same, the last record is
compared with the source's.

What the source no longer has, by compaction or retention, cannot be compared and passes.

Sources: KIP-98 (idempotence and its limits), docs/design.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from crc32c import crc32c

from mirror.broker_codes import OFFSET_OUT_OF_RANGE
from mirror.errors import BatchError, TwinsiteError
from mirror.flow.context import Flow
from mirror.flow.encode import DECODED_BYTES_MAX, decode
from mirror.flow.facts import Known, Tail, TargetLook
from mirror.flow.intake import take
from mirror.flow.position import Stop, replaced
from mirror.flow.records import Record
from mirror.kafka.cluster import Cluster
from mirror.kafka.failures import broker_error
from mirror.kafka.fetch import Fetched, Want
from mirror.kafka.offsets import Answers, by_leader
from mirror.kafka.peek import AT_ONCE, peek_at
from mirror.kafka.record_batch import (
    CONTROL,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    MAGIC_V2,
    PREFIX_BYTES,
    BatchHeader,
    walk,
)
from mirror.link.loops import in_thread
from mirror.model import Batch, Reason, State, TopicPartition

PARTITION_BYTES_MAX = 1 << 20
ANY_SIZE = 1 << 31

_Holding = tuple[BatchHeader, memoryview]
"""The batch that may hold a given record."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class End:
    """The last record at the target, and where the source should have it.

    Attributes:
        epoch: The source's leader epoch of that record, as noted when it was copied; -1 when not known.
    """

    target: TopicPartition
    target_offset: int
    source_offset: int
    epoch: int
    tail: Tail


def end_of(known: Known, look: TargetLook, target: TopicPartition, epoch: int) -> End | None:
    """What to compare before the partition goes on; None when the target holds no record of ours to compare.

    Raises:
        UntranslatableError: It is not known where the source has that record; no partition goes on then.
    """
    last = known.insertions.copied_end(look.target_log_end_offset) - 1
    if look.tail is None or last < known.target_start_offset:
        return None
    return End(target, last, known.to_source(last), epoch, look.tail)


def tail_of(header: BatchHeader, view: memoryview) -> Tail:
    """What is kept of the last batch of a log."""
    return Tail(
        header.producer_id,
        header.base_offset,
        header.records,
        header.base_timestamp,
        crc32c(view[HEADER_BYTES:]),
        bool(header.attributes & CONTROL),
    )


async def compare_ends(flow: Flow, ends: Mapping[TopicPartition, End]) -> Answers[Stop | None]:
    """Compare the ends of partitions, given by their names at the source, with the source.

    Returns:
        Why a partition must not go on, or the error that prevented the comparison. None where the record is
        the same, or one side no longer has it, or a batch cannot be read.
    """
    out: Answers[Stop | None] = {}

    async def ask(node: int, tps: list[TopicPartition]) -> None:
        try:
            out.update(await _compare_at(flow, node, {tp: ends[tp] for tp in tps}))
        except TwinsiteError as error:
            out.update({tp: error for tp in tps if tp not in out})

    async with asyncio.TaskGroup() as group:
        for node, tps in by_leader(flow.source, list(ends)).items():
            group.create_task(ask(node, tps))
    return out


async def _compare_at(flow: Flow, node: int, ends: Mapping[TopicPartition, End]) -> Answers[Stop | None]:
    """One broker's partitions, in several rounds, as one answer need not hold a batch of each."""
    limits = replace(AT_ONCE, isolation=flow.limits.fetch.isolation)
    out: Answers[Stop | None] = {}
    while left := {tp: end for tp, end in ends.items() if tp not in out}:
        wants = {tp: _want(flow.source, tp, end) for tp, end in left.items()}
        found = await peek_at(flow.source, node, wants, limits)
        for tp, fetched in found.items():
            out[tp] = await _compare(flow, tp, left[tp], fetched)
        if not found:
            out.update(dict.fromkeys(left))
    return out


def _want(source: Cluster, tp: TopicPartition, end: End) -> Want:
    info = source.info.partition(tp)
    return Want(end.source_offset, info.leader_epoch if info else -1, end.epoch, PARTITION_BYTES_MAX)


# -- one partition -------------------------------------------------------------------------------


async def _compare(flow: Flow, tp: TopicPartition, end: End, fetched: Fetched) -> Stop | TwinsiteError | None:
    if fetched.diverging is not None:
        return replaced(end.source_offset + 1, *fetched.diverging)
    if fetched.error_code == OFFSET_OUT_OF_RANGE:
        return None  # if reading on is affected, that reports it, with the offsets
    if fetched.error_code:
        return broker_error(fetched.error_code, f"source: Fetch of the last record copied of {tp}")
    holding = _holding(fetched.records, end.source_offset)
    if holding is None or _same_bytes(end, *holding):
        return None
    try:
        seen = await _difference(flow, end, fetched, holding)
    except BatchError:
        return None  # if reading on needs that batch, it reports it, with its offset
    return _stop(end, seen, holding[0].leader_epoch) if seen else None


def _holding(records: memoryview, offset: int) -> _Holding | None:
    """The batch a record is in; None when compaction has removed it.

    An old format does not say where a batch begins: the first one at hand is given, whatever it holds.
    """
    for header, view in walk(records):
        if header.magic != MAGIC_V2 or offset < header.next_offset:
            return (header, view) if header.magic != MAGIC_V2 or header.base_offset <= offset else None
    return None


def _same_bytes(end: End, header: BatchHeader, view: memoryview) -> bool:
    """True when the batch was copied as it is: nothing needs to be decoded."""
    tail = end.tail
    return (
        header.magic == MAGIC_V2
        and not header.attributes & (CONTROL | LOG_APPEND_TIME)
        and not tail.control
        and header.next_offset == end.source_offset + 1
        and header.records == header.last_offset_delta + 1 == tail.records
        and header.base_timestamp == tail.base_timestamp
        and crc32c(view[HEADER_BYTES:]) == tail.records_crc
    )


async def _difference(flow: Flow, end: End, fetched: Fetched, holding: _Holding) -> str | None:
    """What differs, record against record; None when nothing does.

    Where the source has an aborted record, the target may have the same one, copied before ``read.isolation``
    was changed. Any other record there is a difference.
    """
    header, _ = holding
    ours = await _beside(flow, partial(_first_record, fetched, end.source_offset))
    if end.tail.control:
        return "a control marker where the source has a record" if ours is not None else None
    words = "a different record than the source"
    if ours is None:
        if header.magic == MAGIC_V2 and header.attributes & CONTROL:
            return "a record where the source has a transaction marker"
        ours = await _beside(flow, partial(_record, holding, end.source_offset))
        words = "a record where the source has an aborted one"
    if ours is None:
        return None
    theirs, appended_at_target = await _last_record(flow, end)
    if theirs is None:
        return None
    same = theirs.tail == ours.tail and (appended_at_target or theirs.timestamp == ours.timestamp)
    return None if same else words


def _first_record(fetched: Fetched, offset: int) -> Record | None:
    """The record that a reader of the source gets at an offset; None when it gets none there."""
    records = _up_to(fetched.records, offset)
    intake = take(records, fetch_offset=offset, aborted=fetched.aborted, batch_bytes_max=ANY_SIZE)
    first = intake.items[0] if intake.items else None
    if not isinstance(first, Batch):
        return None
    header, view = next(walk(first.view))
    return decode(header, view, DECODED_BYTES_MAX)[0][0]


def _up_to(records: memoryview, offset: int) -> memoryview:
    """The batches up to the one that holds an offset, and the beginning of the next, with its base offset."""
    size = 0
    for header, view in walk(records):
        size += len(view)
        if offset < header.next_offset:
            break
    return records[: size + PREFIX_BYTES]


async def _last_record(flow: Flow, end: End) -> tuple[Record | None, bool]:
    """The last record at the target, and whether its timestamp is the time of the append there."""
    leader = flow.target.info.leader(end.target)
    want = Want(end.target_offset, -1, -1, PARTITION_BYTES_MAX)
    fetched = (await peek_at(flow.target, leader, {end.target: want})).get(end.target)
    if fetched is None:
        return None, False
    if fetched.error_code:
        raise broker_error(fetched.error_code, f"target: Fetch of the last record of {end.target}")
    holding = _holding(fetched.records, end.target_offset)
    if holding is None:
        return None, False
    record = await _beside(flow, partial(_record, holding, end.target_offset))
    return record, bool(holding[0].attributes & LOG_APPEND_TIME)


def _record(holding: _Holding, offset: int) -> Record | None:
    """The record a batch has at an offset; None when it has none there."""
    records, _ = decode(*holding, DECODED_BYTES_MAX)
    return next((record for record in records if record.offset == offset), None)


async def _beside(flow: Flow, work: Callable[[], T]) -> T:
    """Do ``work`` in another thread, once at a time in the flow: a batch may inflate to much."""
    async with flow.comparing:
        return await in_thread(work)


def _stop(end: End, seen: str, epoch: int) -> Stop:
    where = f"target offset {end.target_offset} holds {seen} at offset {end.source_offset}"
    if end.epoch >= 0 and epoch > end.epoch:
        return Stop(
            State.DIVERGED,
            Reason.SOURCE_TRUNCATED,
            f"{where}: the one copied under leader epoch {end.epoch} was replaced under {epoch}",
        )
    return Stop(
        State.DIVERGED,
        Reason.OFFSETS_DIFFER,
        f"{where}: records before it are duplicated, missing, or not of this flow",
    )
