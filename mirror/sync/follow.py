"""Keep the set of copied partitions in step with the topics of the source.

Every pass reads both clusters, makes what is missing at the target, and hands new
partitions to the engine. A topic that cannot be copied becomes partitions in a
state with a reason; a topic that was deleted, or made again under its name, is
said to be so and never mixed up with its successor.

Sources: KIP-516 (topic ids), docs/design.md.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

import structlog

from mirror.config import Settings
from mirror.errors import BrokerError, NotAuthorizedError, TwinsiteError
from mirror.failpoints import reach
from mirror.flow.context import Flow
from mirror.flow.engine import Engine
from mirror.flow.memory import FlowMemory
from mirror.flow.partition import PartitionCopy
from mirror.kafka.cluster import ClusterInfo, TopicInfo
from mirror.kafka.offsets import EARLIEST, list_offsets
from mirror.kafka.topics import NewTopic, create_partitions, create_topics, set_configs, topic_defaults
from mirror.logs import Repeats, warn_repeated
from mirror.model import Reason, State, TopicPartition
from mirror.sync.carry_acls import carry_acls, principals
from mirror.sync.describe import describe
from mirror.sync.names import NamePolicy, TopicSelector
from mirror.sync.topics import (
    AddPartitions,
    AlterConfigs,
    Conflict,
    CreateTopic,
    Note,
    Target,
    TopicFacts,
    TopicPlan,
    plan_topics,
)

log = structlog.get_logger(__name__)

VISIBLE_SECONDS = 30.0
"""How long a topic just made may take until all its partitions have leaders."""
CONFLICT_AGAIN_SECONDS = 30.0
CLEANUP_POLICY = "cleanup.policy"
PREPARING_CONFIGS = {CLEANUP_POLICY: "delete", "retention.ms": "-1", "retention.bytes": "-1"}
"""While a log is made to start at its offset: DeleteRecords wants ``delete``, and nothing may expire."""
PROBE = "twinsite-settings-probe"


class Follower:
    """Follows the topics of one source.

    Attributes:
        seen: Names of all topics the source may show us.
        topics_ignored: How many of them are not copied.
    """

    def __init__(self, settings: Settings, flow: Flow, engine: Engine, memory: FlowMemory) -> None:
        self.seen: list[str] = []
        self.topics_ignored = 0
        self.followed_once = False
        self._settings = settings.topics
        self._flow = flow
        self._engine = engine
        self._memory = memory
        self._policy = NamePolicy(settings.topics.prefix or "")
        self._selector = TopicSelector(
            settings.topics.include,
            settings.topics.exclude,
            self._policy,
            same_cluster=flow.source.info.cluster_id == flow.target.info.cluster_id,
        )
        self._in_flight_max = settings.append.batches_in_flight_max
        self._retention_ms: dict[str, int] = {}
        self._source_facts: dict[str, TopicFacts] = {}
        self._preparing: dict[str, dict[str, str | None]] = {}
        self._kept_as_prepared: set[str] = set()
        """Topics whose settings may not be changed."""
        self._told: set[Note] = set()
        self._repeats = Repeats()
        self._mirror_principals = principals(settings.target.security)

    def retention_ms(self, topic: str) -> int | None:
        """``retention.ms`` of a source topic; None when not known or when it is not deleted by age."""
        return self._retention_ms.get(topic)

    async def run(self) -> None:
        """Follow until cancelled. A pass that fails is logged and tried again."""
        while True:
            soon = self._preparing.keys() - self._kept_as_prepared
            await asyncio.sleep(1.0 if soon else self._settings.refresh_seconds)
            try:
                await self.follow()
            except TwinsiteError as error:
                log.warning("topics_not_followed", error=str(error))

    async def follow(self) -> None:
        """One pass.

        Raises:
            TwinsiteError: A cluster cannot be asked, or does not allow what is needed.
        """
        found = await self._flow.source.describe_topics(None)
        internal = {name for name, topic in found.topics.items() if topic.internal}
        selection = self._selector.select(found.topics, internal=internal)
        self.seen = sorted(set(found.topics) - internal)
        self.topics_ignored = len(selection.ignored)
        chosen = {name: found.topics[name] for name in selection.chosen}
        conflicts = await self._bring_target_up(chosen)
        self._flow.source.follow(chosen)
        await self._flow.source.refresh()
        self._note_gone(found)
        self._add_partitions(chosen, {conflict.topic: conflict for conflict in conflicts})
        await self.finish_preparing()
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

    # -- the target's topics ---------------------------------------------------------------------

    async def _bring_target_up(self, chosen: Mapping[str, TopicInfo]) -> tuple[Conflict, ...]:
        there = await self._flow.target.describe_topics(None)
        source = await self._describe_source(chosen)
        names = {self._policy.to_target(name) for name in chosen}
        described = await describe(self._flow.target, [t for n, t in there.topics.items() if n in names])
        others = {
            name: TopicFacts(name, len(topic.partitions), 1)
            for name, topic in there.topics.items()
            if name not in names
        }
        missing = [name for name in chosen if self._policy.to_target(name) not in there.topics]
        defaults = await topic_defaults(self._flow.target, PROBE) if missing else None
        self._find_unfinished(described)
        held = frozenset(self._preparing)
        target = Target({**others, **described}, len(there.brokers), defaults, held)
        plan = plan_topics(source.values(), target, self._policy, self._settings)
        conflicts = (*plan.conflicts, *await self._carry_out(plan, chosen))
        await self._see_topics(chosen, plan.actions > 0, {conflict.topic for conflict in conflicts})
        await self._note_batch_limits(chosen)
        return conflicts

    async def _describe_source(self, chosen: Mapping[str, TopicInfo]) -> dict[str, TopicFacts]:
        """Settings are read once a topic, and at every pass where they are to be followed."""
        for name, info in chosen.items():
            known = self._source_facts.get(name)
            if known is not None:
                self._source_facts[name] = replace(known, partitions=len(info.partitions))
        wanted = chosen if self._settings.sync_configs else set(chosen) - set(self._source_facts)
        self._source_facts.update(await describe(self._flow.source, [chosen[name] for name in wanted]))
        for name in wanted:
            values = self._source_facts[name].configs.values
            if "delete" in values.get(CLEANUP_POLICY, "") and "retention.ms" in values:
                self._retention_ms[name] = int(values["retention.ms"])
        return {name: self._source_facts[name] for name in chosen}

    async def _carry_out(self, plan: TopicPlan, chosen: Mapping[str, TopicInfo]) -> list[Conflict]:
        """Do what is planned; what is refused for one topic is that topic's conflict."""
        for note in set(plan.notes) - self._told:
            log.info("setting_left_out", topic=note.topic, setting=note.setting, why=note.why)
        self._told.update(plan.notes)
        steps: list[tuple[str, Awaitable[None]]] = [
            *((addition.name, self._add_to(addition)) for addition in plan.add_partitions),
            *((change.name, self._change(change)) for change in plan.alter_configs),
        ]
        refused = await self._create(plan.create, chosen)
        for name, step in steps:
            try:
                await step
            except (NotAuthorizedError, BrokerError) as error:
                refused.append(self._refused(name, error))
        return refused

    def _refused(self, name: str, error: TwinsiteError) -> Conflict:
        authorized = not isinstance(error, NotAuthorizedError)
        reason = Reason.TARGET_TOPIC_MISSING if authorized else Reason.TARGET_NOT_AUTHORIZED
        there = self._flow.target.info.topics.get(name)
        first = len(there.partitions) if there is not None else 0
        return Conflict(self._policy.to_source(name) or name, name, reason, str(error), error.hint, first)

    async def _add_to(self, addition: AddPartitions) -> None:
        await create_partitions(self._flow.target, addition.name, addition.partitions)
        log.info("partitions_added", topic=addition.name, partitions=addition.partitions)

    async def _change(self, change: AlterConfigs) -> None:
        await set_configs(self._flow.target, change.name, change.changes)
        log.info("settings_changed", topic=change.name, settings=sorted(change.changes))

    async def _create(
        self, creations: Sequence[CreateTopic], chosen: Mapping[str, TopicInfo]
    ) -> list[Conflict]:
        """Make topics, all in one go; those whose source starts late are made ready for that."""
        late = await self._starting_late(creations, chosen)
        topics: list[NewTopic] = []
        for creation in creations:
            configs = dict(creation.configs)
            if creation.name in late:
                self._preparing[creation.name] = {key: configs.get(key) for key in PREPARING_CONFIGS}
                configs |= PREPARING_CONFIGS
            topics.append(NewTopic(creation.name, creation.partitions, creation.replication_factor, configs))
        partitions = {topic.name: topic.partitions for topic in topics}
        refused: list[Conflict] = []
        for name, made in (await create_topics(self._flow.target, topics)).items():
            reach("topic_created")
            if isinstance(made, TwinsiteError):
                self._preparing.pop(name, None)
                refused.append(self._refused(name, made))
            elif made:
                log.info("topic_created", topic=name, partitions=partitions[name])
        return refused

    def _find_unfinished(self, described: Mapping[str, TopicFacts]) -> None:
        """Topics that were being prepared when a mirror ended are told by their settings."""
        for name, topic in described.items():
            own = {key: topic.configs.values.get(key) for key in topic.configs.explicit}
            source = self._source_facts.get(self._policy.to_source(name) or "")
            if source is None or any(own.get(key) != value for key, value in PREPARING_CONFIGS.items()):
                continue
            wanted = {key: source.configs.values.get(key) for key in source.configs.explicit}
            if any(wanted.get(key) != value for key, value in PREPARING_CONFIGS.items()):
                self._preparing.setdefault(name, {key: wanted.get(key) for key in PREPARING_CONFIGS})

    async def _starting_late(
        self, creations: Sequence[CreateTopic], chosen: Mapping[str, TopicInfo]
    ) -> set[str]:
        """Those of the target topics whose source has a partition that does not start at 0."""
        sources = {self._policy.to_source(creation.name): creation.name for creation in creations}
        tps = [TopicPartition(n, p) for n in chosen if n in sources for p in chosen[n].partitions]
        if not tps:
            return set()
        self._flow.source.follow(chosen)
        await self._flow.source.refresh()
        starts = await list_offsets(self._flow.source, tps, EARLIEST)
        return {sources[tp.topic] for tp, start in starts.items() if isinstance(start, int) and start > 0}

    async def finish_preparing(self) -> None:
        """Give topics their own settings once all their partitions start where they should.

        What is refused for one topic is said, and tried again at the next pass; its records come anyway.

        Raises:
            ConnectionFailedError: The target cannot be asked.
        """
        for name, final in list(self._preparing.items()):
            source = self._policy.to_source(name)
            partitions = [p for p in self._engine.partitions.values() if p.tp.topic == source]
            known = [self._memory.known(p.tp) for p in partitions]
            if partitions and all(k is not None and k.prepared for k in known):
                await self._end_preparing(name, final)

    async def _end_preparing(self, name: str, final: Mapping[str, str | None]) -> None:
        try:
            await set_configs(self._flow.target, name, final)
        except (NotAuthorizedError, BrokerError) as error:
            warn_repeated(log, self._repeats, name, "topic_settings_not_final", topic=name, error=str(error))
            self._kept_as_prepared.add(name)
            return
        self._preparing.pop(name, None)
        log.info("topic_prepared", topic=name)

    async def _see_topics(self, chosen: Mapping[str, TopicInfo], made: bool, obstacles: set[str]) -> None:
        """Wait until what was made is there for all to see."""
        wanted = {
            self._policy.to_target(n): len(t.partitions) for n, t in chosen.items() if n not in obstacles
        }
        self._flow.target.follow(wanted)
        end = time.monotonic() + VISIBLE_SECONDS
        while True:
            info = await self._flow.target.refresh()
            if not made or time.monotonic() > end or _all_led(info, wanted):
                return
            await asyncio.sleep(0.05)

    async def _note_batch_limits(self, chosen: Mapping[str, TopicInfo]) -> None:
        """Limits are read once a topic, and again where they may have changed or a record is above them."""
        waiting = {
            p.tp.topic for p in self._engine.partitions.values() if p.reason is Reason.RECORD_TOO_LARGE
        }
        new = [name for name in chosen if name not in self._flow.batch_bytes_max or name in waiting]
        wanted = chosen if self._settings.sync_configs else new
        topics = self._flow.target.info.topics
        infos = [topics[t] for t in map(self._policy.to_target, wanted) if t in topics]
        for name, topic in (await describe(self._flow.target, infos)).items():
            limit, source = topic.configs.values.get("max.message.bytes"), self._policy.to_source(name)
            if limit is not None and source is not None:
                self._flow.batch_bytes_max[source] = int(limit)

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
        if conflict is not None:
            again = time.monotonic() + CONFLICT_AGAIN_SECONDS
            partition.stop(State.BLOCKED, conflict.reason, conflict.detail, again)
            self._engine.changed(partition)

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
        """Topics that are not at the source any more; an empty answer says nothing."""
        if not found.topics:
            return
        for partition in self._copied(gone_from=found.topics):
            if partition.reason is not Reason.TOPIC_DELETED:
                partition.stop(
                    State.BLOCKED,
                    Reason.TOPIC_DELETED,
                    f"the source has no topic {partition.tp.topic} any more, or may not show it",
                    None,
                )
                self._engine.changed(partition)

    def _copied(self, gone_from: Mapping[str, TopicInfo]) -> Iterable[PartitionCopy]:
        return [p for p in self._engine.partitions.values() if p.tp.topic not in gone_from]


def _all_led(info: ClusterInfo, wanted: Mapping[str, int]) -> bool:
    for name, partitions in wanted.items():
        topic = info.topics.get(name)
        if topic is None or len(topic.partitions) < partitions:
            return False
        if any(partition.leader < 0 for partition in topic.partitions.values()):
            return False
    return True
