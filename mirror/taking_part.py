"""Take part in a flow: read its durable state, claim it on the target, and build from settings what will run.

A mirror does this, and so does a repair. Nothing runs yet, and no partition is looked at.
"""

from __future__ import annotations

from functools import partial

from prometheus_client import CollectorRegistry

from mirror.config import LinkSettings, Settings
from mirror.config_limits import periods_of
from mirror.flow.context import Flow, Hooks, Limits, LinkLimits
from mirror.flow.introducing import introduce, open_memory, written_again
from mirror.flow.memory import FlowMemory
from mirror.flow.owner import Owner
from mirror.flow.turn import Turn
from mirror.kafka.buffers import BufferPool
from mirror.kafka.cluster import Cluster
from mirror.kafka.fetch import FetchLimits, Isolation
from mirror.kafka.log_port import PATIENCE_SECONDS
from mirror.link.parts import HEARTBEAT_SECONDS
from mirror.observing import instruments_of
from mirror.patience import Patience
from mirror.sync.names import NamePolicy


async def take_part(
    settings: Settings,
    source: Cluster,
    target: Cluster,
    begin: Patience,
    *,
    state_patience_seconds: float = PATIENCE_SECONDS,
) -> tuple[Owner, FlowMemory]:
    """Read the flow's durable state, and claim the flow on the target unless the state forbids it.

    A claim holds up the mirror that copies the flow: one that would be refused must not be made.

    Args:
        state_patience_seconds: How long each read or write of the state is retried. A caller that retries and
            reports by itself allows no more than the time for which the right is asked for.

    Raises:
        TwinsiteError: The state is of other clusters or names, or it cannot be claimed.
    """
    owner = Owner(target, settings.flow)
    state = "the flow's state at the target"
    opened = partial(open_memory, settings.flow, target, owner, state_patience_seconds)
    memory = await begin.take(state, opened, target)
    await begin.take(state, lambda: written_again(memory, owner), target)
    prefix = settings.topics.prefix or ""
    memory.check_names(NamePolicy(prefix).to_target)
    memory.check_clusters(source.info.cluster_id, target.info.cluster_id)
    claim = partial(owner.claim, new_flow=not memory.introduced)
    await begin.take("the transaction coordinator of the target", claim, target)
    await begin.take(
        "the flow's record at the target",
        lambda: introduce(memory, owner, source, target, prefix),
        target,
    )
    return owner, memory


def flow_of(
    settings: Settings,
    source: Cluster,
    target: Cluster,
    memory: FlowMemory,
    turn: Turn,
    hooks: Hooks,
    registry: CollectorRegistry,
) -> Flow:
    """A flow of which nothing runs yet.

    Args:
        registry: For its instruments.
    """
    limits = _limits(settings)
    return Flow(
        name=settings.flow,
        source=source,
        target=target,
        limits=limits,
        pool=BufferPool(limits.buffer_bytes_max),
        instruments=instruments_of(registry, settings.flow, (source, target)),
        hooks=hooks,
        producer_id=memory.producer_id,
        producer_epoch=memory.producer_epoch,
        turn=turn,
        link=_link(settings.link) if settings.link else None,
    )


def _limits(settings: Settings) -> Limits:
    isolation = Isolation[settings.read.isolation.upper()]
    return Limits(
        fetch=FetchLimits(
            wait_ms_max=_wait_ms_max(settings),
            bytes_max=settings.read.fetch_bytes_max,
            isolation=isolation,
        ),
        fetch_connections=settings.read.connections_per_broker,
        append_connections=settings.append.connections_per_broker,
        partition_fetch_bytes_max=settings.read.partition_fetch_bytes_max,
        request_bytes_max=settings.append.request_bytes_max,
        requests_in_flight_max=settings.append.requests_in_flight_max,
        batches_in_flight_max=settings.append.batches_in_flight_max,
        buffer_bytes_max=settings.limits.buffer_bytes_max,
        partition_buffer_bytes_max=settings.limits.partition_buffer_bytes_max,
        gap_limit=settings.offsets.gap_limit,
        padding_limit=settings.offsets.padding_limit,
    )


def _wait_ms_max(settings: Settings) -> int:
    """How long a broker may hold a fetch when it has no news, in milliseconds.

    With a link it is the interval at which a relay speaks: brokers behind one without streams do likewise.
    """
    return settings.read.fetch_wait_ms_max if settings.link is None else round(HEARTBEAT_SECONDS * 1000)


def _link(settings: LinkSettings) -> LinkLimits:
    level = 0 if settings.compression == "auto" else settings.compression
    return LinkLimits(
        window_bytes=settings.window_bytes,
        level=level,
        recode=settings.recode == "auto",
        connections=0 if settings.connections == "auto" else settings.connections,
        rates=periods_of(settings.limits),
    )
