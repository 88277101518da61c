"""A group: mirrors that read partitions up to their end, and get the same frames.

It reads by itself. Each frame is made once, and sent to every member by a channel that only the members have.
A member that does not keep up is dropped. Which mirrors are in a group, and what it reads, is decided in
:mod:`mirror.relay.sharing`.

Source: docs/protocol.md (SHARED, MOVED, ENDED).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Container
from dataclasses import dataclass
from typing import NamedTuple

from mirror.kafka.cluster import Cluster
from mirror.kafka.fetch import Isolation, Key
from mirror.link import protocol
from mirror.link.frames import Compression, Sealer
from mirror.link.protocol import MOVED_BYTES, Channel, Position
from mirror.relay.lane import Frame, Press, sealed
from mirror.relay.news import Gone, News, Taken, nothing, records_bytes
from mirror.relay.place import Place
from mirror.relay.reading import SourceReader
from mirror.relay.sending import Sender
from mirror.relay.tuning import Spent

MOVES_MAX = 10_000
"""Partitions of a mirror that move at once, at most, and no more than there is room to tell it of: else that
would delay what is urgent, or look as if the mirror did not read.
"""
SLOW_SECONDS = 0.5
"""How long a group waits for its mirrors; one that is slower reads for itself."""
COMPRESSION = Compression(2, 22, long=True)


class Who(NamedTuple):
    """Whose stream it is, recognized over a new stream, too: a mirror as it is known, and its flow with the
    flow's producer: several mirrors may connect from one address, with flows of the same name.
    """

    known_as: str
    flow: str
    producer_id: int


class Kind(NamedTuple):
    """What has to be equal for mirrors to get the same frames, whatever is in them."""

    isolation: Isolation
    recode: bool


@dataclass(slots=True, eq=False)
class Member:
    """One mirror's stream.

    Attributes:
        write: Sends it a message.
        room: Returns how many bytes of messages may be sent to it now.
        trouble: Tells it of a broker that cannot be read.
    """

    who: Who
    kind: Kind
    frame_bytes: int
    reader: SourceReader
    sender: Sender
    write: Callable[[bytes], None]
    room: Callable[[], int]
    trouble: Callable[[int, str], None]

    @property
    def moves(self) -> int:
        """How many partitions may move now."""
        return max(min(self.room() // MOVED_BYTES, MOVES_MAX), 0)


class Wanted(NamedTuple):
    """What a mirror wanted of a partition that a group reads now."""

    place: Place
    recode: bool


class Group:
    """Mirrors that get the same frames.

    Attributes:
        kind: What they have in common.
        members: The mirrors, with the number of the channel by which each gets the frames; without those that
            had no channel left.
        wanted: For each partition, what each member wants of it.
    """

    def __init__(
        self, cluster: Cluster, members: Collection[Member], give_up: Callable[[Member], None]
    ) -> None:
        """
        Args:
            give_up: Called with a member that is too slow.
        """
        self.kind = next(iter(members)).kind
        frame_bytes = min(member.frame_bytes for member in members)
        self.reader = SourceReader(cluster, self.kind.isolation, self, frame_bytes)
        self.members: dict[Member, int] = {}
        self.wanted: dict[Key, dict[Member, Wanted]] = {}
        self._places: dict[Key, Place] = {}
        """How far each partition was read, even after the reader has forgotten it."""
        self._give_up = give_up
        self._press = Press(Sealer(COMPRESSION))
        self._reading: asyncio.Task[None] | None = None
        for member in members:
            channel = member.sender.begin_shared(self._press.sealer.key)
            if channel is not None:
                self.members[member] = channel

    def start(self, broken: Callable[[BaseException], None]) -> None:
        """Begin to read; ``broken`` is called with the error if a bug ends that."""

        def ended(reading: asyncio.Task[None]) -> None:
            error = None if reading.cancelled() else reading.exception()
            if error is not None:
                broken(error)

        self._reading = asyncio.create_task(self.reader.run())
        self._reading.add_done_callback(ended)

    def close(self) -> None:
        """Stop reading. By then the members have been given back what they wanted."""
        for member, channel in self.members.items():
            member.sender.end_shared(channel)
        self.members.clear()
        self._press.close()
        if self._reading is not None:
            self._reading.cancel()

    # -- who takes part ----------------------------------------------------------------------------

    def take_over(self, wanted: dict[Key, dict[Member, Wanted]]) -> None:
        """Read these partitions for all members, each from the position of the least advanced member."""
        for member, channel in self.members.items():
            numbers = ((key, by_member[member].place.number) for key, by_member in wanted.items())
            member.write(protocol.moved(channel, numbers))
        self.wanted |= wanted
        for key, by_member in wanted.items():
            first = min((one.place for one in by_member.values()), key=lambda place: place.offset)
            recode = all(one.recode for one in by_member.values())
            self.reader.want([Position(key, 0, first.offset, first.fetched_epoch, recode)])
            self._places[key] = self.reader.places[key]

    def release(self, key: Key) -> dict[Member, Wanted]:
        """Stop reading a partition; returns what each member wants of it, from where on it is to read."""
        wanted = self.wanted.pop(key)
        for one in wanted.values():
            self._tell_where(key, one.place)
        self.reader.forget([key])
        del self._places[key]
        return wanted

    def epoch_of(self, key: Key) -> int:
        """The leader epoch of the last record that was read of a partition."""
        return self._places[key].fetched_epoch

    def _tell_where(self, key: Key, place: Place) -> None:
        """Set ``place`` to where this group has read the partition up to."""
        ours = self._places[key]
        place.offset, place.fetched_epoch = ours.offset, ours.fetched_epoch

    def drop(self, member: Member) -> dict[Key, Wanted]:
        """Send a member nothing more; returns what it wants, from where on it is to read."""
        del self.members[member]
        dropped = {key: by_member.pop(member) for key, by_member in self.wanted.items()}
        for key, one in dropped.items():
            self._tell_where(key, one.place)
        return dropped

    @property
    def behind(self) -> list[Key]:
        """Partitions to which more is written than can be sent: a group does not keep them."""
        return [key for key, place in self.reader.places.items() if place.behind]

    def led_by(self, nodes: Container[int]) -> list[Key]:
        """The partitions of the group that these brokers lead."""
        known = ((key, self.reader.partition(key)) for key in self.wanted)
        return [key for key, partition in known if partition is not None and partition.leader in nodes]

    # -- frames: an outlet of the reader -------------------------------------------------------------

    async def send(self, _: Channel, news: News, as_is: Container[Key], taken: Taken, gone: Gone) -> None:
        """As :class:`mirror.relay.reading.Outlet` says."""
        async with self._press.turn():
            await self._room()
            pieces = await sealed(self._press.sealer, news, as_is, recode=self.kind.recode)
            gone()  # ``pieces`` are compressed
            if not self.members:
                return
            for member, channel in self.members.items():
                frame = Frame(pieces, nothing, nothing)
                spent = Spent(records_bytes=records_bytes(news), wire_bytes=frame.left)
                member.sender.put(channel, frame, spent)
        taken()  # all frames go by one channel: later ones cannot overtake this one

    def trouble(self, node: int, words: str) -> None:
        """As :class:`mirror.relay.reading.Outlet` says."""
        for member in self.members:
            member.trouble(node, words)

    def closed(self, topics: Collection[str]) -> None:
        """Never called: nothing is shared that its mirrors may not read."""

    async def _room(self) -> None:
        """Wait until all members have room; those that have none after ``SLOW_SECONDS``, counted once for all
        of them, are given up.
        """
        ends_at = asyncio.get_running_loop().time() + SLOW_SECONDS
        for member in list(self.members):
            if member not in self.members:
                continue  # it left during the wait for another
            try:
                async with asyncio.timeout_at(ends_at):
                    await member.sender.has_room(self.members[member])
            except TimeoutError:
                if member in self.members:
                    self._give_up(member)
