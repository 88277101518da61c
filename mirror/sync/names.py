"""Which topics are copied, and what they are called at the target.

Both policies can be turned round: from a target name the source name follows, so
that an offset, a group or an ACL finds its way home. Internal topics are never
copied, whatever the lists say. Pure: no I/O.

Sources: Kafka's ``Topic`` class (legal names, colliding names), KIP-690 and KIP-1074
(names of MirrorMaker 2's internal topics).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from enum import StrEnum
from heapq import nsmallest

from mirror.errors import UsageError

NAME_CHARACTERS_MAX = 249
STATE_TOPIC_PREFIX = "__twinsite_state."

_LEGAL = re.compile(r"[A-Za-z0-9._-]+")
_INTERNAL = re.compile(
    r"__.*"  # Kafka's own, and ours
    r"|mm2-.*[.-]internal|mm2-offset-syncs.*"
    r"|.*\.checkpoints\.internal"
)


class Ignored(StrEnum):
    """Why a topic of the source is not copied."""

    INTERNAL = "internal"
    """Kafka's, MirrorMaker 2's or our own: it speaks of its cluster and means nothing on another."""
    NOT_INCLUDED = "not_included"
    EXCLUDED = "excluded"
    OWN_COPY = "own_copy"
    """Source and target are one cluster, and this is what the flow writes: copying it would never end."""
    NAME_TOO_LONG = "name_too_long"
    """With the prefix it would be longer than Kafka allows."""
    COPY_INTERNAL = "copy_internal"
    """With the prefix it would look like an internal topic."""


def is_internal(name: str) -> bool:
    """Whether a topic is Kafka's, MirrorMaker 2's or our own."""
    return _INTERNAL.fullmatch(name) is not None


def is_legal(name: str) -> bool:
    """Whether Kafka takes this name for a topic."""
    return len(name) <= NAME_CHARACTERS_MAX and name not in {".", ".."} and _LEGAL.fullmatch(name) is not None


def collision_key(name: str) -> str:
    """Two topics of one cluster may not share this: Kafka's metrics cannot tell ``.`` from ``_``."""
    return name.replace(".", "_")


@dataclass(frozen=True, slots=True)
class NamePolicy:
    """What topics are called at the target: a prefix and the source's name, or that name alone.

    Attributes:
        prefix: Put in front, with its separator; empty for identity names.

    Raises:
        UsageError: The prefix is not legal, or makes internal topics.
    """

    prefix: str = ""

    def __post_init__(self) -> None:
        if not self.prefix:
            return
        if _LEGAL.fullmatch(self.prefix) is None:
            raise UsageError(
                f"topic prefix {self.prefix!r}: Kafka takes letters, digits, dot, hyphen and underscore"
            )
        if len(self.prefix) >= NAME_CHARACTERS_MAX:
            raise UsageError(f"topic prefix {self.prefix[:20]!r}...: leaves no room for a name")
        if self.prefix.startswith(".") or is_internal(f"{self.prefix}x"):
            raise UsageError(f"topic prefix {self.prefix!r}: topics of that name are taken for internal ones")

    def to_target(self, source: str) -> str:
        """What a source topic is called at the target."""
        return f"{self.prefix}{source}"

    def to_source(self, target: str) -> str | None:
        """What a target topic is called at the source; None for a topic that no copy is called."""
        if not target.startswith(self.prefix) or len(target) == len(self.prefix):
            return None
        return target[len(self.prefix) :]


@dataclass(frozen=True, slots=True)
class Selection:
    """What is copied, by source name, and why the rest is not."""

    chosen: Mapping[str, str]
    """Source name to target name."""
    ignored: Mapping[str, Ignored]


class TopicSelector:
    """Decides by include and exclude lists of regular expressions that match whole names."""

    def __init__(
        self,
        include: Sequence[str],
        exclude: Sequence[str] = (),
        policy: NamePolicy | None = None,
        *,
        same_cluster: bool = False,
    ) -> None:
        """
        Args:
            include: A topic is copied when one of them matches; an empty list matches nothing.
            exclude: A topic is not copied when one of them matches; wins over ``include``.
            same_cluster: Source and target are one cluster: what the flow writes is not read again.

        Raises:
            UsageError: The flow would copy a topic into itself.
        """
        self.policy = policy or NamePolicy()
        if same_cluster and not self.policy.prefix:
            raise UsageError(
                "source and target are one cluster: with identity names a topic would be copied into itself",
                hint="check the addresses, or set topics.names to prefix",
            )
        self._include = [re.compile(pattern) for pattern in include]
        self._exclude = [re.compile(pattern) for pattern in exclude]
        self._same_cluster = same_cluster

    def why_not(self, name: str) -> Ignored | None:
        """Why the topic is not copied; None if it is."""
        if is_internal(name):
            return Ignored.INTERNAL
        if not _matches(self._include, name):
            return Ignored.NOT_INCLUDED
        if _matches(self._exclude, name):
            return Ignored.EXCLUDED
        if self._same_cluster and self.policy.to_source(name) is not None:
            return Ignored.OWN_COPY
        return self._why_not_named(self.policy.to_target(name))

    def _why_not_named(self, target: str) -> Ignored | None:
        if len(target) > NAME_CHARACTERS_MAX:
            return Ignored.NAME_TOO_LONG
        return Ignored.COPY_INTERNAL if is_internal(target) else None

    def select(self, names: Iterable[str], *, internal: Collection[str] = ()) -> Selection:
        """Go through the topics of the source.

        Args:
            internal: Those the source itself calls internal.
        """
        chosen: dict[str, str] = {}
        ignored: dict[str, Ignored] = {}
        for name in sorted(names):
            reason = Ignored.INTERNAL if name in internal else self.why_not(name)
            if reason is None:
                chosen[name] = self.policy.to_target(name)
            else:
                ignored[name] = reason
        return Selection(chosen, ignored)


def _matches(patterns: Iterable[re.Pattern[str]], name: str) -> bool:
    return any(pattern.fullmatch(name) for pattern in patterns)


def nearest(names: Iterable[str], patterns: Sequence[str], at_most: int = 10) -> list[str]:
    """The names that look most like one of the patterns: somebody has mistyped one of them."""

    def distance(name: str) -> float:
        return 1 - max(SequenceMatcher(None, pattern, name).ratio() for pattern in patterns)

    return nsmallest(at_most, names, key=distance)
