"""What other flows remember, at the cluster they write to.

Whoever copies into a cluster writes down there of which topic each of its partitions
is a copy, ahead of the first record. So it is known of any topic whose copy it is, as
far as the states of flows may be read; what is not known of one is said by who asks.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Self
from uuid import UUID

from checkpoint.errors import StateUnavailableError
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
KEPT_SECONDS = 120.0
"""For so long after the last news of a state the flow's own record is waited for where it is missing. A
mirror that runs makes a topic that was deleted again within seconds, and then it may take half a minute or
more until all is written, that record last.
"""


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
        """Read what a flow remembers; None where its own record is missing.

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
    """A state topic, and what is known of its flow.

    Attributes:
        store: None where the flow is none of those asked for.
        items: What was there last; None where it was not read yet.
        news_at: When something of it came or went last (monotonic); -inf where nothing was ever there.
        flow: None where it is none of those asked for, was not read yet, or has not begun.
        error: Why what is there could not be read at the last try, or says nothing yet.
    """

    topic_id: UUID
    store: TopicStore | None
    items: Mapping[str, bytes] | None = None
    news_at: float = -math.inf
    flow: OtherFlow | None = None
    error: TwinsiteError | None = None

    def take(self, name: str, items: Mapping[str, bytes], age_seconds: float) -> None:
        """Believe what is there. Without the flow's own record, and while that may be about to be written,
        what was known of the flow counts; where nothing was, it is not known.

        Args:
            age_seconds: How long ago what is there was written. It counts at the first sight only: when it
                changes after that is seen, and no clocks are compared.

        Raises:
            CorruptStateError: It is of a version this program does not know.
        """
        now = time.monotonic()
        if items != (self.items or {}):
            self.flow = OtherFlow.of(name, items) or self.flow
            self.news_at = now - age_seconds if self.items is None else now
        self.items, self.error = items, None
        if FLOW_KEY in items:
            return
        if not self.may_be_written:
            self.flow = None
        elif self.flow is None:
            self.error = StateUnavailableError(
                f"the state of flow {name} is not whole, and may be being written: it is waited for until "
                f"nothing of it has come for {KEPT_SECONDS:g} s; a mirror of that flow completes it"
            )

    def forget(self) -> None:
        """Know nothing of it, and read it no more."""
        self.store = self.items = self.flow = None
        self.news_at = -math.inf

    @property
    def may_be_written(self) -> bool:
        """Whether the flow's own record is missing, and may come."""
        missing = self.items is not None and FLOW_KEY not in self.items
        return missing and time.monotonic() - self.news_at < KEPT_SECONDS

    @property
    def is_kept(self) -> bool:
        """Whether a flow is known of which the state says nothing any more, or not yet again."""
        return self.flow is not None and FLOW_KEY not in (self.items or {})


class OtherFlows:
    """What flows have written down at a cluster. Of what was read once only what has come since is read.

    A state topic that somebody has deleted is made again by its flow, and written anew: what was known of the
    flow is known still for a while, and where nothing was, it is not taken for none as long as that may last,
    once something of it is seen.

    Args:
        but_for: The name of a flow that is not read; none by default.
        relevant: Which of them are asked for; the others are not read again.
        unread: Told what of a state topic could not be read: what was known of its flow is known still.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        but_for: str = "",
        relevant: Callable[[OtherFlow], bool],
        unread: Callable[[str, TwinsiteError], None],
    ) -> None:
        self._cluster = cluster
        self._not_read = f"{STATE_TOPIC_PREFIX}{but_for}"
        self._relevant = relevant
        self._unread = unread
        self._states: dict[str, _State] = {}
        self._there: frozenset[str] = frozenset()
        """State topics, as seen last."""

    def see(self, found: ClusterInfo) -> bool:
        """Take note of all topics of the cluster.

        Returns:
            Whether what is known of flows may change: states have come or gone, or are about to.
        """
        there = _state_topics(found)
        there.pop(self._not_read, None)
        self._there = frozenset(there)
        changed = False
        for topic, topic_id in there.items():
            state = self._states.get(topic)
            if state is None or state.topic_id != topic_id:
                self._states[topic] = self._new(topic, topic_id, state)
                changed = True
        for topic in [topic for topic in self._states if topic not in there]:
            state = self._states[topic]
            state.take(_flow_name(topic), {}, 0.0)
            if state.flow is None and state.error is None:
                del self._states[topic]
                changed = True
        return changed or any(state.is_kept for state in self._states.values())

    def _new(self, topic: str, topic_id: UUID, before: _State | None) -> _State:
        store = TopicStore(TopicLog(self._cluster, topic, patience_seconds=ANSWER_SECONDS))
        if before is None:
            return _State(topic_id, store)
        news_at = time.monotonic() if before.items else before.news_at  # what was there is gone
        return replace(before, topic_id=topic_id, store=store, news_at=news_at)

    async def read(self) -> tuple[OtherFlow, ...]:
        """What they remember now."""
        asked = [(topic, state) for topic, state in self._states.items() if topic in self._there]
        await asyncio.gather(*(self._read(topic, one, one.store) for topic, one in asked if one.store))
        return tuple(state.flow for state in self._states.values() if state.flow is not None)

    @property
    def unanswered(self) -> TwinsiteError | None:
        """Why nothing is known yet of some flow that may be at the next try."""
        errors = (state.error for state in self._states.values() if state.flow is None)
        return next((error for error in errors if error is not None and error.retriable), None)

    @property
    def awaits(self) -> bool:
        """Whether nothing is known yet of some flow of which something may be being written."""
        return any(state.flow is None and state.may_be_written for state in self._states.values())

    async def _read(self, topic: str, state: _State, store: TopicStore) -> None:
        try:
            await self._wait_for_answer(topic)
            items = await store.load()
            age_seconds = max(0.0, time.time() - (store.written_at_ms or 0) / 1000)
            state.take(_flow_name(topic), items, age_seconds)
        except TwinsiteError as error:
            state.error = error
        if state.error is not None:
            self._unread(topic, state.error)
        elif state.flow is not None and not self._relevant(state.flow):
            state.forget()

    async def _wait_for_answer(self, topic: str) -> None:
        """What is remembered may be long, and the way far; where nobody answers, no topic waits for it.

        Raises:
            TwinsiteError: The leader of the topic's one partition does not answer, or not what is asked.
        """
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await TopicLog(self._cluster, topic, patience_seconds=ANSWER_SECONDS).end()
        except TimeoutError as slow:
            words = f"{self._cluster.name}: no answer from a leader of {topic}-0 within {ANSWER_SECONDS:g} s"
            raise ConnectionFailedError(words) from slow


def _flow_name(state_topic: str) -> str:
    return state_topic.removeprefix(STATE_TOPIC_PREFIX)


def _state_topics(found: ClusterInfo) -> dict[str, UUID]:
    topics = found.topics.items()
    return {name: topic.topic_id for name, topic in topics if name.startswith(STATE_TOPIC_PREFIX)}
