"""Over which connection a partition is written.

A broker answers the requests of one connection one after the other, and each of them brings one batch of a
partition at most. Beside partitions that are behind, with batches of a megabyte, one that is up to date would
get a few small batches a second through; so what is up to date has a connection of its own.

No I/O, and no event loop.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar

from mirror.flow.lanes import Lanes
from mirror.flow.partition import PartitionCopy
from mirror.kafka.fetch import Isolation

URGENT_BYTES_MAX = 1 << 20
"""A partition with more than this to send is not up to date."""


class Lane(Protocol):
    """As :class:`mirror.flow.appending.AppendLane` is one."""

    def leave(self, partition: PartitionCopy) -> None:
        """It goes by another lane from now on; nothing of it is on its way."""


L = TypeVar("L", bound=Lane)
L_co = TypeVar("L_co", bound=Lane, covariant=True)


class OpenLane(Protocol[L_co]):
    """Makes a lane, from the broker's id and the lane's number, counted from 0."""

    def __call__(self, node: int, slot: int, *, queue_bytes_max: float = ...) -> L_co:
        """
        Args:
            queue_bytes_max: Of a partition with more to send it sends nothing.
        """


class AppendLanes(Generic[L]):
    """The lanes to each broker, and who travels on them."""

    def __init__(self, per_broker: int, isolation: Isolation, open_lane: OpenLane[L]) -> None:
        """
        Args:
            per_broker: How many lanes there may be to one broker for what is behind, as many for the rest.
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
        """Its lane to its leader. It changes over while nothing of it is on its way, to be overtaken.

        That may be at the leader before, which is cut off or frozen and answers nothing: what goes to the
        next one meanwhile could come to stand in the place of what was lost.
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

    def _is_urgent(self, partition: PartitionCopy) -> bool:
        """All there is of it is here, and that is little; later it is enough that it is little."""
        if partition.queue.bytes > URGENT_BYTES_MAX:
            return False
        at_end = partition.fetch_offset >= partition.readable_end(self._isolation)
        return at_end or self._urgent.of(partition) is not None
