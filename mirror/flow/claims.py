"""Whether another flow copies into a target partition that this one is about to take.

Two flows in one partition double or mix what they copy: two whose lists overlap, or one
that was given another name. So before a partition is registered, and once more before the
first record is written, it is looked up in what the others have written down at the target.
Each writes its own record before it looks for the last time: of two that begin at once one
sees the other at least, and where both do one takes its record back.
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
    """What there was at the target at some moment.

    Attributes:
        flows: The others, by name.
        unanswered: Why nothing is known yet of one of them.
    """

    topics: ClusterInfo
    flows: Sequence[OtherFlow]
    unanswered: TwinsiteError | None


class Claims:
    """What other flows have in one target.

    Args:
        flow: The name of ours.
    """

    def __init__(self, target: Cluster, flow: str) -> None:
        self._target = target
        self._flows = OtherFlows(target, but_for=flow, relevant=lambda _: True, unread=self._unread)
        self._repeats = Repeats()
        self._one_looks = asyncio.Lock()
        self._seen: _Seen | TwinsiteError | None = None
        self._asked = self._answered = 0
        """Those who have asked, and those whom the last look has answered."""

    async def objections(
        self, looks: Mapping[TopicPartition, TargetLook]
    ) -> dict[TopicPartition, Claim | TwinsiteError]:
        """Why some of these target partitions may not be taken, or not be now; the others may.

        All are looked up at once. A state that may not be read is said, and objects to nothing; one of which
        nothing was read yet, and may be at the next try, objects to all.

        Args:
            looks: What was seen of them, before they are asked for here.
        """
        seen = await self._look()
        if isinstance(seen, TwinsiteError):
            return dict.fromkeys(looks, seen)
        objections: dict[TopicPartition, Claim | TwinsiteError] = {}
        for tp, look in looks.items():
            topic = seen.topics.topics.get(tp.topic)
            claims = (claim(flow.name, flow.copies.get(tp), look) for flow in seen.flows)
            if topic is not None and str(topic.topic_id) != look.topic_id:
                objections[tp] = ConnectionFailedError(f"target: topic {tp.topic} was made anew just now")
            elif (first := next((one for one in claims if one is not None), None)) is not None:
                objections[tp] = first
            elif seen.unanswered is not None:
                objections[tp] = seen.unanswered
        return objections

    @property
    def awaits(self) -> bool:
        """Whether it is waited for what another flow may be writing down: until then nothing is begun."""
        return self._flows.awaits

    async def _look(self) -> _Seen | TwinsiteError:
        """What there is, no older than the question: all who ask during one look share the next one."""
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
