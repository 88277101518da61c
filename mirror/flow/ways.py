"""By which way partitions come over a stream, and when each way was last heard: so, how old their news are.

A relay does not mention a partition of which there is nothing new: whatever comes by its way says that
nothing has changed. Of one that may come by another way by now nothing is known, until it does.

No I/O; moments are in monotonic seconds. Source: docs/protocol.md.
"""

from __future__ import annotations

from collections.abc import Mapping

from mirror.flow.partition import PartitionCopy
from mirror.kafka.fetch import Isolation, Key
from mirror.link.channels import Channels
from mirror.link.parts import Part
from mirror.link.protocol import Channel

Way = tuple[int, int]
"""A channel and a broker, as the relay reads it: what an answer does not mention has not changed. On BULK it
may have waited for its turn; so may what is on its way there."""
OWN = frozenset(Channel)
"""By these comes what is read for this mirror alone."""


class Ways:
    """The ways of all partitions of a stream.

    Attributes:
        of: Of each partition of which something is known.
        heard_at: When what came last by a way was read, or before.

    Args:
        isolation: With which the source is read.
    """

    def __init__(self, isolation: Isolation) -> None:
        self.of: dict[Key, Way] = {}
        self.heard_at: dict[Way, float] = {}
        self._shared: dict[Key, int] = {}
        """Of what does not come by the mirror's own channels: by which it does."""
        self._isolation = isolation

    # -- how old the news are ----------------------------------------------------------------------

    def answered_at(self, partition: PartitionCopy) -> float | None:
        """When the relay last told news of a partition, or the lack of them; of what is behind only news."""
        way = self.of.get(partition.key)
        if way is None or way not in self.heard_at:
            return None
        return partition.told_at if way[0] == Channel.BULK else self.heard_at[way]

    def arriving_at(self, partition: PartitionCopy, channels: Channels) -> float | None:
        """When a piece came last of a frame that is on its way, and has news of a partition or delays them.

        What is behind is delayed by what is more urgent, from whichever broker, and what is changing over by
        what comes by the other channel. None where the relay has trouble with its broker.
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
        """False where a partition has moved: what still comes of it by this channel is the last of it."""
        shared = self._shared.get(key)
        return channel in OWN if shared is None else channel == shared

    def after(self, part: Part, way: Way, read_at: float) -> Way:
        """By which more comes of a partition. One that could be read further may be changing over, and only
        its own parts have news of it: so it is on BULK, which is heard from then on.
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
        """Nothing is known of a partition until another part comes; up to the last answer it was as was told.

        Args:
            but: Of this way an answer before the last one counts.
        """
        self._note(key, partition, but)
        self.of.pop(key, None)

    def forget(self, key: Key, partition: PartitionCopy | None) -> None:
        """What comes of a partition from now on comes by the mirror's own channels, if anything does."""
        self.lose(key, partition)
        self._shared.pop(key, None)

    def moved(self, key: Key, partition: PartitionCopy | None, channel: int) -> None:
        """More of a partition comes by another channel: until then nothing is known of it."""
        self.forget(key, partition)
        if channel not in OWN:
            self._shared[key] = channel

    def trouble(self, node: int, partitions: Mapping[Key, PartitionCopy]) -> None:
        """The relay cannot read a broker, or with -1 any: its ways do not count until heard again."""
        for key in [key for key, way in self.of.items() if node in {way[1], -1}]:
            self._note(key, partitions.get(key))
        for way in [way for way in self.heard_at if node in {way[1], -1}]:
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
