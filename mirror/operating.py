"""What people may tell a running mirror of one partition, and ask: pause, go on, accept a loss, translate.

A partition is looked at before anything is concluded: nothing here writes to a target partition.
"""

from __future__ import annotations

from mirror.errors import StateConflictError, UnknownPartitionError
from mirror.flow.announcing import copied_by, require_owner
from mirror.flow.engine import Engine
from mirror.flow.memory import FlowMemory
from mirror.flow.owner import Owner
from mirror.flow.partition import PartitionCopy
from mirror.model import State, TopicPartition
from mirror.sync.follow import Follower

NOT_KNOWN = frozenset({State.STANDBY, State.DIVERGED, State.TOPIC_RECREATED})
"""States in which what was acknowledged once does not tell which records belong together now."""
ASK_ELSEWHERE = "ask the mirror that copies it, or the target itself with --config"


class Operator:
    """Does what an operator says, as :class:`mirror.api.control.Control` promises."""

    def __init__(self, engine: Engine, follower: Follower, owner: Owner, memory: FlowMemory) -> None:
        self._engine = engine
        self._follower = follower
        self._owner = owner
        self._memory = memory

    async def pause(self, tp: TopicPartition) -> None:
        """Copy nothing of this partition until told to go on."""
        self._engine.pause(self._partition(tp))

    async def resume(self, tp: TopicPartition) -> None:
        """Go on, or look again now."""
        partition = self._partition(tp)
        if partition.state in {State.DATA_LOSS, State.TOPIC_RECREATED, State.FENCED}:
            raise StateConflictError(f"{tp}: looking again would not help: {partition.detail}")
        self._resume(partition)

    async def accept_loss(self, tp: TopicPartition) -> None:
        """Go on behind what the source has removed; on another mirror than the owner once the owner did."""
        partition = self._partition(tp)
        if partition.state is not State.DATA_LOSS or partition.lost is None:
            raise StateConflictError(f"{tp}: has lost nothing, its state is {partition.state}")
        lost_from, lost_to = partition.lost
        await self._memory.refresh(sole_writer=False)
        known = self._memory.known(tp)
        if known is None or not known.may_lose(lost_from, lost_to):
            await require_owner(self._owner, self._memory, tp)
            await self._memory.accept_loss(tp, lost_from, lost_to)
        self._resume(partition)

    def _resume(self, partition: PartitionCopy) -> None:
        self._engine.resume(partition)
        self._follower.hold(partition)

    async def translate(self, tp: TopicPartition, offset: int, /, *, reverse: bool, committed: bool) -> int:
        """The offset of the same record at the other side, as far as the target has acknowledged.

        Args:
            committed: It is what a group has committed; see :meth:`FlowMemory.translate`.

        Raises:
            UnknownPartitionError: The flow does not copy this partition.
            StateConflictError: Nothing is known of the copy yet, or not any more; says why.
            UntranslatableError: There is no such record at the other side.
        """
        partition = self._partition(tp)
        if not self._owner.held:
            words = copied_by(self._memory.owner, self._owner.seen)
            raise StateConflictError(f"{tp}: {words}", hint=ASK_ELSEWHERE)
        if partition.acknowledged_target_offset is None or partition.state in NOT_KNOWN:
            raise StateConflictError(f"{tp}: {partition.detail}")
        return self._memory.translate(
            tp,
            offset,
            reverse=reverse,
            target_log_end=partition.acknowledged_target_offset,
            committed=committed,
        )

    def _partition(self, tp: TopicPartition) -> PartitionCopy:
        partition = self._engine.partitions.get(tp)
        if partition is None:
            raise UnknownPartitionError(f"{tp} is not copied by this flow")
        return partition
