"""Plan what must be created or changed at the target so that source topics can be copied into it.

A plan holds actions in the order they may be carried out, conflicts that keep a topic
(or its newer partitions) from being copied, and notes on what was left out. No topic or
partition is ever removed, and a topic that the flow does not own is not changed: what
somebody else keeps there must not expire or be compacted because a source topic of the
same name is. Pure: no I/O.

Sources: MirrorMaker 2's ``MirrorSourceConnector``; :mod:`mirror.sync.topic_configs`
decides on settings.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from mirror.config import TopicsSettings
from mirror.model import Reason
from mirror.sync.names import NamePolicy
from mirror.sync.topic_configs import (
    ALL,
    APPEND_TIME,
    DECIDED_HERE,
    KEEP_ALL,
    REPLICATION_FACTOR,
    TIMESTAMP_TYPE,
    Defaults,
    LeftOut,
    TopicConfigs,
    config_changes,
    defaults_behind,
    wanted_configs,
)
from mirror.topic_names import collision_key, why_no_copy

Changes = Mapping[str, str | None]
"""Settings and their values; None removes one."""


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """A topic as its cluster describes it.

    Attributes:
        partitions: How many it has.
        replication_factor: How many replicas its first partition has.
        unread: Why its settings could not be read, if a retry may succeed; empty otherwise.
    """

    name: str
    partitions: int
    replication_factor: int
    configs: TopicConfigs = field(default_factory=TopicConfigs)
    unread: str = ""


@dataclass(frozen=True, slots=True)
class CreateTopic:
    """Make a topic at the target."""

    name: str
    partitions: int
    replication_factor: int
    configs: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class AddPartitions:
    """Give a target topic more partitions; ``partitions`` is the new total."""

    name: str
    partitions: int


@dataclass(frozen=True, slots=True)
class AlterConfigs:
    """Set some settings of a target topic, and reset others to the cluster's default."""

    name: str
    changes: Changes


@dataclass(frozen=True, slots=True)
class Conflict:
    """Why a source topic cannot be copied, from ``first_partition`` on."""

    topic: str
    target: str
    reason: Reason
    detail: str
    first_partition: int = 0


@dataclass(frozen=True, slots=True)
class Note:
    """A setting of a source topic, or ``all``, that the target topic does not get, and why."""

    topic: str
    setting: str
    why: str


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """What to do at the target."""

    create: tuple[CreateTopic, ...] = ()
    add_partitions: tuple[AddPartitions, ...] = ()
    alter_configs: tuple[AlterConfigs, ...] = ()
    left_alone: tuple[AlterConfigs, ...] = ()
    """Changes that wait until the topics are known to be ours, and it is our turn."""
    not_added: tuple[AddPartitions, ...] = ()
    """Partitions that wait for the same."""
    conflicts: tuple[Conflict, ...] = ()
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True, slots=True)
class Target:
    """The target as the plan sees it.

    Attributes:
        topics: All that may be described there, by name.
        brokers: How many are registered now.
        defaults: What a new topic would get, by setting; None if that may not be read.
        silent: Why no topics are created for now; empty if they are.
        held: Topics whose settings are left as they are for now, because they are being prepared.
        unprepared: Topics whose logs do not start yet where they should: until then no change may make them
            keep fewer records.
        owned: Topics that hold only what this flow copied there. No others are changed.
        settled: Those of the owned for which that is confirmed: their partitions were looked at.
        in_turn: Whether this mirror may change topics; a standby only creates missing ones.
        hidden: Topics that may not be described: whether they exist is not known.
        stamping: Topics that replaced record times when their settings were last read.
    """

    topics: Mapping[str, TopicFacts]
    brokers: int
    defaults: Defaults | None = None
    silent: str = ""
    held: frozenset[str] = frozenset()
    unprepared: frozenset[str] = frozenset()
    owned: frozenset[str] = frozenset()
    settled: frozenset[str] = frozenset()
    in_turn: bool = True
    hidden: frozenset[str] = frozenset()
    stamping: frozenset[str] = frozenset()


def plan_topics(
    source: Iterable[TopicFacts], target: Target, policy: NamePolicy, settings: TopicsSettings
) -> TopicPlan:
    """What the target needs for these source topics, which are all to be copied."""
    taken = {collision_key(name): name for name in target.topics}
    ordered = sorted(source, key=lambda t: t.name)
    parts = [_plan_one(topic, target, taken, policy, settings) for topic in ordered]
    return TopicPlan(
        create=tuple(action for part in parts for action in part.create),
        add_partitions=tuple(action for part in parts for action in part.add_partitions),
        alter_configs=tuple(action for part in parts for action in part.alter_configs),
        left_alone=tuple(change for part in parts for change in part.left_alone),
        not_added=tuple(action for part in parts for action in part.not_added),
        conflicts=tuple(conflict for part in parts for conflict in part.conflicts),
        notes=tuple(note for part in parts for note in part.notes),
    )


