"""Create and change the target's topics as copying needs them, and keep their settings in step.

This carries out the plan of :mod:`mirror.sync.topics`, given what is known of the source
(:mod:`mirror.sync.source_topics`) and within the time a pass may wait
(:mod:`mirror.sync.target_requests`). A topic is changed only if it is the flow's own, and
by the mirror that copies (:mod:`mirror.sync.ownership`). Any other topic of that name may
hold somebody's records, which would expire under the source's retention.

Sources: KIP-107 (DeleteRecords), docs/design.md.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import structlog

from mirror.config import TopicsSettings
from mirror.errors import BrokerError, ConnectionFailedError, NotAuthorizedError, TwinsiteError
from mirror.failpoints import reach
from mirror.flow.context import Flow
from mirror.flow.log_ends import Right, look_at
from mirror.flow.partition import PartitionCopy
from mirror.kafka.cluster_info import ClusterInfo, TopicInfo
from mirror.kafka.topics import NewTopic
from mirror.logs import Repeats, warn_repeated
from mirror.model import Reason, TopicPartition
from mirror.sync.describe import describe
from mirror.sync.names import NamePolicy
from mirror.sync.ownership import Memory, Ownership
from mirror.sync.preparing import PREPARING_CONFIGS, Preparations
from mirror.sync.source_topics import SourceTopics
from mirror.sync.target_requests import (
    add_partitions,
    ask_defaults,
    change_settings,
    list_topics,
    make_topics,
    wait_until_led,
)
from mirror.sync.topic_configs import (
    ALL,
    APPEND_TIME,
    MESSAGE_BYTES_MAX,
    REPLICATION_FACTOR,
    TIMESTAMP_TYPE,
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

log = structlog.get_logger(__name__)

UNANSWERED = frozenset({Reason.SOURCE_UNAVAILABLE, Reason.TARGET_UNAVAILABLE})
NO_REFUSALS: Mapping[type[TwinsiteError], Reason] = {
    NotAuthorizedError: Reason.TARGET_NOT_AUTHORIZED,
    ConnectionFailedError: Reason.TARGET_UNAVAILABLE,
}


class TargetTopics:
    """The target's side of the topics that are copied.

    Attributes:
        unanswered: Whether the last pass left something undone because a cluster did not answer.

    Args:
        partitions: The flow's partitions by source partition; the mapping stays up to date.
    """

    def __init__(
        self,
        settings: TopicsSettings,
        flow: Flow,
        source: SourceTopics,
        memory: Memory,
        partitions: Mapping[TopicPartition, PartitionCopy],
        policy: NamePolicy,
        right: Right,
    ) -> None:
        self.unanswered = False
        self._settings = settings
        self._flow = flow
        self._source = source
        self._partitions = partitions
        self._policy = policy
        self._memory = memory
        self._ownership = Ownership(flow, memory, partitions, policy, right)
        self._there: dict[str, TopicFacts] = {}
        self._stamping: frozenset[str] = frozenset()
        """Target topics that replaced record times when their settings were last read."""
        self._times_kept: set[str] = set()
        """Target topics that no longer replace record times since the last pass changed their settings."""
        self._left_alone: dict[str, AlterConfigs] = {}
        self._not_added: dict[str, AddPartitions] = {}
        self._added: dict[str, int] = {}
        """Target topics given partitions by :meth:`finish`, with their new total, until it returns them."""
        self._preparations = Preparations(settings.config_exclude)
        self._told: set[Note] = set()
        self._repeats = Repeats()

    async def bring_up(self, chosen: Mapping[str, TopicInfo]) -> dict[str, Conflict]:
        """Create and change at the target what these source topics need.

        Returns:
            What keeps a source topic, or some of its partitions, from being copied; by source topic.

        Raises:
            TwinsiteError: A request to a cluster fails.
        """
        self._forget_gone(chosen)
        names = {self._policy.to_target(name) for name in chosen}
        there = await list_topics(self._flow.target, names)
        source = await self._source.describe(chosen)
        not_ready = await self._source.unready(chosen, source)
        self._there = await describe(self._flow.target, [t for n, t in there.topics.items() if n in names])
        self._stamping = frozenset(filter(self._replaces_times, names))
        self._ownership.begin_pass(
            {self._policy.to_target(name): topic.topic_id for name, topic in chosen.items()},
            {name: topic.partitions for name, topic in self._there.items()},
        )
        missing = names - there.topics.keys()
        defaults, silent = await ask_defaults(self._flow.target) if missing else (None, "")
        for name, topic in self._there.items():
            self._preparations.see(topic, self._source.facts(self._policy.to_source(name) or ""))
        target = self._target(there, defaults, silent)
        plan = await self._plan([topic for name, topic in source.items() if name not in not_ready], target)
        refused = await self._carry_out(plan, chosen)
        found = [*not_ready.values(), *plan.conflicts, *refused]
        conflicts = {c.topic: c for c in sorted(found, key=lambda c: -c.first_partition)}
        self.unanswered = any(conflict.reason in UNANSWERED for conflict in found)
        asked = {one.name: one.partitions for one in plan.create}
        asked |= {one.name: one.partitions for one in plan.add_partitions}
        not_done = {conflict.target for conflict in refused}
        await self._see_topics(chosen, {n: asked[n] for n in asked if n not in not_done}, conflicts)
        made = {one.name for one in plan.create} - not_done
        copies = [copy for copy in self._partitions.values() if copy.copying]
        look_at(self._flow, (c for c in copies if c.target.topic in made or self._was_elsewhere(c, there)))
        await self._note_batch_limits(chosen)
        return conflicts

    def _replaces_times(self, name: str) -> bool:
        """Whether a target topic replaces record times, or did so when its settings were last read.

        Where the right to read them is gone it counts as keeping them, until an append shows otherwise.
        """
        topic = self._there.get(name)
        if topic is None or topic.unread:
            return name in self._stamping and name not in self._times_kept
        return topic.configs.values.get(TIMESTAMP_TYPE) == APPEND_TIME

    def keeps_times(self, name: str) -> bool:
        """Whether the target topic keeps record times, as of the last pass; False if that may not be read."""
        there = self._there.get(name)
        kept = there is not None and there.configs.values.get(TIMESTAMP_TYPE) == "CreateTime"
        return kept or name in self._times_kept

    def _forget_gone(self, chosen: Mapping[str, TopicInfo]) -> None:
        """Forget source topics that are gone; one that is only hidden may come back."""
        kept = {*chosen, *(copy.tp.topic for copy in self._partitions.values() if not copy.topic_gone)}
        self._source.forget_but(kept)
        for name in self._flow.batch_bytes_max.keys() - kept:
            self._flow.batch_bytes_max.pop(name)
        self._told = {note for note in self._told if note.topic in kept}

    def _was_elsewhere(self, copy: PartitionCopy, there: ClusterInfo) -> bool:
        """Whether its target topic was deleted and created again; an empty log would not show that."""
        known, topic = self._memory.known(copy.tp), there.topics.get(copy.target.topic)
        if known is None or known.target_topic_id is None or topic is None:
            return False
        return known.target_topic_id != str(topic.topic_id)

    async def owned_copies_of(self, topics: Collection[str]) -> list[str]:
        """Those of the source topics whose copies hold only what this flow copies, and are ours to change.

        Raises:
            TwinsiteError: A request to the target fails.
        """
        names = {self._policy.to_target(topic): topic for topic in topics}
        return [names[name] for name in sorted(await self._ownership.confirmed(names))]

    async def finish(self, *, again: bool) -> frozenset[str]:
        """Give topics their settings and partitions once they are ours and start where they should.

        A refusal is logged and does not keep the topic's records from being copied.

        Args:
            again: Also retry the settings that were refused before.

        Returns:
            The source topics whose copies have been given partitions.

        Raises:
            ConnectionFailedError: The target did not answer in time.
        """
        owners = self._ownership
        ending = set(filter(owners.prepared, self._preparations.unfinished(again=again)))
        changing = {name for name in self._left_alone if not owners.unprepared(name)}
        ours = await owners.confirmed(ending | changing | self._not_added.keys())
        await self._check_preparations(ending & ours)
        for name in sorted(ending & ours):
            final = self._preparations.final.get(
                name
            )  # None if another mirror, or a call in parallel, did it
            if final is not None:
                await self._end_preparing(name, final)
        for name in sorted(changing & ours):
            change = self._left_alone.get(name)
            if change is not None:
                await self._change_at_last(change)
        return await self._add_at_last([one for one in self._not_added.values() if one.name in ours])

    async def _check_preparations(self, names: Collection[str]) -> None:
        """Read the settings of topics again: another mirror may have finished them since the last pass."""
        topics = self._flow.target.info.topics
        for topic in (await describe(self._flow.target, [topics[n] for n in names if n in topics])).values():
            self._preparations.check(topic)

    async def _end_preparing(self, name: str, final: Mapping[str, str | None]) -> None:
        try:
            await change_settings(self._flow.target, name, final)
        except (NotAuthorizedError, BrokerError) as error:
            warn_repeated(log, self._repeats, name, "topic_settings_not_final", topic=name, error=str(error))
            self._preparations.refuse(name)
            return
        reach("settings_final")
        self._preparations.end(name)
        log.info("topic_prepared", topic=name)

    async def _change_at_last(self, change: AlterConfigs) -> None:
        if await self._change(change) is None:
            self._note_batch_limit(change.name, change.changes.get(MESSAGE_BYTES_MAX))
        self._left_alone.pop(change.name, None)

    async def _add_at_last(self, additions: Sequence[AddPartitions]) -> frozenset[str]:
        for addition in additions:
            name, refusal = addition.name, await self._add_to(addition)
            if refusal is None:
                self._added[name] = addition.partitions
            else:
                key = ("partitions", name)
                warn_repeated(log, self._repeats, key, "partitions_not_added", topic=name, error=str(refusal))
            self._not_added.pop(name, None)
        if self._added:
            await wait_until_led(self._flow.target, self._added)
        added, self._added = self._added, {}
        return frozenset(self._policy.to_source(name) or name for name in added)

    # -- what is planned -------------------------------------------------------------------------

    def _target(self, there: ClusterInfo, defaults: Mapping[str, str] | None, silent: str) -> Target:
        """The target as the plan sees it; topics outside this pass have their number of partitions only."""
        others = {
            name: TopicFacts(name, len(topic.partitions), 1)
            for name, topic in there.topics.items()
            if name not in self._there
        }
        owners = self._ownership
        return Target(
            {**others, **self._there},
            len(there.brokers),
            defaults,
            silent,
            held=frozenset(self._preparations.final),
            unprepared=frozenset(filter(owners.unprepared, self._there)),
            owned=frozenset(filter(owners.owned, self._there)),
            settled=frozenset(filter(owners.settled, self._there)),
            in_turn=owners.in_turn,
            stamping=self._stamping,
            hidden=frozenset(n for n, error in there.errors.items() if isinstance(error, NotAuthorizedError)),
        )

    async def _plan(self, source: Collection[TopicFacts], target: Target) -> TopicPlan:
        """What is to be done. Before a topic is changed, its logs are checked for writes by others."""
        plan = plan_topics(source, target, self._policy, self._settings)
        changed = {one.name for one in plan.add_partitions} | {one.name for one in plan.alter_configs}
        doubtful = (changed & target.settled) - await self._ownership.confirmed(changed)
        if not doubtful:
            return plan
        target = replace(target, settled=target.settled - doubtful)
        return plan_topics(source, target, self._policy, self._settings)

    async def _carry_out(self, plan: TopicPlan, chosen: Mapping[str, TopicInfo]) -> list[Conflict]:
        """Carry out the plan; returns the conflicts of topics for which something was refused.

        A refused change of settings is a conflict only if the target topic replaces record times. After the
        first change that is not answered in time, the remaining ones are left to :meth:`finish`.
        """
        self._tell(plan)
        self._times_kept.clear()
        refused = await self._create(plan.create, chosen)
        late: ConnectionFailedError | None = None
        for addition in plan.add_partitions:
            try:
                refusal = late or await self._add_to(addition)
            except ConnectionFailedError as error:
                refusal = late = error
            if late is not None:
                self._not_added[addition.name] = addition
            if refusal is not None:
                first = self._there[addition.name].partitions
                refused.append(self._refused(addition.name, refusal, Reason.TARGET_PARTITIONS, first))
        for change in plan.alter_configs:
            try:
                refusal = late or await self._change(change)
            except ConnectionFailedError as error:
                refusal = late = error
                key = ("settings", change.name)
                warn_repeated(log, self._repeats, key, "settings_late", topic=change.name, error=str(error))
            if late is not None:
                self._left_alone.setdefault(change.name, change)
            replaced = change.name in self._stamping
            if refusal is not None and replaced:
                source = self._policy.to_source(change.name) or change.name
                refused.append(Conflict(source, change.name, Reason.APPEND_TIMES, str(refusal)))
            elif replaced and TIMESTAMP_TYPE in change.changes:
                self._times_kept.add(change.name)
        return refused

    def _tell(self, plan: TopicPlan) -> None:
        """Log, once, which settings are not taken over; keep the changes that wait for :meth:`finish`."""
        for note in set(plan.notes) - self._told:
            level = logging.WARNING if note.setting in {ALL, REPLICATION_FACTOR} else logging.INFO
            log.log(level, "setting_left_out", topic=note.topic, setting=note.setting, why=note.why)
        self._told.update(plan.notes)
        for change in plan.left_alone:
            if self._left_alone.get(change.name) != change and not self._ownership.owned(change.name):
                why = "this flow did not copy everything in it"
                log.info("settings_left_alone", topic=change.name, settings=sorted(change.changes), why=why)
        self._left_alone = {change.name: change for change in plan.left_alone}
        self._not_added = {action.name: action for action in plan.not_added}

    def _refused(self, name: str, error: TwinsiteError, reason: Reason, first_partition: int = 0) -> Conflict:
        """The conflict for what the target did not do; ``reason`` unless a right or its answer is missing."""
        named = next((named for kind, named in NO_REFUSALS.items() if isinstance(error, kind)), reason)
        return Conflict(self._policy.to_source(name) or name, name, named, str(error), first_partition)

    async def _add_to(self, addition: AddPartitions) -> TwinsiteError | None:
        """Add partitions; returns the error if that is refused.

        Raises:
            ConnectionFailedError: The target did not answer in time.
        """
        name, total = addition.name, addition.partitions
        try:
            await add_partitions(self._flow.target, name, total)
        except (NotAuthorizedError, BrokerError) as error:
            return error
        reach("partitions_added")
        log.info("partitions_added", topic=name, partitions=total)
        return None

    async def _change(self, change: AlterConfigs) -> TwinsiteError | None:
        """Change settings; returns the error if that is refused.

        Raises:
            ConnectionFailedError: The target did not answer in time.
        """
        name, keys = change.name, sorted(change.changes)
        try:
            await change_settings(self._flow.target, name, change.changes)
        except (NotAuthorizedError, BrokerError) as error:
            key = ("settings", name)
            warn_repeated(
                log, self._repeats, key, "settings_not_changed", topic=name, settings=keys, error=str(error)
            )
            return error
        reach("settings_changed")
        log.info("settings_changed", topic=name, settings=keys)
        return None

    async def _create(
        self, creations: Sequence[CreateTopic], chosen: Mapping[str, TopicInfo]
    ) -> list[Conflict]:
        """Create topics, many in one request; those whose source starts late are set up to be prepared."""
        late = await self._source.starting_late(creations, chosen)
        asked = {creation.name: creation for creation in creations}
        topics = [
            NewTopic(
                one.name,
                one.partitions,
                one.replication_factor,
                {**one.configs, **PREPARING_CONFIGS} if one.name in late else one.configs,
            )
            for one in creations
        ]
        refused: list[Conflict] = []
        for name, made in (await make_topics(self._flow.target, topics)).items():
            reach("topic_created")
            if isinstance(made, TwinsiteError):
                refused.append(self._refused(name, made, Reason.TARGET_TOPIC_MISSING))
            elif made:
                if name in late:
                    self._preparations.begin(name, asked[name].configs)
                self._ownership.note_made(name)
                log.info("topic_created", topic=name, partitions=asked[name].partitions)
        return refused

    async def _see_topics(
        self, chosen: Mapping[str, TopicInfo], made: Mapping[str, int], conflicts: Mapping[str, Conflict]
    ) -> None:
        """Follow target topics that are not in conflict as a whole; wait until new partitions have leaders.

        Args:
            made: Target topics that were created or given partitions, and how many they have now.
        """
        partitions = {name: len(topic.partitions) for name, topic in chosen.items()}
        partitions |= {name: conflict.first_partition for name, conflict in conflicts.items()}
        wanted = {self._policy.to_target(name): count for name, count in partitions.items() if count}
        self._flow.target.follow(wanted)
        await wait_until_led(self._flow.target, {name: made[name] for name in made if name in wanted})

    async def _note_batch_limits(self, chosen: Mapping[str, TopicInfo]) -> None:
        """Read the limits of batches: once a topic, again if it may have changed or a record is above it."""
        waiting = {p.tp.topic for p in self._partitions.values() if p.reason is Reason.RECORD_TOO_LARGE}
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
