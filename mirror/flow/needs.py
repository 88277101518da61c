"""What the settler needs to decide where partitions go on: the right to write, the flow's memory, and what
other flows have at the target. Protocols, so that tests can put something else in their place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from checkpoint.model import OwnerRecord
from mirror.errors import TwinsiteError
from mirror.flow import log_ends
from mirror.flow.facts import Known, TargetLook
from mirror.flow.inserting import InsertionMemory
from mirror.flow.position import Register
from mirror.flow.taking import Claim
from mirror.kafka.transactions import Token
from mirror.model import TopicPartition


class Right(log_ends.Right, Protocol):
    """The right to copy the flow; ``seen`` is who held it when the coordinator was last asked."""

    seen: Token | None

    @property
    def since(self) -> float:
        """From when on nobody else writes (monotonic seconds)."""


class Claims(Protocol):
    """What other flows have at the target; see :class:`mirror.flow.claims.Claims`."""

    async def objections(
        self, looks: Mapping[TopicPartition, TargetLook]
    ) -> Mapping[TopicPartition, Claim | TwinsiteError]:
        """Why some target partitions may not be taken."""


class Memory(InsertionMemory, Protocol):
    """The flow's durable state as the settler needs it."""

    @property
    def owner(self) -> OwnerRecord | None:
        """Where the owner says it runs; None if nobody says so."""

    async def refresh(self, *, sole_writer: bool) -> None:
        """Read again what another mirror may have written."""

    def known(self, tp: TopicPartition) -> Known | None:
        """What is known of a partition; None if nothing is."""

    def epoch_at(self, tp: TopicPartition, next_offset: int) -> int:
        """The leader epoch of the last record below ``next_offset``, -1 when not known."""

    async def register(
        self,
        tp: TopicPartition,
        target: TopicPartition,
        topic_id: str,
        what: Register,
        target_topic_id: str | None = None,
    ) -> None:
        """Note durably how a partition begins, and in which target topic."""

    async def take_back(self, tp: TopicPartition) -> None:
        """Forget durably that a partition was begun. Call it only while nothing of it was copied."""

    async def note_targets(self, target_topic_ids: Mapping[TopicPartition, str]) -> None:
        """Note durably the ids of the target topics, per source partition."""

    def runs_after(self, tp: TopicPartition, target_offset: int) -> Sequence[tuple[int, int]]:
        """The runs of a mapped partition's offset map that begin beyond a target offset."""

    async def prepared(self, tp: TopicPartition) -> None:
        """Note durably that the target partition has been made to start where it should."""

    async def note_loss(self, tp: TopicPartition, lost_from: int, lost_to: int) -> None:
        """Add the source offsets ``[lost_from, lost_to)`` to the ledger of accepted losses."""