def _plan_one(
    topic: TopicFacts,
    target: Target,
    taken: Mapping[str, str],
    policy: NamePolicy,
    settings: TopicsSettings,
) -> TopicPlan:
    """What one topic needs.

    Args:
        taken: The names of the target's topics, by their collision keys.
    """
    name = policy.to_target(topic.name)
    why_not = why_no_copy(name)
    if why_not is not None:
        refused = Conflict(topic.name, name, Reason.NAME_NOT_POSSIBLE, f"target topic {name} {why_not}")
        return TopicPlan(conflicts=(refused,))
    existing = target.topics.get(name)
    if name in target.hidden:
        words = f"the mirror is not authorized to see whether target topic {name} exists (Describe)"
        return TopicPlan(conflicts=(Conflict(topic.name, name, Reason.TARGET_NOT_AUTHORIZED, words),))
    if existing is None:
        return _plan_missing(topic, name, target, taken, settings)
    return _plan_existing(topic, existing, target, settings)


# -- a topic that is not there -------------------------------------------------------------------------


def _plan_missing(
    topic: TopicFacts, name: str, target: Target, taken: Mapping[str, str], settings: TopicsSettings
) -> TopicPlan:
    obstacle = _why_not_made(topic, name, target, taken.get(collision_key(name)), settings)
    if obstacle is not None:
        return TopicPlan(conflicts=(obstacle,))
    asked = settings.replication_factor or topic.replication_factor
    factor = min(asked, target.brokers)
    wanted = wanted_configs(
        topic.configs, target.defaults, settings.config_exclude, replication_factor=factor
    )
    lowered = (_lowered(asked, factor),) if factor < asked else ()
    return TopicPlan(
        create=(CreateTopic(name, topic.partitions, factor, wanted.configs),),
        notes=_notes(topic.name, (*lowered, *wanted.left_out)),
    )


def _lowered(asked: int, factor: int) -> LeftOut:
    why = f"the target has {factor} brokers now: the topic gets {factor} replicas, not {asked}, for good"
    return LeftOut(REPLICATION_FACTOR, why)


def _why_not_made(
    topic: TopicFacts, name: str, target: Target, rival: str | None, settings: TopicsSettings
) -> Conflict | None:
    if not settings.create:
        return Conflict(
            topic.name,
            name,
            Reason.TARGET_TOPIC_MISSING,
            f"target topic {name} does not exist, and topics.create is false: the source topic has "
            f"{topic.partitions} partitions",
        )
    if rival is not None:
        return Conflict(
            topic.name,
            name,
            Reason.NAME_COLLISION,
            f"target topic {name} cannot be created: Kafka cannot tell it from {rival}, which exists",
        )
    return (
        _factor_obstacle(topic, name, target.brokers, settings)
        or _unread_obstacle(topic, name)
        or _silent_obstacle(topic, name, target.silent)
    )


def _unread_obstacle(topic: TopicFacts, name: str) -> Conflict | None:
    """A fault that may pass is no reason to create a topic without its source's settings."""
    if not topic.unread:
        return None
    words = f"target topic {name} is not created until the source's settings can be read: {topic.unread}"
    return Conflict(topic.name, name, Reason.SOURCE_UNAVAILABLE, words)


def _silent_obstacle(topic: TopicFacts, name: str, silent: str) -> Conflict | None:
    """Nor is a topic created while the target does not tell its defaults."""
    if not silent:
        return None
    words = f"target topic {name} does not exist, and is not created for now: {silent}"
    return Conflict(topic.name, name, Reason.TARGET_UNAVAILABLE, words)


def _factor_obstacle(topic: TopicFacts, name: str, brokers: int, settings: TopicsSettings) -> Conflict | None:
    factor = settings.replication_factor or topic.replication_factor
    if factor <= brokers or (settings.replication_factor_capped and brokers > 0):
        return None
    origin = "topics.replication_factor asks for" if settings.replication_factor else "the source topic has"
    return Conflict(
        topic.name,
        name,
        Reason.REPLICATION_FACTOR,
        f"target topic {name}: {origin} {factor} replicas, the target has {brokers} brokers",
    )


# -- a topic that is there -----------------------------------------------------------------------------


