"""Leave out topics of the source that are copies from the target.

Flows that write to the source keep their state there. It is read when a topic is new to
our flow: once as a whole, later only what was added. A topic that the flow has begun is
never left out again, and a copy of a copy goes round for ever; so no topic is begun
before each flow's state has been read once. State that may not be read at all is
reported in the log, and keeps no topic from being copied.

Sources: MirrorMaker 2's ``MirrorSourceConnector.isCycle``, which goes by names.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from uuid import UUID

import structlog

from mirror.errors import NotAuthorizedError, TwinsiteError
from mirror.flow.other_flows import OtherFlow, OtherFlows
from mirror.kafka.cluster import Cluster
from mirror.kafka.cluster_info import ClusterInfo, TopicInfo
from mirror.kafka.offsets import LATEST, list_offsets
from mirror.logs import Repeats, warn_repeated
from mirror.model import TopicLeftOut, TopicPartition
from mirror.sync.incoming import has_gone_round, judge, original_of
from mirror.sync.names import Ignored

log = structlog.get_logger(__name__)


class Returning:
    """Knows which topics of the source are copies of the target's.

    Args:
        target: Only flows that copy from this cluster are looked at.
        prefix: Our flow's prefix of target names.
    """

    def __init__(self, source: Cluster, target: Cluster, prefix: str) -> None:
        self._source = source
        self._target = target
        self._prefix = prefix
        target_cluster_id = target.info.cluster_id
        self._flows = OtherFlows(
            source,
            relevant=lambda flow: flow.source_cluster_id == target_cluster_id,
            unread=self._unread,
        )
        self._incoming: Sequence[OtherFlow] = ()
        """Flows from our target, as last read."""
        self._there: dict[str, UUID] = {}
        """Topics that would go home, and the id of the target's topic of that name."""
        self._hidden: dict[str, NotAuthorizedError] = {}
        """Topics that would go home, and the error that hides whether the target has a topic of that name."""
        self._settled: dict[UUID, TopicLeftOut] = {}
        self._told: set[tuple[UUID, str]] = set()
        self._repeats = Repeats()

    async def left_out(
        self, found: ClusterInfo, wanted: Mapping[str, str], begun: Collection[str]
    ) -> dict[str, TopicLeftOut]:
        """Those of the topics wanted that are not to be copied.

        Args:
            found: All topics of the source, internal ones too.
            wanted: Topics that the lists select, with their target names, by source name.
            begun: Topics that the flow copies already.

        Raises:
            TwinsiteError: A request to the source or the target fails.
        """
        self._forget_gone(found)
        if self._flows.see(found):  # a copy whose flow's state is gone is a topic like any other
            self._settled.clear()
        news = {name: found.topics[name] for name in wanted if name not in begun}
        left = {n: self._settled[t.topic_id] for n, t in news.items() if t.topic_id in self._settled}
        fresh = [topic for name, topic in news.items() if name not in left]
        if fresh:
            left |= await self._judge(found, wanted, fresh)
        self._tell({found.topics[name].topic_id: one for name, one in left.items()})
        return left

    def _forget_gone(self, found: ClusterInfo) -> None:
        """Forget topics that no longer exist; an empty answer proves nothing."""
        there = {topic.topic_id for topic in found.topics.values()}
        if there:
            self._settled = {topic_id: one for topic_id, one in self._settled.items() if topic_id in there}
            self._told = {(topic_id, reason) for topic_id, reason in self._told if topic_id in there}

    async def _judge(
        self, found: ClusterInfo, wanted: Mapping[str, str], fresh: Collection[TopicInfo]
    ) -> dict[str, TopicLeftOut]:
        self._incoming = await self._flows.read()
        await self._look_for_originals(wanted, fresh)
        left = {topic.name: one for topic in fresh if (one := self._look(topic, wanted)) is not None}
        unsure = [topic for topic in fresh if topic.name in left and _is_unsure(left[topic.name])]
        if unsure:
            written = await self._written(wanted, unsure)
            self._incoming = await self._flows.read()
            again = {topic.name: self._look(topic, wanted, written[topic.name]) for topic in unsure}
            left = {name: one for name in left if (one := again.get(name, left[name])) is not None}
        unanswered = self._flows.unanswered
        for topic in fresh:
            if topic.name not in left and has_gone_round(topic.name, found.topics, self._prefix):
                left[topic.name] = _gone_round(topic.name)
            elif topic.name not in left and unanswered is not None:
                left[topic.name] = _not_known_yet(topic.name, unanswered)
            may_change = topic.name in self._there or topic.name not in left or _is_unsure(left[topic.name])
            if not may_change:
                self._settled[topic.topic_id] = left[topic.name]
        return left

    def _look(
        self, topic: TopicInfo, wanted: Mapping[str, str], written: Collection[int] = ()
    ) -> TopicLeftOut | None:
        there = self._there.get(topic.name)
        for flow in self._incoming:
            reason = judge(flow, topic, copy_name=wanted[topic.name], there=there, written=written)
            if reason is not None:
                return _left_out(topic.name, reason, flow, goes_home=there is not None)
        hidden = self._hidden.get(topic.name)
        begun_by = next(
            (f for f in self._incoming if f.originals.get(topic.name) == wanted[topic.name]), None
        )
        if hidden is not None and begun_by is not None:
            return _original_hidden(topic.name, begun_by, hidden)
        return None

    async def _look_for_originals(self, wanted: Mapping[str, str], topics: Collection[TopicInfo]) -> None:
        """Find topics that would go home to one that still exists at the target, or is hidden there."""
        flows = self._incoming
        homes = {t.name for t in topics if any(original_of(f, t.name) == wanted[t.name] for f in flows)}
        self._there, self._hidden = {}, {}
        if not homes:
            return
        found = await self._target.describe_topics(sorted(wanted[name] for name in homes))
        for name in homes:
            error = found.errors.get(wanted[name])
            if wanted[name] in found.topics:
                self._there[name] = found.topics[wanted[name]].topic_id
            elif isinstance(error, NotAuthorizedError):
                self._hidden[name] = error

    async def _written(self, wanted: Iterable[str], topics: Collection[TopicInfo]) -> dict[str, set[int]]:
        """The partitions that were ever written to, by topic; those that do not answer are left out."""
        self._source.follow(wanted)
        await self._source.refresh()
        tps = [TopicPartition(topic.name, number) for topic in topics for number in topic.partitions]
        ends = await list_offsets(self._source, tps, LATEST)
        written: dict[str, set[int]] = {topic.name: set() for topic in topics}
        for tp, end in ends.items():
            if not isinstance(end, TwinsiteError) and end > 0:
                written[tp.topic].add(tp.partition)
        return written

    def _unread(self, topic: str, error: TwinsiteError) -> None:
        warn_repeated(log, self._repeats, topic, "copies_not_known", topic=topic, error=str(error))

    def _tell(self, left: Mapping[UUID, TopicLeftOut]) -> None:
        """Log of each topic, once for each reason, that it is left out, and why."""
        for topic_id, one in left.items():
            if (topic_id, one.reason) in self._told:
                continue
            self._told.add((topic_id, one.reason))
            level = logging.WARNING if one.reason == Ignored.GONE_ROUND else logging.INFO
            log.log(level, "topic_left_out", topic=one.topic, reason=one.reason, detail=one.detail)


