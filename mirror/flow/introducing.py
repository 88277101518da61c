"""Open the durable state of a flow, or begin it: of several mirrors that start a new flow at once, one does.

Sources: docs/decisions/0003-owner-by-transactional-id.md.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable

import structlog

from checkpoint.errors import StateTakenOverError
from checkpoint.flow_state import FlowState
from checkpoint.topic_store import TopicStore
from mirror.failpoints import reach
from mirror.flow.memory import FlowMemory
from mirror.flow.owner import Owner
from mirror.flow.succession import TAKE_OVER_AFTER_SECONDS
from mirror.kafka.cluster import Cluster
from mirror.kafka.log_port import FLUSHED, StateTopic, TopicLog, ensure_state_topic
from mirror.topic_names import STATE_TOPIC_PREFIX

log = structlog.get_logger(__name__)

PAUSE_SECONDS = 0.2
WRITTEN_AGAIN_SECONDS = 20.0
"""After this long without a write, nobody is rewriting a state. An owner detects within a second or two that
its topic is gone, and begins two seconds later. A standby takes the place of a dead owner after five seconds;
it is sure of that at a look at most ten seconds after the first, and begins 2.5 seconds later, or two more.
"""
UNUSUAL_SECONDS = 5.0
"""Another mirror that begins a new flow has written its record by then."""
STATE_TOPIC_REPLICAS_MAX = 3


async def open_memory(flow: str, target: Cluster, owner: Owner, patience_seconds: float) -> FlowMemory:
    """The flow's durable state, read from its topic at the target; a missing topic is created. Where
    it has to be created once more, it gets no fewer replicas than it would have got at first.

    Two things are logged: a topic with fewer replicas than it would get now, created while brokers were
    missing; and one that may lose its end to a power cut, created by somebody else.

    Args:
        patience_seconds: For how long requests to the topic are retried, now and later.

    Raises:
        TwinsiteError: The topic cannot be read or created.
    """
    topic = f"{STATE_TOPIC_PREFIX}{flow}"
    replicas = _replicas(target)
    found = await _made(target, topic, replicas)

    def make() -> Awaitable[StateTopic]:
        return _made(target, topic, max(replicas, _replicas(target)))

    records = TopicLog(target, topic, patience_seconds=patience_seconds, make=make)
    store = TopicStore(records, writer=lambda: owner.token, begun=owner.begun, outdated=owner.outdated)
    owner.taken_over = store.taken_over
    state = FlowState(store)
    await state.load()
    if found.replicas < replicas:
        log.warning("state_topic_has_few_replicas", topic=topic, replicas=found.replicas, wanted=replicas)
    if found.flushed is False:
        log.warning("state_topic_not_flushed", topic=topic, wanted=FLUSHED)
    return FlowMemory(
        state,
        fenced=lambda: store.fenced,
        cut_short=lambda: store.cut_short,
        news_at=lambda: store.news_at,
    )


def _replicas(target: Cluster) -> int:
    return min(STATE_TOPIC_REPLICAS_MAX, len(target.info.brokers))


async def _made(target: Cluster, topic: str, replicas: int) -> StateTopic:
    """The state topic, made now if it is not there."""
    found = await ensure_state_topic(target, topic, replicas)
    if found.made:
        reach("state_topic_made")
    return found


async def written_again(memory: FlowMemory, owner: Owner) -> None:
    """Return when the state knows the flow, or nobody is about to rewrite it.

    If somebody has held the right to a flow that has no record, its state topic was deleted, perhaps just
    now. The mirror that copies rewrites all of the state, unless it loses the right before; so it is given
    the time. That may take long, so what counts is how long nothing has been written. If a mirror died
    between its claim and its record, nothing comes; if one is about to write its record, that is there soon.

    Raises:
        TwinsiteError: The coordinator, or the state, cannot be asked.
    """
    if memory.introduced or await owner.holder() is None:
        return
    began, is_said = time.monotonic(), False
    while (silent_since := memory.unwritten_since) is not None:
        now = time.monotonic()
        if now - max(silent_since, began) >= WRITTEN_AGAIN_SECONDS:
            return
        if now - began >= UNUSUAL_SECONDS and not is_said:
            log.warning("flow_record_missing", waits_seconds=WRITTEN_AGAIN_SECONDS)
            is_said = True
        await asyncio.sleep(PAUSE_SECONDS)
        await memory.refresh(sole_writer=False)


async def introduce(
    memory: FlowMemory, owner: Owner, source: Cluster, target: Cluster, topic_prefix: str
) -> None:
    """Of several mirrors that start a new flow at once, one writes its record. The others wait for it, but no
    longer than a live mirror takes.

    Raises:
        AnotherClusterError: The flow was begun with another source or target.
        TwinsiteError: The coordinator or the state cannot be asked, or the state not be written.
    """
    waiting_since = time.monotonic()
    while True:
        while not memory.introduced and not await owner.confirm():
            if not owner.held and time.monotonic() - waiting_since > TAKE_OVER_AFTER_SECONDS:
                waiting_since = time.monotonic()
                await owner.claim()
            await asyncio.sleep(PAUSE_SECONDS)
            await memory.refresh(sole_writer=False)
        await memory.refresh(sole_writer=False)
        try:
            clusters = source.info.cluster_id, target.info.cluster_id
            assert owner.token is not None, "it is claimed first"
            await memory.introduce(owner.token.producer_id, *clusters, topic_prefix)
        except StateTakenOverError as error:
            log.info("another_mirror_starts_too", error=str(error))
            await asyncio.sleep(PAUSE_SECONDS)
        else:
            return
