"""Leave out the copies that have come from the target.

What the flows that write to the source remember there is read when a topic is new to
our flow, and then only what has come since. A topic the flow has begun is never left
out again. What may not be read, or not now, is said, and keeps no topic from being
copied: one copy too many does less harm than one that is missing.

Sources: MirrorMaker 2's ``MirrorSourceConnector.isCycle``, which goes by names.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping
from uuid import UUID

import structlog

from checkpoint.topic_store import TopicStore
from mirror.errors import TwinsiteError
from mirror.kafka.cluster import Cluster
from mirror.kafka.cluster_info import ClusterInfo, TopicInfo
from mirror.kafka.log_port import TopicLog
from mirror.kafka.offsets import LATEST, list_offsets
from mirror.logs import Repeats, warn_repeated
from mirror.model import TopicLeftOut, TopicPartition
from mirror.sync.incoming import Incoming, has_gone_round
from mirror.sync.names import Ignored
from mirror.topic_names import STATE_TOPIC_PREFIX

log = structlog.get_logger(__name__)


class Returning:
    """Knows which topics of the source are copies of what the target has.

    Args:
        target_cluster_id: Flows from there are looked at.
        prefix: What our flow puts in front of names.
    """

    def __init__(self, source: Cluster, target_cluster_id: str, prefix: str) -> None:
        self._source = source
        self._target_cluster_id = target_cluster_id
        self._prefix = prefix
        self._stores: dict[UUID, TopicStore] = {}
        """Of the flows whose state is at the source, by the id of its topic."""
        self._incoming: dict[UUID, Incoming] = {}
        self._elsewhere: set[UUID] = set()
        """States of flows that come from another cluster than our target."""
        self._settled: dict[UUID, TopicLeftOut] = {}
        self._told: set[tuple[UUID, str]] = set()
        self._repeats = Repeats()

    async def left_out(
        self, found: ClusterInfo, wanted: Mapping[str, str], begun: Collection[str]
    ) -> dict[str, TopicLeftOut]:
        """Those of the topics wanted that are not to be copied.

        Args:
            found: All topics of the source, internal ones too.
            wanted: What the lists want, by source name, and what it would be called at the target.
            begun: Topics that the flow copies already.

        Raises:
            TwinsiteError: The source cannot be asked.
        """
        states = {t.topic_id: name for name, t in found.topics.items() if name.startswith(STATE_TOPIC_PREFIX)}
        self._forget_gone(states)
        news = {name: found.topics[name] for name in wanted if name not in begun}
        left = {n: self._settled[t.topic_id] for n, t in news.items() if t.topic_id in self._settled}
        fresh = [topic for name, topic in news.items() if name not in left]
        if fresh:
            left |= await self._judge(found, wanted, fresh, states)
        self._tell({found.topics[name].topic_id: one for name, one in left.items()})
        return left

    def _forget_gone(self, states: Mapping[UUID, str]) -> None:
        """Without the state of its flow a copy is a topic like any other."""
        gone = self._stores.keys() - states.keys()
        for topic_id in gone:
            del self._stores[topic_id]
            self._incoming.pop(topic_id, None)
        if gone or states.keys() - self._stores.keys():
            self._settled.clear()

    async def _judge(
        self,
        found: ClusterInfo,
        wanted: Mapping[str, str],
        fresh: Collection[TopicInfo],
        states: Mapping[UUID, str],
    ) -> dict[str, TopicLeftOut]:
        await self._read(states)
        left = {topic.name: one for topic in fresh if (one := self._look(topic, wanted)) is not None}
        unsure = [topic for topic in fresh if topic.name in left and _is_unsure(left[topic.name])]
        if unsure:
            written = await self._written(wanted, unsure)
            await self._read(states)
            again = {topic.name: self._look(topic, wanted, written[topic.name]) for topic in unsure}
            left = {name: one for name in left if (one := again.get(name, left[name])) is not None}
        for topic in fresh:
            if topic.name not in left and has_gone_round(topic.name, found.topics, self._prefix):
                left[topic.name] = _gone_round(topic.name)
            if topic.name in left and not _is_unsure(left[topic.name]):
                self._settled[topic.topic_id] = left[topic.name]
        return left

    def _look(
        self, topic: TopicInfo, wanted: Mapping[str, str], written: Collection[int] = ()
    ) -> TopicLeftOut | None:
        for flow in self._incoming.values():
            reason = flow.judge(
                topic.name, topic.partitions.keys(), copy_name=wanted[topic.name], written=written
            )
            if reason is not None:
                return _left_out(topic.name, reason, flow)
        return None

    async def _written(self, wanted: Iterable[str], topics: Collection[TopicInfo]) -> dict[str, set[int]]:
        """The partitions that hold records; one that cannot be asked may hold none."""
        self._source.follow(wanted)
        await self._source.refresh()
        tps = [TopicPartition(topic.name, number) for topic in topics for number in topic.partitions]
        ends = await list_offsets(self._source, tps, LATEST)
        written: dict[str, set[int]] = {topic.name: set() for topic in topics}
        for tp, end in ends.items():
            if not isinstance(end, TwinsiteError) and end > 0:
                written[tp.topic].add(tp.partition)
        return written

    async def _read(self, states: Mapping[UUID, str]) -> None:
        unread = {topic_id: name for topic_id, name in states.items() if topic_id not in self._elsewhere}
        await asyncio.gather(*(self._read_one(topic_id, name) for topic_id, name in unread.items()))

    async def _read_one(self, topic_id: UUID, topic: str) -> None:
        """What was known of a flow is known still when it cannot be read."""
        store = self._stores.setdefault(topic_id, TopicStore(TopicLog(self._source, topic)))
        try:
            incoming = Incoming.of(topic.removeprefix(STATE_TOPIC_PREFIX), await store.load())
        except TwinsiteError as error:
            warn_repeated(log, self._repeats, topic, "copies_not_known", topic=topic, error=str(error))
            return
        if incoming is not None and incoming.source_cluster_id == self._target_cluster_id:
            self._incoming[topic_id] = incoming
        elif incoming is not None:
            self._elsewhere.add(topic_id)

    def _tell(self, left: Mapping[UUID, TopicLeftOut]) -> None:
        """Say of each topic, once, that it is left out, and why."""
        for topic_id, one in left.items():
            if (topic_id, one.reason) in self._told:
                continue
            self._told.add((topic_id, one.reason))
            level = logging.WARNING if one.reason == Ignored.GONE_ROUND else logging.INFO
            log.log(level, "topic_left_out", topic=one.topic, reason=one.reason, detail=one.detail)


def _is_unsure(one: TopicLeftOut) -> bool:
    return one.reason == Ignored.UNDECIDED


def _left_out(topic: str, reason: Ignored, flow: Incoming) -> TopicLeftOut:
    original = flow.original(topic)
    if reason is Ignored.UNDECIDED:
        detail = (
            f"it is empty, and flow {flow.flow} may be about to copy the target's {original} into it: "
            "copied once it holds anything else"
        )
    else:
        detail = f"flow {flow.flow} has copied it from the target, where it is called {original}"
    return TopicLeftOut(topic, reason.value, detail)


def _gone_round(topic: str) -> TopicLeftOut:
    detail = (
        "by its name it has gone round twice, between clusters that copy each other's copies: put copies "
        "into topics.exclude, or let the mirror read __twinsite_state topics at the source"
    )
    return TopicLeftOut(topic, Ignored.GONE_ROUND.value, detail)
