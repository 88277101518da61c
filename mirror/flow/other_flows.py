"""What other flows remember, at the cluster they write to.

Whoever copies into a cluster writes down there of which topic each of its partitions
is a copy, ahead of the first record. So it is known of any topic whose copy it is, as
far as the states of flows may be read; what is not known of one is said by who asks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Self
from uuid import UUID

from checkpoint.model import FLOW_KEY, PARTITION_PREFIX, FlowRecord, PartitionRecord
from checkpoint.topic_store import TopicStore
from mirror.errors import ConnectionFailedError, TwinsiteError
from mirror.kafka.cluster import Cluster
from mirror.kafka.cluster_info import ClusterInfo
from mirror.kafka.log_port import TopicLog
from mirror.model import TopicPartition
from mirror.topic_names import STATE_TOPIC_PREFIX

ANSWER_SECONDS = 5.0
"""So long whoever leads the state of a flow has to say where it ends: eight round trips by satellite."""


@dataclass(frozen=True, slots=True)
class OtherFlow:
    """A flow, as it remembers itself at its target.

    Attributes:
        source_cluster_id: From where it copies.
        prefix: What it puts in front of names; None when that is not known.
        originals: What its copies are called, and the topics they are of.
        copies: The partitions it copies into, and what it has written down of each.
    """

    name: str
    source_cluster_id: str
    prefix: str | None
    originals: Mapping[str, str]
    copies: Mapping[TopicPartition, PartitionRecord]

    @classmethod
    def of(cls, name: str, items: Mapping[str, bytes]) -> Self | None:
        """Read what a flow remembers; None when it has not begun.

        Raises:
            CorruptStateError: It is of a version this program does not know.
        """
        if FLOW_KEY not in items:
            return None
        own = FlowRecord.from_bytes(items[FLOW_KEY])
        stored = [value for key, value in items.items() if key.startswith(PARTITION_PREFIX)]
        records = [PartitionRecord.from_bytes(value) for value in stored]
        return cls(
            name,
            own.source_cluster_id,
            records[0].target_topic.removesuffix(records[0].topic) if records else own.topic_prefix,
            {record.target_topic: record.topic for record in records},
            {TopicPartition(record.target_topic, record.partition): record for record in records},
        )


@dataclass(slots=True)
class _State:
    """A state topic, and what was read of its flow last.

    Attributes:
        flow: None where it was not read yet, or has not begun.
        error: Why it could not be read at the last try.
    """

    topic_id: UUID
    store: TopicStore
    flow: OtherFlow | None = None
    error: TwinsiteError | None = None


class OtherFlows:
    """What flows have written down at a cluster. Of what was read once only what has come since is read.

    Args:
        relevant: Which of them are asked for; the others are not read again.
        unread: Told what of a state topic could not be read: what was known of its flow is known still.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        relevant: Callable[[OtherFlow], bool],
        unread: Callable[[str, TwinsiteError], None],
    ) -> None:
        self._cluster = cluster
        self._relevant = relevant
        self._unread = unread
        self._states: dict[str, _State] = {}

    def see(self, found: ClusterInfo) -> bool:
        """Take note of all topics of the cluster; True where states of flows have come or gone."""
        before, there = self._states, _state_topics(found)
        self._states = {
            topic: before[topic]
            if topic in before and before[topic].topic_id == topic_id
            else _State(topic_id, TopicStore(TopicLog(self._cluster, topic)))
            for topic, topic_id in there.items()
        }
        return {s.topic_id for s in before.values()} != set(there.values())

    async def read(self) -> tuple[OtherFlow, ...]:
        """What they remember now."""
        asked = {t: s for t, s in self._states.items() if s.flow is None or self._relevant(s.flow)}
        await asyncio.gather(*(self._read(topic, state) for topic, state in asked.items()))
        flows = (state.flow for state in self._states.values())
        return tuple(flow for flow in flows if flow is not None and self._relevant(flow))

    @property
    def unanswered(self) -> TwinsiteError | None:
        """Why nothing is known yet of some flow that may be at the next try."""
        errors = (state.error for state in self._states.values() if state.flow is None)
        return next((error for error in errors if error is not None and error.retriable), None)

    async def _read(self, topic: str, state: _State) -> None:
        try:
            await self._wait_for_answer(topic)
            flow = OtherFlow.of(topic.removeprefix(STATE_TOPIC_PREFIX), await state.store.load())
        except TwinsiteError as error:
            state.error = error
            self._unread(topic, error)
            return
        state.error = None
        state.flow = flow or state.flow

    async def _wait_for_answer(self, topic: str) -> None:
        """What is remembered may be long, and the way far; where nobody answers, no topic waits for it.

        Raises:
            TwinsiteError: The leader of the topic's one partition does not answer, or not what is asked.
        """
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await TopicLog(self._cluster, topic).end()
        except TimeoutError as slow:
            words = f"{self._cluster.name}: no answer from a leader of {topic}-0 within {ANSWER_SECONDS:g} s"
            raise ConnectionFailedError(words) from slow


def _state_topics(found: ClusterInfo) -> dict[str, UUID]:
    topics = found.topics.items()
    return {name: topic.topic_id for name, topic in topics if name.startswith(STATE_TOPIC_PREFIX)}
