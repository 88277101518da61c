"""Over which connection a partition is written.

A broker answers the requests of one connection in order, and each request carries at most one batch of a
partition. On a connection shared with partitions that are behind and send batches of a megabyte, a partition
that is caught up would get only a few small batches a second through. So partitions that are caught up have
connections of their own.

No I/O, and no event loop.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar

from mirror.flow.lanes import Lanes
from mirror.flow.partition import PartitionCopy
from mirror.kafka.fetch import Isolation

URGENT_BYTES_MAX = 1 << 20
"""A partition with more than this to send is not caught up."""


class Lane(Protocol):
    """The part of :class:`mirror.flow.appending.AppendLane` that is needed here."""

    def leave(self, partition: PartitionCopy) -> None:
        """Nothing more of the partition is sent here."""


L = TypeVar("L", bound=Lane)
L_co = TypeVar("L_co", bound=Lane, covariant=True)


class OpenLane(Protocol[L_co]):
    """Opens a lane, given the broker's id and the lane's number, counted from 0."""

    def __call__(self, node: int, slot: int, *, queue_bytes_max: float = ...) -> L_co:
        """
        Args:
            queue_bytes_max: The lane sends nothing of a partition that has more than this queued.
        """


class AppendLanes(Generic[L]):
    """The lanes to each broker, and the partitions that use them."""

    def __init__(self, per_broker: int, isolation: Isolation, open_lane: OpenLane[L]) -> None:
        """
        Args:
            per_broker: The most lanes to one broker for what is behind; as many again for the rest.
            isolation: What the mirror may see of the source.
        """
        self._isolation = isolation
        self._behind: Lanes[L] = Lanes(per_broker, open_lane)
        self._urgent: Lanes[L] = Lanes(
            per_broker, lambda *of: open_lane(*of, queue_bytes_max=URGENT_BYTES_MAX)
        )

    def __iter__(self) -> Iterator[L]:
        yield from self._behind
        yield from self._urgent

    def to(self, node: int, partition: PartitionCopy) -> L:
        """The partition's lane to its leader. It changes lanes only while nothing of it is in flight.

        What is in flight may be with the previous leader, which is cut off or frozen and does not answer. A
        batch sent to the next leader meanwhile could be appended in the place of one that was lost.
        """
        held = self._behind.of(partition) or self._urgent.of(partition)
        if held is not None and partition.in_flight:
            return held
        lanes, others = self._behind, self._urgent
        if self._is_urgent(partition):
            lanes, others = others, lanes
        others.leave(partition)
        lane = lanes.to(node, partition)
        if held is not None and held is not lane:
            held.leave(partition)
        return lane

    def leave(self, partition: PartitionCopy) -> None:
        """The partition is not written any more; what is in flight of it is answered where it was sent."""
        for lanes in (self._behind, self._urgent):
            lane = lanes.leave(partition)
            if lane is not None:
                lane.leave(partition)

    def _is_urgent(self, partition: PartitionCopy) -> bool:
        """It becomes urgent when everything readable has been read and little is queued; it stays urgent as
        long as little is queued.
        """
        if partition.queue.bytes > URGENT_BYTES_MAX:
            return False
        at_end = partition.fetch_offset >= partition.readable_end(self._isolation)
        return at_end or self._urgent.of(partition) is not None
