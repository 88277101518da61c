"""How far the copy had come, according to a running mirror.

A target that has lost the end of its log shows no sign of it. The mirror that wrote it knows: its status says
up to where the target has acknowledged, and keeps saying so until an operator has it look again. The mirror
is asked before the target, so that what it reports has been on the target.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from mirror.errors import TwinsiteError, UsageError
from mirror.model import FlowStatus, PartitionStatus, TopicPartition


class NotBegunError(TwinsiteError):
    """A mirror answers but has not begun: it knows nothing yet."""

    hint = "ask again once it has begun; without --url, losses at the target's end count as not copied yet"


@dataclass(frozen=True, slots=True)
class Mirror:
    """The mirror to ask.

    Attributes:
        url: Where it answers.
        status: Asks it; raises TwinsiteError if it does not answer.
    """

    url: str
    status: Callable[[], FlowStatus]


@dataclass(frozen=True, slots=True)
class Words:
    """What a mirror has reported, by the names at the source; empty if none was asked.

    Attributes:
        url: Where it answers; None if none was asked.
    """

    url: str | None = None
    partitions: Mapping[TopicPartition, PartitionStatus] = field(default_factory=dict)

    def source_offset(self, tp: TopicPartition) -> int | None:
        """Everything below this source offset is, or was, at the target; None if the mirror does not know."""
        one = self.partitions.get(tp)
        return None if one is None or one.target_log_end_offset is None else one.next_offset

    def target_offsets(self) -> dict[TopicPartition, int]:
        """Where each log of the target ended when the mirror last heard from it, by the names there."""
        return {
            TopicPartition(one.target_topic, one.partition): one.target_log_end_offset
            for one in self.partitions.values()
            if one.target_log_end_offset is not None
        }

    def why_not(self, tp: TopicPartition) -> str | None:
        """Why the mirror does not know the end of a partition; None if it does, or if none was asked."""
        if self.url is None or self.source_offset(tp) is not None:
            return None
        one = self.partitions.get(tp)
        seen = "it does not copy this partition" if one is None else f"{one.state}, {one.detail}"
        return f"what follows its end: the mirror at {self.url} does not know how far the copy is ({seen})"


def words(mirror: Mirror, flow: str, source_cluster_id: str | None, target_cluster_id: str | None) -> Words:
    """Ask a mirror how far it has come.

    Raises:
        UsageError: It mirrors another flow, or other clusters.
        NotBegunError: It is still waiting for something.
        TwinsiteError: It does not answer.
    """
    status = mirror.status()
    hint = "check --url and TWINSITE_URL"
    if status.flow != flow:
        raise UsageError(
            f"the mirror at {mirror.url} copies flow {status.flow}, the settings are for {flow}", hint=hint
        )
    if status.waits_for:
        raise NotBegunError(f"the mirror at {mirror.url} has not begun: it waits for {status.waits_for}")
    its = status.source_cluster_id, status.target_cluster_id
    if its != (source_cluster_id, target_cluster_id):
        raise UsageError(
            f"the mirror at {mirror.url} copies cluster {its[0]} to {its[1]}, but {source_cluster_id} and "
            f"{target_cluster_id} were reached",
            hint=hint,
        )
    return Words(mirror.url, {TopicPartition(one.topic, one.partition): one for one in status.partitions})
