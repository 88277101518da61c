"""Which of the partitions that are behind catch up first: what would be lost soonest, then what matters most.

Relays send those of the lowest rank and no others. Nothing here concerns what is up to date: that goes
before all of them.

Sources: docs/protocol.md (WANT, RANK), docs/settings.md (link.topics_first).
"""

from __future__ import annotations

import asyncio
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum

from mirror.flow.partition import PartitionCopy
from mirror.kafka.fetch import Key

RANK_SECONDS = 5.0
DANGER_SECONDS = 3600.0
"""What is lost so soon goes before everything else."""
HEADROOM_SECONDS = (600.0, 1800.0, DANGER_SECONDS, 6 * 3600.0, 24 * 3600.0, 7 * 24 * 3600.0)
"""Between two of them partitions are alike: each rank waits until the one before it is done."""
TOMBSTONES_SECONDS_MIN = HEADROOM_SECONDS[1]
"""A tombstone that may be lost is in danger, behind records that will be lost sooner than that."""


class TopicClass(IntEnum):
    """What the settings say of a topic."""

    FIRST = 0
    OTHER = 1
    LAST = 2


def class_of(topic: str, first: Sequence[str], last: Sequence[str]) -> TopicClass:
    """The class of a topic; first wins where both lists of patterns name it."""
    if any(re.fullmatch(pattern, topic) for pattern in first):
        return TopicClass.FIRST
    return TopicClass.LAST if any(re.fullmatch(pattern, topic) for pattern in last) else TopicClass.OTHER


def rank_of(topic_class: TopicClass, headroom_seconds: float | None) -> int:
    """The lowest goes first; from 0 to 255.

    Args:
        headroom_seconds: Until something of it is lost; None where that is not known, ``math.inf`` for never.
    """
    bands = len(HEADROOM_SECONDS)
    band = bands if headroom_seconds is None else bisect_right(HEADROOM_SECONDS, headroom_seconds)
    in_danger = headroom_seconds is not None and headroom_seconds < DANGER_SECONDS
    if in_danger:
        return band * len(TopicClass) + topic_class
    return (topic_class + 1) * (bands + 1) * len(TopicClass) + band


def most_urgent(retention_seconds: float | None, tombstone_seconds: float | None) -> float | None:
    """Of a partition of which records can go, and tombstones: when the first of it is lost.

    Retention is known to remove what is too old. A tombstone may be there or not, and goes with the second
    pass of a cleaner that comes when it comes: it is never taken for more urgent than what retention leaves
    half an hour.

    Args:
        retention_seconds: Until retention takes something; None where that is not known, or never.
        tombstone_seconds: Until compaction may take a tombstone; None likewise.
    """
    if tombstone_seconds is None:
        return retention_seconds
    bounded = max(tombstone_seconds, TOMBSTONES_SECONDS_MIN)
    return bounded if retention_seconds is None else min(retention_seconds, bounded)


class Ranker:
    """Keeps the ranks of a flow's partitions.

    Args:
        first, last: Patterns of topics.
        headroom: In seconds, of a partition; None where that is not known.
        ranked: Told what is another one now.
    """

    def __init__(
        self,
        first: Sequence[str],
        last: Sequence[str],
        headroom: Callable[[PartitionCopy], float | None],
        ranked: Callable[[Mapping[Key, int]], None],
    ) -> None:
        self._first = first
        self._last = last
        self._headroom = headroom
        self._ranked = ranked
        self._classes: dict[str, TopicClass] = {}

    async def run(self, partitions: Callable[[], Iterable[PartitionCopy]]) -> None:
        """Look again and again until cancelled."""
        while True:
            self.look(partitions())
            await asyncio.sleep(RANK_SECONDS)

    def look(self, partitions: Iterable[PartitionCopy]) -> None:
        """Rank them anew; what is gone is not behind."""
        changed: dict[Key, int] = {}
        classes: dict[str, TopicClass] = {}
        for partition in partitions:
            if partition.topic_gone:
                continue
            topic = partition.tp.topic
            if topic not in classes:
                classes[topic] = self._class(topic)
            rank = rank_of(classes[topic], self._headroom(partition))
            if rank != partition.rank:
                partition.rank = changed[partition.key] = rank
        self._classes = classes
        if changed:
            self._ranked(changed)

    def _class(self, topic: str) -> TopicClass:
        known = self._classes.get(topic)
        return class_of(topic, self._first, self._last) if known is None else known
