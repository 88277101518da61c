"""Repair what a comparison has found, by the rules of the mirror itself.

A repair takes part in the flow like a mirror: it becomes the owner, looks where each partition goes on, and
appends there. It appends with a producer epoch that a mirror has to learn of first, so a mirror that runs
meanwhile neither does harm nor suffers any. For every batch it decides again what to append, from what the
target holds.

Without ``apply`` it looks at everything and writes nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from prometheus_client import CollectorRegistry

from mirror.clusters import START_SECONDS, both_connected
from mirror.config import Settings
from mirror.errors import StateConflictError, TwinsiteError, UsageError
from mirror.flow.announcing import announced
from mirror.flow.engine import Engine
from mirror.flow.facts import Known
from mirror.flow.holding import hold
from mirror.flow.memory import FlowMemory
from mirror.flow.position import Decision, Stop
from mirror.flow.turn import Turn
from mirror.kafka.cluster import Cluster
from mirror.kafka.topics import describe_configs
from mirror.link.loops import beside
from mirror.model import TopicPartition
from mirror.offline import flow_state
from mirror.patience import Patience
from mirror.repairing.bounds import Bounds, bounds_of
from mirror.repairing.model import Begun, Note, Repaired, Wanted
from mirror.repairing.part import Part, stands_still
from mirror.repairing.partition import PartitionRepair
from mirror.taking_part import flow_of, take_part
from spark_jobs.plan import PartitionPlan, Plan

PLAN_SECONDS_MAX = 6 * 3600
"""An older plan is refused: a tombstone written since may be gone, by default a day after it was written."""


async def repair(
    settings: Settings, plan: Plan, wanted: Wanted, note: Note, begun: Mapping[TopicPartition, Begun]
) -> list[Repaired]:
    """Carry out a plan, or find out what that would do.

    Args:
        begun: Batches whose end earlier repairs did not report, by target partition.

    Raises:
        UsageError: The plan is of another flow, or too old.
        NoStateError: The flow has never run against this target.
        NoRecordError: It has not begun there, or its state is being written again.
        StateConflictError: The plan is of other clusters.
        TwinsiteError: A cluster cannot be reached, or does not allow what is needed.
    """
    _check(settings, plan)
    async with _taking_part(settings, plan, apply=wanted.apply) as part:
        others = [one for one in plan.partitions if not wanted.concerns(one)]
        still = await _standing_still(part, others)
        some = [one for one in plan.partitions if wanted.concerns(one) or one.name in still]

        async def repaired(one: PartitionPlan) -> Repaired:
            seen = still.get(one.name)
            if isinstance(seen, TwinsiteError):
                return Repaired(one, why_not=str(seen))
            earlier = begun.get(one.target_name)
            work = PartitionRepair(part, one, wanted, note, made_at_ms=plan.made_at_ms, begun=earlier)
            return await work.run()

        return [await repaired(one) for one in some]


async def _standing_still(
    part: Part, plans: Sequence[PartitionPlan]
) -> Mapping[TopicPartition, Decision | TwinsiteError]:
    """Those of the partitions that have stopped although nothing is to be repaired in them, and why.

    What others wrote changed no key, or was put right again; or records wait to be copied and may not be.
    Partitions that cannot be looked at are included.
    """

    def known(name: TopicPartition) -> Known:
        found = part.memory.known(name)
        assert found is not None, f"{name} was known before"
        return found

    names = {one.name: one.target_name for one in plans if part.memory.known(one.name) is not None}
    answers = await part.decisions(names, known)
    late = {one.name for one in plans if one.pending.offsets}
    return {
        name: answer
        for name, answer in answers.items()
        if stands_still(answer) or (name in late and isinstance(answer, Stop))
    }


def _check(settings: Settings, plan: Plan) -> None:
    if plan.flow != settings.flow:
        raise UsageError(f"the plan is for flow {plan.flow}, the settings are for flow {settings.flow}")
    age = time.time() - plan.made_at_ms / 1000
    if age > PLAN_SECONDS_MAX:
        raise UsageError(
            f"the plan is {age / 3600:.0f} hours old, and {PLAN_SECONDS_MAX // 3600} hours is the limit",
            hint="run `twinsite reconcile` again",
        )


@asynccontextmanager
async def _taking_part(settings: Settings, plan: Plan, *, apply: bool) -> AsyncIterator[Part]:
    both = both_connected(settings, patience_seconds=START_SECONDS, reached=lambda _: None)
    async with both as (source, target):
        _check_clusters(plan, source, target)
        memory, owner = FlowMemory(await flow_state(target, settings.flow)), None
        if apply:
            begin = Patience(lambda _: None, once=True)
            owner, memory = await take_part(settings, source, target, begin)
        source.follow({one.name.topic for one in plan.partitions})
        target.follow({one.target_topic for one in plan.partitions})
        await asyncio.gather(source.refresh(), target.refresh())
        turn = owner.turn if owner else Turn()
        flow = flow_of(settings, source, target, memory, turn, Engine(), CollectorRegistry())
        bounds = await _bounds(target, sorted({one.target_topic for one in plan.partitions if one.mends}))
        part = Part(flow, memory, owner, settings.offsets.mode, bounds)
        async with AsyncExitStack() as working:
            if owner is not None:
                await working.enter_async_context(beside(hold(owner)))
                await working.enter_async_context(announced(owner, memory, ""))
            yield part


async def _bounds(target: Cluster, topics: Sequence[str]) -> dict[str, Bounds | TwinsiteError]:
    """What topics allow; the error if their settings cannot be read."""
    answers = await describe_configs(target, topics)
    return {
        topic: answer
        if isinstance(answer, TwinsiteError)
        else bounds_of({name: setting.value for name, setting in answer.items()})
        for topic, answer in answers.items()
    }


def _check_clusters(plan: Plan, source: Cluster, target: Cluster) -> None:
    reached = source.info.cluster_id, target.info.cluster_id
    planned = plan.source_cluster_id, plan.target_cluster_id
    if reached != planned:
        raise StateConflictError(
            f"the plan is for clusters {planned[0]} and {planned[1]}, but {reached[0]} and {reached[1]} "
            f"were reached",
            hint="check the addresses in the settings",
        )
