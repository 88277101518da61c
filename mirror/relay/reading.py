"""Read the source's brokers for one mirror: from the positions it has told, and on from there by itself.

Every partition is on one of two channels. What is behind goes by BULK, a lot at a time; what is read up to
its end goes by LIVE, as soon as it is there, and first over the link. A partition changes over when the
mirror has taken the last frame with something of it: so nothing of it overtakes the rest.

Here is what the mirror wants, which way that goes, and what it is told of what nobody leads or it may not
read. How one broker is read by one channel stands in :mod:`mirror.relay.broker_lane`.

Source: docs/protocol.md.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Collection, Container, Coroutine, Iterable
from contextlib import suppress
from typing import Any, Protocol

from mirror.errors import AnswerError, TwinsiteError
from mirror.kafka.buffers import BufferPool
from mirror.kafka.cluster import Cluster
from mirror.kafka.cluster_info import ClusterInfo, PartitionInfo
from mirror.kafka.connection_pool import SILENT_SECONDS
from mirror.kafka.fetch import Isolation, Key
from mirror.link.parts import Part
from mirror.link.protocol import Channel, Position
from mirror.model import TopicPartition
from mirror.relay.broker_lane import BrokerLane
from mirror.relay.news import Gone, News, Taken, nothing, steady_us
from mirror.relay.place import ROUTE_TRIES, Place, refusal
from mirror.relay.turns import Turns

IDLE_BYTES_MAX = 16 << 20
ROUTE_PAUSE_SECONDS, ROUTE_PAUSE_TIMES = 0.1, 4
"""After each look, or so many times as long as that took: others have time beside many that nobody knows."""
UNREAD_LOOK_SECONDS = 1.0
"""While a broker is silent it is seen so often whether others lead by now what it led."""
PLACES_MAX = 200_000
REFUSALS_AT_ONCE = 1000
UNKNOWN_TOPIC_ID, LEADER_NOT_AVAILABLE, TOPIC_AUTHORIZATION_FAILED = 100, 5, 29


class Outlet(Protocol):
    """Where what was read goes."""

    async def send(
        self, channel: Channel, news: News, as_is: Container[Key], taken: Taken, gone: Gone
    ) -> None:
        """Send a frame; returns when it is made.

        Args:
            as_is: Partitions whose batches are not recoded.
            taken: Called when the mirror has taken it.
            gone: Called when the parts are not needed any more.
        """

    def trouble(self, node: int, words: str) -> None:
        """A broker cannot be read just now."""

    def closed(self, topics: Collection[str]) -> None:
        """Topics were wanted that the mirror may not read; it is told so of each partition."""


class SourceReader:
    """Reads what one mirror wants.

    Args:
        isolation: What the mirror may see.
        outlet: Takes what was read.
        frame_bytes_max: What the mirror has room for, of records in one frame; a batch is never cut.
        allows: Whether the mirror may read a topic of this name; None: all there are.
    """

    def __init__(
        self,
        cluster: Cluster,
        isolation: Isolation,
        outlet: Outlet,
        frame_bytes_max: int,
        allows: Callable[[str], bool] | None = None,
    ) -> None:
        self._allows = allows
        self.frame_bytes_max = frame_bytes_max
        self.cluster = cluster
        self.isolation = isolation
        self._outlet = outlet
        self.places: dict[Key, Place] = {}
        self.as_is: set[Key] = set()
        self.pool = BufferPool(IDLE_BYTES_MAX)
        self._lanes: dict[tuple[int, Channel], BrokerLane] = {}
        self.turns = Turns()
        self._astray: dict[Key, Place] = {}
        self._strayed = asyncio.Event()
        self._topics: tuple[ClusterInfo | None, dict[bytes, str]] = (None, {})
        self._closed: set[bytes] = set()
        self._refused: dict[Key, tuple[Place, int]] = {}
        self._refusing: asyncio.Task[None] | None = None
        self._group: asyncio.TaskGroup | None = None

    # -- what the mirror says ------------------------------------------------------------------------

    def want(self, positions: Iterable[Position]) -> None:
        """Read these partitions from there on, whatever was wanted of them before.

        Raises:
            AnswerError: With these it would be more than any mirror copies.
        """
        positions = list(positions)
        new = {position.key for position in positions if position.key not in self.places}
        wanted = len(self.places) + len(new)
        if wanted > PLACES_MAX:
            raise AnswerError(f"{wanted} partitions are wanted, the most is {PLACES_MAX}")
        for key, number, offset, fetched_epoch, recode, rank in positions:
            self.forget([key])
            if not recode:
                self.as_is.add(key)
            place = self.places[key] = Place(number, offset, fetched_epoch, rank)
            self.place(key, place)

    def forget(self, keys: Iterable[Key]) -> None:
        """Read these partitions no more."""
        for key in keys:
            place = self.places.pop(key, None)
            if place is not None and place.lane is not None:
                place.lane.leave(key, place)
            self._astray.pop(key, None)
            self._refused.pop(key, None)
            self.as_is.discard(key)

    # -- what others read as well ------------------------------------------------------------------

    def at_end(self, but: Container[int]) -> set[Key]:
        """Partitions that are read up to their end, of all brokers but these."""
        lanes = (lane for (_, channel), lane in self._lanes.items() if channel is Channel.LIVE)
        return set[Key]().union(*(lane.places for lane in lanes if lane.node not in but))

    def unread(self, seconds: float) -> set[int]:
        """Brokers that have been asked in vain for so long."""
        return {lane.node for lane in self._lanes.values() if lane.unread_seconds >= seconds}

    def hand_over(self, key: Key) -> tuple[Place, bool]:
        """Somebody else reads a partition from now on; answers where, and whether it may be recoded."""
        place, recode = self.places[key], key not in self.as_is
        self.forget([key])
        return place, recode

    def take_back(self, key: Key, place: Place, recode: bool) -> None:
        """Read it here again, from where the place says by now; nothing where something else is wanted."""
        if key in self.places:
            return
        if not recode:
            self.as_is.add(key)
        self.places[key] = place
        self.place(key, place)

    # -- which of those that are behind ------------------------------------------------------------

    def rank(self, ranks: Iterable[tuple[Key, int]]) -> None:
        """These partitions have another rank, the one that is said last; those that are not wanted are left
        out. Who has his turn is looked at once, however many they are.
        """
        others = False
        for key, rank in dict(ranks).items():
            place = self.places.get(key)
            if place is None or place.rank == rank:
                continue
            lane = place.lane
            if lane is None or not place.behind:
                place.rank = rank
                continue
            others |= lane.rank(key, place, rank)
        self.turned(others)

    def turned(self, others: bool) -> None:
        """Where others have their turn now, they are read."""
        if others:
            for lane in self._lanes.values():
                lane.ranked()

    # -- which way a partition goes ------------------------------------------------------------------

    def place(self, key: Key, place: Place) -> None:
        """Put a partition on the lane from its leader, unless the mirror wants something else by now."""
        if self.places.get(key) is not place or place.lane is not None:
            return
        known = self.partition(key)
        if self._group is not None and key.topic_id in self._closed:
            self._refuse(key, place, TOPIC_AUTHORIZATION_FAILED)
            return
        if self._group is None or known is None or known.leader not in self.cluster.info.brokers:
            self.astray(key, place)
            return
        lane = self._lanes.get((known.leader, place.channel))
        if lane is None:
            lane = self._lanes[known.leader, place.channel] = BrokerLane(self, known.leader, place.channel)
            lane.task = self._group.create_task(lane.run())
        lane.join(key, place)

    def partition(self, key: Key) -> PartitionInfo | None:
        """What the cluster said last of a partition."""
        info, topics = self._topics
        if info is not self.cluster.info:
            info = self.cluster.info
            topics = {topic.topic_id.bytes: name for name, topic in info.topics.items()}
            self._topics = info, topics
            allows = self._allows
            self._closed = {one for one, name in topics.items() if allows is not None and not allows(name)}
        name = topics.get(key.topic_id)
        return None if name is None else info.partition(TopicPartition(name, key.partition))

    def astray(self, key: Key, place: Place) -> None:
        """Look again who leads this partition."""
        if self.places.get(key) is place:
            self._astray[key] = place
            self._strayed.set()

    async def run(self) -> None:
        """Read until cancelled."""
        try:
            async with asyncio.TaskGroup() as self._group:
                while True:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(UNREAD_LOOK_SECONDS):
                            await self._strayed.wait()
                    if self._strayed.is_set():
                        self._strayed.clear()
                        spent = await self._look_again()
                        await asyncio.sleep(max(ROUTE_PAUSE_SECONDS, spent * ROUTE_PAUSE_TIMES))
                    elif self.unread(SILENT_SECONDS):
                        await self._look_whether_gone()
        finally:
            for lane in self._lanes.values():
                lane.end()
            self.pool.close()

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Do something beside; it ends with the reader, and a mistake in it ends the reader."""
        assert self._group is not None, "nothing is read before it runs"
        return self._group.create_task(work)

    def send(self, channel: Channel, news: News, taken: Taken, gone: Gone) -> Awaitable[None]:
        """Send the mirror a frame."""
        return self._outlet.send(channel, news, self.as_is, taken, gone)

    def trouble(self, node: int, words: str) -> None:
        """A broker cannot be read just now; -1 where none answers."""
        self._outlet.trouble(node, words)

    async def _look_whether_gone(self) -> None:
        """A broker that does not answer may be none of the cluster any more: others lead what it led."""
        try:
            brokers = (await self.cluster.describe_topics([])).brokers
            if brokers.keys() != self.cluster.info.brokers.keys():
                await self.cluster.refresh(not_older_than_seconds=UNREAD_LOOK_SECONDS)
        except TwinsiteError as error:
            self.trouble(-1, str(error))
            return
        self._leave_gone()

    def _leave_gone(self) -> None:
        """Where a broker has left the cluster its answer is waited for no more."""
        for lane in self._lanes.values():
            if lane.node not in self.cluster.info.brokers:
                lane.close("the broker has left the cluster")

    async def _look_again(self) -> float:
        """Answers for how long it kept others from their work."""
        try:
            await self.cluster.refresh(not_older_than_seconds=ROUTE_PAUSE_SECONDS)
        except TwinsiteError as error:
            self.trouble(-1, str(error))
            self._strayed.set()
            return 0.0
        began = time.monotonic()
        self._leave_gone()
        astray, self._astray = self._astray, {}
        for key, place in astray.items():
            place.tries += 1
            if place.tries <= ROUTE_TRIES:
                self.place(key, place)
                continue
            code = UNKNOWN_TOPIC_ID if self.partition(key) is None else LEADER_NOT_AVAILABLE
            self._refuse(key, place, code)
        return time.monotonic() - began

    def _refuse(self, key: Key, place: Place, code: int) -> None:
        """Tell the mirror why nothing comes of a partition."""
        if self.places.get(key) is not place:
            return
        self._refused[key] = place, code
        if self._refusing is None or self._refusing.done():
            self._refusing = self.spawn(self._send_refusals())

    async def _send_refusals(self) -> None:
        while self._refused:
            parts: dict[Channel, list[Part]] = {}
            closed: set[str] = set()
            for key, (place, code) in list(itertools.islice(self._refused.items(), REFUSALS_AT_ONCE)):
                self.forget([key])
                parts.setdefault(place.channel, []).append(refusal(key, place, code))
                if code == TOPIC_AUTHORIZATION_FAILED:
                    closed.add(self._topics[1].get(key.topic_id, key.topic_id.hex()))
            if closed:
                self._outlet.closed(closed)
            for channel, refused in parts.items():
                news = News(-1, steady_us(), refused)
                await self.send(channel, news, nothing, nothing)
