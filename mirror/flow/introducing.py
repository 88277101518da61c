"""What a flow remembers is opened, or begun: of several mirrors that start a new flow at once, by one.

Sources: docs/decisions/0003-owner-by-transactional-id.md.
"""

from __future__ import annotations

import asyncio
import time
from functools import partial

import structlog

from checkpoint.errors import StateTakenOverError
from checkpoint.flow_state import FlowState
from checkpoint.topic_store import TopicStore
from mirror.flow.memory import FlowMemory
from mirror.flow.owner import Owner
from mirror.flow.succession import TAKE_OVER_AFTER_SECONDS
from mirror.kafka.cluster import Cluster
from mirror.kafka.log_port import FLUSHED, TopicLog, ensure_state_topic
from mirror.topic_names import STATE_TOPIC_PREFIX

log = structlog.get_logger(__name__)

PAUSE_SECONDS = 0.2
WRITTEN_AGAIN_SECONDS = 20.0
"""Where nothing has come for so long nobody writes a state again. An owner sees within a second or two that
its topic is gone, and begins two seconds later. One that stands by takes the place of a dead one after five,
of which it is sure at a look ten seconds after the first at most; it begins 2.5 seconds later, or two more.
"""
UNUSUAL_SECONDS = 5.0
"""Another mirror that begins a new flow has written its record by then."""
STATE_TOPIC_REPLICAS_MAX = 3


async def open_memory(flow: str, target: Cluster, owner: Owner, patience_seconds: float) -> FlowMemory:
    """The flow's durable state, read from its topic at the target; the topic is made where there is none.

    A topic made while brokers were missing has fewer replicas than it would be given now, and one that
    somebody else has made may lose its end to a power cut: that is said.

    Args:
        patience_seconds: For how long to try again what the topic is asked for, now and later.

    Raises:
        TwinsiteError: The topic cannot be read, or not be made.
    """
    topic = f"{STATE_TOPIC_PREFIX}{flow}"
    replicas = min(STATE_TOPIC_REPLICAS_MAX, len(target.info.brokers))
    found = await ensure_state_topic(target, topic, replicas)
    make = partial(ensure_state_topic, target, topic, replicas)
    records = TopicLog(target, topic, patience_seconds=patience_seconds, make=make)
    store = TopicStore(records, writer=lambda: owner.token, begun=owner.begun, outdated=owner.outdated)
    owner.taken_over = store.taken_over
    state = FlowState(store)
    await state.load()
    if found.replicas < replicas:
        log.warning("state_topic_has_few_replicas", topic=topic, replicas=found.replicas, wanted=replicas)
    if found.flushed is False:
        log.warning("state_topic_not_flushed", topic=topic, wanted=FLUSHED)
    return FlowMemory(state, fenced=lambda: store.fenced, cut_short=lambda: store.cut_short)


async def written_again(memory: FlowMemory, owner: Owner) -> None:
    """Return when the state knows the flow, or nobody is about to write it again.

    Where somebody has had the right to a flow without a record its state topic was deleted, perhaps just now.
    Who copies writes all of it again, unless the right is taken from it before; so it is given the time.
    That may take long: it counts how long nothing has come. Where a mirror died between its claim and the
    record nothing does; where another is just about to write that, it is there soon.

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
    """Of several mirrors that start a new flow at once, one writes its record; the others wait for it, and
    no longer than it takes one that lives.
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
