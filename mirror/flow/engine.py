"""A running flow: its partitions, the lanes that carry them, and the loops that keep both going.

Everything runs on one event loop. The engine wires the parts together and answers
their hooks; each partition decides for itself what it does next.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial

import structlog

from mirror.errors import BatchError, TwinsiteError
from mirror.flow.append_lanes import AppendLanes
from mirror.flow.appending import AppendLane
from mirror.flow.context import Flow
from mirror.flow.fetching import FetchLane, reread
from mirror.flow.hints import severity
from mirror.flow.holding import hold
from mirror.flow.keeping import Keeper
from mirror.flow.lanes import Lanes
from mirror.flow.linked import LinkLane
from mirror.flow.owner import Owner
from mirror.flow.partition import FOLLOWED, PartitionCopy
from mirror.flow.settling import Look, Settler
from mirror.flow.states import look_refusal, pause_seconds
from mirror.flow.succession import Span, Succession, Word, standby_look_seconds
from mirror.kafka.cluster import Cluster
from mirror.kafka.refused import LONGEST_PAUSE_SECONDS
from mirror.logs import Repeats, warn_repeated
from mirror.model import Reason, State, TopicPartition

log = structlog.get_logger(__name__)

_NEW = (State.UNKNOWN, Reason.STARTING)
STALE_PAUSE_SECONDS = 0.1
"""Metadata is not read more often than this, however many answers call it stale."""
LINK = -2
"""Stands for all brokers where a relay reads them; -1 is the leader of a partition that has none."""
Brokers = tuple[int, int]
"""The leaders of a partition: at the source, and at the target."""


def wants_look(partition: PartitionCopy) -> bool:
    """True when a look is due, now or later, nothing is in flight, and no operator has asked for a pause."""
    return partition.look_due_at is not None and not partition.unanswered and not partition.pause_asked


class Engine:
    """Copies the partitions it was given until cancelled.

    Attributes:
        on_dropped: Called with each partition that is copied no more, for those who keep something of it.
    """

    def __init__(self) -> None:
        self.partitions: dict[TopicPartition, PartitionCopy] = {}
        self.on_dropped: Callable[[PartitionCopy], None] = lambda _: None
        self._due = asyncio.Event()
        self._looking: set[Brokers] = set()
        self._stale: dict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._crashed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._rereading: set[asyncio.Task[None]] = set()
        self._was_owner = False
        self._ask_at = 0.0
        self._follow_at = 0.0
        self._succession = Succession()
        self._repeats = Repeats()
        self._shown: dict[PartitionCopy, tuple[State, Reason | None]] = {}

    def wire(
        self,
        flow: Flow,
        owner: Owner,
        settler: Settler,
        keeper: Keeper,
        refresh: Callable[[bool], Awaitable[None]],
        announced: Callable[[], Word | None],
        unwritten_since: Callable[[], float | None],
    ) -> None:
        """Connect the parts; they know the engine only by its hooks.

        Args:
            refresh: Reads the flow's durable state again; with True only where needed, as we are known to be
                its only writer.
            announced: The owner record, as last read; None where there is none.
            unwritten_since: Since when nothing has been written to a state that was deleted and that the
                owner is to rewrite (monotonic seconds); None where it is there.
        """
        self._flow, self._owner, self._settler, self._keeper = flow, owner, settler, keeper
        per_broker = flow.limits.fetch_connections if flow.link is None else 1
        self._reading = Lanes(per_broker, self._open_fetch_lane)
        self._writing = AppendLanes(
            flow.limits.append_connections, flow.limits.fetch.isolation, partial(AppendLane, flow)
        )
        self._refresh = refresh
        self._announced = announced
        self._unwritten_since = unwritten_since

    # -- partitions come and go ------------------------------------------------------------------

    def add(self, partition: PartitionCopy) -> None:
        """Begin to copy a partition."""
        self.partitions[partition.tp] = partition
        self._due.set()

    def drop(self, partition: PartitionCopy) -> None:
        """Forget a partition that the flow's state does not know; a look in progress decides nothing.

        What is in flight of it is still answered, and moves nothing (:meth:`changed`).
        """
        del self.partitions[partition.tp]
        partition.stop(State.UNKNOWN, Reason.STARTING, "no longer copied", None)
        self._shown.pop(partition, None)
        self._read_no_more(partition)
        for lane in self._reading:
            lane.drop(partition.key)
        self._writing.leave(partition)
        self._keeper.forget(partition)
        self._flow.room.set()  # its queue was dropped
        self.on_dropped(partition)

    def answered_at(self, partition: PartitionCopy) -> float | None:
        """When the source last reported news of this partition, or that there are none; None if not read."""
        lane = self._reading.of(partition)
        return lane.answered_at(partition) if lane is not None and partition.copying else None

    def arriving_at(self, partition: PartitionCopy) -> float | None:
        """When the last piece arrived of an incomplete answer that may have news of this partition."""
        lane = self._reading.of(partition)
        return lane.arriving_at(partition) if lane is not None and partition.copying else None

    # -- hooks -----------------------------------------------------------------------------------

    def changed(self, partition: PartitionCopy) -> None:
        """Give the partition what it wants now: data, a send, the owner, a look."""
        if not partition.copying:
            self._has_stopped(partition)
            return
        self._show(partition)
        self._fetch_lane(partition).update(partition)
        if partition.batch_ready:
            self._append_lane(partition).offer(partition)
        elif partition.owner_work:
            self._keeper.offer(partition)
        else:
            self._keeper.forget(partition)

    def _has_stopped(self, partition: PartitionCopy) -> None:
        """It is not being copied now; or it was dropped, and what was in flight of it has been answered."""
        if self.partitions.get(partition.tp) is not partition:
            return
        self._show(partition)
        self._read_no_more(partition)
        self._keeper.forget(partition)
        if self._due_at(partition) is not None:
            self._due.set()
        self._flow.room.set()  # its queue was dropped

    def stale(self, cluster: Cluster) -> None:
        """Read the cluster's metadata again soon."""
        self._stale[cluster.name].set()

    def crash(self, error: BaseException) -> None:
        """End the mirror with this error."""
        if not self._crashed.done():
            self._crashed.set_exception(error)

    def reread(self, partition: PartitionCopy, bad: BatchError, node: int | None) -> None:
        """Try the other replicas for a batch that cannot be read on ``node``; None for the leader."""
        task = asyncio.get_running_loop().create_task(reread(self._flow, partition, bad, node))
        self._rereading.add(task)
        task.add_done_callback(self._reread)

    def _reread(self, task: asyncio.Task[None]) -> None:
        self._rereading.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self.crash(error)

    def _fetch_lane(self, partition: PartitionCopy) -> FetchLane | LinkLane:
        node = LINK if self._flow.link is not None else self._flow.source.info.leader(partition.tp)
        old, lane = self._reading.of(partition), self._reading.to(node, partition)
        if old is not None and old is not lane:
            old.leave(partition.key)
        return lane

    def _open_fetch_lane(self, node: int, slot: int) -> FetchLane | LinkLane:
        if self._flow.link is not None:
            lane: FetchLane | LinkLane = LinkLane(self._flow, self._flow.link)
        else:
            lane = FetchLane(self._flow, node, slot)
        self._group.create_task(lane.run())
        return lane

    def _read_no_more(self, partition: PartitionCopy) -> None:
        lane = self._reading.leave(partition)
        if lane is not None:
            lane.leave(partition.key)

    def _append_lane(self, partition: PartitionCopy) -> AppendLane:
        return self._writing.to(self._flow.target.info.leader(partition.target), partition)

    # -- running ---------------------------------------------------------------------------------

    async def run(self) -> None:
        """Copy until cancelled.

        Raises:
            TwinsiteError: The flow as a whole cannot go on.
        """
        try:
            async with asyncio.TaskGroup() as self._group:
                if self._flow.link is not None:
                    self._reading.open(LINK)
                holding = hold(self._owner, self._on_turn)
                for loop in (self._settle_loop(), self._keeper.run(), holding, self._watch()):
                    self._group.create_task(loop)
                for cluster in (self._flow.source, self._flow.target):
                    self._group.create_task(self._metadata_loop(cluster, self._stale[cluster.name]))
        finally:
            for lane in self._writing:
                await lane.close()

    async def _watch(self) -> None:
        await self._crashed

    async def drain(self, timeout_seconds: float) -> None:
        """Send no more, and wait for the answers to what was sent; when the time is up, that is logged."""
        self._flow.draining = True
        try:
            async with asyncio.timeout(timeout_seconds):
                while any(p.unanswered for p in self.partitions.values()):
                    self._flow.room.clear()
                    await self._flow.room.wait()
        except TimeoutError:
            log.warning("drain_timed_out", seconds=timeout_seconds)

    async def _settle_loop(self) -> None:
        """Look at what is due. Without the right also ask now and then whether the owner is gone: where
        everything is stopped, nothing is ever due.
        """
        while True:
            self._due.clear()
            now = time.monotonic()
            wanting = self._wanting(self.partitions.values())
            due = [partition for partition, at in wanting.items() if at <= now]
            if due or (not self._owner.held and now >= self._ask_at):
                await self._look(due, now)
                continue
            ask_at = max(self._ask_at, now + standby_look_seconds(len(self.partitions)))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min([ask_at, *wanting.values()]) - now):
                    await self._due.wait()

    def _wanting(
        self, partitions: Iterable[PartitionCopy], until: float = math.inf
    ) -> dict[PartitionCopy, float]:
        """The partitions that want a look and may have one by ``until``, each with when it is due."""
        return {p: at for p in partitions if (at := self._due_at(p)) is not None and at <= until}

    def _due_at(self, partition: PartitionCopy) -> float | None:
        """When to look at the partition; None while it does not want a look, or may not have one.

        Partitions between the same two brokers are looked at together, one look at a time. So a broker that
        does not answer holds up only its own partitions, and many questions become one.
        """
        return partition.look_due_at if wants_look(partition) and self._is_free(partition) else None

    def _is_free(self, partition: PartitionCopy) -> bool:
        """Whether nothing that looks at it, or at others between the same brokers, is under way."""
        return partition not in self._settler.busy and self._brokers(partition) not in self._looking

    def _to_follow(self) -> list[PartitionCopy]:
        """What is stopped here, and the mirror that has the right may go on with; each only now and then."""
        now = time.monotonic()
        if self._owner.held or now < self._follow_at:
            return []
        self._follow_at = now + self._settler.standby_look_seconds
        stopped = (p for p in self.partitions.values() if p.state in FOLLOWED and not p.unanswered)
        return [p for p in stopped if self._is_free(p)]

    async def _look(self, due: Sequence[PartitionCopy], now: float) -> None:
        """Begin to look at these; returns once it is known who owns the flow, or that nobody can say."""
        refusal: TwinsiteError | None = None
        self._settler.standby_look_seconds = standby_look_seconds(len(self.partitions))
        try:
            self._settler.is_owner = await self._own()
        except TwinsiteError as error:
            refusal = error
        self._ask_at = time.monotonic() + self._settler.standby_look_seconds
        if refusal is not None:
            self._refuse(refusal)
            return
        groups: dict[Brokers, list[PartitionCopy]] = {}
        for partition in (*self._wanting(due, now), *self._to_follow()):
            groups.setdefault(self._brokers(partition), []).append(partition)
        for brokers, partitions in groups.items():
            self._looking.add(brokers)
            look = self._settler.begin(partitions, self._group)
            self._group.create_task(self._look_between(brokers, look))

    def _refuse(self, refusal: TwinsiteError) -> None:
        """Nobody can say who owns the flow. Partitions that became due during the question are refused too:
        asking again for them would take as long again.
        """
        now = time.monotonic()
        for partition in self._wanting(self.partitions.values(), now):
            partition.refused(look_refusal(refusal, at_source=False), str(refusal), now)
            self.changed(partition)

    async def _look_between(self, brokers: Brokers, look: Look) -> None:
        await self._settler.settle(look)
        self._looking.discard(brokers)
        self._due.set()

    def _brokers(self, partition: PartitionCopy) -> Brokers:
        source, target = self._flow.source.info, self._flow.target.info
        return source.leader(partition.tp), target.leader(partition.target)

    async def _own(self) -> bool:
        """Whether we are the owner, with its state read; takes over from an owner that seems to be gone."""
        if not self._owner.held:
            await self._refresh(False)
            if not await self._owner_seems_gone() or not await self._claimed():
                self._was_owner = False
                return False
            self._count_from_what_is_known()
            self._look_at(lambda p: p.state is State.STANDBY or p.copying)
            self._look_anew()
        is_owner = await self._owner.confirm()
        await self._refresh(is_owner and self._was_owner)
        self._was_owner = is_owner
        return is_owner

    async def _claimed(self) -> bool:
        """Claim the right, in one attempt; False if that fails for now: the next look asks again whose it is.

        Until then partitions are followed as before, so that the owner's silence goes on to count.

        Raises:
            TwinsiteError: The claim fails for good.
        """
        try:
            await self._owner.claim(patience_seconds=0.0)
        except TwinsiteError as error:
            if not error.retriable:
                raise
            warn_repeated(log, self._repeats, "claim", "right_not_claimed", error=str(error))
            return False
        self._repeats.forget("claim")
        log.warning("taking_over", transactional_id=self._owner.transactional_id)
        return True

    async def _owner_seems_gone(self) -> bool:
        holder, now = await self._owner.holder(), time.monotonic()
        due = self._succession.due(holder, self._word(), self._stood(now), now)
        return due or await self._owner.is_own(holder)

    def _word(self) -> Word | None:
        """Where the owner says it runs. It may be unable to repeat that, and copy all the same."""
        word = self._announced()
        return word and word._replace(heard_at=max(word.heard_at, self._settler.moved_at))

    def _stood(self, now: float) -> Span | None:
        """From when to when the owner has moved nothing although it should have; None where that is not so.

        A deleted state counts first: the owner rewrites it ahead of all else.
        """
        unwritten_since = self._unwritten_since()
        if unwritten_since is not None:
            return unwritten_since, now
        waited = [p.waited_for_owner for p in self.partitions.values() if p.waited_for_owner is not None]
        if not waited:
            return None
        since, until = min(since for since, _ in waited), max(until for _, until in waited)
        return max(since, self._settler.moved_at), until

    def _on_turn(self) -> None:
        """Go on sending while the right is ours; stand by when it is another's."""
        if not self._owner.may_write and self._look_at(lambda p: p.copying) and not self._owner.held:
            log.warning("standing_by", transactional_id=self._owner.transactional_id)
        if not self._owner.held:
            self._know_no_more()
        for lane in self._writing:
            lane.wake()

    def _know_no_more(self) -> None:
        """How far the copies are is not known while another mirror has the right: it may go on with what is
        stopped here, too. A DIVERGED partition keeps saying what its target had acknowledged, for comparisons
        of a target that has lost it.
        """
        for partition in self.partitions.values():
            if partition.state is not State.DIVERGED:
                partition.copied_elsewhere = True

    def _look_at(self, which: Callable[[PartitionCopy], bool]) -> int:
        """Look at some partitions now, because the right was taken or lost; returns how many they are."""
        chosen = [partition for partition in self.partitions.values() if which(partition)]
        now = time.monotonic()
        for partition in chosen:
            partition.doubt(now)
            self.changed(partition)
        return len(chosen)

    def _count_from_what_is_known(self) -> None:
        """Say again how late partitions are, from where each was last known to be: what is paused is not
        looked at. Another mirror may have copied more, so the lag may be less, and a loss further away.
        """
        for partition in self.partitions.values():
            if partition.next_offset is not None:
                partition.copied_elsewhere = False

    def _look_anew(self) -> None:
        """Look whether losses still wait for a decision, as it may have been taken at the mirror that copied;
        and whether what was fenced off still is, as the flow's state may know a newer epoch by now.
        """
        now = time.monotonic()
        for partition in self.partitions.values():
            if partition.state in {State.DATA_LOSS, State.FENCED} and not partition.pause_asked:
                partition.look_anew(now, as_told=False)
                self.changed(partition)

    async def _metadata_loop(self, cluster: Cluster, stale: asyncio.Event) -> None:
        """Refresh a cluster's metadata periodically, and when an answer shows that it is stale. Each cluster
        has its own loop: neither waits for the other's brokers.

        While none answers it asks as soon as one may be tried again, and so notices first that one is back.
        """
        repeats, failures, known = Repeats(), 0, cluster.info.brokers
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(cluster.refresh_seconds):
                    await stale.wait()
            stale.clear()
            try:
                await cluster.refresh()
            except TwinsiteError as error:
                name = cluster.name
                warn_repeated(log, repeats, name, "metadata_refresh_failed", cluster=name, error=str(error))
                stale.set()
                failures += 1
            else:
                repeats.forget(cluster.name)
                if failures:
                    cluster.try_now()
                if failures or cluster.info.brokers.items() - known.items():
                    self._try_now(self.partitions.values())
                failures = 0
            known = cluster.info.brokers
            self.follow_leaders()
            await asyncio.sleep(_metadata_pause_seconds(cluster, failures))

    def _try_now(self, partitions: Iterable[PartitionCopy]) -> None:
        """A broker answers again, or may: lanes, and these partitions, that wait for one try it now."""
        now = time.monotonic()
        for lane in self._reading:
            lane.try_now()
        for partition in partitions:
            partition.try_now(now)
        self._due.set()

    def follow_leaders(self) -> None:
        """The metadata is new: read partitions from their current leaders.

        The previous leader may be dead, or cut off and still answering that nothing is new. Partitions that
        had to wait for a look between the old brokers need not wait for one between the new.
        """
        self._keeper.leaders_moved()
        self._due.set()
        for partition in self.partitions.values():
            lane = self._reading.of(partition)
            if lane is not None and partition.copying and self._fetch_lane(partition) is not lane:
                self.changed(partition)

    def _show(self, partition: PartitionCopy) -> None:
        """One log line per change of state."""
        shown = (partition.state, partition.reason)
        if self._shown.get(partition, _NEW) == shown:
            return
        self._shown[partition] = shown
        log.log(
            severity(*shown),
            "partition_state_changed",
            topic=partition.tp.topic,
            partition=partition.tp.partition,
            state=partition.state.value,
            reason=partition.reason.value if partition.reason else None,
            detail=partition.detail,
            next_offset=partition.next_offset,
        )

    # -- what an operator may do -----------------------------------------------------------------

    def pause(self, partition: PartitionCopy) -> None:
        """Copy nothing of this partition until :meth:`resume`."""
        partition.pause()
        self.changed(partition)

    def resume(self, partition: PartitionCopy) -> None:
        """Look again now, and go on if the look allows it."""
        partition.resume(time.monotonic())
        self.changed(partition)

    def try_brokers_now(self) -> None:
        """Try brokers and relays that could not be reached once they are wanted: somebody asks for it."""
        for cluster in (self._flow.source, self._flow.target):
            cluster.try_now()
        self._try_now(())


def _metadata_pause_seconds(cluster: Cluster, failures: int) -> float:
    """How long not to read a cluster's metadata, after this many failures in a row."""
    if not failures:
        return STALE_PAUSE_SECONDS
    return cluster.left_alone_seconds or min(pause_seconds(failures), LONGEST_PAUSE_SECONDS)
