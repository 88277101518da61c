"""Whose a target topic is, and whether it may be changed now.

A topic is the flow's where the flow made it in this run, or copies into all of its
partitions and they began empty. It may be changed by the mirror that holds the right to
copy, once a look has found in each partition where the copy goes on, and while its logs
end where we have left them. Whoever else writes to a topic, as after a failover, moves
their end, which an idle copy does not see by itself.
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
    """What the flow remembers, as far as it is asked here."""

    def known(self, tp: TopicPartition) -> Known | None:
        """What is known of a partition."""


class Ownership:
    """Of the target topics of one flow.

    Args:
        partitions: Those of the flow, as they are now, by source partition.
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
        """Target topics made in this run, and the source topic each was made for."""

    def begin_pass(self, source_ids: Mapping[str, UUID], described: Mapping[str, int]) -> None:
        """Note of which source topic each target topic is to be the copy, and how many partitions it has."""
        self._source_ids, self._described = source_ids, described

    def note_made(self, name: str) -> None:
        """This mirror has made the target topic just now."""
        self._made[name] = self._source_ids[name]

    @property
    def in_turn(self) -> bool:
        """False for a mirror that stands by: topics are for another one to change."""
        return self._right.held

    def owned(self, name: str) -> bool:
        """True for a target topic in which nothing is but what this flow copies, as far as is known."""
        source_id = self._source_ids.get(name)
        if source_id is None or any(copy is not None and _is_anothers(copy) for copy in self._copies(name)):
            return False
        return self._made.get(name) == source_id or bool(self._known(name))

    def settled(self, name: str) -> bool:
        """Whether that was looked at in each of its partitions, and it is our turn to change the topic."""
        copies = self._copies(name)
        looked_at = bool(copies) and all(copy is not None and _went_on(copy) for copy in copies)
        return looked_at and self.in_turn and self._flow.turn.is_ours() and self.owned(name)

    async def confirmed(self, names: Collection[str]) -> frozenset[str]:
        """Those of the settled ones whose logs end where we have left them.

        A copy whose log does not is looked at.
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
        """True while the copy of a partition is to begin where its log does not start yet."""
        return any(not one.prepared for one in self._known(name))

    def prepared(self, name: str) -> bool:
        """True once all partitions are known to begin where they should."""
        known = self._known(name)
        return bool(known) and all(one.prepared for one in known)

    def _copies(self, name: str) -> list[PartitionCopy | None]:
        """The copy in each partition of a target topic; None where there is none."""
        return [self._partitions.get(tp) for tp in self._sources(name)]

    def _known(self, name: str) -> list[Known]:
        """What is known of each partition of a target topic; nothing unless it is ours altogether."""
        source_id, sources = str(self._source_ids.get(name)), self._sources(name)
        known = [self._memory.known(tp) for tp in sources]
        ours = [one for one in known if one is not None and _copies_there(one, source_id, name)]
        return ours if len(ours) == len(known) else []

    def _sources(self, name: str) -> list[TopicPartition]:
        """The source of each partition of a target topic, as many as were seen last."""
        source, seen = self._policy.to_source(name) or name, self._flow.target.info.topics.get(name)
        count = max(self._described.get(name, 0), len(seen.partitions) if seen is not None else 0)
        return [TopicPartition(source, number) for number in range(count)]


def _is_anothers(copy: PartitionCopy) -> bool:
    """True where somebody else has written, or may have."""
    return copy.state is State.DIVERGED and copy.reason is not Reason.SOURCE_TRUNCATED


def _went_on(copy: PartitionCopy) -> bool:
    """Whether a look found where the copy goes on, and nothing has contradicted it since."""
    return copy.acknowledged_target_offset is not None and not _is_anothers(copy)


def _copies_there(known: Known, source_id: str, target_topic: str) -> bool:
    """True for a partition copied from this source topic to where nothing else was."""
    return known.topic_id == source_id and known.target_topic == target_topic and not known.shared
