"""What a comparison of both sites is given: topics, windows and offset maps, asked of the clusters.

The target is asked for its ends before the source is, and a mirror that is to be asked before the target: a
copy that works is then never ahead of its source, nor behind its mirror's word. Nothing is written.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

from checkpoint.errors import UntranslatableError
from checkpoint.flow_state import FlowState
from checkpoint.insertions import Insertions, united
from mirror.acknowledged import Mirror, Words, words
from mirror.clusters import START_SECONDS, both_connected
from mirror.config import Settings
from mirror.copied import Copied
from mirror.errors import NotAuthorizedError, UsageError
from mirror.kafka.cluster import Cluster
from mirror.kafka.fetch import Isolation
from mirror.kafka.offsets import EARLIEST, LATEST, offsets_of_all
from mirror.kafka.peek import closed_topics
from mirror.kafka.topics import describe_configs
from mirror.model import TopicPartition
from mirror.offline import NoStateError, flow_state
from mirror.sync.names import NamePolicy, TopicSelector
from mirror.sync.returning import Returning
from spark_jobs.algorithms import Hashing
from spark_jobs.documents import Scope
from spark_jobs.extent import Extent
from spark_jobs.history import SINCE_LAST_MATCH, Run
from spark_jobs.logs import Log
from spark_jobs.nothing import nothing_of
from spark_jobs.result import NotCompared, time_text
from spark_jobs.sampling import Sample, fitting
from spark_jobs.stretches import RANGE_PLACES
from spark_jobs.window import ALL, Range, window

AROUND = RANGE_PLACES
"""So many offsets on both sides of what is asked for are compared too: a record that is lost at its first
offset shifts what follows, and is only seen beside what stood before it."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Of which offsets a comparison is wanted; compacted topics are always compared whole.

    Attributes:
        topics: Only these, as they are called at the source; none means all of the flow.
        start, end: Source offsets, the end not included; None leaves it open.
        since_ms, until_ms: Timestamps; None leaves it open.
        continues: A run behind whose ends this one begins, partition by partition.
        seen: Runs that have seen how far the copy had come.
        sample: Only this part of append-only topics.
        same_offsets: Take offsets to be the same where the flow does not know: somebody else made the copy.
        hashing: How both sites hash.
        mirror: Whose word is taken for how far the copy had come; None: the target's log alone says so.
    """

    topics: tuple[str, ...] = ()
    start: int | None = None
    end: int | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    continues: Run | None = None
    seen: Sequence[Run] = ()
    sample: Sample | None = None
    same_offsets: bool = False
    hashing: Hashing = field(default_factory=Hashing)
    mirror: Mirror | None = None

    @property
    def limits(self) -> tuple[str, ...]:
        """By what only a part of each log is wanted, whatever is sampled of it; of times not which."""
        limits = {
            f"from_offset {self.start}": self.start,
            f"to_offset {self.end}": self.end,
            "since": self.since_ms,
            "until": self.until_ms,
            SINCE_LAST_MATCH: self.continues,
        }
        return tuple(words for words, limit in limits.items() if limit is not None)

    @property
    def extent(self) -> Extent:
        """As the result names it."""
        return Extent(self._words(), self.topics, self.limits, self.sample)

    def _words(self) -> str:
        limits = {
            "topics": ", ".join(self.topics) or None,
            "source offsets from": self.start,
            "source offsets below": self.end,
            "since": None if self.since_ms is None else time_text(self.since_ms),
            "until": None if self.until_ms is None else time_text(self.until_ms),
            "behind run": None if self.continues is None else self.continues.name,
            "of append-only topics": self.sample,
        }
        said = [f"{words} {limit}" for words, limit in limits.items() if limit is not None]
        return ", ".join(said) or "all there is"


Ends = Callable[[Collection[TopicPartition]], Mapping[TopicPartition, int]]
"""Where logs end, by what a site calls them."""


@dataclass(frozen=True, slots=True)
class Held:
    """What is read in place of brokers; None where brokers are read.

    Attributes:
        source, target: Ask for the ends of logs there; they may be those of long ago.
    """

    source: Ends | None = None
    target: Ends | None = None


async def scope(
    settings: Settings,
    wanted: Wanted,
    leaving: Mapping[TopicPartition, int] | None = None,
    held: Held | None = None,
) -> Scope:
    """Ask both clusters what can be compared now.

    A mirror's word comes first, then the target's ends, then what the flow remembers, which is written ahead
    of the records, then the source's ends. Where a target's log ended once is known by the mirror's word, and
    by what comparisons before have seen.

    Args:
        leaving: Source offsets below which nothing of a log can be read in time.
        held: What is read in place of brokers: nothing is compared behind its ends.

    Raises:
        UsageError: No topic matches, or the mirror is of another flow or of other clusters.
        NoStateError: The flow has never run against this target.
        TwinsiteError: A cluster or the mirror cannot be reached, or does not allow what is needed.
    """
    both = both_connected(settings, patience_seconds=START_SECONDS, reached=lambda _: None)
    async with both as (source, target):
        selector = TopicSelector(
            settings.topics.include, settings.topics.exclude, NamePolicy(settings.topics.prefix or "")
        )
        names = await _topics(settings, selector, source, target)
        if wanted.topics:
            names = _only(names, wanted.topics, settings.flow)
            selector = TopicSelector([re.escape(name) for name in names], (), selector.policy)
        source.follow(names)
        target.follow(names.values())
        await asyncio.gather(source.refresh(), target.refresh())
        asking = _Asking(settings.flow, wanted, source, target, names, selector, leaving or {})
        tps = asking.on_both_sides()
        asking.words = await _words(settings, wanted, source, target)
        copies = await _logs(target, [asking.at_target(tp) for tp in tps])
        if held and held.target:
            ends = await asyncio.to_thread(held.target, copies)
            copies = {tp: log.before(ends[tp]) for tp, log in copies.items()}
        asking.ends_before = await _ends_before(target, asking.words.target_offsets(), copies)
        asking.state = await _state(settings, target, wanted)
        copied = asking.copied(tps)
        originals = await _logs(source, copied)
        if held and held.source:
            ends = await asyncio.to_thread(held.source, originals)
            asking.held_ends = {tp: end for tp, end in ends.items() if end < originals[tp].end}
        seen = asking.seen_before(copied, originals, copies)
        asking.ends_before |= await _ends_before(target, seen, copies)
        await asking.compare(copied, originals, copies)
        return asking.scope()


async def _topics(
    settings: Settings, selector: TopicSelector, source: Cluster, target: Cluster
) -> Mapping[str, str]:
    """Source name to target name. What the mirror leaves out, as a copy of what the target has, is none."""
    found = await source.describe_topics(None)
    internal = [topic.name for topic in found.topics.values() if topic.internal]
    chosen = selector.select(found.topics, internal=internal).chosen
    if not chosen:
        patterns = ", ".join(settings.topics.include)
        raise UsageError(
            f"none of the {len(found.topics)} topics at the source matches {patterns}",
            hint="see topics.include and topics.exclude; a topic without Describe is not seen",
        )
    there = (await target.describe_topics(chosen.values())).topics
    begun = {name for name, copy in chosen.items() if copy in there}
    returning = Returning(source, target.info.cluster_id, selector.policy.prefix)
    left_out = await returning.left_out(found, chosen, begun)
    return {name: copy for name, copy in chosen.items() if name not in left_out}


def _only(names: Mapping[str, str], topics: Sequence[str], flow: str) -> Mapping[str, str]:
    """Some of the flow's topics.

    Raises:
        UsageError: One of them is not the flow's.
    """
    foreign = [topic for topic in topics if topic not in names]
    if foreign:
        raise UsageError(
            f"--topic {', '.join(foreign)}: flow {flow} copies no such topic of the source",
            hint="write whole names, as at the source; see topics.include and topics.exclude",
        )
    return {topic: names[topic] for topic in topics}


async def _words(settings: Settings, wanted: Wanted, source: Cluster, target: Cluster) -> Words:
    """How far the mirror says that it is, where one is to be asked."""
    if wanted.mirror is None:
        return Words()
    clusters = source.info.cluster_id, target.info.cluster_id
    return await asyncio.to_thread(words, wanted.mirror, settings.flow, *clusters)


async def _ends_before(
    target: Cluster, known: Mapping[TopicPartition, int], copies: Mapping[TopicPartition, Range]
) -> dict[TopicPartition, int]:
    """Where logs ended that now end before; one that is only held up by a transaction does not."""
    reached = {tp: end for tp, end in known.items() if tp in copies and end > copies[tp].end}
    ends = await offsets_of_all(target, reached, LATEST)
    return {tp: end for tp, end in reached.items() if end > ends[tp]}


async def _state(settings: Settings, target: Cluster, wanted: Wanted) -> FlowState | None:
    try:
        return await flow_state(target, settings.flow)
    except NoStateError as error:
        if wanted.same_offsets:
            return None
        elsewhere = "what something else copied with the same offsets is compared with --same-offsets"
        raise NoStateError(str(error), hint=f"{error.hint}; {elsewhere}") from None
    except NotAuthorizedError as error:
        hint = "Read on this topic is needed at the target, see docs/permissions.md"
        raise NotAuthorizedError(str(error), hint=hint) from error


async def _logs(cluster: Cluster, tps: Iterable[TopicPartition]) -> dict[TopicPartition, Range]:
    """From the start of each log to its last stable offset."""
    asked = list(tps)
    ends = await offsets_of_all(cluster, asked, LATEST, isolation=Isolation.READ_COMMITTED)
    starts = await offsets_of_all(cluster, asked, EARLIEST)
    return {tp: Range(starts[tp], max(starts[tp], ends[tp])) for tp in asked}


class _Asking:
    """Finds out what can be compared, and why the rest cannot.

    Attributes:
        state: What the flow remembers; None where nothing does, and offsets are taken to be the same.
        words: What the mirror has said, where one was asked.
        ends_before: Where logs of the target ended that have lost their ends, by their names there.
        held_ends: Where logs of the source end that are not read to their ends.
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
    ) -> None:
        self.state: FlowState | None = None
        self.words = Words()
        self.ends_before: dict[TopicPartition, int] = {}
        self.held_ends: Mapping[TopicPartition, int] = {}
        self._asked_at_ms = round(time.time() * 1000)
        self._flow, self._wanted = flow, wanted
        self._source, self._target, self._names, self._selector = source, target, names, selector
        self._leaving = leaving
        self._append_only: list[Log] = []
        self._compacted: list[Log] = []
        self._not_compared: list[NotCompared] = []

    def scope(self) -> Scope:
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
        return TopicPartition(self._names[tp.topic], tp.partition)

    def on_both_sides(self) -> list[TopicPartition]:
        """The source's partitions of which the target has one too."""
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
                    self._leave_out(tp, "the target has no such partition, or it may not be described")
            only_there = (at_target.partitions if at_target else {}).keys() - (
                at_source.partitions if at_source else {}
            )
            for partition in sorted(only_there if at_source else ()):
                why_not = "the target has this partition and the source has not: nothing of it is a copy"
                self._leave_out(TopicPartition(topic, partition), why_not)
        return found

    def copied(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, Copied]:
        """Those of which it is known how they were copied."""
        found = {tp: self._copied(tp) for tp in tps}
        for tp in sorted(self.state.partitions if self.state else ()):
            if self._selector.why_not(tp.topic) is None and tp not in found and not self._is_left_out(tp):
                self._leave_out(tp, "the source does not show it: it was deleted, or may not be described")
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
            self._leave_out(tp, "the source made the topic anew: the copy is of the one that was deleted")
        elif self.state and self.state.insertion(tp):
            self._leave_out(tp, "a repair of it goes on, or was interrupted: a mirror brings it to its end")
        else:
            offsets = self.state.map(tp) if self.state else None
            insertions = Insertions(record.inserted)
            accepted = united((*record.inserted, *record.accepted))
            return Copied(offsets, record.start_offset, record.target_start_offset, insertions, accepted)
        return None

    async def compare(
        self,
        copied: Mapping[TopicPartition, Copied],
        originals: Mapping[TopicPartition, Range],
        copies: Mapping[TopicPartition, Range],
    ) -> None:
        """Decide what of each partition is compared.

        Args:
            originals: The logs of the source.
            copies: The logs of the target, as they were before.
        """
        wanted = await self._wanted_offsets(originals)
        policies = await self._cleanup_policies()
        closed = await self._closed(originals, copies)
        for tp, one in copied.items():
            policy = policies.get(tp.topic)
            if policy is None:
                self._leave_out(tp, "cleanup.policy may not be read: DescribeConfigs is needed at the source")
                continue
            if tp.topic in closed:
                self._leave_out(tp, closed[tp.topic])
                continue
            is_compacted = "compact" in policy
            copy = copies[self.at_target(tp)].after(one.target_start)
            offsets = ALL if is_compacted else wanted[tp]
            log = self._log(tp, one, originals[tp], copy, offsets, is_compacted=is_compacted)
            if log is not None:
                (self._compacted if is_compacted else self._append_only).append(log)
                if (why_not := self.words.why_not(tp)) is not None:
                    self._leave_out(tp, why_not)

    async def _wanted_offsets(self, logs: Mapping[TopicPartition, Range]) -> dict[TopicPartition, Range]:
        wanted = self._wanted
        since, until = await self._at_time(logs, wanted.since_ms), await self._at_time(logs, wanted.until_ms)
        found = {}
        for tp in logs:
            start = max(wanted.start or 0, since.get(tp, 0))
            end = min(ALL.end if wanted.end is None else wanted.end, until.get(tp, ALL.end))
            found[tp] = Range(start, max(start, end))
        return found

    def _compared_before(self, tp: TopicPartition, log_end: int) -> int:
        run = self._wanted.continues
        clusters = (self._source.info.cluster_id, self._target.info.cluster_id)
        if run is None or run.clusters != clusters:
            return 0
        return run.end(tp, self._topic_id(tp), log_end)

    def seen_before(
        self,
        copied: Mapping[TopicPartition, Copied],
        originals: Mapping[TopicPartition, Range],
        copies: Mapping[TopicPartition, Range],
    ) -> dict[TopicPartition, int]:
        """Where logs of the target ended, as far as comparisons before have seen them."""
        clusters = (self._source.info.cluster_id, self._target.info.cluster_id)
        seen = [run for run in self._wanted.seen if run.clusters == clusters]
        found = {}
        for tp, one in copied.items():
            target, log_end = self.at_target(tp), originals[tp].end
            end = max((run.end(tp, self._topic_id(tp), log_end) for run in seen), default=0)
            translation = one.translation(self.ends_before.get(target, copies[target].end))
            with suppress(UntranslatableError):  # said of the partition when its window is asked for
                found[target] = translation.to_target(end)
        return found

    def _topic_id(self, tp: TopicPartition) -> str:
        return str(self._source.info.topics[tp.topic].topic_id)

    async def _at_time(
        self, logs: Mapping[TopicPartition, Range], timestamp_ms: int | None
    ) -> dict[TopicPartition, int]:
        """The first offset with this timestamp or a later one; the log's end where there is none."""
        if timestamp_ms is None:
            return {}
        found = await offsets_of_all(self._source, list(logs), timestamp_ms)
        return {tp: offset if offset >= 0 else logs[tp].end for tp, offset in found.items()}

    async def _cleanup_policies(self) -> dict[str, str]:
        """Of each topic at the source for which that may be asked."""
        settings = await describe_configs(self._source, sorted(self._names))
        policies = (
            (name, one.get("cleanup.policy")) for name, one in settings.items() if isinstance(one, dict)
        )
        return {name: policy.value for name, policy in policies if policy is not None and policy.value}

    async def _closed(
        self, originals: Mapping[TopicPartition, Range], copies: Mapping[TopicPartition, Range]
    ) -> dict[str, str]:
        """Topics whose records Spark would not get, each with what is missing."""
        here = await closed_topics(self._source, {tp: log.end for tp, log in originals.items()})
        there = await closed_topics(self._target, {tp: log.end for tp, log in copies.items()})
        at_target = {
            name: f"it may not be read: Read on {target_topic} is needed at the target"
            for name, target_topic in self._names.items()
            if target_topic in there
        }
        return at_target | dict.fromkeys(here, "it may not be read: Read is needed at the source")

    def _log(
        self,
        tp: TopicPartition,
        copied: Copied,
        original: Range,
        copy: Range,
        wanted: Range,
        *,
        is_compacted: bool,
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
