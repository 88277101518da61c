"""Which settings a target topic gets, from those of its source topic.

It takes over what is set on the source topic itself, and the retention settings that the
source topic inherits from its brokers where the target's defaults differ. It also gets
the few settings without which a copy would not be exact. Record times are kept, however
old or new they look to the target. Payload bytes stay as the producer made them. What
fits into the source topic fits into the target's, unless an operator excludes
``max.message.bytes``. Pure: no I/O.

The target tells which keys it knows, so a key of another Kafka version never makes the
creation of a topic fail; it is left out and reported. Where the source's settings may
not be read, the target topic is made to keep every record.

Sources: KIP-937 and KIP-1030 (limits of timestamps, least segment size), KIP-724
(settings removed with message formats v0 and v1), Kafka's ``LogConfig`` of 3.9 and 4.3.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from monitoring.outlook import NO_LIMIT, Retention

LONG_MAX = str(2**63 - 1)
TIMESTAMP_TYPE = "message.timestamp.type"
APPEND_TIME = "LogAppendTime"
COMPRESSION_TYPE = "compression.type"
MESSAGE_BYTES_MAX = "max.message.bytes"
SEGMENT_BYTES = "segment.bytes"
CLEANUP_POLICY = "cleanup.policy"
ALL = "all"
"""Stands for all settings of a topic, in place of the name of one."""
REPLICATION_FACTOR = "replication.factor"
"""Not a topic setting, but reported like one that is left out."""
MIN_IN_SYNC = "min.insync.replicas"
TIMESTAMP_LIMITS = (
    "message.timestamp.before.max.ms",
    "message.timestamp.after.max.ms",
    "message.timestamp.difference.max.ms",
)
"""How far a record's time may be from now. A mirror that catches up appends old records."""
KEEP_ALL = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
"""With these a topic deletes no record by itself."""
KEEPING = (CLEANUP_POLICY, "retention.ms", "retention.bytes", "delete.retention.ms")
"""What a topic keeps, and for how long."""
DECIDED_HERE = frozenset({TIMESTAMP_TYPE, *TIMESTAMP_LIMITS})
"""Settings that are the same for every copy: the source's value and the exclusions do not apply."""
REMOVED_IN_4 = frozenset({"message.format.version", "message.downconversion.enable", TIMESTAMP_LIMITS[2]})
SEGMENT_BYTES_MIN_4 = 1024 * 1024

Defaults = Mapping[str, str]
"""What a topic gets where nothing is set on it; the keys are all settings that the cluster knows."""
_HIDDEN = ""
"""Stands for a default that cannot be seen. It equals no value, so what is needed is always set."""


@dataclass(frozen=True, slots=True)
class TopicConfigs:
    """The settings of one topic.

    Attributes:
        values: All in effect, wherever they are set; empty if they may not be read.
        explicit: The names of those that are set on the topic itself.
    """

    values: Mapping[str, str] = field(default_factory=dict)
    explicit: frozenset[str] = frozenset()


