"""Reads the source's brokers for one mirror: from the positions that it gave, and on from there unasked.

Every partition is on one of two channels. Partitions that are behind go by BULK, a lot at a time; those that
are caught up go by LIVE, as soon as there is something new, and first over the link. A partition changes
over when the mirror has taken the last frame with something of it, so nothing of it overtakes the rest.

This module keeps what the mirror wants and on which lane each partition is, and tells the mirror about
partitions that nobody leads or that it may not read. How one broker is read by one channel is in
:mod:`mirror.relay.broker_lane`.

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
from mirror.link.protocol import RELAY_ITSELF, Channel, Position
from mirror.logs import Repeats
from mirror.model import TopicPartition
from mirror.relay.broker_lane import BrokerLane, soon_seconds
from mirror.relay.news import Gone, News, Taken, nothing, steady_us
from mirror.relay.place import ROUTE_TRIES, Place, refusal
from mirror.relay.turns import Turns

IDLE_BYTES_MAX = 16 << 20
ROUTE_PAUSE_SECONDS, ROUTE_PAUSE_TIMES = 0.1, 4
"""The pause after each look for leaders, or this many times as long as that took: even if very many
partitions are not known, others have their time.
"""
UNREAD_LOOK_SECONDS = 1.0
"""How often it is checked, while a broker is silent, whether others lead its partitions by now."""
REPORT_AGAIN_SECONDS = 15.0
"""How often the same trouble is reported: a mirror then reads the metadata of all topics."""
PLACES_MAX = 200_000
REFUSALS_AT_ONCE = 1000
UNKNOWN_TOPIC_ID, LEADER_NOT_AVAILABLE, TOPIC_AUTHORIZATION_FAILED = 100, 5, 29


class Outlet(Protocol):
    """Where what was read goes."""

    async def send(
        self, channel: Channel, news: News, as_is: Container[Key], taken: Taken, gone: Gone
    ) -> None:
        """Send a frame; returns once it is made.

        Args:
            as_is: Partitions whose batches are not recoded.
            taken: Called when the mirror has taken it.
            gone: Called when the parts are no longer needed.
        """

    def trouble(self, node: int, words: str) -> None:
        """A broker cannot be read at the moment; RELAY_ITSELF: none answers."""

    def closed(self, topics: Collection[str]) -> None:
        """The mirror wanted topics that it may not read; it is told so for each partition."""


class SourceReader:
    """Reads what one mirror wants.

    Args:
        isolation: What the mirror may see.
        outlet: Takes what was read.
        frame_bytes_max: Bytes of records that the mirror takes in one frame; a batch is never cut.
        allows: Whether the mirror may read a topic of this name; None: it may read all.
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
        self._reported = Repeats(every_seconds=REPORT_AGAIN_SECONDS)

    # -- what the mirror says ------------------------------------------------------------------------

    def want(self, positions: Iterable[Position]) -> None:
        """Read these partitions from these positions on, whatever was wanted of them before.

        Raises:
            AnswerError: The mirror would want more than ``PLACES_MAX`` partitions.
        """
        positions = list(positions)
        new = {position.key for position in positions if position.key not in self.places}
        wanted = len(self.places) + len(new)
        if wanted > PLACES_MAX:
            raise AnswerError(f"{wanted} partitions are requested; the limit is {PLACES_MAX}")
        for key, number, offset, fetched_epoch, recode, rank in positions:
            self.forget([key])
            if not recode:
                self.as_is.add(key)
            place = self.places[key] = Place(number, offset, fetched_epoch, rank)
            self.place(key, place)

    def forget(self, keys: Iterable[Key]) -> None:
        """Stop reading these partitions."""
        for key in keys:
            place = self.places.pop(key, None)
            if place is not None and place.lane is not None:
                place.lane.leave(key, place)
            self._astray.pop(key, None)
            self._refused.pop(key, None)
            self.as_is.discard(key)

    # -- what others read as well ------------------------------------------------------------------

    def at_end(self, but: Container[int]) -> set[Key]:
        """Partitions of which the last answer has brought all there was, from all brokers except ``but``."""
        lanes = [lane for (_, channel), lane in self._lanes.items() if channel is Channel.LIVE]
        read = (lane.places.items() for lane in lanes if lane.node not in but)
        return {key for places in read for key, place in places if place.left_us is None}

    def unread(self, seconds: float) -> set[int]:
        """Brokers that have owed an answer for at least this long."""
        return {lane.node for lane in self._lanes.values() if lane.unread_seconds >= seconds}

    def hand_over(self, key: Key) -> tuple[Place, bool]:
        """Leave a partition to another reader; returns its place, and whether it may be recoded."""
        place, recode = self.places[key], key not in self.as_is
        self.forget([key])
        return place, recode

    def take_back(self, key: Key, place: Place, recode: bool) -> None:
        """Read a partition here again, from its place on; does nothing if it is wanted again by now."""
        if key in self.places:
            return
        if not recode:
            self.as_is.add(key)
        self.places[key] = place
        self.place(key, place)

    # -- which of those that are behind ------------------------------------------------------------

    def rank(self, ranks: Iterable[tuple[Key, int]]) -> None:
        """Give these partitions other ranks; if one is named twice its last rank counts, and one that is not
        wanted is ignored. The lanes check only once whose turn it is, however many partitions there are.
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
        """If others have their turn now, read those."""
        if others:
            for lane in self._lanes.values():
                lane.ranked()

    # -- which way a partition goes ------------------------------------------------------------------

    def place(self, key: Key, place: Place) -> None:
        """Put a partition on the lane of its leader, unless the mirror wants something else by now."""
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
        """What the cluster last said about a partition; None if it does not know it."""
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
        """Look up the leader of this partition again."""
        if self.places.get(key) is place:
            self._astray[key] = place
            self._strayed.set()

    async def run(self) -> None:
        """Read until cancelled. While no broker says who leads what, the pause after each try is longer; how
        often connections are tried, the cluster decides. Once one says it, those that refused are tried, too.
        """
        attempts = 0
        try:
            async with asyncio.TaskGroup() as self._group:
                while True:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(UNREAD_LOOK_SECONDS):
                            await self._strayed.wait()
                    try:
                        await self._look()
                    except TwinsiteError as error:
                        attempts += 1
                        self.trouble(RELAY_ITSELF, str(error), attempts)
                        await asyncio.sleep(soon_seconds(attempts))
                        continue
                    if attempts:
                        for lane in self._lanes.values():
                            lane.try_now()
                    attempts = 0
        finally:
            for lane in self._lanes.values():
                lane.end()
            self.pool.close()

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run ``work`` in parallel; it ends with the reader, and an error in it ends the reader."""
        assert self._group is not None, "nothing is read before it runs"
        return self._group.create_task(work)

    def send(self, channel: Channel, news: News, taken: Taken, gone: Gone) -> Awaitable[None]:
        """Send the mirror a frame."""
        return self._outlet.send(channel, news, self.as_is, taken, gone)

    def trouble(self, node: int, words: str, attempts: int) -> None:
        """Report that a broker could not be read, this often since it was last read; RELAY_ITSELF: no broker
        answers.

        The first failure is always reported. Later ones are tried again soon, and need not all be reported.
        """
        if attempts == 1:
            self._reported.forget((node, words))
        if self._reported.admit((node, words)) is not None:
            self._outlet.trouble(node, words)

    async def _look(self) -> None:
        """Look up leaders where there is a reason to.

        Raises:
            TwinsiteError: No broker answers.
        """
        if self._strayed.is_set():
            spent = await self._look_again()
            await asyncio.sleep(max(ROUTE_PAUSE_SECONDS, spent * ROUTE_PAUSE_TIMES))
        elif self.unread(SILENT_SECONDS):
            await self._look_whether_gone()

    async def _look_whether_gone(self) -> None:
        """Check whether a silent broker has left the cluster, or its address: nobody waits for it there then.

        Raises:
            TwinsiteError: No broker answers.
        """
        known = self.cluster.info.brokers
        if (await self.cluster.describe_topics([])).brokers != known:
            await self.cluster.refresh(not_older_than_seconds=UNREAD_LOOK_SECONDS)
        self._leave_gone()

    def _leave_gone(self) -> None:
        """Stop waiting for the answers of brokers that have left the cluster, and at addresses where nobody
        may be left: the broker has another one now, and is silent at that.
        """
        for lane in self._lanes.values():
            address = self.cluster.info.brokers.get(lane.node)
            if address is None:
                lane.close("the broker has left the cluster")
            elif lane.unread_seconds >= SILENT_SECONDS and lane.waits_elsewhere(address):
                lane.close("the broker has another address now")

    async def _look_again(self) -> float:
        """Look for the leaders of astray partitions; returns for how many seconds nothing else could run.

        Raises:
            TwinsiteError: No broker answers; the partitions stay astray.
        """
        await self.cluster.refresh(not_older_than_seconds=ROUTE_PAUSE_SECONDS)
        self._strayed.clear()
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
        """Tell the mirror why a partition is not read."""
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
                news = News(RELAY_ITSELF, steady_us(), refused)
                await self.send(channel, news, nothing, nothing)
