"""Which target topics are the flow's own, and which of them may be changed now.

A topic is the flow's if the flow created it in this run, or copies into all of its
partitions and each was empty when its copy began. Only the mirror that holds the right
to copy may change it, once a look has found in each partition where the copy goes on,
and while its logs end where we left them. Anybody else who writes to a topic, for
example after a failover, moves that end, which an idle copy does not notice by itself.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol
from uuid import UUID

from mirror.flow.context import Flow
from mirror.flow.facts import Known
from mirror.flow.log_ends import PARTITIONS_AT_ONCE, Right, not_as_left
from mirror.flow.partition import PartitionCopy
from mirror.model import Reason, State, TopicPartition
from mirror.sync.names import NamePolicy


class Memory(Protocol):
    """The part of the flow's state that is read here."""

    def known(self, tp: TopicPartition) -> Known | None:
        """What is known of a partition."""


class Ownership:
    """Tells which target topics are the flow's own, and which may be changed.

    Args:
        partitions: The flow's partitions by source partition; the mapping stays up to date.
    """

    def __init__(
        self,
        flow: Flow,
        memory: Memory,
        partitions: Mapping[TopicPartition, PartitionCopy],
        policy: NamePolicy,
        right: Right,
    ) -> None:
        self._flow = flow
        self._memory = memory
        self._partitions = partitions
        self._policy = policy
        self._right = right
        self._source_ids: Mapping[str, UUID] = {}
        self._described: Mapping[str, int] = {}
        self._made: dict[str, UUID] = {}
        """Target topics created in this run, and the id of the source topic each was created for."""

    def begin_pass(self, source_ids: Mapping[str, UUID], described: Mapping[str, int]) -> None:
        """Note for each target topic the id of its source topic, and how many partitions it has itself."""
        self._source_ids, self._described = source_ids, described

    def note_made(self, name: str) -> None:
        """Note that this mirror has just created the target topic."""
        self._made[name] = self._source_ids[name]

    @property
    def in_turn(self) -> bool:
        """False for a standby: only the owner changes topics."""
        return self._right.held

    def owned(self, name: str) -> bool:
        """True if a target topic holds nothing but this flow's copy, as far as is known."""
        source_id = self._source_ids.get(name)
        if source_id is None or any(copy is not None and _is_anothers(copy) for copy in self._copies(name)):
            return False
        return self._made.get(name) == source_id or bool(self._known(name))

    def settled(self, name: str) -> bool:
        """Whether a look has confirmed that in each of its partitions, and it is our turn to change it."""
        copies = self._copies(name)
        looked_at = bool(copies) and all(copy is not None and _went_on(copy) for copy in copies)
        return looked_at and self.in_turn and self._flow.turn.is_ours() and self.owned(name)

    async def confirmed(self, names: Collection[str]) -> frozenset[str]:
        """Those of the topics that are settled and whose logs end where we left them.

        A copy whose log ends elsewhere is looked at.
        """
        copies = {name: [c for c in self._copies(name) if c] for name in names if self.settled(name)}
        asked = [copy for of in copies.values() for copy in of]
        doubtful: set[PartitionCopy] = set()
        for begin in range(0, len(asked), PARTITIONS_AT_ONCE):
            doubtful |= await not_as_left(self._flow, asked[begin : begin + PARTITIONS_AT_ONCE])
        return frozenset(
            name for name, of in copies.items() if doubtful.isdisjoint(of) and self.settled(name)
        )

    def unprepared(self, name: str) -> bool:
        """True while one of its logs does not start yet where its copy is to begin."""
        return any(not one.prepared for one in self._known(name))

    def prepared(self, name: str) -> bool:
        """True once all its logs are known to start where they should."""
        known = self._known(name)
        return bool(known) and all(one.prepared for one in known)

    def _copies(self, name: str) -> list[PartitionCopy | None]:
        """The copy in each partition of a target topic; None where there is none."""
        return [self._partitions.get(tp) for tp in self._sources(name)]

    def _known(self, name: str) -> list[Known]:
        """What is known of each partition of a target topic; empty unless all of them are ours."""
        source_id, sources = str(self._source_ids.get(name)), self._sources(name)
        known = [self._memory.known(tp) for tp in sources]
        ours = [one for one in known if one is not None and _copies_there(one, source_id, name)]
        return ours if len(ours) == len(known) else []

    def _sources(self, name: str) -> list[TopicPartition]:
        """The source of each partition of a target topic, for the largest number of them seen lately."""
        source, seen = self._policy.to_source(name) or name, self._flow.target.info.topics.get(name)
        count = max(self._described.get(name, 0), len(seen.partitions) if seen is not None else 0)
        return [TopicPartition(source, number) for number in range(count)]


def _is_anothers(copy: PartitionCopy) -> bool:
    """True if somebody else has written to it, or may have."""
    return copy.state is State.DIVERGED and copy.reason is not Reason.SOURCE_TRUNCATED


def _went_on(copy: PartitionCopy) -> bool:
    """Whether a look found where the copy goes on, and nothing has contradicted it since."""
    return None not in {copy.acknowledged_target_offset, copy.looked_at} and not _is_anothers(copy)


def _copies_there(known: Known, source_id: str, target_topic: str) -> bool:
    """True if it is a copy of this source topic, into this target topic, that began in an empty partition."""
    return known.topic_id == source_id and known.target_topic == target_topic and not known.shared
