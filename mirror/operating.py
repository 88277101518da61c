"""What an operator can do with one partition of a running mirror: pause, resume, accept a loss, translate.

A partition is looked at before anything is concluded. Nothing here writes to a target partition.
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
"""States in which what was once acknowledged does not tell which records correspond now."""
ASK_ELSEWHERE = "ask the owner, or the target itself with --config"


class Operator:
    """Carries out what an operator asks for, as :class:`mirror.api.control.Control` promises.

    Every method raises UnknownPartitionError if the flow does not copy the partition.
    """

    def __init__(self, engine: Engine, follower: Follower, owner: Owner, memory: FlowMemory) -> None:
        self._engine = engine
        self._follower = follower
        self._owner = owner
        self._memory = memory

    async def pause(self, tp: TopicPartition) -> None:
        """Copy nothing of this partition until told to go on."""
        self._engine.pause(self._partition(tp))

    async def resume(self, tp: TopicPartition) -> None:
        """Continue, or look again now, and try brokers now that could not be reached.

        Raises:
            StateConflictError: Looking again would not help.
        """
        partition = self._partition(tp)
        if partition.state in {State.DATA_LOSS, State.TOPIC_RECREATED, State.FENCED}:
            raise StateConflictError(f"{tp}: looking again would not help: {partition.detail}")
        self._engine.try_brokers_now()
        self._resume(partition)

    async def accept_loss(self, tp: TopicPartition, shown: tuple[int, int] | None = None) -> None:
        """Continue after what the source has removed; if this mirror is not the owner, once the owner did.

        Args:
            shown: The source range [from, to) that the operator was shown as lost; None for whatever is lost.

        Raises:
            StateConflictError: The partition has lost nothing, or not what was shown.
            NotOwnerError: This mirror is not the owner, and the owner has not accepted the loss.
        """
        partition = self._partition(tp)
        if partition.state is not State.DATA_LOSS or partition.lost is None:
            raise StateConflictError(f"{tp}: has lost nothing, its state is {partition.state}")
        lost_from, lost_to = partition.lost
        if shown is not None and shown != partition.lost:
            raise StateConflictError(
                f"{tp}: offsets {lost_from} to {lost_to} are lost, not {shown[0]} to {shown[1]}; nothing was "
                "given up"
            )
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
            committed: The offset was committed by a group; see :meth:`FlowMemory.translate`.

        Raises:
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
