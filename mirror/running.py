"""A running mirror: its parts, wired, from when its flow is claimed until everything sent was answered.

The parts are started in the order in which each needs the other; at the end what was sent is drained before
they are stopped. What happens to records is in :mod:`mirror.flow`, what an operator can do with a partition
in :mod:`mirror.operating`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import structlog
from prometheus_client import CollectorRegistry

from mirror.config import LinkSettings, Settings
from mirror.errors import TwinsiteError, UsageError
from mirror.flow.announcing import Announcer
from mirror.flow.claims import Claims
from mirror.flow.context import Flow
from mirror.flow.engine import Engine
from mirror.flow.forgetting import Forgetter
from mirror.flow.goals import Goals
from mirror.flow.keeping import Keeper
from mirror.flow.lagging import LagMeter, LagWatch
from mirror.flow.log_ends import LogEnds
from mirror.flow.memory import FlowMemory
from mirror.flow.outlook import Outlooks
from mirror.flow.owner import Owner
from mirror.flow.partition import PartitionCopy
from mirror.flow.ranking import Ranker, Standing, most_urgent
from mirror.flow.settling import Settler
from mirror.flow.snapshot import Snapshots
from mirror.flow.succession import Word
from mirror.flow.unanswered import Unanswered
from mirror.kafka.cluster import Cluster
from mirror.kafka.fetch import Key
from mirror.model import FlowStatus
from mirror.observing import register_metrics
from mirror.operating import Operator
from mirror.sync.follow import Follower
from mirror.sync.names import HIDDEN
from mirror.taking_part import flow_of
from mirror.waiting import Waiting
from monitoring.health import Heartbeats, Readiness
from monitoring.tombstones import tombstone_headroom_seconds

if TYPE_CHECKING:
    from mirror.api.server import ApiServer

log = structlog.get_logger(__name__)

DRAIN_SECONDS = 10.0
FINISH_SECONDS = 3.0
STATUS_SECONDS = 0.25
STATUS_SHARE = 0.05
"""Snapshots take no larger share of the time, however many partitions there are."""
UNMATCHED_MAX = 10
"""How many expressions that match nothing are named."""
WATCH, WATCH_SILENT_SECONDS = "partitions_watched", 30.0


def _settler(settings: Settings, flow: Flow, owner: Owner, memory: FlowMemory, claims: Claims) -> Settler:
    return Settler(
        flow,
        memory,
        owner,
        claims,
        offsets=settings.offsets.mode,
        continue_after_loss=settings.on_data_loss == "continue",
    )


def _ranker(
    settings: LinkSettings, flow: Flow, follower: Follower, meter: LagMeter, outlooks: Outlooks
) -> Ranker:
    def standing(p: PartitionCopy) -> Standing:
        now, now_ms = time.monotonic(), int(time.time() * 1000)
        lag = meter.measure(p, now=now, now_ms=now_ms)
        headroom_seconds = most_urgent(
            outlooks.headroom_seconds(p, lag.progress, now=now, now_ms=now_ms),
            tombstone_headroom_seconds(
                lag.progress, lag.late_seconds, follower.tombstones(p.tp.topic), now=now
            ),
        )
        return Standing(lag.seconds, headroom_seconds)

    def ranked(ranks: Mapping[Key, int]) -> None:
        if flow.stream is not None:
            flow.stream.rank(ranks.items())

    return Ranker(settings.topics_first, settings.topics_last, standing, ranked)


@dataclass(slots=True)
class RunningMirror:
    """The parts of a running mirror, wired."""

    settings: Settings
    flow: Flow
    engine: Engine
    owner: Owner
    memory: FlowMemory
    claims: Claims
    follower: Follower
    operator: Operator
    watch: LagWatch
    ranker: Ranker | None
    snapshots: Snapshots
    registry: CollectorRegistry
    heartbeats: Heartbeats
    port: ApiServer | None = None
    drained_at: float | None = None

    @classmethod
    def of(
        cls,
        settings: Settings,
        source: Cluster,
        target: Cluster,
        owner: Owner,
        memory: FlowMemory,
        port: ApiServer | None,
        waiting: Waiting,
    ) -> RunningMirror:
        """Wire a flow that was claimed; ``waiting`` is the mirror until now."""
        registry = CollectorRegistry()
        engine = Engine()
        flow = flow_of(settings, source, target, memory, owner.turn, engine, registry)
        claims = Claims(target, settings.flow)
        settler = _settler(settings, flow, owner, memory, claims)
        keeper = Keeper(flow, owner, memory, offsets=settings.offsets.mode)
        engine.wire(
            flow,
            owner,
            settler,
            keeper,
            lambda sole_writer: memory.refresh(sole_writer=sole_writer),
            lambda: Word(memory.owner.producer_epoch, memory.news_at()) if memory.owner else None,
            lambda: memory.unwritten_since,
        )
        follower = Follower(settings, flow, engine, memory, owner)
        meter = LagMeter(flow, engine.answered_at, engine.arriving_at)
        outlooks = Outlooks(follower.retention, fresh_seconds=meter.fresh_seconds)
        watch = LagWatch(
            meter,
            outlooks,
            follower.tombstones,
            lagging_seconds=settings.lagging_after_seconds,
            near_seconds=settings.retention_near_seconds,
            changed=engine.changed,
        )
        engine.on_dropped = watch.forget
        snapshots = Snapshots(
            flow=flow,
            owner=owner,
            meter=meter,
            outlooks=outlooks,
            tombstones=follower.tombstones,
            lost_ranges=memory.lost_ranges,
            owner_word=lambda: memory.owner,
            started_at_ms=waiting.started_at_ms,
            started_at=waiting.started_at,
        )
        return cls(
            settings,
            flow,
            engine,
            owner,
            memory,
            claims,
            follower,
            Operator(engine, follower, owner, memory),
            watch,
            _ranker(settings.link, flow, follower, meter, outlooks) if settings.link else None,
            snapshots,
            registry,
            Heartbeats(),
            port,
        )

    def status(self) -> FlowStatus:
        """A snapshot, at once."""
        return self._snapshot(0.0)

    def last_status(self) -> FlowStatus:
        """A snapshot of a flow that has ended: the time it took to leave everything in order is no lag."""
        return self._snapshot(0.0 if self.drained_at is None else time.monotonic() - self.drained_at)

    def _snapshot(self, ended_seconds: float) -> FlowStatus:
        return self.snapshots.take(
            self.engine.partitions.values(),
            self.follower.topics_ignored,
            self.follower.left_out,
            ended_seconds=ended_seconds,
        )

    def _fenced(self) -> int:
        appends = sum(partition.counters.fenced for partition in self.engine.partitions.values())
        return appends + self.memory.fenced()

    async def run(
        self,
        stop: asyncio.Event,
        *,
        once: bool,
        ends_at: float | None,
        on_status: Callable[[FlowStatus], None] | None,
    ) -> bool:
        """Run until stopped, or with ``once`` until done, or until the monotonic clock says ``ends_at``.

        Returns:
            Whether ``ends_at`` had passed.

        Raises:
            UsageError: With ``once``: no topic matches.
            ExceptionGroup: What ended one of the parts.
        """
        clusters = self.flow.source, self.flow.target
        register_metrics(self.registry, self.settings, self.status, clusters, self._fenced)
        url = self._answer()
        if not self.engine.partitions and not self.follower.left_out:
            self._say_nothing_matches(once=once)
        else:
            self._say_what_matches_nothing()
        announcing = Announcer(self.owner, self.memory, url)
        async with announcing as announcer, asyncio.TaskGroup() as group:
            watching = group.create_task(self._watch())
            tasks = [group.create_task(self.engine.run()), watching]
            tasks.append(group.create_task(announcer.run()))
            log_ends = LogEnds(self.flow, self.owner, self.engine.partitions.values)
            tasks.append(group.create_task(log_ends.run()))
            unanswered = Unanswered(self.flow, self.engine.changed)
            tasks.append(group.create_task(unanswered.run(self.engine.partitions.values)))
            tasks.append(group.create_task(self.follower.run(once=once)))
            if self.ranker is not None:
                tasks.append(group.create_task(self.ranker.run(self.engine.partitions.values)))
            forgetter = Forgetter(self.flow, self.owner, self.memory, self.engine.partitions.values)
            if not once:
                tasks.append(group.create_task(forgetter.run()))
            if on_status is not None:
                tasks.append(group.create_task(self._report(on_status)))
            await self._wait(stop, group, tasks[0], once=once, ends_at=ends_at)
            timed_out = ends_at is not None and time.monotonic() >= ends_at
            self._conclude()
            await self.engine.drain(DRAIN_SECONDS)
            self.drained_at = time.monotonic()
            watching.cancel()  # nothing is sent any more: that is no lag
            await self._leave_topics_ready()
            if once:
                await forgetter.forget_at_last(FINISH_SECONDS)
            for task in tasks:
                task.cancel()
        return timed_out

    async def _wait(
        self,
        stop: asyncio.Event,
        group: asyncio.TaskGroup,
        copying: asyncio.Task[None],
        *,
        once: bool,
        ends_at: float | None,
    ) -> None:
        """Wait for what ends the mirror. The waits are tasks of the group: an error in one ends it."""
        waits: list[asyncio.Task[Any]] = [group.create_task(stop.wait())]
        if once:
            goals = Goals(self.engine.partitions.values(), lambda: self.claims.awaits)
            timeout_seconds = None if ends_at is None else ends_at - time.monotonic()
            waits.append(group.create_task(goals.reached(timeout_seconds)))
        try:
            await asyncio.wait([*waits, copying], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def _leave_topics_ready(self) -> None:
        """Give prepared topics their own settings: there is no further pass over them."""
        try:
            async with asyncio.timeout(FINISH_SECONDS):
                await self.follower.finish()
        except (TwinsiteError, TimeoutError) as error:
            log.warning("topics_not_followed", error=str(error) or "no answer")

    def _conclude(self) -> None:
        """Check once more which partitions lag: the last look may be a second old."""
        now, now_ms = time.monotonic(), int(time.time() * 1000)
        self.watch.look(self.engine.partitions.values(), now=now, now_ms=now_ms)

    async def _watch(self) -> None:
        """The one loop that does not depend on the clusters: its heartbeat shows that we are alive."""
        self.heartbeats.expect(WATCH, within_seconds=WATCH_SILENT_SECONDS, now=time.monotonic())
        await self.watch.run(self.engine.partitions.values, lambda now: self.heartbeats.beat(WATCH, now))

    async def _report(self, on_status: Callable[[FlowStatus], None]) -> None:
        while True:
            began_at = time.monotonic()
            on_status(self.status())
            await asyncio.sleep(max(STATUS_SECONDS, (time.monotonic() - began_at) / STATUS_SHARE))

    def _say_nothing_matches(self, *, once: bool) -> None:
        """A mirror that runs for ever may wait for a topic to be made; more often a pattern is wrong.

        Raises:
            UsageError: With ``once``.
        """
        why, there = self.follower.why_nothing()
        if once:
            raise UsageError(why, hint=there)
        log.warning("no_topic_matches", include=list(self.settings.topics.include), message=f"{why}; {there}")

    def _say_what_matches_nothing(self) -> None:
        """Some topics are copied, and would hide that an expression for others is wrong."""
        unmatched = self.follower.unmatched()
        if unmatched:
            log.warning(
                "include_matches_nothing",
                include=unmatched[:UNMATCHED_MAX],
                count=len(unmatched),
                message=HIDDEN,
            )

    # -- the port for people ---------------------------------------------------------------------

    def _answer(self) -> str:
        """Have the port ask us from now on; returns its URL, empty where there is none."""
        if self.port is None:
            return ""
        from mirror.api.server import Backend

        backend = Backend(
            self.status,
            self._readiness,
            self.heartbeats,
            self.operator,
            self.operator.translate,
            self.registry,
        )
        self.port.serve(backend)
        return self.port.url

    def _readiness(self) -> Readiness:
        return Readiness(
            settings_loaded=True,
            source_reached=self.flow.source.last_answer_at is not None,
            target_reached=self.flow.target.last_answer_at is not None,
            flow_running=bool(self.follower.followed_once),
        )
