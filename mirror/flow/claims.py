"""Whether another flow copies into a target partition that this one is about to take.

Two flows in one partition double or mix what they copy. That happens where their topic
lists overlap, or where a flow was given another name. So before a partition is registered,
and again before its first record is written, the flow looks it up in what the other flows
have written down at the target. Each flow writes its own record before its last look: of
two that begin at once, at least one sees the other; if both do, one takes its record back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import structlog

from mirror.errors import ConnectionFailedError, TwinsiteError
from mirror.flow.facts import TargetLook
from mirror.flow.other_flows import OtherFlow, OtherFlows
from mirror.flow.taking import Claim, claim
from mirror.kafka.cluster import Cluster
from mirror.kafka.cluster_info import ClusterInfo
from mirror.logs import Repeats, warn_repeated
from mirror.model import TopicPartition

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Seen:
    """What was at the target at one moment.

    Attributes:
        flows: The other flows, sorted by name.
        unanswered: Why one of them is not known yet; None if all are.
    """

    topics: ClusterInfo
    flows: Sequence[OtherFlow]
    unanswered: TwinsiteError | None


class Claims:
    """What other flows have at one target.

    Args:
        flow: The name of our flow.
    """

    def __init__(self, target: Cluster, flow: str) -> None:
        self._target = target
        self._flows = OtherFlows(target, but_for=flow, relevant=lambda _: True, unread=self._unread)
        self._repeats = Repeats()
        self._one_looks = asyncio.Lock()
        self._seen: _Seen | TwinsiteError | None = None
        self._asked = self._answered = 0
        """How many calls have asked, and how many of them the last look has answered."""

    async def objections(
        self, looks: Mapping[TopicPartition, TargetLook]
    ) -> dict[TopicPartition, Claim | TwinsiteError]:
        """Why some of these target partitions may not be taken (a claim), or not now (an error).

        The partitions left out may be taken. All are looked up at once. Where the state of a flow cannot be
        read, that is logged. It is no objection if a retry will not help, as where we are not authorized; it
        is one to every partition if nothing of that state is known and the next try may succeed.

        Args:
            looks: What was seen of the partitions before this call.
        """
        seen = await self._look()
        if isinstance(seen, TwinsiteError):
            return dict.fromkeys(looks, seen)
        objections: dict[TopicPartition, Claim | TwinsiteError] = {}
        for tp, look in looks.items():
            topic = seen.topics.topics.get(tp.topic)
            claims = (claim(flow.name, flow.copies.get(tp), look) for flow in seen.flows)
            if topic is not None and str(topic.topic_id) != look.topic_id:
                objections[tp] = ConnectionFailedError(f"target: topic {tp.topic} was recreated just now")
            elif (first := next((one for one in claims if one is not None), None)) is not None:
                objections[tp] = first
            elif seen.unanswered is not None:
                objections[tp] = seen.unanswered
        return objections

    @property
    def awaits(self) -> bool:
        """Whether another flow may be writing down what it has: nothing is begun before that is known."""
        return self._flows.awaits

    async def _look(self) -> _Seen | TwinsiteError:
        """What is at the target, read no earlier than this call: calls during one look share the next one."""
        self._asked += 1
        number = self._asked
        async with self._one_looks:
            if self._seen is None or self._answered < number:
                asked = self._asked
                self._seen = await self._look_at_all()
                self._answered = asked
            return self._seen

    async def _look_at_all(self) -> _Seen | TwinsiteError:
        try:
            found = await self._target.describe_topics(None)
        except TwinsiteError as error:
            return error
        self._flows.see(found)
        flows = sorted(await self._flows.read(), key=lambda flow: flow.name)
        return _Seen(found, flows, self._flows.unanswered)

    def _unread(self, topic: str, error: TwinsiteError) -> None:
        warn_repeated(log, self._repeats, topic, "other_flow_not_known", topic=topic, error=str(error))
