"""What is to be done with partitions, going by a look at both sides and the flow's state. Writes nothing.

Doing it, and dealing with what could not be asked, is up to :mod:`mirror.flow.settling`.

Sources: docs/design.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Collection, Iterable, Mapping
from dataclasses import replace

from checkpoint.insertions import Insertions
from mirror.flow.context import Flow
from mirror.flow.ends import End, Seam, compare_ends, end_of
from mirror.flow.facts import SourceLook, TargetLook
from mirror.flow.following import SideError
from mirror.flow.looking import Seen, look_at_source, look_at_target
from mirror.flow.needs import Memory
from mirror.flow.partition import PartitionCopy
from mirror.flow.position import Decision, Proceed, Stop, decide
from mirror.kafka.fetch import Isolation
from mirror.kafka.offsets import Answers
from mirror.link.loops import both
from mirror.model import TopicPartition


class Judge:
    """Looks at partitions of a flow, and decides for each what is to be done.

    Args:
        offsets: ``same``, ``auto`` or ``mapped``, from the settings.
        continue_after_loss: Go on without asking when the source has lost what was not copied.
    """

    def __init__(self, flow: Flow, memory: Memory, *, offsets: str, continue_after_loss: bool) -> None:
        self._flow = flow
        self._memory = memory
        self._offsets = offsets
        self._continue_after_loss = continue_after_loss

    async def look(self, partitions: Collection[PartitionCopy]) -> Seen:
        """What both sides say, asked concurrently."""
        sources, targets = await asyncio.gather(
            look_at_source(self._flow, [p.tp for p in partitions]), self._look_at_target(partitions)
        )
        return Seen(sources, targets)

    async def look_in_order(self, partitions: Collection[PartitionCopy], before: Seen) -> Seen:
        """What both sides say, asked in an order in which nothing can be overtaken.

        Other mirrors of the flow copy meanwhile. What the target has was at the source before, and is in the
        flow's state if it belongs there; a mirror that stood still may only believe that it is the sole
        writer. What the source no longer has may be at the target by now.

        Args:
            before: From an earlier look: where the source logs began then counts.

        Raises:
            TwinsiteError: The flow's state could not be read.
        """
        await self._memory.refresh(sole_writer=False)
        targets = await self._look_at_target(partitions)
        sources, _ = await both(
            look_at_source(self._flow, [p.tp for p in partitions]),
            self._memory.refresh(sole_writer=False),
        )
        for tp, source in sources.items():
            first = before.sources[tp]
            if isinstance(source, SourceLook) and isinstance(first, SourceLook):
                sources[tp] = replace(source, log_start_offset=first.log_start_offset)
        return Seen(sources, targets)

    def _look_at_target(self, partitions: Collection[PartitionCopy]) -> Awaitable[Answers[TargetLook]]:
        return look_at_target(self._flow, [p.target for p in partitions], self._insertions(partitions))

    def _insertions(self, partitions: Iterable[PartitionCopy]) -> dict[TopicPartition, Insertions]:
        known = ((p.target, self._memory.known(p.tp)) for p in partitions)
        return {target: one.insertions for target, one in known if one is not None}

    def decide(self, partition: PartitionCopy, source: SourceLook, target: TargetLook) -> Decision:
        """What is to be done with a partition; it takes note of what the source says of its log."""
        committed_only = self._flow.limits.fetch.isolation is Isolation.READ_COMMITTED
        stable = -1 if committed_only else source.high_watermark
        partition.heard(source.log_start_offset, source.high_watermark, stable)
        return decide(
            self._memory.known(partition.tp),
            source,
            target,
            producer_id=self._flow.producer_id,
            producer_epoch=self._flow.producer_epoch,
            wanted=self._offsets,
            acknowledged_target_offset=partition.acknowledged_target_offset,
            continue_after_loss=self._continue_after_loss,
            padding_limit=self._flow.limits.padding_limit,
        )

    async def compare_ends(
        self, decisions: Mapping[PartitionCopy, Decision], seen: Seen
    ) -> dict[PartitionCopy, Stop | SideError | Seam | None]:
        """For partitions that are to go on: why the last record copied is not in its place, or what is known
        of that place; None if the source no longer has it.
        """
        ends: dict[TopicPartition, End] = {}
        for partition, decision in decisions.items():
            known = self._memory.known(partition.tp)
            if isinstance(decision, Proceed) and known is not None:
                epoch = self._memory.epoch_at(partition.tp, decision.next_offset)
                end = end_of(known, seen.target(partition), partition.target, epoch)
                if end is not None:
                    ends[partition.tp] = end
        found = await compare_ends(self._flow, ends)
        return {partition: found[partition.tp] for partition in decisions if partition.tp in found}
