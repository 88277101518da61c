"""Whether the last record at the target is the one the source has at that place.

The log end gives the position only while every record is where it belongs. A broker that
had forgotten the producer appends a batch twice, a foreign record shifts what follows it,
a marker may arrive late: relying on the log end alone would then skip source records
silently. So before a partition goes on, its last batch is compared with the source's: by
count, time and CRC of the records. Where these are not the same, the last record is
compared with the source's.

What the source no longer has, by compaction or retention, cannot be compared and passes. Nor can a batch
that no in-sync replica has intact, or of those that can be asked, at either side
(:mod:`mirror.flow.replicas`).

Sources: KIP-98 (idempotence and its limits), docs/design.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, TypeVar

from crc32c import crc32c

from mirror.broker_codes import OFFSET_OUT_OF_RANGE
from mirror.errors import MisplacedBatchError
from mirror.flow.context import Flow
from mirror.flow.encode import DECODED_BYTES_MAX, decode
from mirror.flow.facts import Known, Tail, TargetLook
from mirror.flow.following import SideError, side
from mirror.flow.intake import take
from mirror.flow.misplaced import Asked, check_torn
from mirror.flow.position import Stop, replaced
from mirror.flow.records import Record
from mirror.flow.replicas import Question, Round, intact
from mirror.kafka.cluster import Cluster
from mirror.kafka.fetch import Fetched, Want
from mirror.kafka.offsets import by_leader
from mirror.kafka.peek import AT_ONCE, peek_all_at
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


class Seam(NamedTuple):
    """What the source has where a copy goes on. Offsets are source offsets.

    Attributes:
        batch_end: Where the batch ends that was copied last; None if that is not known.
        doubtful_at: Where the copy goes on, if what the leader has there says that it begins before that;
            else None.
    """

    batch_end: int | None
    doubtful_at: int | None


Compared = dict[TopicPartition, Stop | SideError | Seam | None]


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


async def compare_ends(flow: Flow, ends: Mapping[TopicPartition, End]) -> Compared:
    """Compare the ends of partitions, given by their names at the source, with the source.

    Returns:
        Why a partition must not go on, or the error that prevented the comparison, with the side it came
        from. Else what the source has there; None where it no longer has anything.
    """
    out: Compared = {}

    async def ask(node: int, tps: list[TopicPartition]) -> None:
        try:
            with side(flow.source):
                out.update(await _compare_at(flow, node, {tp: ends[tp] for tp in tps}))
        except SideError as error:
            out.update({tp: error for tp in tps if tp not in out})

    async with asyncio.TaskGroup() as group:
        for node, tps in by_leader(flow.source, list(ends)).items():
            group.create_task(ask(node, tps))
    return out


async def _compare_at(flow: Flow, node: int, ends: Mapping[TopicPartition, End]) -> Compared:
    """One broker's partitions, in several rounds, as one answer need not hold a batch of each."""
    asking = Round(replace(AT_ONCE, isolation=flow.limits.fetch.isolation))
    out: Compared = {}
    while left := {tp: end for tp, end in ends.items() if tp not in out}:
        wants = {tp: _want(flow.source, tp, end) for tp, end in left.items()}
        found = await peek_all_at(flow.source, node, wants, asking.limits)
        for tp, fetched in found.items():
            question = Question(flow.source, node, tp, wants[tp])
            try:
                with side(flow.source):
                    out[tp] = await _compare(flow, left[tp], question, fetched, asking)
            except SideError as error:
                out[tp] = error
        if not found:
            out.update(dict.fromkeys(left))
    return out


def _want(source: Cluster, tp: TopicPartition, end: End) -> Want:
    info = source.info.partition(tp)
    return Want(end.source_offset, info.leader_epoch if info else -1, end.epoch, PARTITION_BYTES_MAX)


# -- one partition -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Found:
    """What stands at an offset.

    Attributes:
        header: Of the batch that holds it.
        shown: The record that a reader gets there; None when it gets none.
        record: The same, or the aborted record there; None when there is none to compare.
    """

    header: BatchHeader
    shown: Record | None
    record: Record | None


async def _compare(
    flow: Flow, end: End, question: Question, fetched: Fetched, asking: Round
) -> Stop | Seam | None:
    if fetched.diverging is not None:
        return replaced(end.source_offset + 1, *fetched.diverging)
    if fetched.error_code == OFFSET_OUT_OF_RANGE:
        return None  # if reading on is affected, that reports it, with the offsets
    ours = await intact(question, fetched, partial(_other, flow, end), asking)
    seen = None if ours is None else await _difference(flow, end, ours, asking)
    if ours is not None and seen:
        return _stop(end, seen, ours.header.leader_epoch)
    return _seam(end, fetched.records, ours)


