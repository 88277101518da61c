"""Copied topics that the source no longer shows: hidden from us, or gone.

A list of topics omits those that may not be described, as if they did not exist. So a
topic missing from it is asked for by name, and brokers say which of the two it is. When
they refuse to describe a topic, they do not say whether it exists.

A topic that is gone at both sides is forgotten. Until then its copy may be all that is
left of it, and the flow's state says which record was which.

Sources: the Kafka protocol guide (Metadata), docs/states.md.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import structlog

from mirror.errors import NotAuthorizedError, TwinsiteError
from mirror.kafka.cluster import Cluster
from mirror.kafka.cluster_info import ClusterInfo
from mirror.kafka.failures import says_gone
from mirror.model import Reason
from mirror.sync.names import NamePolicy
from mirror.sync.topics import Conflict

log = structlog.get_logger(__name__)


class MissingTopics:
    """Knows which topics of a flow the source no longer shows.

    Attributes:
        why: What is known of each, by its name at the source, as of the last look.
    """

    def __init__(self, source: Cluster, target: Cluster, policy: NamePolicy) -> None:
        self.why: Mapping[str, Conflict] = {}
        self._source = source
        self._target = target
        self._policy = policy
        self._without_copy: frozenset[str] = frozenset()
        """Topics that are gone, and whose copies were gone, too, when last asked."""
        self._told = False
        """Whether it has been logged that the source shows no topics."""

    @property
    def gone(self) -> frozenset[str]:
        """Those that the source no longer has."""
        return frozenset(name for name, why in self.why.items() if why.reason is Reason.TOPIC_DELETED)

    async def look(self, found: ClusterInfo, begun: Collection[str]) -> None:
        """Ask why copied topics are not among those found. An empty answer proves and changes nothing.

        If the brokers do not say that a missing topic is gone or hidden, what was known of it still holds.

        Args:
            begun: Topics that are copied.

        Raises:
            TwinsiteError: A request to the source fails.
        """
        if not found.topics:
            self._tell_nothing_shown(begun)
            return
        self._told = False
        names = sorted(name for name in begun if name not in found.topics)
        errors = (await self._source.describe_topics(names)).errors if names else {}
        said = {name: self._why(name, errors.get(name)) or self.why.get(name) for name in names}
        self.why = {name: why for name, why in said.items() if why is not None}

    def _tell_nothing_shown(self, begun: Collection[str]) -> None:
        """Log, once, that no topics are shown though some are copied: whether gone or hidden is not known."""
        if begun and not self._told:
            log.warning("no_topics_shown", topics=len(begun))
        self._told = bool(begun)

    def _why(self, name: str, error: TwinsiteError | None) -> Conflict | None:
        target = self._policy.to_target(name)
        if says_gone(error):
            return Conflict(name, target, Reason.TOPIC_DELETED, f"the source no longer has topic {name}")
        if isinstance(error, NotAuthorizedError):
            words = f"the mirror is not authorized to see whether the source still has topic {name}: {error}"
            return Conflict(name, target, Reason.SOURCE_NOT_AUTHORIZED, words)
        return None

    async def without_copy(self, begun: Collection[str]) -> frozenset[str]:
        """Those of the gone topics whose copies are gone, too, both now and at the call before.

        Args:
            begun: Topics that are copied.

        Raises:
            TwinsiteError: A request to the target fails.
        """
        before, self._without_copy = self._without_copy, frozenset()
        copies = {self._policy.to_target(name): name for name in self.gone.intersection(begun)}
        if copies:
            errors = (await self._target.describe_topics(sorted(copies))).errors
            self._without_copy = frozenset(copies[one] for one in copies if says_gone(errors.get(one)))
        return before & self._without_copy
