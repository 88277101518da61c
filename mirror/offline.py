"""Translate offsets when no mirror runs and the source may be gone: what a failover needs.

The flow's state and the end of the copy are read from the target; nothing is written.
The answer is exact or there is none. That the mirror wrote last is checked in the last
batch; a mirror that runs knows more, ask it where there is one.
"""

from __future__ import annotations

from checkpoint.errors import UntranslatableError
from checkpoint.flow_state import FlowState
from checkpoint.model import PartitionRecord
from checkpoint.topic_store import TopicStore
from mirror.clusters import connected
from mirror.config import Settings
from mirror.errors import StateConflictError, TwinsiteError, UnknownPartitionError, UsageError
from mirror.flow.memory import FlowMemory
from mirror.kafka.cluster import Cluster, broker_error
from mirror.kafka.fetch import (
    FETCH,
    FETCH_VERSION,
    FetchLimits,
    Isolation,
    Key,
    Want,
    decode_answer,
    encode_request,
)
from mirror.kafka.log_port import TopicLog
from mirror.kafka.offsets import LATEST, list_offsets
from mirror.kafka.record_batch import walk
from mirror.model import TopicPartition
from mirror.sync.names import STATE_TOPIC_PREFIX

LIMITS = FetchLimits(wait_ms_max=0, bytes_min=0, bytes_max=4 << 20, isolation=Isolation.READ_UNCOMMITTED)
OUTSIDE_SESSIONS = (0, -1)
OFFSET_OUT_OF_RANGE = 1


async def translate(settings: Settings, tp: TopicPartition, offset: int, *, reverse: bool) -> int:
    """The offset of the same record at the other side, from what the target holds.

    Args:
        tp: The partition by its name at the source.
        offset: At the source; with ``reverse`` at the target.

    Raises:
        UsageError: The flow has never run against this target.
        UnknownPartitionError: The flow does not copy this partition.
        UntranslatableError: There is no such record at the other side; says why.
        StateConflictError: Somebody else has written to the target partition.
    """
    async with connected("target", settings.target) as target:
        state = await _state(target, settings.flow)
        record, flow = state.partition(tp), state.flow
        if record is None or flow is None:
            raise UnknownPartitionError(f"flow {settings.flow} has not copied {tp}")
        if not record.prepared:
            raise UntranslatableError(f"{tp} is being prepared: nothing of it is copied yet")
        end = await _log_end(target, record, flow.producer_id)
        return FlowMemory(state).translate(tp, offset, reverse=reverse, target_log_end=end)


async def _state(target: Cluster, flow: str) -> FlowState:
    topic = f"{STATE_TOPIC_PREFIX}{flow}"
    if topic not in (await target.describe_topics([topic])).topics:
        raise UsageError(
            f"flow {flow} has no state at this target: there is no topic {topic}, or it may not be described",
            hint="check the flow's name and the target's address",
        )
    state = FlowState(TopicStore(TopicLog(target, topic)))
    await state.load()
    return state


async def _log_end(target: Cluster, record: PartitionRecord, producer_id: int) -> int:
    tp = TopicPartition(record.target_topic, record.partition)
    target.follow([tp.topic])
    await target.refresh()
    end = (await list_offsets(target, [tp], LATEST))[tp]
    if isinstance(end, TwinsiteError):
        raise end
    last = await _last_producer(target, tp, end) if end > record.target_start_offset else None
    if last is not None and last != producer_id:
        raise StateConflictError(
            f"the last batch of {tp} at the target is not the mirror's: somebody else has written there",
            hint="offsets cannot be told from here on; see foreign_write in docs/states.md",
        )
    return end


async def _last_producer(target: Cluster, tp: TopicPartition, end: int) -> int | None:
    """The producer id in the last batch; None where it was removed already."""
    info, topic = target.info.partition(tp), target.info.topics.get(tp.topic)
    if info is None or topic is None:
        raise broker_error(3, f"target: {tp}")
    connection = await target.connection(info.leader)
    connection.version(FETCH, FETCH_VERSION, "Fetch")
    wants = {Key(topic.topic_id.bytes, tp.partition): Want(end - 1, -1, -1, LIMITS.bytes_max)}
    request = encode_request(LIMITS, session=OUTSIDE_SESSIONS, changed=wants, forgotten=())
    answer = decode_answer(await connection.send(FETCH, FETCH_VERSION, [request]))
    code = answer.error_code or (answer.partitions[0].error_code if answer.partitions else 0)
    if code == OFFSET_OUT_OF_RANGE or not answer.partitions:
        return None
    if code:
        raise broker_error(code, f"target: Fetch of the last batch of {tp}")
    last = [header.producer_id for header, _ in walk(answer.partitions[0].records)]
    return last[-1] if last else None
