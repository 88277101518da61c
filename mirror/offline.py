"""Translate offsets when no mirror runs and the source may be gone: what a failover needs.

The end of the copy is read from the target before the flow's state: the state is written
ahead, so a mirror that copies meanwhile does no harm. Nothing is written. The answer is
exact, or there is none. The last batch shows whether the mirror wrote last; a running
mirror knows more, so ask it if there is one.
"""

from __future__ import annotations

from checkpoint.errors import StateUnavailableError, UntranslatableError
from checkpoint.flow_state import FlowState
from checkpoint.insertions import Insertions
from checkpoint.model import PartitionRecord
from checkpoint.topic_store import TopicStore
from mirror.clusters import connected
from mirror.config import Settings
from mirror.errors import (
    NotAuthorizedError,
    StateConflictError,
    TwinsiteError,
    UnknownPartitionError,
    UsageError,
)
from mirror.flow.looking import last_batches
from mirror.flow.memory import FlowMemory
from mirror.kafka.cluster import Cluster
from mirror.kafka.log_port import TopicLog
from mirror.kafka.offsets import LATEST, offsets_of_all
from mirror.model import TopicPartition
from mirror.topic_names import STATE_TOPIC_PREFIX


class NoStateError(UsageError):
    """The flow has never run against this target, as far as can be seen."""

    hint = "check the flow's name and the target's address"


class NoRecordError(StateUnavailableError):
    """The flow's own record is not in its state: it has not begun, or its state is being written again."""

    hint = "if a mirror of the flow is running, try again in a minute"


async def translate(
    settings: Settings, tp: TopicPartition, offset: int, *, reverse: bool, committed: bool = False
) -> int:
    """The offset of the same record at the other side, from what the target holds.

    Args:
        tp: The partition by its name at the source.
        offset: At the source; with ``reverse`` at the target.
        committed: The offset was committed by a group; see :meth:`mirror.flow.memory.FlowMemory.translate`.

    Raises:
        NoStateError: The flow has never run against this target.
        NoRecordError: It has not begun there, or its state is being written again.
        UnknownPartitionError: The flow does not copy this partition.
        UntranslatableError: There is no such record at the other side; says why.
        StateConflictError: Somebody else has written to the target partition, or a repair was interrupted.
    """
    async with connected("target", settings.target) as target:
        state = await flow_state(target, settings.flow)
        end = await _log_end(target, _copy_of(_record(state, settings.flow, tp)))
        await state.load()  # written ahead of the records: read now, it knows of all below that end
        record = _record(state, settings.flow, tp)
        if state.insertion(tp) is not None:
            raise StateConflictError(
                f"a repair of {tp} was interrupted",
                hint="run the repair again, or start a mirror, which completes it",
            )
        memory = FlowMemory(state)
        await _check_last(target, record, memory.producer_id, end)
        return memory.translate(tp, offset, reverse=reverse, target_log_end=end, committed=committed)


async def flow_state(target: Cluster, flow: str) -> FlowState:
    """What a flow remembers, read once.

    Raises:
        NoStateError: It has none.
        NoRecordError: The flow's own record is missing: what there is may be incomplete.
        NotAuthorizedError: It may not be read.
        CorruptStateError: What is stored cannot be trusted.
    """
    topic = f"{STATE_TOPIC_PREFIX}{flow}"
    if topic not in (await target.describe_topics([topic])).topics:
        raise NoStateError(
            f"flow {flow} has no state at this target: topic {topic} does not exist, or the "
            "right to describe it is missing"
        )
    state = FlowState(TopicStore(TopicLog(target, topic)))
    try:
        await state.load()
    except NotAuthorizedError as error:
        hint = "Read on this topic is needed at the target, see docs/permissions.md"
        raise NotAuthorizedError(str(error), hint=hint) from error
    if state.flow is None:
        raise NoRecordError(
            f"{topic} at this target does not hold the record of flow {flow}: the flow has not begun, or its "
            "state was deleted and is being written again"
        )
    return state


async def begun_topics(target: Cluster, flow: str) -> set[str] | None:
    """The source topics that a flow has begun to copy; None if it has no state, or an incomplete one.

    Raises:
        TwinsiteError: Its state cannot or may not be read.
    """
    try:
        return {tp.topic for tp in (await flow_state(target, flow)).partitions}
    except (NoStateError, NoRecordError):
        return None


def _record(state: FlowState, flow: str, tp: TopicPartition) -> PartitionRecord:
    record = state.partition(tp)
    if record is None:
        raise UnknownPartitionError(f"flow {flow} has not copied {tp}")
    if not record.prepared:
        raise UntranslatableError(f"{tp} is being prepared: nothing of it is copied yet")
    return record


def _copy_of(record: PartitionRecord) -> TopicPartition:
    return TopicPartition(record.target_topic, record.partition)


async def _log_end(target: Cluster, copy: TopicPartition) -> int:
    target.follow([copy.topic])
    await target.refresh()
    return (await offsets_of_all(target, [copy], LATEST))[copy]


async def _check_last(target: Cluster, record: PartitionRecord, producer_id: int, log_end: int) -> None:
    """Check that the last batch before a log end is the mirror's; what is known to be no copy is left out.

    Where no batch is left, or no in-sync replica that can be asked has it intact, nothing is concluded.

    Raises:
        StateConflictError: It is not.
        TwinsiteError: The target cannot be asked, or refuses.
    """
    copy, copied_end = _copy_of(record), Insertions(record.inserted).copied_end(log_end)
    if copied_end <= record.target_start_offset:
        return
    last = (await last_batches(target, {copy: copied_end})).get(copy)
    if isinstance(last, TwinsiteError):
        raise last
    if last is not None and last.producer_id != producer_id:
        raise StateConflictError(
            f"the last batch of {copy} at the target is not the mirror's: something else has written there",
            hint="see foreign_write in docs/states.md: offsets cannot be translated from here on",
        )
