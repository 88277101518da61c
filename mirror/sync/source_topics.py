"""The source side of copied topics: their settings, where they start, which of them are not ready yet.

What is known of a topic is kept from pass to pass. While a broker cannot report its settings, the last known
ones hold. Nothing is changed at the source.

Sources: :mod:`mirror.sync.preparing`, docs/design.md.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from mirror.config import TopicsSettings
from mirror.kafka.cluster import Cluster
from mirror.kafka.cluster_info import TopicInfo
from mirror.kafka.offsets import EARLIEST, list_offsets
from mirror.model import TopicPartition
from mirror.sync.describe import describe
from mirror.sync.names import NamePolicy
from mirror.sync.ownership import Memory
from mirror.sync.preparing import being_prepared, is_set_up_to_be_prepared, unready
from mirror.sync.topic_configs import retention_of, tombstones_kept_ms
from mirror.sync.topics import Conflict, CreateTopic, TopicFacts
from monitoring.outlook import Retention
from monitoring.tombstones import Tombstones

SETTINGS_SECONDS = 3.0
"""How long a pass waits for settings of new source topics that a broker cannot report yet."""
SETTINGS_PAUSE_SECONDS = 0.05
STARTS_SECONDS = 3.0
"""How long a pass waits to hear where partitions of new source topics start."""


class SourceTopics:
    """What is known of the source topics of one flow."""

    def __init__(self, settings: TopicsSettings, source: Cluster, memory: Memory, policy: NamePolicy) -> None:
        self._settings = settings
        self._source = source
        self._memory = memory
        self._policy = policy
        self._facts: dict[str, TopicFacts] = {}
        self._retention: dict[str, Retention] = {}
        self._tombstones: dict[str, Tombstones] = {}

    def facts(self, topic: str) -> TopicFacts | None:
        """What was last read of a topic; None if nothing was."""
        return self._facts.get(topic)

    def retention(self, topic: str) -> Retention:
        """What a topic keeps; without limits if it is only compacted."""
        return self._retention.get(topic, Retention())

    def tombstones(self, topic: str) -> Tombstones:
        """How long a topic keeps tombstones."""
        return self._tombstones.get(topic, Tombstones())

    def forget_but(self, kept: Collection[str]) -> None:
        """Forget all topics but these."""
        for of_topics in (self._facts, self._retention, self._tombstones):
            for name in of_topics.keys() - kept:
                of_topics.pop(name)

    async def describe(self, chosen: Mapping[str, TopicInfo]) -> dict[str, TopicFacts]:
        """Describe topics. Their settings are read once, or at every pass if they are kept in step.

        Settings that cannot be read for now stay as they were; if none are known, the next pass reads them.

        Raises:
            TwinsiteError: A request to the source fails.
        """
        for name, info in chosen.items():
            known = self._facts.get(name)
            if known is not None:
                self._facts[name] = replace(known, partitions=len(info.partitions))
        wanted = chosen if self._settings.sync_configs else set(chosen) - set(self._facts)
        found = await self._read([chosen[name] for name in wanted])
        read = {name: topic for name, topic in found.items() if not topic.unread}
        self._facts.update(read)
        now = time.monotonic()
        for name, topic in read.items():
            values = topic.configs.values
            self._retention[name] = retention_of(values)
            self._tombstones[name] = self.tombstones(name).then(tombstones_kept_ms(values), now=now)
        return {name: self._facts.get(name) or found[name] for name in chosen}

    async def _read(self, topics: Collection[TopicInfo]) -> dict[str, TopicFacts]:
        """Read topics; wait a little for settings of new topics that a broker cannot report yet."""
        end = time.monotonic() + SETTINGS_SECONDS
        found = await describe(self._source, topics)
        while time.monotonic() < end:
            new = [t for t in topics if found[t.name].unread and t.name not in self._facts]
            if not new:
                break
            await asyncio.sleep(SETTINGS_PAUSE_SECONDS)
            found |= await describe(self._source, new)
        return found

    async def unready(
        self, chosen: Mapping[str, TopicInfo], described: Mapping[str, TopicFacts]
    ) -> dict[str, Conflict]:
        """Topics that another flow is still preparing, and why they wait. A copy that was begun goes on.

        The settings of such a topic are read again at the next pass: a copy is not created with these.

        Raises:
            ConnectionFailedError: No broker of the source answers.
        """
        doubtful = [chosen[name] for name, topic in described.items() if is_set_up_to_be_prepared(topic)]
        doubtful = [topic for topic in doubtful if not self._begun(topic)]
        if not doubtful:
            return {}
        self._source.follow(chosen)
        found = await unready(self._source, doubtful, answer_seconds=STARTS_SECONDS)
        for name in found:
            self._facts.pop(name, None)
        to_target = self._policy.to_target
        return {name: being_prepared(name, to_target(name), first) for name, first in found.items()}

    def _begun(self, topic: TopicInfo) -> bool:
        return any(self._memory.known(TopicPartition(topic.name, number)) for number in topic.partitions)

    async def starting_late(
        self, creations: Sequence[CreateTopic], chosen: Mapping[str, TopicInfo]
    ) -> set[str]:
        """Target topics with a source partition that starts above 0, or does not say in time where it starts.

        A topic that is prepared for a late start may start at 0 nevertheless.

        Raises:
            ConnectionFailedError: No broker of the source answers.
        """
        sources = {self._policy.to_source(creation.name): creation.name for creation in creations}
        tps = [TopicPartition(n, p) for n in chosen if n in sources for p in chosen[n].partitions]
        if not tps:
            return set()
        self._source.follow(chosen)
        try:
            async with asyncio.timeout(STARTS_SECONDS):
                await self._source.refresh()
                starts = await list_offsets(self._source, tps, EARLIEST)
        except TimeoutError:
            return {sources[tp.topic] for tp in tps}
        return {sources[tp.topic] for tp, start in starts.items() if start != 0}
