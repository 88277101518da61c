"""What of each partition is compared, and why the rest is not, as clusters and mirror have answered.

No I/O. Offsets are source offsets unless a name says otherwise. :mod:`mirror.proving.asking` says what the
clusters are asked, and in which order.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from checkpoint.errors import UntranslatableError
from checkpoint.flow_state import FlowState
from checkpoint.insertions import Insertions, united
from mirror.acknowledged import Words
from mirror.copied import Copied
from mirror.kafka.cluster import Cluster
from mirror.model import TopicPartition
from mirror.proving.wanted import Wanted
from mirror.sync.names import TopicSelector
from spark_jobs.documents import Scope
from spark_jobs.logs import Log
from spark_jobs.nothing import nothing_of
from spark_jobs.result import NotCompared
from spark_jobs.sampling import fitting
from spark_jobs.stretches import RANGE_PLACES
from spark_jobs.window import ALL, Range, window

AROUND = RANGE_PLACES
"""So many offsets before and after what is asked for are compared, too. A record lost at the first offset
shifts what follows, which shows only next to what stood before it."""


@dataclass(frozen=True, slots=True)
class Told:
    """What the clusters have said of the partitions that both have.

    Attributes:
        originals: The logs of the source.
        copies: The logs of the target, by their names there; asked for before the source's.
        wanted: The offsets to compare of each append-only log.
        policies: ``cleanup.policy`` of each topic for which it may be read.
        closed: Topics whose records may not be read, each with the right that is missing.
        standing: Those of the copies that had the same end again after the source was asked for its starts.
    """

    originals: Mapping[TopicPartition, Range]
    copies: Mapping[TopicPartition, Range]
    wanted: Mapping[TopicPartition, Range]
    policies: Mapping[str, str]
    closed: Mapping[str, str]
    standing: Collection[TopicPartition]


class Comparable:
    """Finds out what can be compared, and why the rest cannot.

    Args:
        source, target: Only their last snapshots are read; they are not asked for anything.
        names: Source name to target name.
        selector: Selects the topics that the flow copies and that are to be compared.
        leaving: Source offsets below which a log is gone before it can be read.
        asked_at_ms: When the clusters were asked.

    Attributes:
        state: The flow's state; None if there is none, and offsets are assumed to be the same.
        words: What the mirror has said, if one was asked.
        ends_before: Where target logs once ended that are shorter now, by their names there.
        held_ends: Where source logs that are not read to their ends are read to.
    """

    def __init__(
        self,
        flow: str,
        wanted: Wanted,
        source: Cluster,
        target: Cluster,
        names: Mapping[str, str],
        selector: TopicSelector,
        leaving: Mapping[TopicPartition, int],
        asked_at_ms: int,
    ) -> None:
        self.state: FlowState | None = None
        self.words = Words()
        self.ends_before: dict[TopicPartition, int] = {}
        self.held_ends: Mapping[TopicPartition, int] = {}
        self._asked_at_ms = asked_at_ms
        self._flow, self._wanted = flow, wanted
        self._source, self._target, self._names, self._selector = source, target, names, selector
        self._leaving = leaving
        self._append_only: list[Log] = []
        self._compacted: list[Log] = []
        self._not_compared: list[NotCompared] = []

    def scope(self) -> Scope:
        """What was decided."""
        knows_all = not self._wanted.limits and not self._not_compared
        sample = self._wanted.sample and fitting(self._wanted.sample, self._append_only, may_skip=knows_all)
        return Scope(
            flow=self._flow,
            source_cluster_id=self._source.info.cluster_id,
            target_cluster_id=self._target.info.cluster_id,
            asked_at_ms=self._asked_at_ms,
            extent=replace(self._wanted, sample=sample).extent,
            append_only=self._append_only,
            compacted=self._compacted,
            hashing=self._wanted.hashing,
            mirror=self.words.url,
            not_compared=self._not_compared,
        )

    def at_target(self, tp: TopicPartition) -> TopicPartition:
        """A partition by its name at the target."""
        return TopicPartition(self._names[tp.topic], tp.partition)

    def on_both_sides(self) -> list[TopicPartition]:
        """The partitions that both sides have; those of one side alone are noted as not compared."""
        found = []
        for topic, target_topic in self._names.items():
            at_source, at_target = (
                cluster.info.topics.get(name)
                for cluster, name in ((self._source, topic), (self._target, target_topic))
            )
            for partition in sorted(at_source.partitions if at_source else ()):
                tp = TopicPartition(topic, partition)
                if at_target is not None and partition in at_target.partitions:
                    found.append(tp)
                else:
                    self._leave_out(tp, "the target has no such partition, or Describe is missing")
            only_there = (at_target.partitions if at_target else {}).keys() - (
                at_source.partitions if at_source else {}
            )
            for partition in sorted(only_there if at_source else ()):
                why_not = "only the target has this partition: nothing in it is a copy"
                self._leave_out(TopicPartition(topic, partition), why_not)
        return found

    def copied(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, Copied]:
        """Those for which it is known how they were copied; the others are noted as not compared."""
        found = {tp: self._copied(tp) for tp in tps}
        for tp in sorted(self.state.partitions if self.state else ()):
            if self._selector.why_not(tp.topic) is None and tp not in found and not self._is_left_out(tp):
                self._leave_out(tp, "the source does not list it: it was deleted, or Describe is missing")
        return {tp: copied for tp, copied in found.items() if copied is not None}

    def _copied(self, tp: TopicPartition) -> Copied | None:
        record = self.state.partition(tp) if self.state else None
        if record is None and self._wanted.same_offsets:
            return Copied(None, 0, 0, Insertions())
        if record is None:
            self._leave_out(tp, f"flow {self._flow} has not begun to copy it")
        elif not record.prepared:
            self._leave_out(tp, "it is being prepared: nothing of it is copied yet")
        elif record.topic_id != self._topic_id(tp):
            self._leave_out(tp, "its topic was created again at the source: the copy is of the deleted one")
        elif self.state and self.state.insertion(tp):
            self._leave_out(tp, "a repair of it is running, or was interrupted: a mirror completes it")
        else:
            offsets = self.state.map(tp) if self.state else None
            insertions = Insertions(record.inserted)
            accepted = united((*record.inserted, *record.accepted))
            return Copied(offsets, record.start_offset, record.target_start_offset, insertions, accepted)
        return None

    def compare(self, copied: Mapping[TopicPartition, Copied], told: Told) -> None:
        """Decide what of each partition is compared."""
        for tp, one in copied.items():
            policy = told.policies.get(tp.topic)
            if policy is None:
                self._leave_out(
                    tp, "not authorized to read cleanup.policy: DescribeConfigs is needed at the source"
                )
                continue
            if tp.topic in told.closed:
                self._leave_out(tp, told.closed[tp.topic])
                continue
            is_compacted = "compact" in policy
            copy = told.copies[self.at_target(tp)].after(one.target_start)
            offsets = ALL if is_compacted else told.wanted[tp]
            log = self._log(
                tp,
                one,
                told.originals[tp],
                copy,
                offsets,
                is_compacted=is_compacted,
                standing=self._has_begun(copy) and self.at_target(tp) in told.standing,
            )
            if log is not None:
                (self._compacted if is_compacted else self._append_only).append(log)
                if (why_not := self.words.why_not(tp) or self._made_again(log)) is not None:
                    self._leave_out(tp, why_not)

    def _made_again(self, log: Log) -> str | None:
        """Why it is not known what becomes of the end of a copy, of whose topic the target holds another one;
        else None.
        """
        record = self.state.partition(log.name) if self.state else None
        written_to = record.target_topic_id if record else None
        if written_to in {None, log.target_topic_id} or not log.window.pending.offsets:
            return None
        how_far = "how far it was copied is not known"
        if log.acknowledged is not None:
            how_far = "what the mirror had not copied is missing"
        return (
            f"its topic was created again at the target: {how_far}; "
            "`twinsite status` says whether the mirror goes on there"
        )

    def _has_begun(self, copy: Range) -> bool:
        """Whether the copy is known to have begun: by the flow's state, else by a log that was written to."""
        return self.state is not None or copy.end > 0

    def _compared_before(self, tp: TopicPartition, log_end: int) -> int:
        run = self._wanted.continues
        clusters = (self._source.info.cluster_id, self._target.info.cluster_id)
        if run is None or run.clusters != clusters:
            return 0
        return run.compared_to(tp, self._topic_id(tp), self._target_topic_id(tp), log_end)

    def seen_before(
        self, copied: Mapping[TopicPartition, Copied], originals: Mapping[TopicPartition, Range]
    ) -> dict[TopicPartition, int]:
        """Where logs of the target ended, as far as earlier comparisons saw, by their names there.

        What a target topic held before it was deleted and created again counts, so it is found to be lost.
        """
        clusters = (self._source.info.cluster_id, self._target.info.cluster_id)
        seen = [run for run in self._wanted.seen if run.clusters == clusters]
        found = {}
        for tp, one in copied.items():
            log_end = originals[tp].end
            end = max((run.seen_to(tp, self._topic_id(tp), log_end) for run in seen), default=0)
            with suppress(UntranslatableError):  # reported for the partition by _log()
                found[self.at_target(tp)] = one.translation(ALL.end).to_target(end)
        return found

    def _topic_id(self, tp: TopicPartition) -> str:
        return str(self._source.info.topics[tp.topic].topic_id)

    def _target_topic_id(self, tp: TopicPartition) -> str:
        return str(self._target.info.topics[self._names[tp.topic]].topic_id)

    def _log(
        self,
        tp: TopicPartition,
        copied: Copied,
        original: Range,
        copy: Range,
        wanted: Range,
        *,
        is_compacted: bool,
        standing: bool,
    ) -> Log | None:
        last = self.held_ends.get(tp, ALL.end)
        wanted = wanted.before(last)
        end_before = self.ends_before.get(self.at_target(tp), copy.end)
        translation = copied.translation(end_before)
        before = 0 if is_compacted else self._compared_before(tp, original.end)
        between = partial(
            window,
            original.before(last),
            copy,
            translation,
            acknowledged=end_before,
            leaving=self._leaving.get(tp, 0),
            standing=standing,
        )
        try:
            start = max(copied.start, wanted.start, min(before, translation.to_source(copy.end)))
            asked = between(start=start, end=wanted.end)
            whole = between(start=copied.start, end=last)
            compared = asked
            if asked.source.offsets or asked.beyond.offsets:
                end = min(wanted.end + AROUND, last)
                compared = between(start=max(copied.start, start - AROUND), end=end)
            source_end_place = translation.to_target(original.end)
        except UntranslatableError as error:
            self._leave_out(tp, str(error))
            return None
        return Log(
            name=tp,
            target_topic=self._names[tp.topic],
            topic_id=self._topic_id(tp),
            target_topic_id=self._target_topic_id(tp),
            is_compacted=is_compacted,
            window=compared,
            begin_place=copied.target_start,
            source_end_place=source_end_place,
            acknowledged=self.words.source_offset(tp),
            lines=copied.lines(compared.source),
            accepted=() if is_compacted else tuple(Range(*some) for some in copied.accepted),
            nothing=nothing_of(asked, whole, compared_before=before > copied.start),
        )

    def _is_left_out(self, tp: TopicPartition) -> bool:
        return any((one.topic, one.partition) == tp for one in self._not_compared)

    def _leave_out(self, tp: TopicPartition, why: str) -> None:
        self._not_compared.append(NotCompared(tp.topic, tp.partition, why))
