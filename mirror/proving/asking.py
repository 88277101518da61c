"""Ask the clusters for what a comparison of both sites needs: topics, windows and offset maps.

The mirror, if one is to be asked, comes first, then the target's log ends, then the source's. In that order a
working copy is never ahead of its source, nor behind what its mirror said. Nothing is written.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from checkpoint.flow_state import FlowState
from mirror.acknowledged import Words, words
from mirror.clusters import START_SECONDS, both_connected
from mirror.config import Settings
from mirror.errors import UsageError
from mirror.kafka.cluster import Cluster
from mirror.kafka.cluster_info import ClusterInfo
from mirror.kafka.fetch import Isolation
from mirror.kafka.offsets import EARLIEST, LATEST, offsets_of_all
from mirror.kafka.peek import closed_topics
from mirror.kafka.topics import describe_configs
from mirror.model import TopicPartition
from mirror.offline import NoRecordError, NoStateError, begun_topics, flow_state
from mirror.proving.comparable import Comparable, Told
from mirror.proving.wanted import Wanted
from mirror.sync.names import HIDDEN, NamePolicy, TopicSelector
from mirror.sync.returning import Returning
from mirror.topic_names import STATE_TOPIC_PREFIX
from spark_jobs.documents import Scope
from spark_jobs.window import ALL, Range

Ends = Callable[[Collection[TopicPartition]], Mapping[TopicPartition, int]]
"""Takes partitions by their names at a site, and returns where their logs end."""


@dataclass(frozen=True, slots=True)
class Held:
    """Stored logs that are read in place of brokers; None for a site whose brokers are read.

    Attributes:
        source, target: Tell where the stored logs end, which may be far behind the brokers'.
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

    The mirror is asked first, then the target's ends, then the flow's state, which is written ahead of the
    records, then the source's ends. The mirror's word, and what earlier comparisons saw, tell where a target
    log that has become shorter once ended.

    Args:
        leaving: Source offsets below which a log is gone before it can be read.
        held: What is read in place of brokers. Nothing after its ends is compared.

    Raises:
        UsageError: No topic matches, or the mirror is of another flow or of other clusters.
        NoStateError: The flow has never run against this target, and ``wanted.same_offsets`` is not set.
        NoRecordError: It has not begun there, or its state is being written again; also unless that is set.
        TwinsiteError: A cluster or the mirror cannot be reached, or does not allow what is needed.
    """
    both = both_connected(settings, patience_seconds=START_SECONDS, reached=lambda _: None)
    async with both as (source, target):
        selector = _selector(settings, source, target)
        names = await _topics(settings, selector, source, target)
        if wanted.topics:
            names = _only(names, wanted.topics, settings.flow)
            selector = TopicSelector([re.escape(name) for name in names], (), selector.policy)
        source.follow(names)
        target.follow(names.values())
        await asyncio.gather(source.refresh(), target.refresh())
        asked_at_ms = round(time.time() * 1000)
        comparable = Comparable(
            settings.flow, wanted, source, target, names, selector, leaving or {}, asked_at_ms
        )
        tps = comparable.on_both_sides()
        comparable.words = await _words(settings, wanted, source, target)
        copies = await _logs(target, [comparable.at_target(tp) for tp in tps])
        if held and held.target:
            ends = await asyncio.to_thread(held.target, copies)
            copies = {tp: log.before(ends[tp]) for tp, log in copies.items()}
        comparable.ends_before = await _ends_before(target, comparable.words.target_offsets(), copies)
        comparable.state = await _state(settings, target, wanted)
        copied = comparable.copied(tps)
        originals = await _logs(source, copied)
        if held and held.source:
            ends = await asyncio.to_thread(held.source, originals)
            comparable.held_ends = {tp: end for tp, end in ends.items() if end < originals[tp].end}
        seen = comparable.seen_before(copied, originals)
        comparable.ends_before |= await _ends_before(target, seen, copies)
        ends_now = await offsets_of_all(target, copies, LATEST, isolation=Isolation.READ_COMMITTED)
        told = Told(
            originals,
            copies,
            wanted=await _wanted_offsets(source, wanted, originals),
            policies=await _cleanup_policies(source, names),
            closed=await _closed(source, target, names, originals, copies),
            standing={tp for tp, log in copies.items() if ends_now[tp] == log.end},
        )
        comparable.compare(copied, told)
        return comparable.scope()


def _selector(settings: Settings, source: Cluster, target: Cluster) -> TopicSelector:
    """Selects topics as the flow does; also those of one cluster that is compared with a backup of itself."""
    topics, policy = settings.topics, NamePolicy(settings.topics.prefix or "")
    same_cluster = source.info.cluster_id == target.info.cluster_id and bool(policy.prefix)
    return TopicSelector(topics.include, topics.exclude, policy, same_cluster=same_cluster)


async def _topics(
    settings: Settings, selector: TopicSelector, source: Cluster, target: Cluster
) -> Mapping[str, str]:
    """The flow's topics, source name to target name, without those it leaves out as copies of the target's.

    Raises:
        UsageError: No topic of the source matches the lists.
        TwinsiteError: A request to a cluster fails.
    """
    found = await source.describe_topics(None)
    internal = [topic.name for topic in found.topics.values() if topic.internal]
    chosen = selector.select(found.topics, internal=internal).chosen
    if not chosen:
        patterns = ", ".join(settings.topics.include)
        raise UsageError(
            f"none of the {len(found.topics)} topics at the source matches {patterns}",
            hint=f"check topics.include and topics.exclude; {HIDDEN}",
        )
    begun = await _begun(settings, found, chosen, target)
    returning = Returning(source, target, selector.policy.prefix)
    left_out = await returning.left_out(found, chosen, begun)
    return {name: copy for name, copy in chosen.items() if name not in left_out}


async def _begun(
    settings: Settings, found: ClusterInfo, chosen: Mapping[str, str], target: Cluster
) -> Collection[str]:
    """Topics that the flow has begun to copy.

    If flows copy to the source, its own state tells. A topic of a copy's name at the target would prove
    nothing then: with the same names both ways it may be the original. Otherwise such a topic counts.
    """
    if any(name.startswith(STATE_TOPIC_PREFIX) for name in found.topics):
        begun = await begun_topics(target, settings.flow)
        if begun is not None:
            return begun
    there = (await target.describe_topics(chosen.values())).topics
    return {name for name, copy in chosen.items() if copy in there}


def _only(names: Mapping[str, str], topics: Sequence[str], flow: str) -> Mapping[str, str]:
    """Some of the flow's topics.

    Raises:
        UsageError: One of them is not the flow's.
    """
    foreign = [topic for topic in topics if topic not in names]
    if foreign:
        raise UsageError(
            f"--topic {', '.join(foreign)}: flow {flow} copies no such topic of the source",
            hint="write whole names, as at the source; check topics.include and topics.exclude",
        )
    return {topic: names[topic] for topic in topics}


async def _words(settings: Settings, wanted: Wanted, source: Cluster, target: Cluster) -> Words:
    """How far the mirror says it is; nothing if none is to be asked."""
    if wanted.mirror is None:
        return Words()
    clusters = source.info.cluster_id, target.info.cluster_id
    return await asyncio.to_thread(words, wanted.mirror, settings.flow, *clusters)


async def _ends_before(
    target: Cluster, known: Mapping[TopicPartition, int], copies: Mapping[TopicPartition, Range]
) -> dict[TopicPartition, int]:
    """Where logs once ended that are shorter now. A log whose end is only held up by a transaction is not."""
    reached = {tp: end for tp, end in known.items() if tp in copies and end > copies[tp].end}
    ends = await offsets_of_all(target, reached, LATEST)
    return {tp: end for tp, end in reached.items() if end > ends[tp]}


async def _state(settings: Settings, target: Cluster, wanted: Wanted) -> FlowState | None:
    try:
        return await flow_state(target, settings.flow)
    except (NoStateError, NoRecordError) as error:
        if wanted.same_offsets:
            return None
        elsewhere = "use --same-offsets if something else made the copy, with the same offsets"
        raise type(error)(str(error), hint=f"{error.hint}; {elsewhere}") from None


async def _logs(cluster: Cluster, tps: Iterable[TopicPartition]) -> dict[TopicPartition, Range]:
    """From the start of each log to its last stable offset."""
    asked = list(tps)
    ends = await offsets_of_all(cluster, asked, LATEST, isolation=Isolation.READ_COMMITTED)
    starts = await offsets_of_all(cluster, asked, EARLIEST)
    return {tp: Range(starts[tp], max(starts[tp], ends[tp])) for tp in asked}


async def _wanted_offsets(
    source: Cluster, wanted: Wanted, logs: Mapping[TopicPartition, Range]
) -> dict[TopicPartition, Range]:
    since = await _at_time(source, logs, wanted.since_ms)
    until = await _at_time(source, logs, wanted.until_ms)
    found = {}
    for tp in logs:
        start = max(wanted.start or 0, since.get(tp, 0))
        end = min(ALL.end if wanted.end is None else wanted.end, until.get(tp, ALL.end))
        found[tp] = Range(start, max(start, end))
    return found


async def _at_time(
    source: Cluster, logs: Mapping[TopicPartition, Range], timestamp_ms: int | None
) -> dict[TopicPartition, int]:
    """The first offset with this timestamp or a later one; the log's end if there is none."""
    if timestamp_ms is None:
        return {}
    found = await offsets_of_all(source, list(logs), timestamp_ms)
    return {tp: offset if offset >= 0 else logs[tp].end for tp, offset in found.items()}


async def _cleanup_policies(source: Cluster, topics: Iterable[str]) -> dict[str, str]:
    """``cleanup.policy`` of each topic of the source for which it may be read."""
    settings = await describe_configs(source, sorted(topics))
    policies = ((name, one.get("cleanup.policy")) for name, one in settings.items() if isinstance(one, dict))
    return {name: policy.value for name, policy in policies if policy is not None and policy.value}


async def _closed(
    source: Cluster,
    target: Cluster,
    names: Mapping[str, str],
    originals: Mapping[TopicPartition, Range],
    copies: Mapping[TopicPartition, Range],
) -> dict[str, str]:
    """Topics whose records Spark may not read, each with the right that is missing."""
    here = await closed_topics(source, {tp: log.end for tp, log in originals.items()})
    there = await closed_topics(target, {tp: log.end for tp, log in copies.items()})
    at_target = {
        name: f"not authorized to read it: Read on {target_topic} is needed at the target"
        for name, target_topic in names.items()
        if target_topic in there
    }
    return at_target | dict.fromkeys(here, "not authorized to read it: Read is needed at the source")