def _seam(end: End, records: memoryview, ours: _Found | None) -> Seam:
    """What is known of the place where the copy goes on. If no replica has the last batch intact, it is
    recognized by its records in the leader's answer.
    """
    copied_to = end.source_offset + 1
    batch_end: int | None = None
    holding = _holding(records, end.source_offset)
    if ours is not None:
        batch_end = ours.header.next_offset
    elif holding is not None and _same_records(end, *holding):
        batch_end = copied_to
    return Seam(batch_end, copied_to if _is_overlapped(records, end.source_offset) else None)


def _is_overlapped(records: memoryview, offset: int) -> bool:
    """Whether what follows the batch that holds an offset says that it begins before that batch ends."""
    at = 0
    for header, view in walk(records):
        at += len(view)
        if offset < header.next_offset:
            try:
                check_torn(records[at:], header.next_offset)
            except MisplacedBatchError:
                return True
            return False
    return False


async def _other(flow: Flow, end: End, fetched: Fetched) -> _Found | None:
    """What the source has; None when compaction has removed it. Without a record when the batch was copied as
    it is: nothing needs to be decoded then.
    """
    holding = _holding(fetched.records, end.source_offset)
    if holding is not None and _same_records(end, *holding):
        header, _ = holding
        if header.next_offset == end.source_offset + 1:
            return _Found(header, None, None)
    return await _at(flow, end.source_offset, fetched)


async def _at(flow: Flow, offset: int, fetched: Fetched) -> _Found | None:
    """What stands there; None when compaction has removed it.

    Raises:
        BatchError: Its batch is damaged, or cannot be decoded.
    """
    holding = _holding(fetched.records, offset)
    return None if holding is None else await _beside(flow, partial(_found, fetched, holding, offset))


def _holding(records: memoryview, offset: int) -> _Holding | None:
    """The batch a record is in; None when compaction has removed it.

    An old format does not say where a batch begins: the first one at hand is given, whatever it holds.
    """
    for header, view in walk(records):
        if header.magic != MAGIC_V2 or offset < header.next_offset:
            return (header, view) if header.magic != MAGIC_V2 or header.base_offset <= offset else None
    return None


def _same_records(end: End, header: BatchHeader, view: memoryview) -> bool:
    """True when the batch has the bytes that the target has last, wherever it says that it is: no CRC covers
    that.
    """
    tail = end.tail
    return (
        header.magic == MAGIC_V2
        and not header.attributes & (CONTROL | LOG_APPEND_TIME)
        and not tail.control
        and header.records == header.last_offset_delta + 1 == tail.records
        and header.base_timestamp == tail.base_timestamp
        and crc32c(view[HEADER_BYTES:]) == tail.records_crc
    )


async def _difference(flow: Flow, end: End, ours: _Found, asking: Round) -> str | None:
    """What differs, record against record; None when nothing does.

    Where the source has an aborted record, the target may have the same one, copied before ``read.isolation``
    was changed. Any other record there is a difference.
    """
    if end.tail.control:
        return "a control marker where the source has a record" if ours.shown is not None else None
    if _is_control(ours.header):
        return "a record where the source has a transaction marker"
    theirs = await _last_record(flow, end, asking) if ours.record is not None else None
    if ours.record is None or theirs is None or theirs.record is None:
        return None
    appended_at_target = theirs.header.attributes & LOG_APPEND_TIME
    same_time = appended_at_target or theirs.record.timestamp == ours.record.timestamp
    if theirs.record.tail == ours.record.tail and same_time:
        return None
    if ours.shown is None:
        return "a record where the source has an aborted one"
    return "a different record than the source"


def _is_control(header: BatchHeader) -> bool:
    return header.magic == MAGIC_V2 and bool(header.attributes & CONTROL)


def _found(fetched: Fetched, holding: _Holding, offset: int) -> _Found:
    header, _ = holding
    shown = _first_record(fetched, offset)
    stored = shown is not None or _is_control(header)
    return _Found(header, shown, shown if stored else _record(holding, offset))


def _first_record(fetched: Fetched, offset: int) -> Record | None:
    """The record that a reader gets at an offset; None when it gets none there."""
    intake = take(
        _up_to(fetched.records, offset),
        fetch_offset=offset,
        aborted=fetched.aborted,
        batch_bytes_max=ANY_SIZE,
        asked=Asked(offset, end=fetched.high_watermark),
    )
    if intake.error is not None:
        raise intake.error
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


async def _last_record(flow: Flow, end: End, asking: Round) -> _Found | None:
    """What the target has last."""
    want = Want(end.target_offset, -1, -1, PARTITION_BYTES_MAX)
    asking = replace(asking, limits=AT_ONCE)
    with side(flow.target):
        question = Question(flow.target, flow.target.info.leader(end.target), end.target, want)
        fetched = await asking.ask(question)
        if fetched is None:
            return None
        return await intact(question, fetched, partial(_at, flow, end.target_offset), asking)


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
