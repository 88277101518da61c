"""Make the target's topics what copying needs, and keep their settings in step.

What is planned in :mod:`mirror.sync.topics` is carried out here. A topic is changed
only where it is the flow's, and by the mirror that copies (:mod:`mirror.sync.ownership`).
Whatever else bears the name may hold records of somebody, which a taken over retention
would let expire.

Sources: KIP-107 (DeleteRecords), docs/design.md.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import structlog

from mirror.config import TopicsSettings
from mirror.errors import BrokerError, ConnectionFailedError, NotAuthorizedError, TwinsiteError
from mirror.failpoints import reach
from mirror.flow.context import Flow
from mirror.flow.log_ends import Right, look_at
from mirror.flow.partition import PartitionCopy
from mirror.kafka.cluster_info import ClusterInfo, TopicInfo
from mirror.kafka.offsets import EARLIEST, list_offsets
from mirror.kafka.topics import NewTopic, create_partitions, create_topics, set_configs, topic_defaults
from mirror.logs import Repeats, warn_repeated
from mirror.model import Reason, TopicPartition
from mirror.sync.describe import describe
from mirror.sync.names import NamePolicy
from mirror.sync.ownership import Memory, Ownership
from mirror.sync.preparing import PREPARING_CONFIGS, being_prepared, is_set_up_to_be_prepared, unready
from mirror.sync.topic_configs import (
    ALL,
    MESSAGE_BYTES_MAX,
    REPLICATION_FACTOR,
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
SETTINGS_SECONDS = 3.0
"""How long a pass waits for settings of new source topics that a broker cannot tell just now."""
STARTS_SECONDS = 3.0
"""How long it waits for where partitions of new source topics start."""
CHANGE_SECONDS = 3.0
"""How long a change may take: copying does not wait longer for a controller that hangs."""
CREATION_SECONDS = 10.0
"""The same of hundreds of topics that are made with one request."""
UNANSWERED = frozenset({Reason.SOURCE_UNAVAILABLE, Reason.TARGET_UNAVAILABLE})
NO_REFUSALS: Mapping[type[TwinsiteError], Reason] = {
    NotAuthorizedError: Reason.TARGET_NOT_AUTHORIZED,
    ConnectionFailedError: Reason.TARGET_UNAVAILABLE,
}
PROBE = "twinsite-settings-probe"

T = TypeVar("T")


class TargetTopics:
    """The target's side of the topics that are copied.

    Attributes:
        unanswered: Whether in the last pass something was not done because a cluster did not answer.

    Args:
        partitions: The partitions of the flow, as they are now, by source partition.
    """

    def __init__(
        self,
        settings: TopicsSettings,
        flow: Flow,
        memory: Memory,
        partitions: Mapping[TopicPartition, PartitionCopy],
        policy: NamePolicy,
        right: Right,
    ) -> None:
        self.unanswered = False
        self._settings = settings
        self._flow = flow
        self._partitions = partitions
        self._policy = policy
        self._memory = memory
        self._ownership = Ownership(flow, memory, partitions, policy, right)
        self._retention: dict[str, Retention] = {}
        self._tombstones: dict[str, Tombstones] = {}
        self._source_facts: dict[str, TopicFacts] = {}
        self._there: dict[str, TopicFacts] = {}
        self._left_alone: dict[str, AlterConfigs] = {}
        self._not_added: dict[str, AddPartitions] = {}
        self._added: dict[str, int] = {}
        """Target topics that were given partitions at last, and have so many; until somebody is told."""
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
        self._forget_gone(chosen)
        names = {self._policy.to_target(name) for name in chosen}
        there = await self._list_target(names)
        source = await self._describe_source(chosen)
        not_ready = await self._unready_sources(chosen, source)
        self._there = await describe(self._flow.target, [t for n, t in there.topics.items() if n in names])
        self._ownership.begin_pass(
            {self._policy.to_target(name): topic.topic_id for name, topic in chosen.items()},
            {name: topic.partitions for name, topic in self._there.items()},
        )
        others = {
            name: TopicFacts(name, len(topic.partitions), 1)
            for name, topic in there.topics.items()
            if name not in names
        }
        defaults, silent = await self._defaults() if names - there.topics.keys() else (None, "")
        self._find_unfinished()
        owners = self._ownership
        target = Target(
            {**others, **self._there},
            len(there.brokers),
            defaults,
            silent,
            held=frozenset(self._preparing),
            unprepared=frozenset(filter(owners.unprepared, self._there)),
            owned=frozenset(filter(owners.owned, self._there)),
            settled=frozenset(filter(owners.settled, self._there)),
            in_turn=owners.in_turn,
            hidden=frozenset(n for n, error in there.errors.items() if isinstance(error, NotAuthorizedError)),
        )
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

    def _forget_gone(self, chosen: Mapping[str, TopicInfo]) -> None:
        """Remember nothing of source topics that are gone; what is only hidden may come back."""
        kept = {*chosen, *(copy.tp.topic for copy in self._partitions.values() if not copy.topic_gone)}
        limits = self._flow.batch_bytes_max
        for of_topics in (self._source_facts, self._retention, self._tombstones, limits):
            for name in of_topics.keys() - kept:
                of_topics.pop(name)
        self._told = {note for note in self._told if note.topic in kept}

    def _was_elsewhere(self, copy: PartitionCopy, there: ClusterInfo) -> bool:
        """Whether its target topic was made anew, by somebody else perhaps; an empty log would not tell."""
        known, topic = self._memory.known(copy.tp), there.topics.get(copy.target.topic)
        if known is None or known.target_topic_id is None or topic is None:
            return False
        return known.target_topic_id != str(topic.topic_id)

    async def owned_copies_of(self, topics: Collection[str]) -> list[str]:
        """Those of the source topics whose copies hold only what this flow copies, and are ours to change.

        Raises:
            TwinsiteError: The target cannot be asked.
        """
        names = {self._policy.to_target(topic): topic for topic in topics}
        return [names[name] for name in sorted(await self._ownership.confirmed(names))]

    async def finish(self, *, again: bool) -> frozenset[str]:
        """Give topics their settings and partitions once what is there is ours, and begins where it should.

        What is refused for one topic is said; its records come anyway.

        Args:
            again: Try also what was refused before.

        Returns:
            The source topics whose copies have been given partitions.

        Raises:
            ConnectionFailedError: The target cannot be asked.
        """
        owners = self._ownership
        ending = {
            n for n in self._preparing if (again or n not in self._kept_as_prepared) and owners.prepared(n)
        }
        changing = {name for name in self._left_alone if not owners.unprepared(name)}
        ours = await owners.confirmed(ending | changing | self._not_added.keys())
        for name in sorted(ending & ours):
            final = self._preparing.get(name)  # done, where this was asked for twice
            if final is not None:
                await self._end_preparing(name, final)
        for name in sorted(changing & ours):
            change = self._left_alone.get(name)
            if change is not None:
                await self._change_at_last(change)
        added = {name: self._not_added[name].partitions for name in self._not_added if name in ours}
        return await self._add_at_last(added)

    async def _change_at_last(self, change: AlterConfigs) -> None:
        if await self._change(change) is None:
            self._note_batch_limit(change.name, change.changes.get(MESSAGE_BYTES_MAX))
        self._left_alone.pop(change.name, None)

    async def _add_at_last(self, wanted: Mapping[str, int]) -> frozenset[str]:
        for name, partitions in wanted.items():
            refusal = await self._add_to(AddPartitions(name, partitions))
            if refusal is None:
                self._added[name] = partitions
            else:
                key = ("partitions", name)
                warn_repeated(log, self._repeats, key, "partitions_not_added", topic=name, error=str(refusal))
            self._not_added.pop(name, None)
        if self._added:
            await self._wait_for(self._added)
        added, self._added = self._added, {}
        return frozenset(self._policy.to_source(name) or name for name in added)

    # -- what is planned -------------------------------------------------------------------------

    async def _list_target(self, names: Collection[str]) -> ClusterInfo:
        """All topics of the target; those of the names that are not listed are asked for by name.

        A list leaves out what may not be described, as if it did not exist.
        """
        listed = await self._flow.target.describe_topics(None)
        missing = [name for name in sorted(names) if name not in listed.topics]
        if not missing:
            return listed
        named = await self._flow.target.describe_topics(missing)
        return replace(listed, topics={**listed.topics, **named.topics}, errors=named.errors)

    async def _plan(self, source: Collection[TopicFacts], target: Target) -> TopicPlan:
        """What is to be done; of topics to be changed it is asked first whether others write to them."""
        plan = plan_topics(source, target, self._policy, self._settings)
        changed = {one.name for one in plan.add_partitions} | {one.name for one in plan.alter_configs}
        doubtful = (changed & target.settled) - await self._ownership.confirmed(changed)
        if not doubtful:
            return plan
        target = replace(target, settled=target.settled - doubtful)
        return plan_topics(source, target, self._policy, self._settings)

    async def _describe_source(self, chosen: Mapping[str, TopicInfo]) -> dict[str, TopicFacts]:
        """Settings are read once a topic, and at every pass where they are to be followed.

        What cannot be read just now is as it was, and read at the next pass where nothing was known.
        """
        for name, info in chosen.items():
            known = self._source_facts.get(name)
            if known is not None:
                self._source_facts[name] = replace(known, partitions=len(info.partitions))
        wanted = chosen if self._settings.sync_configs else set(chosen) - set(self._source_facts)
        found = await self._read_source([chosen[name] for name in wanted])
        read = {name: topic for name, topic in found.items() if not topic.unread}
        self._source_facts.update(read)
        now = time.monotonic()
        for name, topic in read.items():
            values = topic.configs.values
            self._retention[name] = retention_of(values)
            self._tombstones[name] = self.tombstones(name).then(tombstones_kept_ms(values), now=now)
        return {name: self._source_facts.get(name) or found[name] for name in chosen}

    async def _read_source(self, topics: Collection[TopicInfo]) -> dict[str, TopicFacts]:
        """Source topics; a little is waited for settings of new ones that a broker does not know yet."""
        end = time.monotonic() + SETTINGS_SECONDS
        found = await describe(self._flow.source, topics)
        while time.monotonic() < end:
            new = [t for t in topics if found[t.name].unread and t.name not in self._source_facts]
            if not new:
                break
            await asyncio.sleep(VISIBLE_PAUSE_SECONDS)
            found |= await describe(self._flow.source, new)
        return found

    async def _unready_sources(
        self, chosen: Mapping[str, TopicInfo], source: Mapping[str, TopicFacts]
    ) -> dict[str, Conflict]:
        """Source topics that another flow makes ready just now; what was begun before is copied on.

        Their settings are read anew at the next pass: they are not those with which a copy is made.
        """
        doubtful = [chosen[name] for name, topic in source.items() if is_set_up_to_be_prepared(topic)]
        doubtful = [topic for topic in doubtful if not self._begun(topic)]
        if not doubtful:
            return {}
        self._flow.source.follow(chosen)
        found = await unready(self._flow.source, doubtful, answer_seconds=STARTS_SECONDS)
        for name in found:
            self._source_facts.pop(name, None)
        to_target = self._policy.to_target
        return {name: being_prepared(name, to_target(name), first) for name, first in found.items()}

    def _begun(self, topic: TopicInfo) -> bool:
        return any(self._memory.known(TopicPartition(topic.name, number)) for number in topic.partitions)

    async def _carry_out(self, plan: TopicPlan, chosen: Mapping[str, TopicInfo]) -> list[Conflict]:
        """Do what is planned; what is refused for one topic is that topic's conflict.

        Once the target lets one change wait, all others wait for what is done between passes.
        """
        self._tell(plan)
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
            replaced = self._there[change.name].configs.values.get(TIMESTAMP_TYPE) == "LogAppendTime"
            if refusal is not None and replaced:
                source = self._policy.to_source(change.name) or change.name
                refused.append(Conflict(source, change.name, Reason.APPEND_TIMES, str(refusal)))
        return refused

    def _tell(self, plan: TopicPlan) -> None:
        """Say, once, what is not taken over."""
        for note in set(plan.notes) - self._told:
            level = logging.WARNING if note.setting in {ALL, REPLICATION_FACTOR} else logging.INFO
            log.log(level, "setting_left_out", topic=note.topic, setting=note.setting, why=note.why)
        self._told.update(plan.notes)
        for change in plan.left_alone:
            if self._left_alone.get(change.name) != change and not self._ownership.owned(change.name):
                why = "the flow does not copy all there is in it"
                log.info("settings_left_alone", topic=change.name, settings=sorted(change.changes), why=why)
        self._left_alone = {change.name: change for change in plan.left_alone}
        self._not_added = {action.name: action for action in plan.not_added}

    def _refused(self, name: str, error: TwinsiteError, reason: Reason, first_partition: int = 0) -> Conflict:
        """What the target did not do; ``reason`` where it answers, and it is not a right that is missing."""
        named = next((named for kind, named in NO_REFUSALS.items() if isinstance(error, kind)), reason)
        return Conflict(self._policy.to_source(name) or name, name, named, str(error), first_partition)

    async def _answered(self, change: Awaitable[T], what: str) -> T:
        """What the target says to a change.

        Raises:
            ConnectionFailedError: It did not say it in time.
        """
        try:
            async with asyncio.timeout(CHANGE_SECONDS):
                return await change
        except TimeoutError as slow:
            raise ConnectionFailedError(f"target: no answer within {CHANGE_SECONDS:g} s to {what}") from slow

    async def _defaults(self) -> tuple[dict[str, str] | None, str]:
        """What new topics would get, as far as that may be read; and why it cannot be just now."""
        try:
            asked = topic_defaults(self._flow.target, PROBE)
            return await self._answered(asked, "the question what new topics get"), ""
        except ConnectionFailedError as error:
            return None, str(error)

    async def _add_to(self, addition: AddPartitions) -> TwinsiteError | None:
        """Add partitions; says why not where that is refused.

        Raises:
            ConnectionFailedError: The target did not say in time whether it does.
        """
        name, total = addition.name, addition.partitions
        try:
            await self._answered(
                create_partitions(self._flow.target, name, total), f"adding partitions to {name}"
            )
        except (NotAuthorizedError, BrokerError) as error:
            return error
        reach("partitions_added")
        log.info("partitions_added", topic=name, partitions=total)
        return None

    async def _change(self, change: AlterConfigs) -> TwinsiteError | None:
        """Change settings; says why not where that is refused.

        Raises:
            ConnectionFailedError: The target did not say in time whether it does.
        """
        name, keys = change.name, sorted(change.changes)
        try:
            await self._set(name, change.changes)
        except (NotAuthorizedError, BrokerError) as error:
            key = ("settings", name)
            warn_repeated(
                log, self._repeats, key, "settings_not_changed", topic=name, settings=keys, error=str(error)
            )
            return error
        reach("settings_changed")
        log.info("settings_changed", topic=name, settings=keys)
        return None

    async def _set(self, name: str, values: Mapping[str, str | None]) -> None:
        await self._answered(set_configs(self._flow.target, name, values), f"a change of settings of {name}")

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
        limit_ms = int(CREATION_SECONDS * 1000)
        for name, made in (await create_topics(self._flow.target, topics, timeout_ms=limit_ms)).items():
            reach("topic_created")
            if isinstance(made, TwinsiteError):
                self._preparing.pop(name, None)
                refused.append(self._refused(name, made, Reason.TARGET_TOPIC_MISSING))
            elif made:
                self._ownership.note_made(name)
                log.info("topic_created", topic=name, partitions=partitions[name])
        return refused

    async def _starting_late(
        self, creations: Sequence[CreateTopic], chosen: Mapping[str, TopicInfo]
    ) -> set[str]:
        """Those of the target topics whose source has a partition that does not say that it starts at 0.

        What was made ready for a late start may start at 0 all the same.
        """
        sources = {self._policy.to_source(creation.name): creation.name for creation in creations}
        tps = [TopicPartition(n, p) for n in chosen if n in sources for p in chosen[n].partitions]
        if not tps:
            return set()
        self._flow.source.follow(chosen)
        try:
            async with asyncio.timeout(STARTS_SECONDS):
                await self._flow.source.refresh()
                starts = await list_offsets(self._flow.source, tps, EARLIEST)
        except TimeoutError:
            return {sources[tp.topic] for tp in tps}
        return {sources[tp.topic] for tp, start in starts.items() if start != 0}

    async def _see_topics(
        self, chosen: Mapping[str, TopicInfo], made: Mapping[str, int], conflicts: Mapping[str, Conflict]
    ) -> None:
        """Wait until what was made is there for all to see; partitions that are not in conflict go on.

        Args:
            made: Target topics that have been made, or given partitions, and how many they have now.
        """
        partitions = {name: len(topic.partitions) for name, topic in chosen.items()}
        partitions |= {name: conflict.first_partition for name, conflict in conflicts.items()}
        wanted = {self._policy.to_target(name): count for name, count in partitions.items() if count}
        self._flow.target.follow(wanted)
        await self._wait_for({name: made[name] for name in made if name in wanted})

    async def _wait_for(self, missing: Mapping[str, int]) -> None:
        """Until these topics have so many partitions with a leader, or for long enough."""
        end = time.monotonic() + VISIBLE_SECONDS
        while missing and time.monotonic() < end:
            missing = _not_led(await self._flow.target.describe_topics(missing), missing)
            if missing:
                await asyncio.sleep(VISIBLE_PAUSE_SECONDS)
        await self._flow.target.refresh()

    async def _note_batch_limits(self, chosen: Mapping[str, TopicInfo]) -> None:
        """Limits are read once a topic, and again where they may have changed or a record is above them."""
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

    # -- topics that start late ------------------------------------------------------------------

    def _find_unfinished(self) -> None:
        """Topics that are being prepared, or were when a mirror ended, are told by their settings.

        What they get afterwards is what the source has by then.
        """
        for name, topic in self._there.items():
            source = self._source_facts.get(self._policy.to_source(name) or "")
            if source is None or not source.configs.values:
                continue
            if not is_set_up_to_be_prepared(topic):
                continue
            kept = [key for key in PREPARING_CONFIGS if excluded(key, self._settings.config_exclude)]
            final = {key: source.configs.values.get(key) for key in PREPARING_CONFIGS} | dict.fromkeys(kept)
            if final == PREPARING_CONFIGS:  # the source says so, too: there is nothing to be given afterwards
                self._preparing.pop(name, None)
            else:
                self._preparing[name] = final

    async def _end_preparing(self, name: str, final: Mapping[str, str | None]) -> None:
        try:
            await self._set(name, final)
        except (NotAuthorizedError, BrokerError) as error:
            warn_repeated(log, self._repeats, name, "topic_settings_not_final", topic=name, error=str(error))
            self._kept_as_prepared.add(name)
            return
        reach("settings_final")
        self._preparing.pop(name, None)
        log.info("topic_prepared", topic=name)


def _not_led(info: ClusterInfo, wanted: Mapping[str, int]) -> dict[str, int]:
    """Those of the topics that do not have so many partitions yet, or not a leader for each."""
    missing = {}
    for name, count in wanted.items():
        topic = info.topics.get(name)
        led = topic is not None and all(p.leader >= 0 for p in topic.partitions.values())
        if topic is None or len(topic.partitions) < count or not led:
            missing[name] = count
    return missing
