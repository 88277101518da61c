"""Which partition uses which connection.

A broker handles the requests of one connection in order, and reads the next only when the last is answered.
Over a few connections it reads one request while it works on another. But a request carries at most one batch
of a partition: with few partitions per lane, requests are small and cost the broker more than is gained. A
partition keeps to its lane, so that nothing of it overtakes what is in flight.

No I/O, and no event loop.

Sources: docs/decisions/0007.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from mirror.flow.partition import PartitionCopy

L = TypeVar("L")

PARTITIONS_ENOUGH = 16
"""When every lane has this many partitions, another one is opened."""


class Lanes(Generic[L]):
    """The lanes to each broker, opened as partitions come, and the partitions that use them."""

    def __init__(self, per_broker: int, open_lane: Callable[[int, int], L]) -> None:
        """
        Args:
            per_broker: The most lanes to one broker, at least one; another is opened when all that exist have
                ``PARTITIONS_ENOUGH``.
            open_lane: Opens a lane, given the broker's id and the lane's number, counted from 0.
        """
        self._per_broker = per_broker
        self._open_lane = open_lane
        self._lanes: defaultdict[int, list[L]] = defaultdict(list)
        self._on: dict[PartitionCopy, tuple[int, int, L]] = {}
        self._crowd: Counter[tuple[int, int]] = Counter()

    def __iter__(self) -> Iterator[L]:
        for lanes in self._lanes.values():
            yield from lanes

    def open(self, node: int) -> None:
        """Open the first lane to a broker before any partition uses it."""
        if not self._lanes[node]:
            self._lanes[node].append(self._open_lane(node, 0))

    def of(self, partition: PartitionCopy) -> L | None:
        """The partition's lane; None when it has none."""
        place = self._on.get(partition)
        return None if place is None else place[2]

    def to(self, node: int, partition: PartitionCopy) -> L:
        """The partition's lane to this broker: the one it has, else the one with the fewest partitions."""
        place = self._on.get(partition)
        return self._join(node, partition) if place is None or place[0] != node else place[2]

    def leave(self, partition: PartitionCopy) -> L | None:
        """Take the partition off its lane; returns that lane, None if it had none."""
        place = self._on.pop(partition, None)
        if place is None:
            return None
        node, slot, lane = place
        self._crowd[node, slot] -= 1
        return lane

    def _join(self, node: int, partition: PartitionCopy) -> L:
        self.leave(partition)
        lanes = self._lanes[node]
        crowds = [self._crowd[node, slot] for slot in range(len(lanes))]
        slot = crowds.index(min(crowds)) if lanes else 0
        if not lanes or (crowds[slot] >= PARTITIONS_ENOUGH and len(lanes) < self._per_broker):
            slot = len(lanes)
            lanes.append(self._open_lane(node, slot))
        lane = lanes[slot]
        self._on[partition] = node, slot, lane
        self._crowd[node, slot] += 1
        return lane
