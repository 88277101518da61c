"""Which ACLs the target needs, so that principals who may read a topic may read its copy.

Carried over are rights to read and to describe, and denials except those that would
stop the mirror itself. Rights to change a topic are not carried over: the mirror is the
only writer of a copy. ACLs are only ever added. Pure: no I/O.

A pattern for all topics (``*``), or for a prefix of names, becomes a prefixed pattern
if copies have a prefix that ends with a separator. Otherwise it becomes one literal
pattern for each copied topic: a prefixed ``east`` would match ``eastern`` as well. So
no other topic of the target is opened or closed.

Sources: KIP-290 (prefixed patterns), MirrorMaker 2's ``MirrorSourceConnector``
(its rules are the minimum here), Kafka's ``AclOperation``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from mirror.kafka.acls import OPERATIONS, TopicAcl
from mirror.sync.names import NamePolicy

LITERAL, PREFIXED = "LITERAL", "PREFIXED"
ALLOW, DENY = "ALLOW", "DENY"
WILDCARD = "*"
SEPARATORS = (".", "_", "-")
EVERYONE = "User:*"
CARRIED = frozenset({"READ", "DESCRIBE", "DESCRIBE_CONFIGS"})
"""Operations for which ALLOW is carried over. ALLOW ALL becomes READ and DESCRIBE."""


class Skipped(NamedTuple):
    """A binding of the source that is not carried over, and why."""

    acl: TopicAcl
    why: str


@dataclass(frozen=True, slots=True)
class AclPlan:
    """What to add at the target, denials first, and what is not carried over."""

    create: tuple[TopicAcl, ...]
    skipped: tuple[Skipped, ...]


def plan_acls(
    source: Iterable[TopicAcl],
    target: Iterable[TopicAcl],
    topics: Collection[str],
    policy: NamePolicy,
    *,
    mirror_principals: Collection[str] = (),
) -> AclPlan:
    """Which bindings of the source are missing at the target.

    Args:
        topics: The source topics that are copied; bindings that match none of them are passed over.
        mirror_principals: The mirror's own principals at the target, for example ``User:twinsite``: a denial
            that would stop the mirror itself is not carried over.
    """
    wanted: dict[TopicAcl, None] = {}
    skipped: list[Skipped] = []
    copied = dict.fromkeys(topics)  # quick to search, and iterated in order
    for acl in source:
        if not _concerns(acl, copied):
            continue
        why = _why_not(acl, mirror_principals)
        if why:
            skipped.append(Skipped(acl, why))
        else:
            wanted.update(dict.fromkeys(_carried(acl, topics, policy)))
    existing = set(target)
    missing = (acl for acl in wanted if acl not in existing)
    return AclPlan(tuple(sorted(missing, key=lambda acl: acl.permission != DENY)), tuple(skipped))


def _concerns(acl: TopicAcl, topics: Collection[str]) -> bool:
    if acl.pattern_type == PREFIXED:
        return any(topic.startswith(acl.name) for topic in topics)
    return acl.pattern_type == LITERAL and (acl.name in topics or (acl.name == WILDCARD and bool(topics)))


def _why_not(acl: TopicAcl, mirror_principals: Collection[str]) -> str | None:
    if acl.operation not in OPERATIONS.values():
        return f"{acl.operation} is unknown to this version"
    if acl.permission == ALLOW and acl.operation != "ALL" and acl.operation not in CARRIED:
        return f"{acl.operation} would let {acl.principal} change the copy"
    if acl.permission == DENY and acl.host == WILDCARD and acl.principal in {EVERYONE, *mirror_principals}:
        return "it would stop the mirror itself"
    return None


def _carried(acl: TopicAcl, topics: Collection[str], policy: NamePolicy) -> Iterator[TopicAcl]:
    operations = (
        ("READ", "DESCRIBE") if (acl.permission, acl.operation) == (ALLOW, "ALL") else (acl.operation,)
    )
    for name, pattern_type in _patterns(acl, topics, policy):
        for operation in operations:
            yield replace(acl, name=name, pattern_type=pattern_type, operation=operation)


def _patterns(acl: TopicAcl, topics: Collection[str], policy: NamePolicy) -> Iterator[tuple[str, str]]:
    """The patterns of the binding, with target names: each a name and a pattern type."""
    wildcard = (acl.name, acl.pattern_type) == (WILDCARD, LITERAL)
    if not wildcard and acl.pattern_type == LITERAL:
        yield policy.to_target(acl.name), LITERAL
        return
    beginning = "" if wildcard else acl.name
    if policy.prefix.endswith(SEPARATORS):
        yield policy.to_target(beginning), PREFIXED
    else:
        yield from ((policy.to_target(t), LITERAL) for t in sorted(topics) if t.startswith(beginning))