def _is_unsure(one: TopicLeftOut) -> bool:
    return one.reason in {Ignored.UNDECIDED, Ignored.NOT_KNOWN}


def _left_out(topic: str, reason: Ignored, flow: OtherFlow, *, goes_home: bool) -> TopicLeftOut:
    original = original_of(flow, topic)
    if reason is Ignored.UNDECIDED:
        detail = (
            f"it is empty, and flow {flow.name} may be about to copy the target's {original} into it: "
            "it is copied once it holds anything else"
        )
    else:
        detail = f"flow {flow.name} has copied it from the target, where it is called {original}"
    if reason is Ignored.COPY_OF_TARGET and goes_home:
        detail += (
            " and still exists: to copy it back, delete the original first; to copy both ways, give the "
            "copies of one way a prefix (topics.names)"
        )
    return TopicLeftOut(topic, reason.value, detail)


def _original_hidden(topic: str, flow: OtherFlow, error: NotAuthorizedError) -> TopicLeftOut:
    detail = (
        f"flow {flow.name} has copied it from the target's {original_of(flow, topic)}, and may still do so: "
        f"the mirror is not authorized to see whether that topic exists: {error}"
    )
    return TopicLeftOut(topic, Ignored.NOT_KNOWN.value, detail)


def _not_known_yet(topic: str, error: TwinsiteError) -> TopicLeftOut:
    detail = f"it may be the copy of a flow whose state at the source could not be read yet: {error}"
    return TopicLeftOut(topic, Ignored.NOT_KNOWN.value, detail)


def _gone_round(topic: str) -> TopicLeftOut:
    detail = (
        "its name says that it is a copy of a copy of a copy, between clusters that copy each other: put "
        "copies into topics.exclude, or let the mirror read __twinsite_state topics at the source"
    )
    return TopicLeftOut(topic, Ignored.GONE_ROUND.value, detail)
