"""Look at both sides of many partitions at once, in as few requests as there are brokers.

The order matters. What the target remembers of our producer is read before and after the
log end; the pair counts only when nothing has changed in between. A sequence older than
the log end would at worst be refused; a newer one could continue the log with records that
are there already. How far the log is acknowledged is read after its end: what is not
acknowledged by then may vanish with its leader.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from checkpoint.insertions import Insertions
from mirror.broker_codes import OFFSET_OUT_OF_RANGE
from mirror.errors import ConnectionFailedError, TwinsiteError
from mirror.flow.context import Flow
from mirror.flow.ends import tail_of
from mirror.flow.facts import SourceLook, Tail, TargetLook
from mirror.flow.intake import check_crc
from mirror.flow.partition import PartitionCopy
from mirror.flow.replicas import Question, Round, intact
from mirror.kafka.cluster import Cluster
from mirror.kafka.fetch import Fetched, Want
from mirror.kafka.offsets import (
    DEBUGGER,
    EARLIEST,
    LATEST,
    Answers,
    ProducerState,
    by_leader,
    describe_producer,
    list_offsets,
)
from mirror.kafka.peek import peek_all_at
from mirror.kafka.record_batch import walk
from mirror.model import TopicPartition

TAIL_BYTES_MAX = 1 << 20

T = TypeVar("T")


class BusyError(ConnectionFailedError):
    """The flow itself is writing to a partition, or replicas lag: it was not stable while looked at."""

    hint = "it is looked at again; see whether the target's replicas are in sync if this does not end"


@dataclass(frozen=True, slots=True)
class Seen:
    """What both sides said of partitions that were looked at together."""

    sources: Answers[SourceLook]
    targets: Answers[TargetLook]

    def source(self, partition: PartitionCopy) -> SourceLook:
        """What the source said of a partition that could be looked at there."""
        seen = self.sources[partition.tp]
        assert isinstance(seen, SourceLook)
        return seen

    def target(self, partition: PartitionCopy) -> TargetLook:
        """What the target said of a partition that could be looked at there."""
        seen = self.targets[partition.target]
        assert isinstance(seen, TargetLook)
        return seen


async def look_at_source(flow: Flow, tps: Collection[TopicPartition]) -> Answers[SourceLook]:
    """Where each source partition starts and ends."""
    starts, ends = await asyncio.gather(
        list_offsets(flow.source, tps, EARLIEST), list_offsets(flow.source, tps, LATEST)
    )
    looks: Answers[SourceLook] = {}
    for tp in tps:
        start, end, topic = starts[tp], ends[tp], flow.source.info.topics.get(tp.topic)
        info = flow.source.info.partition(tp)
        if isinstance(start, TwinsiteError):
            looks[tp] = start
        elif isinstance(end, TwinsiteError):
            looks[tp] = end
        elif topic is None:
            looks[tp] = ConnectionFailedError(f"source: topic {tp.topic} is currently not in the metadata")
        else:
            looks[tp] = SourceLook(str(topic.topic_id), start, end, info.leader_epoch if info else -1)
    return looks


async def look_at_target(
    flow: Flow, tps: Collection[TopicPartition], insertions: Mapping[TopicPartition, Insertions] | None = None
) -> Answers[TargetLook]:
    """Where each target partition ends and is acknowledged, what the broker knows of us, who wrote last.

    Where one question about a partition fails, no more are asked: we would wait each time for a broker that
    does not answer. A partition that the flow wrote to during the look gets a :class:`BusyError`.

    Args:
        insertions: Offsets that are known to be no copies: who wrote them does not count.
    """
    before = await describe_producer(flow.target, tps, flow.producer_id)
    ends = await list_offsets(flow.target, _answered(before), LATEST, replica_id=DEBUGGER)
    asked = _answered(ends)
    starts, acknowledged = await asyncio.gather(
        list_offsets(flow.target, asked, EARLIEST), list_offsets(flow.target, asked, LATEST)
    )
    told = {*_answered(starts)} & {*_answered(acknowledged)}
    after = await describe_producer(flow.target, told, flow.producer_id)
    known = insertions or {}
    copied = {
        tp: known[tp].copied_end(end) if tp in known else end
        for tp in _answered(after)
        if isinstance(end := ends[tp], int)
    }
    tails = await last_batches(flow.target, copied)
    looks: Answers[TargetLook] = {}
    for tp in tps:
        answers = (of.get(tp) for of in (before, ends, starts, acknowledged, after, tails))
        failed = next((answer for answer in answers if isinstance(answer, TwinsiteError)), None)
        if failed is not None:
            looks[tp] = failed
        elif before[tp] != after[tp]:
            looks[tp] = BusyError(f"{tp}: something else is writing to the target")
        else:
            topic = flow.target.info.topics.get(tp.topic)
            look = _target_look(starts[tp], ends[tp], acknowledged[tp], before[tp], tails.get(tp))
            looks[tp] = replace(look, topic_id=str(topic.topic_id) if topic else None)
    return looks


def _answered(answers: Answers[T]) -> list[TopicPartition]:
    return [tp for tp, answer in answers.items() if not isinstance(answer, TwinsiteError)]


def _target_look(
    start: object, end: object, high_watermark: object, producer: object, tail: object
) -> TargetLook:
    assert isinstance(start, int)
    assert isinstance(end, int)
    assert isinstance(high_watermark, int)
    known = producer if isinstance(producer, ProducerState) else None
    return TargetLook(
        target_log_start_offset=start,
        target_log_end_offset=end,
        last_sequence=known.last_sequence if known else None,
        producer_epoch=known.producer_epoch if known else None,
        coordinator_epoch=known.coordinator_epoch if known else -1,
        last_producer_id=tail.producer_id if isinstance(tail, Tail) else None,
        tail=tail if isinstance(tail, Tail) else None,
        unreplicated=max(0, end - high_watermark),
    )


async def last_batches(target: Cluster, ends: Mapping[TopicPartition, int]) -> Answers[Tail | None]:
    """The last batch before each log end, but for ends of 0.

    None where no batch is left, or no in-sync replica that can be asked has it intact.
    """
    out: Answers[Tail | None] = {}

    async def ask(node: int, tps: list[TopicPartition]) -> None:
        try:
            out.update(await _tails(target, node, {tp: ends[tp] for tp in tps}))
        except TwinsiteError as error:
            out.update(dict.fromkeys(tps, error))

    async with asyncio.TaskGroup() as group:
        for node, tps in by_leader(target, [tp for tp, end in ends.items() if end > 0]).items():
            group.create_task(ask(node, tps))
    return out


async def _tails(target: Cluster, node: int, ends: Mapping[TopicPartition, int]) -> Answers[Tail | None]:
    """One broker's partitions, in several rounds, as one answer need not hold the last batch of each."""
    out: Answers[Tail | None] = {}
    asking = Round()
    while left := {tp: end for tp, end in ends.items() if tp not in out}:
        wants = {tp: Want(end - 1, -1, -1, TAIL_BYTES_MAX) for tp, end in left.items()}
        came = await peek_all_at(target, node, wants)
        for tp, fetched in came.items():
            try:
                out[tp] = await _tail(Question(target, node, tp, wants[tp]), fetched, asking)
            except TwinsiteError as error:
                out[tp] = error
        if not came:
            out.update(dict.fromkeys(left))
    return out


async def _tail(question: Question, fetched: Fetched, asking: Round) -> Tail | None:
    if fetched.error_code == OFFSET_OUT_OF_RANGE:
        return None
    return await intact(question, fetched, partial(_tail_at, question.want.offset), asking)


async def _tail_at(offset: int, fetched: Fetched) -> Tail | None:
    """The batch that holds an offset; None when compaction has removed it.

    Messages of old formats are intact if their own CRC is right: they may be older than the copy.

    Raises:
        BatchError: That batch is damaged.
    """
    for header, view in walk(fetched.records):
        if header.magic < 0 or header.base_offset <= offset < header.next_offset:
            check_crc(header, view)
            return tail_of(header, view)
    return None
