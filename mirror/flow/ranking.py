"""Which of the partitions that are behind catch up first: what is about to be lost, what is nearly there,
what would be lost soonest, then what matters most.

Relays send the lowest rank and no other. Partitions that are caught up go before all ranks. One that was so
until a moment ago, as when a stream was cut, has little to catch up: it waits for no backlog of days.

Sources: docs/protocol.md (WANT, RANK), docs/settings.md (link.topics_first).
"""

from __future__ import annotations

import asyncio
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

from mirror.flow.partition import PartitionCopy
from mirror.kafka.fetch import Key

RANK_SECONDS = 5.0
NEARLY_SECONDS = 120.0
"""What lags no more than this goes before all others, but for what is lost within ten minutes."""
LITTLE_SECONDS = 3600.0
"""What lags no more than this goes before the others of its class; what is in danger goes before that."""
DANGER_SECONDS = 3600.0
"""What is lost sooner than this goes before all that is not, unless that lags NEARLY_SECONDS at most."""
HEADROOM_SECONDS = (600.0, 1800.0, DANGER_SECONDS, 6 * 3600.0, 24 * 3600.0, 7 * 24 * 3600.0)
"""Bounds of bands: partitions in one band are alike, and each rank waits until the one before it is done."""
TOMBSTONES_SECONDS_MIN = HEADROOM_SECONDS[1]
"""A tombstone counts as no more urgent than this: in danger, but after records that are lost sooner."""


class TopicClass(IntEnum):
    """Whether the settings put a topic first, last or in between."""

    FIRST = 0
    OTHER = 1
    LAST = 2


def class_of(topic: str, first: Sequence[str], last: Sequence[str]) -> TopicClass:
    """The class of a topic; first wins if both lists of patterns match."""
    if any(re.fullmatch(pattern, topic) for pattern in first):
        return TopicClass.FIRST
    return TopicClass.LAST if any(re.fullmatch(pattern, topic) for pattern in last) else TopicClass.OTHER


class Standing(NamedTuple):
    """How far behind a partition is, and what it risks.

    Attributes:
        lag_seconds: Since when something of it may be missing; None if not known.
        headroom_seconds: Until something of it is lost; None if not known, ``math.inf`` for never.
    """

    lag_seconds: float | None
    headroom_seconds: float | None


def rank_of(topic_class: TopicClass, standing: Standing) -> int:
    """The rank of a partition, from 0 to 255; the lowest goes first."""
    lag, headroom = standing.lag_seconds, standing.headroom_seconds
    if headroom is not None and headroom < HEADROOM_SECONDS[0]:
        return topic_class
    if lag is not None and lag <= NEARLY_SECONDS:
        return len(TopicClass)
    bands = len(HEADROOM_SECONDS) + 2
    band = bands - 1 if headroom is None else 1 + bisect_right(HEADROOM_SECONDS, headroom)
    if headroom is not None and headroom < DANGER_SECONDS:
        return band * len(TopicClass) + topic_class
    little = lag is not None and lag <= LITTLE_SECONDS
    return (topic_class + 1) * bands * len(TopicClass) + (0 if little else band)


def most_urgent(retention_seconds: float | None, tombstone_seconds: float | None) -> float | None:
    """Seconds until a partition loses something, to retention or to compaction; None if neither is known.

    Retention certainly removes what is too old. Whether there is a tombstone at all is not known, and it goes
    with the cleaner's second pass, whenever that is. So it never counts as more urgent than
    TOMBSTONES_SECONDS_MIN.

    Args:
        retention_seconds: Until retention takes something; None if not known, or never.
        tombstone_seconds: Until compaction may take a tombstone; None likewise.
    """
    if tombstone_seconds is None:
        return retention_seconds
    bounded = max(tombstone_seconds, TOMBSTONES_SECONDS_MIN)
    return bounded if retention_seconds is None else min(retention_seconds, bounded)


class Ranker:
    """Keeps the ranks of a flow's partitions.

    Args:
        first, last: Patterns of topic names.
        standing: How a partition stands.
        ranked: Called with the partitions whose rank has changed, and their new ranks.
    """

    def __init__(
        self,
        first: Sequence[str],
        last: Sequence[str],
        standing: Callable[[PartitionCopy], Standing],
        ranked: Callable[[Mapping[Key, int]], None],
    ) -> None:
        self._first = first
        self._last = last
        self._standing = standing
        self._ranked = ranked
        self._classes: dict[str, TopicClass] = {}

    async def run(self, partitions: Callable[[], Iterable[PartitionCopy]]) -> None:
        """Rank every RANK_SECONDS until cancelled."""
        while True:
            self.look(partitions())
            await asyncio.sleep(RANK_SECONDS)

    def look(self, partitions: Iterable[PartitionCopy]) -> None:
        """Rank the partitions once. Those whose topic is gone are skipped: they are not behind."""
        changed: dict[Key, int] = {}
        classes: dict[str, TopicClass] = {}
        for partition in partitions:
            if partition.topic_gone:
                continue
            topic = partition.tp.topic
            if topic not in classes:
                classes[topic] = self._class(topic)
            rank = rank_of(classes[topic], self._standing(partition))
            if rank != partition.rank:
                partition.rank = changed[partition.key] = rank
        self._classes = classes
        if changed:
            self._ranked(changed)

    def _class(self, topic: str) -> TopicClass:
        known = self._classes.get(topic)
        return class_of(topic, self._first, self._last) if known is None else known