def _plan_existing(
    topic: TopicFacts, existing: TopicFacts, target: Target, settings: TopicsSettings
) -> TopicPlan:
    if existing.partitions > topic.partitions:
        return TopicPlan(conflicts=(_too_many_partitions(topic, existing),))
    owned, settled = existing.name in target.owned, existing.name in target.settled
    synced = settings.sync_configs and existing.name not in target.held
    found, notes = _alter(topic, existing, settings) if synced else ({}, ())
    urgent: Collection[str] = DECIDED_HERE
    if existing.name in target.unprepared:
        found = _keeping_more(found, topic.configs.values)
        urgent = DECIDED_HERE | KEEP_ALL.keys()
    at_once = found if settled else _by_keys(found, urgent)
    changed = at_once if owned and target.in_turn else {}
    changes = _altered(existing.name, changed)
    left_alone = _altered(existing.name, {} if changed == found else found)
    taken_back = TIMESTAMP_TYPE in changed or (settings.sync_configs and owned and not target.in_turn)
    overwriting = None if taken_back else _overwritten_times(topic, existing, target)
    if overwriting is not None:
        return TopicPlan(conflicts=(overwriting,), left_alone=left_alone)
    more = AddPartitions(existing.name, topic.partitions)
    missing = (more,) if existing.partitions < topic.partitions else ()
    may_add = settings.create and owned and settled
    return TopicPlan(
        add_partitions=missing if may_add else (),
        alter_configs=changes,
        left_alone=left_alone,
        not_added=missing if settings.create and not may_add else (),
        conflicts=(_too_few_partitions(topic, existing, settings),) if missing and not may_add else (),
        notes=notes,
    )


def _altered(name: str, changes: Changes) -> tuple[AlterConfigs, ...]:
    return (AlterConfigs(name, changes),) if changes else ()


def _by_keys(changes: Changes, keys: Collection[str]) -> Changes:
    return {name: value for name, value in changes.items() if name in keys}


def _keeping_more(changes: Changes, source: Mapping[str, str]) -> Changes:
    """The changes without those that would keep fewer records: padding needs a topic that deletes nothing."""
    effective = {name: source.get(name) if value is None else value for name, value in changes.items()}
    return {
        name: effective[name] if name in KEEP_ALL else value
        for name, value in changes.items()
        if name not in KEEP_ALL or effective[name] == KEEP_ALL[name]
    }


def _alter(
    topic: TopicFacts, existing: TopicFacts, settings: TopicsSettings
) -> tuple[Changes, tuple[Note, ...]]:
    """Changes of settings; none unless both sides' settings can be read."""
    if topic.unread or existing.unread:
        return {}, ()
    if not topic.configs.values or not existing.configs.values:
        return {}, (Note(topic.name, ALL, "no right to read the settings of one side (DescribeConfigs)"),)
    exclude = settings.config_exclude
    wanted = wanted_configs(
        topic.configs,
        defaults_behind(existing.configs),
        exclude,
        replication_factor=existing.replication_factor,
    )
    changes = config_changes(wanted, existing.configs, exclude)
    return changes, _notes(topic.name, wanted.left_out)


def _too_many_partitions(topic: TopicFacts, existing: TopicFacts) -> Conflict:
    return Conflict(
        topic.name,
        existing.name,
        Reason.TARGET_PARTITIONS,
        f"target topic {existing.name} has {existing.partitions} partitions, the source {topic.partitions}",
    )


def _too_few_partitions(topic: TopicFacts, existing: TopicFacts, settings: TopicsSettings) -> Conflict:
    unsure = "the mirror that copies does not know yet whether all of them hold this flow's copy alone"
    why = unsure if settings.create else "topics.create is false"
    return Conflict(
        topic.name,
        existing.name,
        Reason.TARGET_PARTITIONS,
        f"target topic {existing.name} has {existing.partitions} partitions, the source {topic.partitions}, "
        f"and {why}",
        first_partition=existing.partitions,
    )


def _overwritten_times(topic: TopicFacts, existing: TopicFacts, target: Target) -> Conflict | None:
    """The conflict with a topic that has append times: it would replace the time of every record. Settings
    that cannot be read for now count as they were.
    """
    stamping = existing.configs.values.get(TIMESTAMP_TYPE) == APPEND_TIME
    if not stamping and not (existing.unread and existing.name in target.stamping):
        return None
    return Conflict(
        topic.name,
        existing.name,
        Reason.APPEND_TIMES,
        f"target topic {existing.name} has {TIMESTAMP_TYPE}=LogAppendTime: it would change record timestamps",
    )


def _notes(topic: str, left_out: Sequence[LeftOut]) -> tuple[Note, ...]:
    return tuple(Note(topic, setting, why) for setting, why in left_out)
