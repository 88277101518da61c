"""The flow as a repair takes part in it: the right to write, and where partitions go on.

Many partitions are looked at together, in as few requests as there are brokers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from mirror.errors import StateConflictError, TwinsiteError
from mirror.flow.context import Flow
from mirror.flow.ends import End, compare_ends, end_of
from mirror.flow.facts import Known, SourceLook, TargetLook
from mirror.flow.following import SideError
from mirror.flow.looking import BusyError, look_at_source, look_at_target
from mirror.flow.memory import FlowMemory
from mirror.flow.owner import Owner
from mirror.flow.position import Decision, Proceed, Stop, decide
from mirror.kafka.failures import retrying
from mirror.kafka.offsets import Answers
from mirror.model import Reason, State, TopicPartition
from mirror.repairing.bounds import Bounds

CONFIRM_PAUSE_SECONDS = 0.1
CLAIMS_MAX = 4
LOOK_SECONDS = 10.0
FOREIGN = frozenset({Reason.FOREIGN_WRITE, Reason.OFFSETS_DIFFER, Reason.SOURCE_TRUNCATED})
"""The reasons for which a partition stops if others have written to it."""
STANDS_STILL = FOREIGN | {Reason.ANOTHER_FLOW}
"""The same where they have created the target topic again, or another flow copies into it."""

Names = Mapping[TopicPartition, TopicPartition]
"""Partitions by their names at the source, with their names at the target."""
KnownOf = Callable[[TopicPartition], Known]


@dataclass(frozen=True, slots=True)
class Part:
    """The flow as a repair takes part in it; ``owner`` is None for one that only looks.

    Attributes:
        offsets: ``same``, ``auto`` or ``mapped``, from the settings.
        bounds: What the target topics allow in which keys are to be put right, or why that is not known.
    """

    flow: Flow
    memory: FlowMemory
    owner: Owner | None
    offsets: str
    bounds: Mapping[str, Bounds | TwinsiteError]

    async def be_owner(self) -> None:
        """Wait until we may write, and read the flow's state.

        A mirror that stands by may have taken the right since; then it is taken back.

        Raises:
            StateConflictError: The right is lost again each time, as if two repairs took it from each other.
            TwinsiteError: A request to the target fails.
        """
        assert self.owner is not None
        claims = 0
        while not await self.owner.confirm():
            if not self.owner.held and claims == CLAIMS_MAX:
                raise StateConflictError(
                    f"took over the flow {claims} times, and lost it each time before anything was written",
                    hint="another repair of this flow is running: run this one again when it has ended",
                )
            if not self.owner.held:
                await self.owner.claim()
                claims += 1
            await self.memory.refresh(sole_writer=False)
            await asyncio.sleep(CONFIRM_PAUSE_SECONDS)
        await self.memory.refresh(sole_writer=False)

    async def decisions(self, names: Names, known_of: KnownOf) -> Answers[Decision]:
        """What a mirror would do with partitions now.

        If a look fails it is repeated for up to ``LOOK_SECONDS``: a mirror that writes meanwhile makes it
        inconclusive.

        Args:
            known_of: What to take as known of a partition.
        """
        found: dict[TopicPartition, Decision | TwinsiteError] = {}
        try:
            async for attempt in retrying(LOOK_SECONDS, longest_pause_seconds=0.2):
                with attempt:
                    if attempt.retry_state.attempt_number > 1:
                        await asyncio.gather(self.flow.source.refresh(), self.flow.target.refresh())
                    left = {name: at for name, at in names.items() if _is_open(found.get(name))}
                    found |= await self._decisions(left, known_of)
                    for answer in found.values():
                        if isinstance(answer, TwinsiteError) and answer.retriable:
                            raise answer
        except TwinsiteError as error:
            return dict.fromkeys(names, error) | found
        return found

    async def _decisions(self, names: Names, known_of: KnownOf) -> Answers[Decision]:
        """Look at the target, read the flow's state, which is written ahead of the records, then look at the
        source: in that order a working copy is never ahead.
        """
        insertions = {target: known_of(name).insertions for name, target in names.items()}
        targets = await look_at_target(self.flow, insertions, insertions)
        await self.memory.refresh(sole_writer=False)
        sources = await look_at_source(self.flow, names)
        found: Answers[Decision] = {}
        ends: dict[TopicPartition, End] = {}
        for name, at_target in names.items():
            known, source, target = known_of(name), sources[name], targets[at_target]
            if isinstance(target, TwinsiteError):
                found[name] = target
            elif isinstance(source, TwinsiteError):
                found[name] = source
            else:
                decision = found[name] = self._decide(known, source, target)
                if isinstance(decision, Proceed):
                    epoch = self.memory.epoch_at(name, decision.next_offset)
                    end = end_of(known, target, at_target, epoch)
                    ends |= {name: end} if end else {}
        compared = await compare_ends(self.flow, ends)
        for name, one in compared.items():
            if isinstance(one, Stop | SideError):
                found[name] = one.cause if isinstance(one, SideError) else one
        return found

    def _decide(self, known: Known, source: SourceLook, target: TargetLook) -> Decision:
        if None not in {known.target_topic_id, target.topic_id} and known.target_topic_id != target.topic_id:
            words = "the target topic was created again, and what it holds is no copy of this flow's"
            return Stop(State.BLOCKED, Reason.ANOTHER_FLOW, words)
        return decide(
            known,
            source,
            target,
            producer_id=self.flow.producer_id,
            producer_epoch=self.flow.producer_epoch,
            wanted=self.offsets,
            acknowledged_target_offset=None,
            continue_after_loss=False,
        )


def _is_open(answer: Decision | TwinsiteError | None) -> bool:
    return answer is None or isinstance(answer, TwinsiteError)


def stands_still(answer: Decision | TwinsiteError | None) -> bool:
    """Whether the copy has stopped, perhaps because others have written to it, or cannot be looked at.

    One that is busy, because the flow is writing to it, goes on.
    """
    if isinstance(answer, TwinsiteError):
        return not isinstance(answer, BusyError)
    return isinstance(answer, Stop) and answer.reason in STANDS_STILL
