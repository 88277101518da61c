"""Which topics are copied, and what they are called at the target.

Both policies (identity, prefix) are reversible: the source name follows from the target
name, so offsets, groups and ACLs can be translated back. Internal topics are never
copied, whatever the lists say; :mod:`mirror.topic_names` says which those are. Pure: no I/O.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from enum import StrEnum
from heapq import nsmallest

from mirror.errors import UsageError
from mirror.topic_names import is_internal, why_no_prefix

NEAREST_MAX = 10
HIDDEN = "a topic without Describe, or outside the mirror's role at a relay, is hidden"


class Ignored(StrEnum):
    """Why a topic of the source is not copied."""

    INTERNAL = "internal"
    """Kafka's, MirrorMaker 2's or our own: what it says of its cluster means nothing on another."""
    NOT_INCLUDED = "not_included"
    EXCLUDED = "excluded"
    OWN_COPY = "own_copy"
    """Source and target are one cluster, and the flow writes this topic: copying it would never end."""
    COPY_OF_TARGET = "copy_of_target"
    """It is the copy of a flow from the target; see :mod:`mirror.sync.incoming` for this and the rest."""
    UNDECIDED = "undecided"
    """It is empty, and may be about to become such a copy."""
    NOT_KNOWN = "not_known"
    """It may be such a copy: the state that would tell could not be read."""
    GONE_ROUND = "gone_round"
    """By its name it is a copy of a copy of a copy."""


_TAKEN_OUT = {
    Ignored.EXCLUDED: "topics.exclude leaves out every topic at the source that matches topics.include",
    Ignored.OWN_COPY: "source and target are one cluster: the flow writes all that matches topics.include",
    Ignored.INTERNAL: "all that matches topics.include are internal topics, which no mirror copies",
}
"""Why nothing is copied although topics match ``topics.include``."""


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
        why_not = why_no_prefix(self.prefix) if self.prefix else None
        if why_not is not None:
            raise UsageError(f"topic prefix {self.prefix[:20]!r}: {why_not}")

    def to_target(self, source: str) -> str:
        """What a source topic is called at the target."""
        return f"{self.prefix}{source}"

    def to_source(self, target: str) -> str | None:
        """What a target topic is called at the source; None for a name that no copy has."""
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
        if not _matches(self._include, name):
            return Ignored.NOT_INCLUDED
        if is_internal(name):
            return Ignored.INTERNAL
        if _matches(self._exclude, name):
            return Ignored.EXCLUDED
        if self._same_cluster and self.policy.to_source(name) is not None:
            return Ignored.OWN_COPY
        return None

    def select(self, names: Iterable[str], *, internal: Collection[str] = ()) -> Selection:
        """Decide on each topic of the source.

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

    def why_nothing(self, names: Collection[str]) -> tuple[str, str]:
        """Why none of these is copied, and which of them may have been meant; both in words."""
        told = {name: self.why_not(name) for name in sorted(names)}
        for reason, words in _TAKEN_OUT.items():
            matching = [name for name in told if told[name] is reason]
            if matching:
                return words, f"topics that match: {_few(matching)}"
        there = nearest(_ordinary(names), [pattern.pattern for pattern in self._include])
        words = f"topics there: {_few(there)}; {HIDDEN}"
        if any(pattern.search(name) for pattern in self._include for name in there):
            words += "; an expression must match the whole name: add .* where more may follow"
        return "no topic at the source matches topics.include", words

    def unmatched(self, names: Collection[str]) -> list[str]:
        """The expressions to include that match none of these topics, internal ones aside."""
        ordinary = _ordinary(names)
        return [p.pattern for p in self._include if not any(map(p.fullmatch, ordinary))]


def _ordinary(names: Iterable[str]) -> list[str]:
    return [name for name in names if not is_internal(name)]


def _few(names: Sequence[str]) -> str:
    more = ", ..." if len(names) > NEAREST_MAX else ""
    return f"{', '.join(names[:NEAREST_MAX]) or 'none that the mirror may describe'}{more}"


def _matches(patterns: Iterable[re.Pattern[str]], name: str) -> bool:
    return any(pattern.fullmatch(name) for pattern in patterns)


def nearest(names: Iterable[str], patterns: Sequence[str], at_most: int = NEAREST_MAX) -> list[str]:
    """The names most like one of the patterns, ignoring case, most similar first: one may be mistyped."""
    meant = [pattern.casefold() for pattern in patterns]

    def distance(name: str) -> float:
        return 1 - max(SequenceMatcher(None, pattern, name.casefold()).ratio() for pattern in meant)

    return nsmallest(at_most, names, key=distance)
