"""What other flows have written down at the cluster they copy into.

Before its first record a flow writes there which topic each target partition is a copy of. So for any topic
it is known whether it is a copy, and of what, as far as the states of flows may be read. What a missing
state means is for the caller to say.
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
"""How long the leader of a flow's state topic may take to say where it ends: eight satellite round trips."""
KEPT_SECONDS = 120.0
"""How long a missing flow's own record is waited for after the last change of its state. A running mirror
creates a deleted state topic again within seconds; writing all of it, that record last, may then take half
a minute or more.
"""


@dataclass(frozen=True, slots=True)
class OtherFlow:
    """A flow, according to its state at its target.

    Attributes:
        source_cluster_id: The cluster it copies from.
        prefix: What it puts in front of topic names; None when not known.
        originals: The source topic of each target topic.
        copies: The flow's record of each target partition it copies into.
    """

    name: str
    source_cluster_id: str
    prefix: str | None
    originals: Mapping[str, str]
    copies: Mapping[TopicPartition, PartitionRecord]

    @classmethod
    def of(cls, name: str, items: Mapping[str, bytes]) -> Self | None:
        """Decode a flow's state; None if its own record is missing.

        Raises:
            CorruptStateError: A record cannot be read, or is of a version this program does not know.
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
        store: None if the flow is not relevant: it is not read again.
        items: What the topic held when last read; None if it was not read yet.
        news_at: When its content last changed (monotonic seconds); -inf if there never was any.
        flow: None if it is not relevant, was not read yet, or has not begun.
        error: Why the last read failed, or why what was read says nothing yet.
    """

    topic_id: UUID
    store: TopicStore | None
    items: Mapping[str, bytes] | None = None
    news_at: float = -math.inf
    flow: OtherFlow | None = None
    error: TwinsiteError | None = None

    def take(self, name: str, items: Mapping[str, bytes], age_seconds: float) -> None:
        """Take over what the topic holds.

        While the flow's own record is missing but may still be written, what was known of the flow stays
        valid; if nothing was known, ``error`` says that it is not known yet.

        Args:
            age_seconds: How long ago the last of it was written. Used for the first read only; later changes
                are dated by our own clock, so no clocks are compared.

        Raises:
            CorruptStateError: A record cannot be read, or is of a version this program does not know.
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
                f"the state of flow {name} is incomplete, and may still be being written: this mirror waits "
                f"until nothing new of it has come for {KEPT_SECONDS:g} s; a mirror of that flow completes it"
            )

    def forget(self) -> None:
        """Drop what is known of the flow, and do not read it again."""
        self.store = self.items = self.flow = None
        self.news_at = -math.inf

    @property
    def may_be_written(self) -> bool:
        """Whether the flow's own record is missing and may still be written."""
        missing = self.items is not None and FLOW_KEY not in self.items
        return missing and time.monotonic() - self.news_at < KEPT_SECONDS

    @property
    def is_kept(self) -> bool:
        """Whether the flow is known from before, and its own record is missing now."""
        return self.flow is not None and FLOW_KEY not in (self.items or {})


class OtherFlows:
    """What flows have written down at a cluster. Each state is read once; after that only what was added.

    A flow creates its state topic again when somebody deletes it, and writes everything again. Until that may
    be done, what was known of the flow stays valid; and a flow of which nothing was known is not taken for
    absent once any part of its state has been seen.

    Args:
        but_for: The name of a flow that is not read; none by default.
        relevant: Which flows matter; the others are not read again.
        unread: Called with a state topic that could not be read, and why. What was known of its flow stays
            valid.
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
        """The state topics that :meth:`see` last found."""

    def see(self, found: ClusterInfo) -> bool:
        """Note which state topics there are.

        Args:
            found: All topics of the cluster.

        Returns:
            Whether what is known of flows may change: states have appeared or gone, or may soon.
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
        """Read what is new, and return the flows known now: relevant, and begun."""
        asked = [(topic, state) for topic, state in self._states.items() if topic in self._there]
        await asyncio.gather(*(self._read(topic, one, one.store) for topic, one in asked if one.store))
        return tuple(state.flow for state in self._states.values() if state.flow is not None)

    @property
    def unanswered(self) -> TwinsiteError | None:
        """The retriable error of a flow of which nothing is known yet; None if there is no such flow."""
        errors = (state.error for state in self._states.values() if state.flow is None)
        return next((error for error in errors if error is not None and error.retriable), None)

    @property
    def awaits(self) -> bool:
        """Whether there is a flow of which nothing is known yet, and whose state may be being written."""
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
        """Return once the leader of the topic's partition answers. Reading a long state over a slow link may
        take time, but a leader that does not answer at all should not hold up the others.

        Raises:
            TwinsiteError: The leader does not answer within ANSWER_SECONDS, or answers with an error.
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
