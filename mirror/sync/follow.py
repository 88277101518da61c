"""Keep the set of copied partitions in step with the topics of the source.

Every pass reads both clusters, makes what is missing at the target, and hands new
partitions to the engine. A topic that cannot be copied becomes partitions in a
state with a reason; a topic that was deleted, or made again under its name, is
said to be so and never mixed up with its successor.

Sources: KIP-516 (topic ids), docs/design.md.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Collection, Iterable, Mapping

import structlog

from mirror.config import Settings
from mirror.errors import TwinsiteError
from mirror.flow.context import Flow
from mirror.flow.engine import Engine
from mirror.flow.memory import FlowMemory
from mirror.flow.partition import HOPELESS, PartitionCopy
from mirror.kafka.cluster import ClusterInfo, TopicInfo
from mirror.logs import Repeats, warn_repeated
from mirror.model import Reason, State, TopicPartition
from mirror.sync.carry_acls import carry_acls, principals
from mirror.sync.names import Ignored, NamePolicy, TopicSelector
from mirror.sync.target_topics import TargetTopics
from mirror.sync.topics import Conflict

log = structlog.get_logger(__name__)

CONFLICT_AGAIN_SECONDS = 30.0
TEND_SECONDS = 1.0
"""How often it is seen whether topics have become what they were to be."""
_INTERNAL = {Ignored.INTERNAL, Ignored.COPY_INTERNAL}


class Follower:
    """Follows the topics of one source.

    Attributes:
        seen: Names of all topics the source shows us, but for internal ones.
        topics_ignored: How many of them are not copied.
    """

    def __init__(self, settings: Settings, flow: Flow, engine: Engine, memory: FlowMemory) -> None:
        self.seen: list[str] = []
        self.topics_ignored = 0
        self.followed_once = False
        self._settings = settings.topics
        self._flow = flow
        self._engine = engine
        self._policy = NamePolicy(settings.topics.prefix or "")
        self._selector = TopicSelector(
            settings.topics.include,
            settings.topics.exclude,
            self._policy,
            same_cluster=flow.source.info.cluster_id == flow.target.info.cluster_id,
        )
        self._in_flight_max = settings.append.batches_in_flight_max
        self._topics = TargetTopics(settings.topics, flow, memory, engine.partitions.values, self._policy)
        self._in_conflict: set[TopicPartition] = set()
        self._offsets = settings.offsets.mode
        self._memory = memory
        self._repeats = Repeats()
        self._mirror_principals = principals(settings.target.security)

    def retention_ms(self, topic: str) -> int | None:
        """``retention.ms`` of a source topic; None when not known or when it is not deleted by age."""
        return self._topics.retention_ms(topic)

    async def run(self) -> None:
        """Follow until cancelled. A pass that fails is logged and tried again."""
        while True:
            await self.tend(self._settings.refresh_seconds)
            await self._attempt(self.follow())

    async def tend(self, seconds: float = math.inf) -> None:
        """For so long, bring topics in step as soon as it is known that they are ours."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            await asyncio.sleep(min(TEND_SECONDS, left))
            await self._attempt(self._topics.finish(again=False))

    async def finish(self) -> None:
        """Leave topics as they are to be, before the mirror ends.

        Raises:
            TwinsiteError: The target cannot be asked.
        """
        await self._topics.finish(again=True)

    async def _attempt(self, work: Awaitable[None]) -> None:
        try:
            await work
        except TwinsiteError as error:
            warn_repeated(log, self._repeats, str(error), "topics_not_followed", error=str(error))

    async def follow(self) -> None:
        """One pass.

        Raises:
            TwinsiteError: A cluster cannot be asked, or does not allow what is needed.
        """
        found = await self._flow.source.describe_topics(None)
        internal = {name for name, topic in found.topics.items() if topic.internal}
        selection = self._selector.select(found.topics, internal=internal)
        self.seen = [name for name in sorted(found.topics) if selection.ignored.get(name) not in _INTERNAL]
        self.topics_ignored = len(selection.ignored)
        chosen = {name: found.topics[name] for name in selection.chosen}
        conflicts = await self._topics.bring_up(chosen)
        self._flow.source.follow(chosen)
        await self._flow.source.refresh()
        self._note_gone(found)
        self._add_partitions(chosen, conflicts)
        self._tell_other_modes(chosen)
        await self._topics.finish(again=True)
        if self._settings.sync_acls:
            await self._carry_acls(chosen)
        self.followed_once = True

    async def _carry_acls(self, chosen: Collection[str]) -> None:
        """Add ACLs that are missing; copying does not depend on it, so a refusal is only said."""
        try:
            plan = await carry_acls(
                self._flow.source,
                self._flow.target,
                chosen,
                self._policy,
                mirror_principals=self._mirror_principals,
            )
        except TwinsiteError as error:
            log.warning("acls_not_carried", error=str(error))
            return
        if plan is not None and plan.create:
            log.info("acls_added", count=len(plan.create), left_out=len(plan.skipped))

    # -- the engine's partitions -----------------------------------------------------------------

    def _add_partitions(self, chosen: Mapping[str, TopicInfo], conflicts: Mapping[str, Conflict]) -> None:
        for name, topic in chosen.items():
            conflict = conflicts.get(name)
            for number in sorted(topic.partitions):
                stands = conflict is not None and number >= conflict.first_partition
                self._add(topic, number, conflict if stands else None)

    def _add(self, topic: TopicInfo, number: int, conflict: Conflict | None) -> None:
        tp = TopicPartition(topic.name, number)
        partition = self._engine.partitions.get(tp)
        if partition is None:
            target = TopicPartition(self._policy.to_target(topic.name), number)
            partition = PartitionCopy(tp, target, topic.topic_id.bytes, in_flight_max=self._in_flight_max)
            self._engine.add(partition)
        elif partition.topic_id != topic.topic_id.bytes:
            self._recreated(partition, topic)
        elif partition.reason is Reason.TOPIC_DELETED:
            self._engine.resume(partition)  # it was hidden from us, not deleted
        if conflict is not None and partition.state not in HOPELESS:
            again = time.monotonic() + CONFLICT_AGAIN_SECONDS
            partition.stop(State.BLOCKED, conflict.reason, conflict.detail, again)
            self._in_conflict.add(tp)
            self._engine.changed(partition)
        elif conflict is None and tp in self._in_conflict:
            self._in_conflict.remove(tp)
            if partition.state is State.BLOCKED:
                self._engine.resume(partition)

    def _tell_other_modes(self, chosen: Mapping[str, TopicInfo]) -> None:
        """Say, once, that partitions began with another offset mode than the one asked for now."""
        if self.followed_once or self._offsets == "auto":
            return
        began = [self._memory.known(tp) for tp in self._engine.partitions if tp.topic in chosen]
        others = [known for known in began if known is not None and known.mode != self._offsets]
        if others:
            log.warning(
                "offset_mode_kept", asked_for=self._offsets, mode=others[0].mode.value, partitions=len(others)
            )

    def _recreated(self, partition: PartitionCopy, topic: TopicInfo) -> None:
        if partition.state is State.TOPIC_RECREATED:
            return
        partition.stop(
            State.TOPIC_RECREATED,
            Reason.TOPIC_ID_CHANGED,
            f"the source topic was deleted and made again: its id is {topic.topic_id} now",
            None,
        )
        self._engine.changed(partition)

    def _note_gone(self, found: ClusterInfo) -> None:
        """Topics that are not at the source any more; an empty answer says nothing.

        What only an operator ends stays as it is: it says more than that the topic is gone.
        """
        if not found.topics:
            return
        for partition in self._copied(gone_from=found.topics):
            if partition.reason is not Reason.TOPIC_DELETED and partition.state not in HOPELESS:
                partition.stop(
                    State.BLOCKED,
                    Reason.TOPIC_DELETED,
                    f"the source has no topic {partition.tp.topic} any more, or may not show it",
                    None,
                )
                self._engine.changed(partition)

    def _copied(self, gone_from: Mapping[str, TopicInfo]) -> Iterable[PartitionCopy]:
        return [p for p in self._engine.partitions.values() if p.tp.topic not in gone_from]
