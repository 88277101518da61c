"""Which way each partition comes over a stream, and when each way was last heard: so, how old its news is.

A relay does not mention a partition that has nothing new. So any answer that comes a partition's way says
that nothing has changed for it. While a partition may be moving to another way nothing is known of it, until
it comes that way.

No I/O; moments are in monotonic seconds. Source: docs/protocol.md.
"""

from __future__ import annotations

from collections.abc import Mapping

from mirror.flow.partition import PartitionCopy
from mirror.kafka.fetch import Isolation, Key
from mirror.link.channels import Channels
from mirror.link.greeting import Trouble
from mirror.link.parts import Part
from mirror.link.protocol import Channel

Way = tuple[int, int]
"""A channel, and a broker that the relay reads: a partition that an answer this way does not mention has not
changed. Not so on BULK, or for a partition that is moving there: its news may be waiting for its turn."""
OWN = frozenset(Channel)
"""The channels of what is read for this mirror alone."""


class Ways:
    """The ways of all partitions of a stream.

    Attributes:
        of: The way of each partition of which something is known.
        heard_at: When the relay read what last came each way, or a moment before that.

    Args:
        isolation: The isolation level with which the source is read.
    """

    def __init__(self, isolation: Isolation) -> None:
        self.of: dict[Key, Way] = {}
        self.heard_at: dict[Way, float] = {}
        self._shared: dict[Key, int] = {}
        """The shared channel of each partition that does not come by the mirror's own channels."""
        self._isolation = isolation

    # -- how old the news are ----------------------------------------------------------------------

    def answered_at(self, partition: PartitionCopy) -> float | None:
        """When the relay last gave news of a partition, or by silence said there is none; on BULK only the
        former counts. None if nothing is known of it.
        """
        way = self.of.get(partition.key)
        if way is None or way not in self.heard_at:
            return None
        return partition.told_at if way[0] == Channel.BULK else self.heard_at[way]

    def arriving_at(self, partition: PartitionCopy, channels: Channels) -> float | None:
        """When the last piece came of a frame that may bring news of a partition, or that delays them.

        A partition on BULK is delayed by more urgent ones, from any broker; one that is changing channels by
        what comes by the other channel. None if nothing is known of the partition, as while the relay has
        trouble with its broker.
        """
        way = self.of.get(partition.key)
        if way is None or way not in self.heard_at:
            return None
        signs = [channels.piece_at()]
        if way[0] == Channel.BULK:
            signs += [at for (channel, _), at in self.heard_at.items() if channel == Channel.BULK]
        return max((at for at in signs if at is not None), default=None)

    # -- what comes --------------------------------------------------------------------------------

    def comes_by(self, key: Key, channel: int) -> bool:
        """Whether a partition comes by this channel; if it has moved, what still comes here is the last."""
        shared = self._shared.get(key)
        return channel in OWN if shared is None else channel == shared

    def after(self, part: Part, way: Way, read_at: float) -> Way:
        """The way by which more of a partition comes, after this part.

        A partition that could be read further may be changing channels, and then only its own parts have news
        of it. So it counts as on BULK, and that way as heard from at least ``read_at`` on.
        """
        if part.next_offset >= part.fetched.readable_end(self._isolation):
            return way
        behind = Channel.BULK, way[1]
        self.heard_at.setdefault(behind, read_at)
        return behind

    # -- what is known no more ---------------------------------------------------------------------

    def lose(
        self, key: Key, partition: PartitionCopy | None, but: tuple[Way, float | None] | None = None
    ) -> None:
        """Nothing is known of a partition until another part comes. What was last said held up to the last
        answer by its way.

        Args:
            but: A way, and when the answer before its last one came: for this way that one counts.
        """
        self._note(key, partition, but)
        self.of.pop(key, None)

    def forget(self, key: Key, partition: PartitionCopy | None) -> None:
        """Nothing is known of a partition; if it comes again, it comes by the mirror's own channels."""
        self.lose(key, partition)
        self._shared.pop(key, None)

    def moved(self, key: Key, partition: PartitionCopy | None, channel: int) -> None:
        """A partition moves to another channel; nothing is known of it until it comes there."""
        self.forget(key, partition)
        if channel not in OWN:
            self._shared[key] = channel

    def trouble(self, trouble: Trouble, partitions: Mapping[Key, PartitionCopy]) -> None:
        """The relay cannot read a broker, or any: their ways count again once heard."""
        for key in [key for key, way in self.of.items() if trouble.concerns(way[1])]:
            self._note(key, partitions.get(key))
        for way in [way for way in self.heard_at if trouble.concerns(way[1])]:
            del self.heard_at[way]

    def clear(self, partitions: Mapping[Key, PartitionCopy]) -> None:
        """The stream has ended."""
        for key in list(self.of):
            self.lose(key, partitions.get(key))
        self._shared.clear()
        self.heard_at.clear()

    def _note(
        self, key: Key, partition: PartitionCopy | None, but: tuple[Way, float | None] | None = None
    ) -> None:
        way = self.of.get(key)
        if partition is None or way is None or way[0] == Channel.BULK:
            return
        at = but[1] if but is not None and but[0] == way else self.heard_at.get(way)
        if at is not None:
            partition.still_so(at)
