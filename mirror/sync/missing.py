"""Topics that are copied and that the source does not show any more: hidden from us, or gone.

A list leaves out what may not be described, as if it did not exist. So what is missing in
it is asked for by name: brokers then say which of the two it is. Of what they refuse to
describe they do not say whether it exists.

What is gone at both sides is forgotten. Until then its copy may be all there is left of
it, and what the flow knows of it says which record was which.

Sources: the Kafka protocol guide (Metadata), docs/states.md.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import structlog

from mirror import broker_codes as codes
from mirror.errors import BrokerError, NotAuthorizedError, TwinsiteError
from mirror.kafka.cluster import Cluster
from mirror.kafka.cluster_info import ClusterInfo
from mirror.model import Reason
from mirror.sync.names import NamePolicy
from mirror.sync.topics import Conflict

log = structlog.get_logger(__name__)


class MissingTopics:
    """Knows which topics of a flow are not shown any more.

    Attributes:
        why: Of each of them, by its name at the source, as of the last look.
    """

    def __init__(self, source: Cluster, target: Cluster, policy: NamePolicy) -> None:
        self.why: Mapping[str, Conflict] = {}
        self._source = source
        self._target = target
        self._policy = policy
        self._without_copy: frozenset[str] = frozenset()
        """Topics that are gone, and whose copies were gone as well when that was asked last."""
        self._told = False
        """Whether it was said that the source shows nothing."""

    @property
    def gone(self) -> frozenset[str]:
        """Those that the source does not have."""
        return frozenset(name for name, why in self.why.items() if why.reason is Reason.TOPIC_DELETED)

    async def look(self, found: ClusterInfo, begun: Collection[str]) -> None:
        """See why topics are not among those found. An empty answer says nothing, and changes nothing.

        Of what is neither gone nor hidden holds what was said before.

        Args:
            begun: Topics that are copied.

        Raises:
            TwinsiteError: The source cannot be asked.
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
        """Say so once, where topics are copied: all of them are gone, or hidden, and nobody knows which."""
        if begun and not self._told:
            log.warning("no_topics_shown", topics=len(begun))
        self._told = bool(begun)

    def _why(self, name: str, error: TwinsiteError | None) -> Conflict | None:
        target = self._policy.to_target(name)
        if _is_gone(error):
            return Conflict(name, target, Reason.TOPIC_DELETED, f"the source has no topic {name} any more")
        if isinstance(error, NotAuthorizedError):
            words = f"whether the source still has topic {name} may not be seen: {error}"
            return Conflict(name, target, Reason.SOURCE_NOT_AUTHORIZED, words)
        return None

    async def without_copy(self, begun: Collection[str]) -> frozenset[str]:
        """Those of the topics that are gone whose copies are so, too, now and when this was asked last.

        Args:
            begun: Topics that are copied.

        Raises:
            TwinsiteError: The target cannot be asked.
        """
        before, self._without_copy = self._without_copy, frozenset()
        copies = {self._policy.to_target(name): name for name in self.gone.intersection(begun)}
        if copies:
            errors = (await self._target.describe_topics(sorted(copies))).errors
            self._without_copy = frozenset(copies[one] for one in copies if _is_gone(errors.get(one)))
        return before & self._without_copy


def _is_gone(error: TwinsiteError | None) -> bool:
    """True where a broker has said of a topic, asked for by name, that there is none."""
    return isinstance(error, BrokerError) and error.code == codes.UNKNOWN_TOPIC_OR_PARTITION
