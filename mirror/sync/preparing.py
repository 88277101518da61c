"""Topics that are prepared to start where their sources do: how they are set up, when they are ready, which
settings they get then.

Until then their logs hold padding, which is deleted in the end. A flow that copies from
such a topic would mistake the padding for records. Its settings tell that a topic may be
in preparation; what its logs hold tells whether it is, for settings may stay for good.

Sources: docs/design.md, :mod:`mirror.flow.prepare`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence

from mirror.errors import TwinsiteError
from mirror.kafka.cluster import Cluster
from mirror.kafka.cluster_info import TopicInfo
from mirror.kafka.fetch import Fetched, Want
from mirror.kafka.offsets import EARLIEST, LATEST, by_leader, list_offsets
from mirror.kafka.peek import peek_at
from mirror.kafka.record_batch import is_null_batch, walk
from mirror.model import Reason, TopicPartition
from mirror.sync.topic_configs import KEEP_ALL, LONG_MAX, excluded
from mirror.sync.topics import Changes, Conflict, TopicFacts

PREPARING_CONFIGS = KEEP_ALL | {"retention.bytes": LONG_MAX}
"""Settings of a topic while it is prepared: DeleteRecords needs ``delete``, and nothing may expire. Nobody
else writes it this way, so a topic that was being prepared when a mirror ended is recognized by them.
"""
PEEK_BYTES_MAX = 64 << 10
"""How much is fetched of a partition to see its first batch; a larger batch comes alone."""


class Preparations:
    """Topics of the target that are being prepared, and what each gets afterwards.

    Attributes:
        final: The settings each topic gets when it is ready, by topic; None removes a setting.

    Args:
        exclude: Patterns of settings not taken over; see :func:`mirror.sync.topic_configs.excluded`.
    """

    def __init__(self, exclude: Sequence[str]) -> None:
        self.final: dict[str, Changes] = {}
        self._exclude = exclude
        self._refused: set[str] = set()

    def begin(self, name: str, configs: Mapping[str, str]) -> None:
        """Note that a topic was created to be prepared.

        Args:
            configs: The settings it would have been created with otherwise.
        """
        self.final[name] = {key: configs.get(key) for key in PREPARING_CONFIGS}
        self._refused.discard(name)

    def see(self, topic: TopicFacts, source: TopicFacts | None) -> None:
        """Recognize by its settings a topic that is being prepared, or was when a mirror ended.

        It gets the source's settings when it is ready; each call notes what those are now.
        """
        self.check(topic)
        if source is None or not source.configs.values or not is_set_up_to_be_prepared(topic):
            return
        values = source.configs.values
        final = {key: None if excluded(key, self._exclude) else values.get(key) for key in PREPARING_CONFIGS}
        if final == PREPARING_CONFIGS:  # the source has the same settings: nothing to change afterwards
            self.end(topic.name)
        else:
            self.final[topic.name] = final

    def check(self, topic: TopicFacts) -> None:
        """Forget a topic whose settings are no longer those of a preparation.

        Another mirror has finished it, or an operator has set them. If they cannot be read, it is kept.
        """
        if topic.configs.values and not is_set_up_to_be_prepared(topic):
            self.end(topic.name)

    def unfinished(self, *, again: bool) -> set[str]:
        """Topics without their final settings; those that were refused them only with ``again``."""
        return {name for name in self.final if again or name not in self._refused}

    def refuse(self, name: str) -> None:
        """Note that the target refused to give a topic its final settings."""
        self._refused.add(name)

    def end(self, name: str) -> None:
        """Note that a topic is no longer being prepared."""
        self.final.pop(name, None)
        self._refused.discard(name)


def is_set_up_to_be_prepared(topic: TopicFacts) -> bool:
    """Whether a topic has all of ``PREPARING_CONFIGS`` set on itself."""
    own = {key: topic.configs.values.get(key) for key in topic.configs.explicit}
    return all(own.get(key) == value for key, value in PREPARING_CONFIGS.items())


def being_prepared(topic: str, target: str, partition: int) -> Conflict:
    """Why a source topic is not copied yet: this partition of it may still be in preparation."""
    words = (
        f"the source topic is being prepared by a flow that copies into it: its settings say so, and "
        f"partition {partition} was never written to, or begins with padding, or does not answer. If no such "
        f"flow exists, set its retention.bytes to -1, which means the same as {LONG_MAX}"
    )
    return Conflict(topic, target, Reason.SOURCE_BEING_PREPARED, words)


async def unready(source: Cluster, topics: Collection[TopicInfo], *, answer_seconds: float) -> dict[str, int]:
    """Those of the topics that may still be in preparation, and the first partition of each that may.

    Such a partition was never written to, begins with padding, or cannot be looked at for now.

    Args:
        topics: Topics that the cluster follows and that are set up to be prepared.
        answer_seconds: How long leaders have to say where their logs begin and end. To fetch what they begin
            with may take longer: the link may be slow.

    Raises:
        ConnectionFailedError: No broker of the source answers.
    """
    tps = [TopicPartition(topic.name, number) for topic in topics for number in sorted(topic.partitions)]
    try:
        async with asyncio.timeout(answer_seconds):
            await source.refresh()
            asked = (list_offsets(source, tps, which) for which in (EARLIEST, LATEST))
            starts, ends = await asyncio.gather(*asked)
    except TimeoutError:
        starts = ends = {}
    bounds = {tp: (_offset(starts.get(tp)), _offset(ends.get(tp))) for tp in tps}
    blank = {tp for tp, (start, end) in bounds.items() if not 0 <= start <= end or end == 0}
    waiting = {tp.topic for tp in blank}
    written = {tp: start for tp, (start, end) in bounds.items() if start < end and tp.topic not in waiting}
    not_ready = blank | (written.keys() - await _holding_records(source, written))
    first: dict[str, int] = {}
    for tp in tps:
        if tp in not_ready:
            first.setdefault(tp.topic, tp.partition)
    return first


def _offset(answer: int | TwinsiteError | None) -> int:
    return answer if isinstance(answer, int) else -1


async def _holding_records(source: Cluster, starts: Mapping[TopicPartition, int]) -> set[TopicPartition]:
    """Those partitions whose leaders show that they begin with something other than padding."""
    found: set[TopicPartition] = set()

    async def ask(node: int, tps: Collection[TopicPartition]) -> None:
        left = {tp: Want(starts[tp], -1, -1, PEEK_BYTES_MAX) for tp in tps}
        try:
            while left and (came := await peek_at(source, node, left)):
                found.update(tp for tp, fetched in came.items() if _begins_with_records(fetched))
                left = {tp: want for tp, want in left.items() if tp not in came}
        except TwinsiteError:
            return

    await asyncio.gather(*(ask(node, tps) for node, tps in by_leader(source, starts).items()))
    return found


def _begins_with_records(fetched: Fetched) -> bool:
    first = next(walk(fetched.records), None)
    return fetched.error_code == 0 and first is not None and not is_null_batch(*first)
