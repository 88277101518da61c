"""Find out where partitions go on, and bring them there: look, decide, act.

Whatever happened before, a restart, a refusal or a lost answer, a partition comes here and leaves with a
position read from the target, or with a state and a reason. What somebody else, an operator above all, has
decided for it meanwhile stands. Looking and deciding are in :mod:`mirror.flow.judging`.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

import structlog

from mirror.errors import NotAuthorizedError, PartitionError, TwinsiteError
from mirror.flow.announcing import copied_by
from mirror.flow.context import Flow
from mirror.flow.following import SideError, look_at_ends
from mirror.flow.inserting import finish
from mirror.flow.judging import Judge
from mirror.flow.looking import Seen
from mirror.flow.needs import Claims, Memory, Right
from mirror.flow.partition import HOPELESS, PartitionCopy
from mirror.flow.position import Decision, Insert, Prepare, Proceed, Register, Stop, Unreplicated
from mirror.flow.prepare import NotPreparableError, prepare
from mirror.flow.states import RETRY_SECONDS_FIRST, UNREPLICATED, look_refusal
from mirror.flow.succession import STANDBY_LOOK_SECONDS_MIN
from mirror.flow.taking import Claim, takes, to_note, yields
from mirror.model import OffsetMode, Reason, State

log = structlog.get_logger(__name__)

PREPARING_AT_ONCE = 4
"""Per broker of the target, so that one that does not answer holds up its own partitions only."""


@dataclass(frozen=True, slots=True)
class Look:
    """Partitions looked at together, each with its generation when the look began.

    Attributes:
        held: Whether the right was ours; a mirror that stands by only looks how far the owner is.
        as_owner: Whether we were the owner, the only writer of the state that decisions are based on.
        began_at: When the look began (monotonic seconds): nothing that it sees is older.
        preparing: The group in which preparations run on: they may take minutes.
    """

    generations: Mapping[PartitionCopy, int]
    held: bool
    as_owner: bool
    preparing: asyncio.TaskGroup
    began_at: float

    def counts_for(self, partition: PartitionCopy) -> bool:
        """False once something else was decided for the partition: the look is out of date then."""
        return partition.generation == self.generations[partition]


class Settler:
    """Looks at partitions that are due, again and again.

    Attributes:
        is_owner: Whether we hold the right and nobody else writes any more, as last heard.
        busy: Partitions that are being looked at, or prepared.
        standby_look_seconds: The time between two looks at a partition that another mirror copies.
        moved_at: When another mirror was last seen to make progress with any partition (monotonic seconds).
    """

    def __init__(
        self,
        flow: Flow,
        memory: Memory,
        right: Right,
        claims: Claims,
        *,
        offsets: str,
        continue_after_loss: bool,
    ) -> None:
        self._flow = flow
        self._claims = claims
        self._memory = memory
        self._right = right
        self._offsets = offsets
        self._judge = Judge(flow, memory, offsets=offsets, continue_after_loss=continue_after_loss)
        self._at_once: dict[int, asyncio.Semaphore] = defaultdict(
            lambda: asyncio.Semaphore(PREPARING_AT_ONCE)
        )
        self.is_owner = False
        self.busy: set[PartitionCopy] = set()
        self.standby_look_seconds = STANDBY_LOOK_SECONDS_MIN
        self.moved_at = 0.0

    def begin(self, partitions: Collection[PartitionCopy], preparing: asyncio.TaskGroup) -> Look:
        """Begin a look: it will not overrule anything that is decided from now on."""
        self.busy.update(partitions)
        generations = {partition: partition.generation for partition in partitions}
        return Look(generations, self._right.held, self.is_owner, preparing, time.monotonic())

    async def settle(self, look: Look) -> None:
        """Look at partitions once. Each leaves with a position, a state, or a time to look again.

        The engine learns of each as soon as it is decided. Those that wait for a preparation, or for other
        flows' claims, stay busy when this returns.
        """
        try:
            await (self._settle(look) if look.held else self._follow(look))
        except TwinsiteError as error:
            for partition in self.busy.intersection(look.generations):
                self._failed(partition, error, look, at_source=False)

    async def _follow(self, look: Look) -> None:
        """Find out how far the owner is."""
        for partition, seen in (await look_at_ends(self._flow, look.generations)).items():
            if isinstance(seen, SideError):
                self._side_failed(partition, seen, look)
                continue
            if look.counts_for(partition) and not self._right.held:
                if partition.state not in HOPELESS:  # those are projected from when the source told all
                    partition.heard(-1, seen.high_watermark, seen.readable_end, at=look.began_at)
                known, now = self._memory.known(partition.tp), time.monotonic()
                position = seen.position(known)
                if known is not None and position is not None:
                    moved = partition.follow(position, seen.target_end, known.mode)
                    self.moved_at = now if moved else self.moved_at
                partition.stand_by(now, self.standby_look_seconds, self._copied_by())
            self._done(partition)

    def _copied_by(self) -> str:
        return copied_by(self._memory.owner, self._right.seen)

    async def _settle(self, look: Look) -> None:
        partitions = look.generations
        seen = await self._judge.look(partitions)
        decisions = await self._decide(partitions, seen, look)
        final = {p for p, one in decisions.items() if isinstance(one, Stop) and one.state in HOPELESS}
        async with asyncio.TaskGroup() as group:
            others = {p: one for p, one in decisions.items() if p not in final}
            group.create_task(self._act_on(others, seen, look))
            if final:
                group.create_task(self._settle_in_order(final, seen, look))

    async def _settle_in_order(self, partitions: Collection[PartitionCopy], before: Seen, look: Look) -> None:
        """Look again at what an operator would have to decide, one side after the other: what both sides said
        at once may not fit together while another mirror copies.
        """
        try:
            seen = await self._judge.look_in_order(partitions, before)
        except TwinsiteError as error:
            for partition in partitions:
                self._failed(partition, error, look, at_source=False)
            return
        decisions = await self._decide(partitions, seen, look)
        await self._act_on(decisions, seen, look)

    async def _decide(
        self,
        partitions: Iterable[PartitionCopy],
        seen: Seen,
        look: Look,
    ) -> dict[PartitionCopy, Decision]:
        """What to do with each partition that could be looked at; the others are refused."""
        decisions: dict[PartitionCopy, Decision] = {}
        for partition in partitions:
            source, target = seen.sources[partition.tp], seen.targets[partition.target]
            if isinstance(source, TwinsiteError):
                self._failed(partition, source, look, at_source=True)
            elif isinstance(target, TwinsiteError):
                self._failed(partition, target, look, at_source=False)
            else:
                decisions[partition] = self._judge.decide(partition, source, target)
        for partition, found in (await self._judge.compare_ends(decisions, seen)).items():
            if isinstance(found, SideError):
                self._side_failed(partition, found, look)
                del decisions[partition]
            elif isinstance(found, Stop):
                decisions[partition] = found
            elif found is not None and look.counts_for(partition):
                partition.found_at_source(found.batch_end, found.doubtful_at)
        return decisions

    def _done(self, partition: PartitionCopy) -> None:
        self.busy.discard(partition)
        self._flow.hooks.changed(partition)

    def _side_failed(self, partition: PartitionCopy, error: SideError, look: Look) -> None:
        self._failed(partition, error.cause, look, at_source=error.cluster is self._flow.source)

    def _failed(self, partition: PartitionCopy, error: TwinsiteError, look: Look, *, at_source: bool) -> None:
        if look.counts_for(partition):
            words = self._by_relay(error) if at_source else str(error)
            partition.refused(look_refusal(error, at_source=at_source), words, time.monotonic())
        if partition.state not in HOPELESS:  # those are only followed, at any pace
            self._flow.hooks.stale(self._flow.source if at_source else self._flow.target)
        self._done(partition)

    def _by_relay(self, error: TwinsiteError) -> str:
        """The error in words. If a relay reads for us, "not authorized" may come from it or from a broker."""
        if self._flow.stream is None or not isinstance(error, NotAuthorizedError):
            return str(error)
        return (
            f"{error}; refused by a broker behind relay {self._flow.stream.relay}, or the role of this "
            "mirror's certificate there (listen.roles) lacks the topic"
        )

    async def _act_on(
        self,
        decisions: Mapping[PartitionCopy, Decision],
        seen: Seen,
        look: Look,
    ) -> None:
        """Do what was decided. Partitions that are about to take a target partition first wait for the claims
        of other flows; the rest does not wait for them.
        """
        taking = self._taking(decisions, seen) if self._may_write(look) else {}
        if taking:
            look.preparing.create_task(self._take(taking, seen, look))
        others = {p: decision for p, decision in decisions.items() if p not in taking}
        await self._go_on(others, seen, look)

    def _taking(
        self, decisions: Mapping[PartitionCopy, Decision], seen: Seen
    ) -> dict[PartitionCopy, Decision]:
        known = ((p, decision, self._memory.known(p.tp)) for p, decision in decisions.items())
        return {p: decision for p, decision, one in known if takes(decision, one, seen.target(p))}

    async def _take(
        self,
        decisions: Mapping[PartitionCopy, Decision],
        seen: Seen,
        look: Look,
    ) -> None:
        """Do what was decided for target partitions that no other flow copies into."""
        objections = await self._claims.objections({p.target: seen.target(p) for p in decisions})
        judged: dict[PartitionCopy, Decision] = {}
        for partition, decision in decisions.items():
            objection = objections.get(partition.target)
            if isinstance(objection, TwinsiteError):
                self._failed(partition, objection, look, at_source=False)
            elif objection is None:
                judged[partition] = decision
            else:
                await self._try(
                    partition, partial(self._leave, partition, decision, objection, seen, look), look
                )
        await self._go_on(judged, seen, look)

    async def _leave(
        self, partition: PartitionCopy, decision: Decision, claim: Claim, seen: Seen, look: Look
    ) -> None:
        """Leave a target partition to another flow."""
        known = self._memory.known(partition.tp)
        if yields(self._flow.name, claim, decision, known, seen.target(partition)) and self._may_write(look):
            await self._memory.take_back(partition.tp)
        if look.counts_for(partition):
            partition.found(Stop(State.BLOCKED, Reason.ANOTHER_FLOW, str(claim)), time.monotonic())

    async def _go_on(
        self,
        decisions: Mapping[PartitionCopy, Decision],
        seen: Seen,
        look: Look,
    ) -> None:
        """Do what was decided. If the target topic's id must be noted, do only that, and look again."""
        noted = await self._note_targets(decisions, seen, look) if self._may_write(look) else ()
        async with asyncio.TaskGroup() as group:
            for partition, decision in decisions.items():
                if partition not in noted:
                    group.create_task(self._act(partition, decision, seen, look))

    async def _note_targets(
        self, decisions: Mapping[PartitionCopy, Decision], seen: Seen, look: Look
    ) -> Collection[PartitionCopy]:
        noted: dict[PartitionCopy, str] = {}
        for partition, decision in decisions.items():
            topic_id = to_note(decision, self._memory.known(partition.tp), seen.target(partition))
            if topic_id is not None:
                noted[partition] = topic_id
        if noted:
            try:
                await self._memory.note_targets({p.tp: topic_id for p, topic_id in noted.items()})
            except TwinsiteError as error:
                for partition in noted:
                    self._failed(partition, error, look, at_source=False)
            else:
                for partition in noted:
                    self._look_again(partition, look)
                    self._done(partition)
        return noted

    @staticmethod
    def _look_again(partition: PartitionCopy, look: Look) -> None:
        if look.counts_for(partition):
            partition.look_again(time.monotonic())

    async def _act(
        self,
        partition: PartitionCopy,
        decision: Decision,
        seen: Seen,
        look: Look,
    ) -> None:
        if isinstance(decision, Prepare) and self._may_write(look) and look.counts_for(partition):
            step = partial(self._prepare, partition, decision, look)
            look.preparing.create_task(self._try(partition, step, look))
        else:
            ids = seen.source(partition).topic_id, seen.target(partition).topic_id
            await self._try(partition, partial(self._carry_out, partition, decision, ids, look), look)

    async def _try(self, partition: PartitionCopy, step: Callable[[], Awaitable[None]], look: Look) -> None:
        try:
            await step()
        except PartitionError as error:
            if look.counts_for(partition):
                partition.found(Stop(State.BLOCKED, error.reason, error.detail), time.monotonic())
            self._done(partition)
        except TwinsiteError as error:
            self._failed(partition, error, look, at_source=False)
        else:
            self._done(partition)

    def _may_write(self, look: Look) -> bool:
        """Only if we have been the owner since before the look: others may have written in between."""
        return look.as_owner and self.is_owner and look.began_at >= self._right.since

    async def _prepare(self, partition: PartitionCopy, decision: Prepare, look: Look) -> None:
        """Prepare the target partition, after others at the same broker. If the right or the look no longer
        counts by then, nothing is done and the partition is looked at again.
        """
        async with self._at_once[self._flow.target.info.leader(partition.target)]:
            if not (self._may_write(look) and look.counts_for(partition)):
                return
            try:
                await prepare(self._flow, partition.target, decision)
            except NotPreparableError as refusal:
                if self._may_write(look):
                    await self._map_instead(partition, decision, refusal)
            else:
                await self._memory.prepared(partition.tp)
        self._look_again(partition, look)

    async def _map_instead(
        self, partition: PartitionCopy, decision: Prepare, refusal: NotPreparableError
    ) -> None:
        """With ``auto``, map the target partition as it is; else raise the refusal."""
        known = self._memory.known(partition.tp)
        if self._offsets != "auto" or known is None:
            raise refusal
        end = refusal.target_log_end_offset
        mapped = Register(OffsetMode.MAPPED, decision.start_offset, end, prepared=True)
        partition.mapped_for = refusal.reason, refusal.detail
        await self._memory.register(
            partition.tp, partition.target, known.topic_id, mapped, known.target_topic_id
        )

    async def _carry_out(
        self, partition: PartitionCopy, decision: Decision, ids: tuple[str, str | None], look: Look
    ) -> None:
        """Do what was decided for one partition.

        Args:
            ids: The ids of the topics looked at, at the source and at the target.
        """
        if not look.counts_for(partition):
            return
        now = time.monotonic()
        if _needs_the_right(decision) and not (self._right.held and self._may_write(look)):
            self._await_the_right(partition, now)
            return
        match decision:
            case Proceed():
                await self._proceed(partition, decision, look)
            case Stop():
                partition.found(decision, now)
                if partition.lost is not None:
                    partition.copied_elsewhere = not self._right.held
                if decision.target_end is not None:
                    partition.looked_at = look.began_at
            case Unreplicated(detail):
                partition.refused(UNREPLICATED, detail, now)
            case Register():
                stop = decision.instead_of
                partition.mapped_for = None if stop is None else (stop.reason, stop.detail)
                await self._memory.register(partition.tp, partition.target, ids[0], decision, ids[1])
                self._look_again(partition, look)
            case Insert(insertion):
                await finish(self._flow, self._memory, partition.tp, partition.target, insertion)
                self._look_again(partition, look)

    def _await_the_right(self, partition: PartitionCopy, now: float) -> None:
        """Look again later: another mirror has the right, or who had it before may still write."""
        if self._right.held:
            partition.doubt(now, max(self._right.since - now, RETRY_SECONDS_FIRST))
        else:
            partition.stand_by(now, RETRY_SECONDS_FIRST, self._copied_by())

    async def _proceed(self, partition: PartitionCopy, decision: Proceed, look: Look) -> None:
        known = self._memory.known(partition.tp)
        assert known is not None
        if decision.skip_to > decision.next_offset:
            await self._memory.note_loss(partition.tp, decision.next_offset, decision.skip_to)
        if not look.counts_for(partition):
            return
        if not (self._right.held and self._may_write(look)):
            partition.doubt(time.monotonic(), RETRY_SECONDS_FIRST)
            return
        epoch = self._memory.epoch_at(partition.tp, decision.next_offset)
        ahead = self._memory.runs_after(partition.tp, decision.target_next_offset)
        partition.proceed(decision, known.mode, epoch, look.began_at, ahead)
        if known.mode is OffsetMode.MAPPED:
            _tell_mapped(partition)


def _needs_the_right(decision: Decision) -> bool:
    """Whether only the owner can act on it: others write nothing, and do not ask what other flows have."""
    if isinstance(decision, Stop):
        return decision.reason is Reason.TARGET_NOT_EMPTY
    return not isinstance(decision, Unreplicated)


def _tell_mapped(partition: PartitionCopy) -> None:
    """Log, once, that a partition cannot keep its offsets and, with ``auto``, is mapped from now on."""
    if partition.mapped_for is None:
        return
    (reason, detail), partition.mapped_for = partition.mapped_for, None
    topic, number = partition.tp
    log.warning("offsets_mapped", topic=topic, partition=number, reason=reason.value, detail=detail)
