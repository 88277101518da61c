"""Keep the set of copied partitions in step with the topics of the source.

Every pass reads both clusters, creates what is missing at the target, and hands new
partitions to the engine. A topic that cannot be copied becomes partitions in a state
with a reason. A topic that was deleted, or deleted and created again, is reported as
such and never mixed up with its successor.

Sources: KIP-516 (topic ids), docs/design.md.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from uuid import UUID

import structlog

from mirror.config import Settings
from mirror.errors import TwinsiteError
from mirror.flow.context import Flow
from mirror.flow.engine import Engine
from mirror.flow.log_ends import Right
from mirror.flow.memory import FlowMemory
from mirror.flow.partition import HOPELESS, PartitionCopy
from mirror.kafka.cluster_info import TopicInfo
from mirror.link.loops import both
from mirror.logs import Repeats, warn_repeated
from mirror.model import Reason, State, TopicLeftOut, TopicPartition
from mirror.sync.acls import ALLOW, Skipped
from mirror.sync.carry_acls import carry_acls, principals
from mirror.sync.missing import MissingTopics
from mirror.sync.names import NamePolicy, TopicSelector
from mirror.sync.returning import Returning
from mirror.sync.source_topics import SourceTopics
from mirror.sync.target_topics import TargetTopics
from mirror.sync.topics import Conflict
from monitoring.outlook import Retention
from monitoring.tombstones import Tombstones

log = structlog.get_logger(__name__)

TEND_SECONDS = 1.0
"""How often, between passes, the mirror tries what had to wait until topics were known to be ours."""


class Follower:
    """Follows the topics of one source.

    Attributes:
        seen: Names of all topics the source shows us, except internal ones.
        topics_ignored: How many topics of the source are not copied, internal ones included.
        left_out: Topics that the lists select but that are not copied, and why.
    """

    def __init__(
        self, settings: Settings, flow: Flow, engine: Engine, memory: FlowMemory, right: Right
    ) -> None:
        self.seen: list[str] = []
        self.topics_ignored = 0
        self.left_out: tuple[TopicLeftOut, ...] = ()
        self.followed_once = False
        self._chosen: tuple[str, ...] = ()
        """Topics that are copied, as of the last pass."""
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
        self._returning = Returning(flow.source, flow.target, self._policy.prefix)
        self._in_flight_max = settings.append.batches_in_flight_max
        self._source_topics = SourceTopics(settings.topics, flow.source, memory, self._policy)
        self._topics = TargetTopics(
            settings.topics, flow, self._source_topics, memory, engine.partitions, self._policy, right
        )
        self._conflicts: dict[TopicPartition, Conflict] = {}
        """What keeps partitions from being copied, as of the last pass."""
        self._missing = MissingTopics(flow.source, flow.target, self._policy)
        self._right = right
        self._offsets = settings.offsets.mode
        self._memory = memory
        self._repeats = Repeats()
        self._denials_left_out: frozenset[Skipped] = frozenset()
        self._mirror_principals = principals(settings.target.security)

    def retention(self, topic: str) -> Retention:
        """What a source topic keeps; without limits if it is only compacted."""
        return self._source_topics.retention(topic)

    def tombstones(self, topic: str) -> Tombstones:
        """How long a source topic keeps tombstones."""
        return self._source_topics.tombstones(topic)

    def why_nothing(self) -> tuple[str, str]:
        """Why none of the topics seen is copied, and which of them may have been meant; both in words."""
        return self._selector.why_nothing(self.seen)

    def unmatched(self) -> list[str]:
        """The expressions to include that match none of the topics seen."""
        return self._selector.unmatched(self.seen)

    async def run(self, *, once: bool) -> None:
        """Follow until cancelled. A pass that fails is logged and tried again.

        Args:
            once: Take up nothing new; only retry what was left undone because a cluster did not answer.
        """
        while True:
            await self.tend(TEND_SECONDS if once else self._settings.refresh_seconds)
            if not once or self._topics.unanswered:
                await self._attempt(self.follow(nothing_new=once))

    async def tend(self, seconds: float) -> None:
        """For this long, bring topics in step as soon as they are known to be ours."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            await asyncio.sleep(min(TEND_SECONDS, left))
            await self._attempt(self._bring_in_step(again=False))

    async def finish(self) -> None:
        """Finish what topics still need, and carry their ACLs, before the mirror ends.

        Raises:
            TwinsiteError: A request to the target fails.
        """
        await self._bring_in_step(again=True)
        await self._carry_acls()

    async def _bring_in_step(self, *, again: bool) -> None:
        """Do what had to wait until topics were known to be ours; copy partitions added by that at once."""
        added = await self._topics.finish(again=again)
        for tp in [tp for tp in self._conflicts if tp.topic in added]:
            del self._conflicts[tp]
            partition = self._engine.partitions[tp]
            if partition.state is State.BLOCKED:
                self._engine.resume(partition)

    async def _attempt(self, work: Awaitable[None]) -> None:
        try:
            await work
        except TwinsiteError as error:
            warn_repeated(log, self._repeats, str(error), "topics_not_followed", error=str(error))

    async def follow(self, *, nothing_new: bool = False) -> None:
        """One pass.

        Args:
            nothing_new: Keep to topics and partitions that an earlier pass took up.

        Raises:
            TwinsiteError: A cluster does not answer, or does not allow what is needed.
        """
        found = await self._flow.source.describe_topics(None)
        await self._missing.look(found, [n for n in self._begun() if self._selector.why_not(n) is None])
        internal = {name for name, topic in found.topics.items() if topic.internal}
        selection = self._selector.select(found.topics, internal=internal)
        self.seen = sorted(found.topics)
        left_out = await self._returning.left_out(found, selection.chosen, self._begun())
        if nothing_new:
            left_out |= self._not_known_at_first(selection.chosen)
        self.left_out = tuple(left_out[name] for name in sorted(left_out))
        self.topics_ignored = len(selection.ignored) + len(left_out)
        chosen = {name: found.topics[name] for name in selection.chosen if name not in left_out}
        if nothing_new:
            chosen = self._taken_up(chosen)
        self._flow.source.follow(chosen)
        if not self.followed_once:
            self._flow.source.open_ahead(_leaders(chosen))
        copied = self._without_successors(chosen)
        stamped = {p for p in self._engine.partitions.values() if p.stamped}
        conflicts, _ = await both(self._topics.bring_up(copied), self._flow.source.refresh())
        self._take_up()
        self._take_successors(chosen)
        self._note_recreated(chosen)
        self._add_partitions(chosen, conflicts, stamped)
        self._note_missing()
        self._tell_other_modes(chosen)
        await self._attempt(self._bring_in_step(again=True))
        if not nothing_new:
            await self._attempt(self._forget_gone())
        self._chosen = tuple(chosen)
        await self._carry_acls()
        self.followed_once = True

    async def _carry_acls(self) -> None:
        """Add missing ACLs. Copying does not depend on them, so a refusal is only logged."""
        if not self._settings.sync_acls:
            return
        try:
            chosen = await self._topics.owned_copies_of(self._chosen)
            if not chosen:
                return
            plan = await carry_acls(
                self._flow.source,
                self._flow.target,
                chosen,
                self._policy,
                mirror_principals=self._mirror_principals,
            )
        except TwinsiteError as error:
            warn_repeated(log, self._repeats, "acls", "acls_not_carried", error=str(error))
            return
        if plan is None:
            return
        if plan.create:
            log.info("acls_added", count=len(plan.create), left_out=len(plan.skipped))
        self._tell_denials(plan.skipped)

    def _tell_denials(self, skipped: Iterable[Skipped]) -> None:
        """Log, once, which denials of the source the target does not get, or may not get."""
        left_out = frozenset(one for one in skipped if one.acl.permission != ALLOW)
        for acl, why in sorted(left_out - self._denials_left_out, key=str):
            log.warning(
                "denial_not_carried",
                topic=acl.name,
                pattern=acl.pattern_type,
                principal=acl.principal,
                host=acl.host,
                operation=acl.operation,
                why=why,
            )
        self._denials_left_out = left_out

    # -- the engine's partitions -----------------------------------------------------------------

    def _taken_up(self, chosen: Mapping[str, TopicInfo]) -> dict[str, TopicInfo]:
        """Those partitions of these topics that the engine has already, with the same topic id."""
        taken: dict[str, TopicInfo] = {}
        for name, topic in chosen.items():
            copies = {n: self._engine.partitions.get(TopicPartition(name, n)) for n in topic.partitions}
            ours = [n for n, copy in copies.items() if copy and copy.topic_id == topic.topic_id.bytes]
            if ours:
                taken[name] = replace(topic, partitions={n: topic.partitions[n] for n in ours})
        return taken

    def _not_known_at_first(self, there: Collection[str]) -> dict[str, TopicLeftOut]:
        """Topics the last pass left out because it was not known whether they are copies.

        A mirror that takes up nothing new does not begin them, whatever is known of them by now.
        """
        begun = self._begun()
        return {
            one.topic: one
            for one in self.left_out
            if not one.is_known and one.topic in there and one.topic not in begun
        }

    def _begun(self) -> set[str]:
        """Topics whose copy was begun, in this run or an earlier one."""
        return {tp.topic for tp in (*self._memory.topic_ids, *self._engine.partitions)}

    def _take_up(self) -> None:
        """Go on with what an earlier run began to copy, whatever has become of its topic since."""
        for tp, topic_id in self._memory.topic_ids.items():
            if tp not in self._engine.partitions and self._selector.why_not(tp.topic) is None:
                self._begin(tp, UUID(topic_id))

    def _take_successors(self, chosen: Mapping[str, TopicInfo]) -> None:
        """Begin with the new topic where the old one was deleted before anything of it was copied."""
        begun = {tp.topic for tp in self._memory.topic_ids}
        for old in [p for p in self._engine.partitions.values() if _is_old(p, chosen)]:
            topic = chosen[old.tp.topic]
            if topic.name in begun:
                continue
            self._engine.drop(old)
            if old.tp.partition in topic.partitions:
                new = self._begin(old.tp, topic.topic_id)
                if old.pause_asked:
                    self._engine.pause(new)

    def _without_successors(self, chosen: Mapping[str, TopicInfo]) -> dict[str, TopicInfo]:
        """Those that do not succeed a copied topic: for a successor the target is left as it is."""
        old = {
            tp.topic
            for tp, topic_id in self._memory.topic_ids.items()
            if tp.topic in chosen and chosen[tp.topic].topic_id != UUID(topic_id)
        }
        return {name: topic for name, topic in chosen.items() if name not in old}

    def _begin(self, tp: TopicPartition, topic_id: UUID) -> PartitionCopy:
        target = TopicPartition(self._policy.to_target(tp.topic), tp.partition)
        partition = PartitionCopy(tp, target, topic_id.bytes, in_flight_max=self._in_flight_max)
        self._engine.add(partition)
        return partition

    def _add_partitions(
        self,
        chosen: Mapping[str, TopicInfo],
        conflicts: Mapping[str, Conflict],
        stamped: Collection[PartitionCopy],
    ) -> None:
        """Add new partitions, resume those that nothing holds up any more, and hold those with a conflict.

        Args:
            stamped: Partitions whose target was seen to replace record times before its settings were read.
        """
        before, self._conflicts = self._conflicts, dict(_by_partition(chosen, conflicts))
        over = before.keys() - self._conflicts.keys()
        kept = [p for p in stamped if self._topics.keeps_times(p.target.topic)]
        over |= {p.tp for p in kept if p.reason is Reason.APPEND_TIMES}
        successors = {p.tp.topic for p in self._engine.partitions.values() if _is_old(p, chosen)}
        for topic in chosen.values():
            for number in sorted(topic.partitions):
                tp = TopicPartition(topic.name, number)
                partition = self._engine.partitions.get(tp) or self._begin(tp, topic.topic_id)
                if topic.name in successors:  # nor is a partition copied that only the successor has
                    self._stop_recreated(partition, topic)
                if tp in over and partition.state is State.BLOCKED:
                    self._engine.resume(partition)
                self.hold(partition)
        for partition in kept:
            partition.times_are_kept()
            if self._engine.partitions.get(partition.tp) is partition:
                self._engine.changed(partition)

    def hold(self, partition: PartitionCopy) -> None:
        """Block a partition that has a conflict, even if an operator has just resumed it."""
        conflict = self._conflicts.get(partition.tp)
        if conflict is not None and partition.state not in HOPELESS:
            partition.stop(State.BLOCKED, conflict.reason, conflict.detail, None)
            self._engine.changed(partition)

    def _tell_other_modes(self, chosen: Mapping[str, TopicInfo]) -> None:
        """Log, once, that partitions began with another offset mode than the one configured now."""
        if self.followed_once or self._offsets == "auto":
            return
        began = [self._memory.known(tp) for tp in self._engine.partitions if tp.topic in chosen]
        others = [known for known in began if known is not None and known.mode != self._offsets]
        if others:
            log.warning(
                "offset_mode_kept", asked_for=self._offsets, mode=others[0].mode.value, partitions=len(others)
            )

    def _note_recreated(self, chosen: Mapping[str, TopicInfo]) -> None:
        """Stop all partitions of topics that have a successor, even those the successor does not have."""
        for partition in self._engine.partitions.values():
            if _is_old(partition, chosen):
                self._stop_recreated(partition, chosen[partition.tp.topic])

    def _stop_recreated(self, partition: PartitionCopy, topic: TopicInfo) -> None:
        if partition.state is State.TOPIC_RECREATED:
            return
        words = f"the source topic was deleted and created again: its id is now {topic.topic_id}"
        partition.stop(State.TOPIC_RECREATED, Reason.TOPIC_ID_CHANGED, words, None)
        self._engine.changed(partition)

    # -- topics that the source no longer shows ------------------------------------------------------

    def _note_missing(self) -> None:
        """Block the partitions of topics that are gone or hidden.

        A state that only an operator ends stays as it is: it says more.
        """
        gone = self._missing.gone
        for partition in self._engine.partitions.values():
            why = self._missing.why.get(partition.tp.topic)
            partition.topic_gone = partition.tp.topic in gone
            if why is None:
                continue
            self._conflicts[partition.tp] = why
            if partition.reason is not why.reason or partition.look_due_at is not None:
                self.hold(partition)

    async def _forget_gone(self) -> None:
        """Forget topics that are gone at both sides, and drop gone partitions that the flow's state lacks.

        The owner alone does the first, durably. Every mirror does the second, so a standby drops what the
        owner forgot, and an owner what it forgot before it was interrupted.

        Raises:
            TwinsiteError: A request to the target fails, or the flow's state cannot be read or written.
        """
        gone = self._missing.gone
        if self._right.held:
            await self._forget_without_copy()
        elif gone:
            await self._memory.refresh(sole_writer=False)
        begun = self._memory.topic_ids
        for partition in list(self._engine.partitions.values()):
            if partition.tp.topic in gone and partition.tp not in begun:
                self._engine.drop(partition)
                self._conflicts.pop(partition.tp, None)

    async def _forget_without_copy(self) -> None:
        begun: dict[str, list[TopicPartition]] = defaultdict(list)
        for tp in self._memory.topic_ids:
            begun[tp.topic].append(tp)
        forgotten = {name: begun[name] for name in sorted(await self._missing.without_copy(begun.keys()))}
        if not forgotten:
            return
        await self._memory.forget([tp for of in forgotten.values() for tp in of])
        for name, of in forgotten.items():
            target = self._policy.to_target(name)
            log.info("topic_forgotten", topic=name, target_topic=target, partitions=len(of))


def _is_old(partition: PartitionCopy, chosen: Mapping[str, TopicInfo]) -> bool:
    """True if its topic has a successor of the same name."""
    topic = chosen.get(partition.tp.topic)
    return topic is not None and partition.topic_id != topic.topic_id.bytes


def _leaders(topics: Mapping[str, TopicInfo]) -> set[int]:
    return {p.leader for topic in topics.values() for p in topic.partitions.values() if p.leader >= 0}


def _by_partition(
    chosen: Mapping[str, TopicInfo], conflicts: Mapping[str, Conflict]
) -> Iterator[tuple[TopicPartition, Conflict]]:
    for name, conflict in conflicts.items():
        for number in chosen[name].partitions:
            if number >= conflict.first_partition:
                yield TopicPartition(name, number), conflict