class LeftOut(NamedTuple):
    """A setting of the source topic that the target topic does not get, or not with the same value."""

    setting: str
    why: str


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be set on the target topic itself, and what could not be taken over."""

    configs: Mapping[str, str]
    left_out: tuple[LeftOut, ...] = ()


def wanted_configs(
    source: TopicConfigs, defaults: Defaults | None, exclude: Sequence[str], *, replication_factor: int
) -> Wanted:
    """What the target topic should have set.

    Args:
        defaults: The target's; None if they may not be read.
        exclude: Regular expressions; a setting whose whole name matches one is not taken over.
        replication_factor: The target topic's.
    """
    left_out: list[LeftOut] = []
    taken: dict[str, str] = {}
    if not source.values:
        taken = {name: value for name, value in KEEP_ALL.items() if not excluded(name, exclude)}
        left_out = [
            LeftOut(ALL, "no right to read them (DescribeConfigs): the target topic keeps all records")
        ]
    for name in sorted(source.explicit - DECIDED_HERE):
        if excluded(name, exclude):
            continue
        value = source.values[name]
        why = _why_not(name, value, defaults, replication_factor)
        fitting = _fitting(name, value, defaults)
        if why:
            left_out.append(LeftOut(name, why))
            continue
        taken[name] = fitting
        if fitting != value:
            left_out.append(LeftOut(name, f"{value} is below what the target accepts, so {fitting} is set"))
    taken |= {name: value for name, value in _inherited(source, defaults) if not excluded(name, exclude)}
    needed = {
        name: value
        for name, value in _exactness(source, taken, defaults)
        if name != MESSAGE_BYTES_MAX or not excluded(name, exclude)  # batches above the limit are split
    }
    return Wanted(taken | needed, tuple(left_out))


def defaults_behind(existing: TopicConfigs) -> Defaults:
    """The target's defaults, as far as an existing topic of the target shows them.

    It has a value for every setting that the target knows; one that is set on it hides the default.
    """
    return {name: _HIDDEN if name in existing.explicit else value for name, value in existing.values.items()}


def config_changes(wanted: Wanted, existing: TopicConfigs, exclude: Sequence[str]) -> dict[str, str | None]:
    """The changes that a target topic needs; None removes a setting.

    A setting that is set on the target topic and not on the source's is removed, unless it is excluded.
    ``max.message.bytes`` is never lowered or removed.
    """
    changes: dict[str, str | None] = {
        name: value
        for name, value in wanted.configs.items()
        if name not in existing.explicit or existing.values.get(name) != value
    }
    kept = set(wanted.configs) | {name for name, _ in wanted.left_out}
    for name in sorted(existing.explicit - kept):
        if name in DECIDED_HERE or not excluded(name, exclude):
            changes[name] = None
    limit, change = existing.values.get(MESSAGE_BYTES_MAX, "0"), changes.get(MESSAGE_BYTES_MAX)
    if int(change or 0) < int(limit):  # some records may be larger than the source accepts now
        changes.pop(MESSAGE_BYTES_MAX, None)
    return changes


def excluded(name: str, patterns: Sequence[str]) -> bool:
    """Whether one of the patterns matches the whole name."""
    return any(re.fullmatch(pattern, name) for pattern in patterns)


def _why_not(name: str, value: str, defaults: Defaults | None, replication_factor: int) -> str | None:
    known = name not in REMOVED_IN_4 if defaults is None else name in defaults
    if not known:
        return "the target's version of Kafka does not know it"
    if name == MIN_IN_SYNC and int(value) > replication_factor:
        return (
            f"{value} is more than the target topic's {replication_factor} replicas: nothing could be written"
        )
    return None


def _fitting(name: str, value: str, defaults: Defaults | None) -> str:
    """The value that the target accepts: Kafka 4 takes no segments below 1 MiB."""
    is_4 = defaults is not None and not REMOVED_IN_4 & defaults.keys()
    if name == SEGMENT_BYTES and is_4:
        return str(max(int(value), SEGMENT_BYTES_MIN_4))
    return value


def _inherited(source: TopicConfigs, defaults: Defaults | None) -> Iterator[tuple[str, str]]:
    """Retention settings that the source topic has from its brokers, where the target's defaults differ."""
    for name in KEEPING:
        value = source.values.get(name)
        if value is not None and name not in source.explicit and (defaults or {}).get(name) != value:
            yield name, value


# -- what an exact copy needs --------------------------------------------------------------------------


def _exactness(
    source: TopicConfigs, taken: Mapping[str, str], defaults: Defaults | None
) -> Iterator[tuple[str, str]]:
    yield TIMESTAMP_TYPE, "CreateTime"  # append times of the source are copied as the records' times
    for name in TIMESTAMP_LIMITS:
        if _limits_times(name, defaults):
            yield name, LONG_MAX
    if COMPRESSION_TYPE not in taken and (defaults is None or defaults.get(COMPRESSION_TYPE) != "producer"):
        yield COMPRESSION_TYPE, "producer"
    needed = int(source.values.get(MESSAGE_BYTES_MAX, 0))
    given = taken.get(MESSAGE_BYTES_MAX) or (defaults or {}).get(MESSAGE_BYTES_MAX) or "0"
    if needed > int(given):
        yield MESSAGE_BYTES_MAX, str(needed)


def _limits_times(name: str, defaults: Defaults | None) -> bool:
    """Whether the target would refuse records for their time unless this limit is lifted."""
    if defaults is None:
        return name not in REMOVED_IN_4
    return name in defaults and defaults[name] != LONG_MAX


def retention_of(values: Mapping[str, str]) -> Retention:
    """What a topic with these settings keeps; not known if they may not be read.

    Args:
        values: All in effect.
    """
    if "delete" not in values.get(CLEANUP_POLICY, "delete"):
        return Retention(NO_LIMIT, NO_LIMIT)
    ms, size = values.get("retention.ms"), values.get("retention.bytes")
    return Retention(None if ms is None else int(ms), None if size is None else int(size))


def tombstones_kept_ms(values: Mapping[str, str]) -> int | None:
    """How long a topic with these settings keeps tombstones that its cleaner has met.

    Args:
        values: All in effect.

    Returns:
        ``delete.retention.ms``; ``NO_LIMIT`` if the topic is not compacted, None if it may not be read.
    """
    policy, ms = values.get(CLEANUP_POLICY), values.get("delete.retention.ms")
    if policy is not None and "compact" not in policy:
        return NO_LIMIT
    return None if policy is None or ms is None else int(ms)
