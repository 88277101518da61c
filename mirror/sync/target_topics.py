"""Make the target's topics what copying needs, and keep their settings in step.

What is planned in :mod:`mirror.sync.topics` is carried out here. A topic is changed
only where the flow owns it: it made the topic in this run, or it copies into all of
its partitions and they began empty. Whatever else bears the name may hold records of
somebody, which a taken over retention would let expire.

Sources: KIP-107 (DeleteRecords), docs/design.md.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol
from uuid import UUID

import structlog

from mirror.config import TopicsSettings
from mirror.errors import BrokerError, NotAuthorizedError, TwinsiteError
from mirror.failpoints import reach
from mirror.flow.context import Flow
from mirror.flow.partition import PartitionCopy
from mirror.flow.position import Known
from mirror.kafka.cluster_info import ClusterInfo, TopicInfo
from mirror.kafka.offsets import EARLIEST, list_offsets
from mirror.kafka.topics import NewTopic, create_partitions, create_topics, set_configs, topic_defaults
from mirror.logs import Repeats, warn_repeated
from mirror.model import Reason, State, TopicPartition
from mirror.sync.describe import describe
from mirror.sync.names import NamePolicy
from mirror.sync.topic_configs import (
    ALL,
    KEEP_ALL,
    LONG_MAX,
    MESSAGE_BYTES_MAX,
    TIMESTAMP_TYPE,
    excluded,
    retention_of,
    tombstones_kept_ms,
)
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
from monitoring.outlook import Retention
from monitoring.tombstones import Tombstones

log = structlog.get_logger(__name__)

VISIBLE_SECONDS = 30.0
"""How long a topic just made may take until all its partitions have leaders."""
VISIBLE_PAUSE_SECONDS = 0.05
PREPARING_CONFIGS = KEEP_ALL | {"retention.bytes": LONG_MAX}
"""While a log is made to start at its offset: DeleteRecords wants ``delete``, and nothing may expire. Nobody
else says that so: by it a topic is known again that was being prepared when a mirror ended.
"""
PROBE = "twinsite-settings-probe"


class Memory(Protocol):
    """What the flow remembers, as far as it is asked here."""

    def known(self, tp: TopicPartition) -> Known | None:
        """What is known of a partition."""


class TargetTopics:
    """The target's side of the topics that are copied.

    Args:
        partitions: The partitions of the flow, as they are now.
    """

    def __init__(
        self,
        settings: TopicsSettings,
        flow: Flow,
        memory: Memory,
        partitions: Callable[[], Iterable[PartitionCopy]],
        policy: NamePolicy,
    ) -> None:
        self._settings = settings
        self._flow = flow
        self._memory = memory
        self._partitions = partitions
        self._policy = policy
        self._retention: dict[str, Retention] = {}
        self._tombstones: dict[str, Tombstones] = {}
        self._source_facts: dict[str, TopicFacts] = {}
        self._there: dict[str, TopicFacts] = {}
        self._source_ids: dict[str, UUID] = {}
        self._made: dict[str, UUID] = {}
        """Target topics made in this run, and the source topic each was made for."""
        self._diverged: set[str] = set()
        """Target topics to which others have written, as far as is known, or that are others by now."""
        self._looked_at: set[str] = set()
        """Target topics whose partitions were all looked at."""
        self._left_alone: dict[str, AlterConfigs] = {}
        self._preparing: dict[str, dict[str, str | None]] = {}
        self._kept_as_prepared: set[str] = set()
        """Topics whose settings may not be changed."""
        self._told: set[Note] = set()
        self._repeats = Repeats()

    def retention(self, topic: str) -> Retention:
        """What a source topic keeps; without limits where it is compacted only."""
        return self._retention.get(topic, Retention())

    def tombstones(self, topic: str) -> Tombstones:
        """How long a source topic keeps tombstones."""
        return self._tombstones.get(topic, Tombstones())

    async def bring_up(self, chosen: Mapping[str, TopicInfo]) -> dict[str, Conflict]:
        """Make and change what these source topics need.

        Returns:
            For source topics that cannot be copied, or not all of their partitions, what is in the way.

        Raises:
            TwinsiteError: A cluster cannot be asked.
        """
        there = await self._flow.target.describe_topics(None)
        source = await self._describe_source(chosen)
        names = {self._policy.to_target(name) for name in chosen}
        self._there = await describe(self._flow.target, [t for n, t in there.topics.items() if n in names])
        self._source_ids = {self._policy.to_target(name): topic.topic_id for name, topic in chosen.items()}
        others = {
            name: TopicFacts(name, len(topic.partitions), 1)
            for name, topic in there.topics.items()
            if name not in names
        }
        defaults = await topic_defaults(self._flow.target, PROBE) if names - there.topics.keys() else None
        self._note_states()
        self._find_unfinished()
        target = Target(
            {**others, **self._there},
            len(there.brokers),
            defaults,
            held=frozenset(self._preparing),
            unprepared=frozenset(filter(self._unprepared, self._there)),
            owned=frozenset(filter(self._owned, self._there)),
            settled=frozenset(filter(self._is_settled, self._there)),
        )
        plan = plan_topics(source.values(), target, self._policy, self._settings)
        found = [*plan.conflicts, *await self._carry_out(plan, chosen)]
        conflicts = {c.topic: c for c in sorted(found, key=lambda c: -c.first_partition)}
        await self._see_topics(chosen, plan.actions > 0, conflicts)
        await self._note_batch_limits(chosen)
        return conflicts

    def owns_copy_of(self, topic: str) -> bool:
        """Whether the copy of a source topic is known to hold nothing but what this flow copies."""
        name = self._policy.to_target(topic)
        return self._owned(name) and self._is_settled(name)

    async def finish(self, *, again: bool) -> None:
        """Give topics their settings once all their partitions are ours, and begin where they should.

        What is refused for one topic is said; its records come anyway.

        Args:
            again: Try also what was refused before.

        Raises:
            ConnectionFailedError: The target cannot be asked.
        """
        self._note_states()
        for name, final in list(self._preparing.items()):
            ready = self._prepared(name) and self._is_settled(name)
            if (again or name not in self._kept_as_prepared) and ready:
                await self._end_preparing(name, final)
        for name, change in list(self._left_alone.items()):
            if self._owned(name) and self._is_settled(name) and not self._unprepared(name):
                del self._left_alone[name]
                await self._change(change)
                self._note_batch_limit(name, change.changes.get(MESSAGE_BYTES_MAX))

    # -- whose topics they are -------------------------------------------------------------------

    def _owned(self, name: str) -> bool:
        """True for a target topic in which nothing is but what this flow copies from the source topic."""
        source_id = self._source_ids.get(name)
        if source_id is None or name in self._diverged:
            return False
        return self._made.get(name) == source_id or bool(self._known(name))

    def _is_settled(self, name: str) -> bool:
        """Whether it is known by now that nobody else has written to it: a start takes a look first."""
        return name not in self._diverged and (name in self._made or name in self._looked_at)

    def _note_states(self) -> None:
        partitions = list(self._partitions())
        unknown = {p.target.topic for p in partitions if p.state is State.UNKNOWN}
        self._looked_at = {p.target.topic for p in partitions} - unknown
        self._diverged = {p.target.topic for p in partitions if _is_anothers(p)}

    def _unprepared(self, name: str) -> bool:
        """True while the copy of a partition is to begin where its log does not start yet."""
        return any(not one.prepared for one in self._known(name))

    def _prepared(self, name: str) -> bool:
        known = self._known(name)
        return bool(known) and all(one.prepared for one in known)

    def _known(self, name: str) -> list[Known]:
        """What is known of each partition of a target topic; nothing unless it is ours altogether."""
        source, source_id = self._policy.to_source(name), str(self._source_ids.get(name))
        known = [self._memory.known(TopicPartition(source or name, n)) for n in range(self._count(name))]
        ours = [one for one in known if one is not None and _copies(one, source_id, name)]
        return ours if len(ours) == len(known) else []

    def _count(self, name: str) -> int:
        """Partitions of a target topic, as last seen."""
        seen = self._flow.target.info.topics.get(name)
        described = self._there[name].partitions if name in self._there else 0
        return max(described, len(seen.partitions) if seen is not None else 0)

    # -- what is planned -------------------------------------------------------------------------

    async def _describe_source(self, chosen: Mapping[str, TopicInfo]) -> dict[str, TopicFacts]:
        """Settings are read once a topic, and at every pass where they are to be followed."""
        for name, info in chosen.items():
            known = self._source_facts.get(name)
            if known is not None:
                self._source_facts[name] = replace(known, partitions=len(info.partitions))
        wanted = chosen if self._settings.sync_configs else set(chosen) - set(self._source_facts)
        self._source_facts.update(await describe(self._flow.source, [chosen[name] for name in wanted]))
        now = time.monotonic()
        for name in wanted:
            values = self._source_facts[name].configs.values
            self._retention[name] = retention_of(values)
            self._tombstones[name] = self.tombstones(name).then(tombstones_kept_ms(values), now=now)
        return {name: self._source_facts[name] for name in chosen}

    async def _carry_out(self, plan: TopicPlan, chosen: Mapping[str, TopicInfo]) -> list[Conflict]:
        """Do what is planned; what is refused for one topic is that topic's conflict."""
        self._tell(plan)
        refused = await self._create(plan.create, chosen)
        for addition in plan.add_partitions:
            try:
                await self._add_to(addition)
            except (NotAuthorizedError, BrokerError) as error:
                first = self._there[addition.name].partitions
                refused.append(self._refused(addition.name, error, Reason.TARGET_PARTITIONS, first))
        for change in plan.alter_configs:
            conflict = await self._change(change)
            refused.extend([conflict] if conflict is not None else [])
        return refused

    def _tell(self, plan: TopicPlan) -> None:
        """Say, once, what is not taken over."""
        for note in set(plan.notes) - self._told:
            level = logging.WARNING if note.setting == ALL else logging.INFO
            log.log(level, "setting_left_out", topic=note.topic, setting=note.setting, why=note.why)
        self._told.update(plan.notes)
        for change in plan.left_alone:
            if self._left_alone.get(change.name) != change and not self._owned(change.name):
                why = "the flow does not copy all there is in it"
                log.info("settings_left_alone", topic=change.name, settings=sorted(change.changes), why=why)
        self._left_alone = {change.name: change for change in plan.left_alone}

    def _refused(self, name: str, error: TwinsiteError, reason: Reason, first_partition: int = 0) -> Conflict:
        """What the target did not do; ``reason`` where it is not a right that is missing."""
        named = Reason.TARGET_NOT_AUTHORIZED if isinstance(error, NotAuthorizedError) else reason
        return Conflict(self._policy.to_source(name) or name, name, named, str(error), first_partition)

    async def _add_to(self, addition: AddPartitions) -> None:
        await create_partitions(self._flow.target, addition.name, addition.partitions)
        reach("partitions_added")
        log.info("partitions_added", topic=addition.name, partitions=addition.partitions)

    async def _change(self, change: AlterConfigs) -> Conflict | None:
        """Change settings; a refusal is a conflict only where records would get other times."""
        name, keys = change.name, sorted(change.changes)
        try:
            await set_configs(self._flow.target, name, change.changes)
        except (NotAuthorizedError, BrokerError) as error:
            key = ("settings", name)
            warn_repeated(
                log, self._repeats, key, "settings_not_changed", topic=name, settings=keys, error=str(error)
            )
            replaced = self._there[name].configs.values.get(TIMESTAMP_TYPE) == "LogAppendTime"
            source = self._policy.to_source(name) or name
            return Conflict(source, name, Reason.APPEND_TIMES, str(error)) if replaced else None
        reach("settings_changed")
        log.info("settings_changed", topic=name, settings=keys)
        return None

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
                refused.append(self._refused(name, made, Reason.TARGET_TOPIC_MISSING))
            elif made:
                self._made[name] = self._source_ids[name]
                log.info("topic_created", topic=name, partitions=partitions[name])
        return refused

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

    async def _see_topics(
        self, chosen: Mapping[str, TopicInfo], made: bool, conflicts: Mapping[str, Conflict]
    ) -> None:
        """Wait until what was made is there for all to see; partitions that are not in conflict go on."""
        partitions = {name: len(topic.partitions) for name, topic in chosen.items()}
        partitions |= {name: conflict.first_partition for name, conflict in conflicts.items()}
        wanted = {self._policy.to_target(name): count for name, count in partitions.items() if count}
        self._flow.target.follow(wanted)
        end = time.monotonic() + VISIBLE_SECONDS
        missing = wanted if made else {}
        while missing and time.monotonic() < end:
            missing = _not_led(await self._flow.target.describe_topics(missing), missing)
            if missing:
                await asyncio.sleep(VISIBLE_PAUSE_SECONDS)
        await self._flow.target.refresh()

    async def _note_batch_limits(self, chosen: Mapping[str, TopicInfo]) -> None:
        """Limits are read once a topic, and again where they may have changed or a record is above them."""
        waiting = {p.tp.topic for p in self._partitions() if p.reason is Reason.RECORD_TOO_LARGE}
        new = [name for name in chosen if name not in self._flow.batch_bytes_max or name in waiting]
        wanted = chosen if self._settings.sync_configs else new
        topics = self._flow.target.info.topics
        infos = [topics[t] for t in map(self._policy.to_target, wanted) if t in topics]
        for name, topic in (await describe(self._flow.target, infos)).items():
            self._note_batch_limit(name, topic.configs.values.get(MESSAGE_BYTES_MAX))

    def _note_batch_limit(self, name: str, limit: str | None) -> None:
        source = self._policy.to_source(name)
        if limit is not None and source is not None:
            self._flow.batch_bytes_max[source] = int(limit)

    # -- topics that start late ------------------------------------------------------------------

    def _find_unfinished(self) -> None:
        """Topics that were being prepared when a mirror ended are told by their settings."""
        for name, topic in self._there.items():
            own = {key: topic.configs.values.get(key) for key in topic.configs.explicit}
            source = self._source_facts.get(self._policy.to_source(name) or "")
            if source is None or not source.configs.values:
                continue
            if any(own.get(key) != value for key, value in PREPARING_CONFIGS.items()):
                continue
            kept = [key for key in PREPARING_CONFIGS if excluded(key, self._settings.config_exclude)]
            final = {key: source.configs.values.get(key) for key in PREPARING_CONFIGS}
            self._preparing.setdefault(name, final | dict.fromkeys(kept))

    async def _end_preparing(self, name: str, final: Mapping[str, str | None]) -> None:
        try:
            await set_configs(self._flow.target, name, final)
        except (NotAuthorizedError, BrokerError) as error:
            warn_repeated(log, self._repeats, name, "topic_settings_not_final", topic=name, error=str(error))
            self._kept_as_prepared.add(name)
            return
        reach("settings_final")
        self._preparing.pop(name, None)
        log.info("topic_prepared", topic=name)


def _is_anothers(partition: PartitionCopy) -> bool:
    return partition.state is State.DIVERGED and partition.reason is not Reason.SOURCE_TRUNCATED


def _copies(known: Known, source_id: str, target_topic: str) -> bool:
    """True for a partition copied from this source topic to where nothing else was."""
    return known.topic_id == source_id and known.target_topic == target_topic and not known.shared


def _not_led(info: ClusterInfo, wanted: Mapping[str, int]) -> dict[str, int]:
    """Those of the topics that do not have so many partitions yet, or not a leader for each."""
    missing = {}
    for name, count in wanted.items():
        topic = info.topics.get(name)
        led = topic is not None and all(p.leader >= 0 for p in topic.partitions.values())
        if topic is None or len(topic.partitions) < count or not led:
            missing[name] = count
    return missing
