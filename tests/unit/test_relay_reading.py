"""What a relay reads for one mirror, of brokers that have no news, or do not answer."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref
from collections.abc import AsyncIterator, Callable, Collection, Container, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import cast
from uuid import UUID

import pytest
from kafka.protocol.consumer import FetchRequest

from mirror.errors import AnswerError, AuthenticationError, ConnectionFailedError, UnsupportedVersionError
from mirror.kafka.buffers import SMALL_BYTES
from mirror.kafka.cluster import Cluster
from mirror.kafka.cluster_info import ClusterInfo, PartitionInfo, TopicInfo
from mirror.kafka.connection_pool import ConnectionPool
from mirror.kafka.dial import Address
from mirror.kafka.fetch import FETCH_SESSION_ID_NOT_FOUND, FETCH_VERSION, Isolation, Key
from mirror.link.parts import ASTRAY
from mirror.link.protocol import Channel, Position
from mirror.relay import broker_lane, reading
from mirror.relay.news import Gone, News, Taken
from mirror.relay.reading import SourceReader
from tests.harness.daemon import until
from tests.unit.batches import entries, v2
from tests.unit.test_fetch_codec import Said, answer

TOPIC = UUID(int=7)
FIRST, SECOND, THIRD = (Key(TOPIC.bytes, number) for number in range(3))
LED_BY = {0: 2, 1: 1, 2: 2}
"""Of each partition: the broker."""
FAR, END = 1 << 40, 100
BATCH = bytes(v2(entries(0, 1)))
LARGE = bytes(v2(entries(0, 1, value=bytes(60_000))))


class Broker:
    """Has a partition without end, of which it hands out a record at a time.

    Attributes:
        answers: While this is not set it does not, neither to requests nor to new connections.
        cut: It ends its connection instead.
    """

    def __init__(self, node: int) -> None:
        self.node = node
        self.answers = asyncio.Event()
        self.answers.set()
        self.cut = False

    async def open(self) -> Connection:
        await self.answers.wait()
        return Connection(self)


class Connection:
    """One to such a broker, as far as it is used."""

    bytes_received = bytes_sent = 0

    def __init__(self, broker: Broker) -> None:
        self.closed = False
        self._broker = broker

    def version(self, *_: object, **__: object) -> int:
        return FETCH_VERSION

    def close(self, _: str) -> None:
        self.closed = True

    async def send(self, *_: object, allocate: Callable[[int], memoryview]) -> memoryview:
        await asyncio.sleep(0.001)
        if self._broker.cut:
            self.closed = True
            raise ConnectionFailedError(f"broker {self._broker.node} has ended the connection")
        await self._broker.answers.wait()
        partition = next(number for number, node in LED_BY.items() if node == self._broker.node)
        body = answer([(TOPIC.bytes, [Said(partition, 0, FAR, FAR, 0, [], BATCH, None, None)])])
        room = allocate(len(body))
        room[:] = body
        return room


class Quiet:
    """A connection to a broker that has nothing new: of a partition it knows it says so once (KIP-227).

    Attributes:
        cut: It ends with the next request.
    """

    bytes_received = bytes_sent = 0
    closed = False

    def __init__(self) -> None:
        self.cut = False
        self._known: set[int] = set()

    def version(self, *_: object, **__: object) -> int:
        return FETCH_VERSION

    def close(self, _: str) -> None:
        """It has nothing to end."""

    async def send(
        self, _: int, version: int, pieces: Sequence[bytes], *, allocate: Callable[[int], memoryview]
    ) -> memoryview:
        await asyncio.sleep(0.001)
        if self.cut:
            self.closed = True
            raise ConnectionFailedError("it has ended the connection")
        request = FetchRequest.decode(memoryview(b"".join(pieces)), version=version)
        if request.session_epoch == 0:
            self._known.clear()
        asked = {one.partition for topic in request.topics for one in topic.partitions}
        told = [Said(number, 0, END, END, 0, [], b"", None, None) for number in asked - self._known]
        gone = {number for topic in request.forgotten_topics_data for number in topic.partitions}
        self._known = (self._known | asked) - gone
        body = answer([(TOPIC.bytes, told)] if told else [], session=1)
        room = allocate(len(body))
        room[:] = body
        return room


class Endless(Quiet):
    """One to a broker whose partitions all have no end: a record of each comes in each answer.

    Attributes:
        asked: So many bytes it was asked for last, of each.
    """

    def __init__(self) -> None:
        super().__init__()
        self.asked: dict[int, int] = {}

    async def send(
        self, _: int, version: int, pieces: Sequence[bytes], *, allocate: Callable[[int], memoryview]
    ) -> memoryview:
        await asyncio.sleep(0.001)
        request = FetchRequest.decode(memoryview(b"".join(pieces)), version=version)
        wanted = [one for topic in request.topics for one in topic.partitions]
        self.asked |= {one.partition: one.partition_max_bytes for one in wanted}
        told = [Said(number, 0, FAR, FAR, 0, [], BATCH, None, None) for number in self.asked]
        body = answer([(TOPIC.bytes, told)], session=1)
        room = allocate(len(body))
        room[:] = body
        return room


class Crowded(Quiet):
    """One to a broker whose answers have room for one partition, the one that has waited longest; none ends.

    Attributes:
        first: So many bytes it was asked for first, of each.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first: dict[int, int] = {}
        self._waiting: list[int] = []

    async def send(
        self, _: int, version: int, pieces: Sequence[bytes], *, allocate: Callable[[int], memoryview]
    ) -> memoryview:
        await asyncio.sleep(0.001)
        request = FetchRequest.decode(memoryview(b"".join(pieces)), version=version)
        wanted = [one for topic in request.topics for one in topic.partitions]
        self.first = {one.partition: one.partition_max_bytes for one in wanted} | self.first
        gone = {number for topic in request.forgotten_topics_data for number in topic.partitions}
        new = [one.partition for one in wanted if one.partition not in self._waiting]
        self._waiting = [number for number in [*self._waiting, *new] if number not in gone]
        said = [
            Said(number, 0, FAR, FAR, 0, [], b"" if turn else LARGE, None, None)
            for turn, number in enumerate(self._waiting)
        ]
        self._waiting.append(self._waiting.pop(0))
        body = answer([(TOPIC.bytes, said)], session=1)
        room = allocate(len(body))
        room[:] = body
        return room


class Old(Quiet):
    """One that does not know how partitions are read by the ids of their topics."""

    def version(self, *_: object, **__: object) -> int:
        raise UnsupportedVersionError("it speaks Fetch versions 0 to 12")

    def close(self, _: str) -> None:
        self.closed = True


class Evasive(Quiet):
    """One that answers, and says nothing.

    Attributes:
        says: Its next answers; the last one again and again. None: it goes on as usual.
        said: Set when the last one is reached.
    """

    def __init__(self) -> None:
        super().__init__()
        self.says: list[bytes] = []
        self.asked = 0
        self.said = asyncio.Event()

    async def send(
        self, key: int, version: int, pieces: Sequence[bytes], *, allocate: Callable[[int], memoryview]
    ) -> memoryview:
        self.asked += 1
        if not self.says:
            return await super().send(key, version, pieces, allocate=allocate)
        body = self.says.pop()
        if not self.says:
            self.said.set()
            self.says.append(body)
        await asyncio.sleep(0.001)
        room = allocate(len(body))
        room[:] = body
        return room


class Sink:
    """An outlet that takes everything at once, and counts the frames of each broker."""

    def __init__(self) -> None:
        self.frames = {1: 0, 2: 0}
        self.parts: list[tuple[Channel, Key, int]] = []
        self.codes: list[tuple[int, Key, int]] = []
        """Of each part: whose frame it was in, of what, and its error code."""
        self.said = 0
        """Frames, those without parts too."""
        self.came = asyncio.Event()

    async def send(
        self, channel: Channel, news: News, as_is: Container[Key], taken: Taken, gone: Gone
    ) -> None:
        self.parts += [(channel, part.fetched.key, part.number) for part in news.parts]
        self.codes += [(news.node, part.fetched.key, part.fetched.error_code) for part in news.parts]
        self.frames[news.node] += bool(news.parts)
        self.said += 1
        gone()
        taken()
        self.came.set()

    def trouble(self, node: int, words: str) -> None:
        """Nobody is told."""

    def closed(self, topics: Collection[str]) -> None:
        """Everything may be read."""

    async def reaches(self, condition: Callable[[], bool]) -> None:
        """Wait until frames have made that true."""
        async with asyncio.timeout(5):
            while not condition():
                self.came.clear()
                await self.came.wait()

    async def more(self, node: int, frames: int = 20) -> None:
        """Wait until so many more frames have come from a broker."""
        until = self.frames[node] + frames
        await self.reaches(lambda: self.frames[node] >= until)

    async def only_from(self, node: int) -> None:
        """While frames come from one broker none comes from the other."""
        before = self.frames[3 - node]
        await self.more(node)
        assert self.frames[3 - node] == before


class Refusals(Sink):
    """One that counts how often a broker could not be read."""

    def __init__(self) -> None:
        super().__init__()
        self.tries = 0

    def trouble(self, node: int, words: str) -> None:
        self.tries += 1
        self.came.set()


class Source:
    """Two brokers, and the cluster that they are."""

    def __init__(self) -> None:
        self.brokers = {node: Broker(node) for node in LED_BY.values()}
        partitions = {number: PartitionInfo(node, 0, (node,), (node,)) for number, node in LED_BY.items()}
        self.info = ClusterInfo(
            "cluster",
            1,
            {node: Address("broker", node) for node in self.brokers},
            {"topic": TopicInfo("topic", TOPIC, False, partitions)},
        )
        self.options = None
        self.connections = ConnectionPool()

    async def refresh(self, **_: float) -> ClusterInfo:
        return self.info

    async def describe_topics(self, _: object) -> ClusterInfo:
        return self.info


class Full(Sink):
    """An outlet that takes nothing.

    Attributes:
        records: Of the part that waits.
    """

    async def send(
        self, channel: Channel, news: News, as_is: Container[Key], taken: Taken, gone: Gone
    ) -> None:
        self.records = weakref.ref(news.parts[0].fetched.records)
        await asyncio.Event().wait()


async def test_what_is_on_its_way_when_a_stream_ends_goes_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    At once, and so do the buffers that are used again: no circle holds it until Python looks for such.
    """
    source, sink = Source(), Full()

    async def opened(address: Address, _: object) -> Connection:
        return await source.brokers[address.port].open()

    monkeypatch.setattr(broker_lane, "Connection", SimpleNamespace(open=opened))
    reader = SourceReader(cast(Cluster, source), Isolation.READ_COMMITTED, sink, 1 << 20)
    running = asyncio.create_task(reader.run())
    reader.want([Position(SECOND, 1, 0, -1, True, 0)])
    await until(
        lambda: reader.pool.used_bytes == 2 * SMALL_BYTES, "the next one waits for what is on its way"
    )
    gc.collect()
    gc.disable()
    try:
        before = sink.records() is not None
        running.cancel()
        await asyncio.wait([running])
        after = sink.records()
    finally:
        gc.enable()

    assert before
    assert after is None
    assert reader.pool._idle == []


async def test_of_many_ranks_of_a_partition_the_last_one_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A mirror may say as many as a message holds: who has his turn is looked at once.
    """
    async with reading_of(monkeypatch, Source(), sink := Sink()) as reader:
        turned: list[bool] = []
        with monkeypatch.context() as watched:
            watched.setattr(reader, "turned", turned.append)
            reader.rank([(SECOND, number % 256) for number in range(50_000)] + [(SECOND, 6), (FIRST, 0)])
            ranks = [reader.places[key].rank for key in (FIRST, SECOND)]
        reader.rank([(FIRST, 9)])
        await sink.more(1)

    assert ranks == [0, 6]
    assert turned == [False]


def test_more_partitions_than_any_mirror_copies_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Before anything is done for them. As many as that may be wanted, and each of them anew.
    """
    monkeypatch.setattr(reading, "PLACES_MAX", 100)
    reader = SourceReader(cast(Cluster, Source()), Isolation.READ_COMMITTED, Sink(), 1 << 20)
    positions = [Position(Key(TOPIC.bytes, number), 1, 0, -1, True, 0) for number in range(101)]

    with pytest.raises(AnswerError, match="101 partitions are requested; the limit is 100"):
        reader.want(positions)
    refused = len(reader.places)
    reader.want(positions[:100])
    reader.want(positions[:50] * 2)
    with pytest.raises(AnswerError, match="101 partitions are requested"):
        reader.want(positions[100:])

    assert (refused, len(reader.places)) == (0, 100)


@pytest.mark.parametrize("beside", [[], [THIRD]], ids=["alone", "beside another"])
@pytest.mark.parametrize("shared", [True, False])
async def test_what_has_no_news_is_told_where_it_is_wanted_again(
    beside: list[Key], shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    From where it was, or when it comes back from a group: its mirror has to know that it is read.
    """

    async def opened(*_: object) -> Quiet:
        return Quiet()

    monkeypatch.setattr(broker_lane, "Connection", SimpleNamespace(open=opened))
    sink = Sink()
    reader = SourceReader(cast(Cluster, Source()), Isolation.READ_COMMITTED, sink, 1 << 20)
    running = asyncio.create_task(reader.run())
    reader.want([Position(key, 1, END, -1, True, 0) for key in (FIRST, *beside)])
    await sink.reaches(lambda: {(Channel.LIVE, key, 1) for key in (FIRST, *beside)} <= {*sink.parts})

    sink.parts.clear()
    if shared:
        reader.take_back(FIRST, *reader.hand_over(FIRST))
    else:
        reader.want([Position(FIRST, 2, END, -1, True, 0)])
    await sink.reaches(lambda: (Channel.LIVE, FIRST, 1 if shared else 2) in sink.parts)

    running.cancel()
    await asyncio.wait([running])


@pytest.mark.parametrize(("count", "bytes_each"), [(1, 1 << 20), (8, 512 << 10), (64, 256 << 10)])
async def test_many_that_are_behind_come_in_one_answer(
    count: int, bytes_each: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Less of each, but never less: of each a request to the target has one batch, and there are to be many.
    """
    broker, sink, source = Endless(), Sink(), Source()

    async def opened(*_: object) -> Endless:
        return broker

    monkeypatch.setattr(broker_lane, "Connection", SimpleNamespace(open=opened))
    monkeypatch.setattr(broker_lane, "FRAME_BYTES_FIRST", 4 << 20)
    led = {number: PartitionInfo(1, 0, (1,), (1,)) for number in range(count)}
    source.info = replace(source.info, topics={"topic": TopicInfo("topic", TOPIC, False, led)})
    reader = SourceReader(cast(Cluster, source), Isolation.READ_COMMITTED, sink, 4 << 20)
    running = asyncio.create_task(reader.run())

    reader.want([Position(Key(TOPIC.bytes, number), 1, 0, -1, True, 0) for number in range(count)])
    await sink.more(1, 3)
    running.cancel()
    await asyncio.wait([running])

    assert broker.asked.keys() == set(range(count))
    assert all(abs(asked - bytes_each) <= SMALL_BYTES for asked in broker.asked.values())


async def test_however_crowded_it_is_each_is_read_once_ahead_of_the_ranks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    A little of it, as there may be many; then only the lowest rank is read.
    """
    broker, sink, source = Crowded(), Sink(), Source()
    with_records: list[int] = []

    async def opened(*_: object) -> Crowded:
        return broker

    async def send(channel: Channel, news: News, as_is: object, taken: Taken, gone: Gone) -> None:
        with_records.extend(part.fetched.key.partition for part in news.parts if len(part.fetched.records))
        await Sink.send(sink, channel, news, (), taken, gone)

    monkeypatch.setattr(broker_lane, "Connection", SimpleNamespace(open=opened))
    monkeypatch.setattr(sink, "send", send)
    led = {number: PartitionInfo(1, 0, (1,), (1,)) for number in range(8)}
    source.info = replace(source.info, topics={"topic": TopicInfo("topic", TOPIC, False, led)})
    reader = SourceReader(cast(Cluster, source), Isolation.READ_COMMITTED, sink, 1 << 20)
    running = asyncio.create_task(reader.run())
    ranks = dict.fromkeys(led, 5) | {0: 1}
    reader.want([Position(Key(TOPIC.bytes, at), 1, 0, -1, True, rank) for at, rank in ranks.items()])
    await sink.reaches(lambda: {*led} <= {*with_records})
    before = len(with_records)
    await sink.reaches(lambda: len(with_records) >= before + 20)

    running.cancel()
    await asyncio.wait([running])
    assert {*with_records[before + 2 :]} == {0}
    assert set(broker.first.values()) == {broker_lane.FRAME_BYTES_FIRST}


async def test_a_broker_that_is_too_old_is_tried_over_one_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    However often that is, it has no more of them open; none when the mirror is gone.
    """
    opened: list[Old] = []
    sink = Refusals()

    async def open_one(*_: object) -> Old:
        opened.append(Old())
        return opened[-1]

    monkeypatch.setattr(broker_lane, "Connection", SimpleNamespace(open=open_one))
    monkeypatch.setattr(broker_lane, "pause_seconds", lambda _: 0.001)
    monkeypatch.setattr(reading, "REPORT_AGAIN_SECONDS", 0.0)
    monkeypatch.setattr(reading, "ROUTE_PAUSE_SECONDS", 0.001)
    reader = SourceReader(cast(Cluster, Source()), Isolation.READ_COMMITTED, sink, 1 << 20)
    running = asyncio.create_task(reader.run())
    reader.want([Position(FIRST, 1, END, -1, True, 0)])

    await sink.reaches(lambda: sink.tries == 5)
    open_meanwhile = sum(not one.closed for one in opened)
    running.cancel()
    await asyncio.wait([running])

    assert open_meanwhile == 1
    assert all(one.closed for one in opened)


async def test_of_a_broker_that_is_lost_it_is_said_that_nothing_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    Behind what it has told, in its name, and once, however often it is tried; else news of its other
    partitions would say that those another broker leads by then have none. Then all are mentioned.
    """
    connections: list[Quiet] = []
    refused = 0

    async def opened(*_: object) -> Quiet:
        nonlocal refused
        if connections and refused < 3:
            refused += 1
            raise ConnectionFailedError("it is gone")
        connections.append(Quiet())
        return connections[-1]

    monkeypatch.setattr(broker_lane, "Connection", SimpleNamespace(open=opened))
    monkeypatch.setattr(broker_lane, "pause_seconds", lambda _: 0.0)
    sink = Sink()
    reader = SourceReader(cast(Cluster, Source()), Isolation.READ_COMMITTED, sink, 1 << 20)
    running = asyncio.create_task(reader.run())
    reader.want([Position(key, 1, END, -1, True, 0) for key in (FIRST, THIRD)])
    both = {(Channel.LIVE, key, 1) for key in (FIRST, THIRD)}
    await sink.reaches(lambda: both <= {*sink.parts})
    sink.parts.clear()
    sink.codes.clear()
    connections[-1].cut = True
    await sink.reaches(lambda: both <= {*sink.parts} and sink.codes[-1][2] == 0)

    running.cancel()
    await asyncio.wait([running])
    assert refused == 3
    assert sorted(sink.codes[:2]) == [(2, FIRST, ASTRAY), (2, THIRD, ASTRAY)]
    assert {code for _, _, code in sink.codes[2:]} == {0}


async def test_a_partition_is_at_its_end_only_once_its_lane_has_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    What others have read of it before may not have been all; then it is not to be shared again at once.
    """

    async def opened(*_: object) -> Quiet:
        return Quiet()

    monkeypatch.setattr(broker_lane, "Connection", SimpleNamespace(open=opened))
    sink = Sink()
    reader = SourceReader(cast(Cluster, Source()), Isolation.READ_COMMITTED, sink, 1 << 20)
    running = asyncio.create_task(reader.run())
    reader.want([Position(key, 1, END, -1, True, 0) for key in (FIRST, THIRD)])
    await sink.reaches(lambda: {(Channel.LIVE, key, 1) for key in (FIRST, THIRD)} <= {*sink.parts})
    answered = reader.at_end(but=())
    place = reader.places[FIRST]
    lane = place.lane
    assert isinstance(lane, broker_lane.BrokerLane)

    lane.leave(FIRST, place)
    lane.join(FIRST, place)
    anew = reader.at_end(but=())

    running.cancel()
    await asyncio.wait([running])
    assert answered == {FIRST, THIRD}
    assert anew == {THIRD}


class Unreachable(Source):
    """A cluster of which nothing is known yet.

    Attributes:
        cut: No broker answers.
    """

    def __init__(self) -> None:
        super().__init__()
        self.known, self.info = self.info, ClusterInfo("cluster", -1, {}, {})
        self.cut = True

    async def refresh(self, **_: float) -> ClusterInfo:
        if self.cut:
            raise ConnectionFailedError("no broker answers")
        self.info = self.known
        return self.info


class Moments(Sink):
    """An outlet that notes when it was reported that no broker answers."""

    def __init__(self) -> None:
        super().__init__()
        self.at: list[float] = []

    def trouble(self, node: int, words: str) -> None:
        if node == -1:
            self.at.append(time.monotonic())
            self.came.set()


async def test_while_no_broker_answers_each_try_waits_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    After an answer the pauses begin with the shortest again.
    """
    monkeypatch.setattr(reading, "REPORT_AGAIN_SECONDS", 0.0)
    connection = Quiet()

    async def opened(*_: object) -> Quiet:
        return connection

    monkeypatch.setattr(broker_lane, "Connection", SimpleNamespace(open=opened))
    source, sink = Unreachable(), Moments()
    reader = SourceReader(cast(Cluster, source), Isolation.READ_COMMITTED, sink, 1 << 20)
    running = asyncio.create_task(reader.run())
    reader.want([Position(FIRST, 1, END, -1, True, 0)])

    await sink.reaches(lambda: len(sink.at) >= 3)
    source.cut = False
    await sink.reaches(lambda: (Channel.LIVE, FIRST, 1) in sink.parts)
    before = len(sink.at)
    source.cut = connection.cut = True
    await sink.reaches(lambda: len(sink.at) >= before + 2)
    running.cancel()
    await asyncio.wait([running])

    first, second, third = sink.at[:3]
    assert second - first >= 0.2
    assert third - second >= 0.4
    assert 0.2 <= sink.at[before + 1] - sink.at[before] < 1.6  # the fourth pause of one outage


@pytest.mark.parametrize("all_gone", [True, False], ids=["no broker answers", "one does not"])
async def test_however_long_brokers_were_gone_they_are_read_soon_after_they_are_back(
    all_gone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    They are near, so it costs little to ask them every second or two.
    """
    gone = True

    async def opened(*_: object) -> Quiet:
        if gone:
            raise ConnectionFailedError("it is gone")
        return Quiet()

    monkeypatch.setattr(broker_lane, "Connection", SimpleNamespace(open=opened))
    monkeypatch.setattr(reading, "ROUTE_PAUSE_SECONDS", 0.001)
    monkeypatch.setattr(reading, "REPORT_AGAIN_SECONDS", 0.0)
    monkeypatch.setattr("mirror.flow.states.RETRY_SECONDS_FIRST", 0.001)
    source, sink = Unreachable() if all_gone else Source(), Refusals()
    reader = SourceReader(cast(Cluster, source), Isolation.READ_COMMITTED, sink, 1 << 20)
    running = asyncio.create_task(reader.run())
    reader.want([Position(FIRST, 1, END, -1, True, 0)])

    await sink.reaches(lambda: sink.tries >= 14)
    gone = False
    if isinstance(source, Unreachable):
        source.cut = False
    await sink.reaches(lambda: (Channel.LIVE, FIRST, 1) in sink.parts)
    running.cancel()
    await asyncio.wait([running])

    pauses = [broker_lane.again_seconds(ConnectionFailedError(""), tries) for tries in (1, 4, 5, 100)]
    assert pauses == [0.002, 0.016, 0.016, 0.016]


async def test_brokers_that_refused_are_read_as_soon_as_one_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A password was wrong for hours, and is right now: they would be tried some fifteen seconds later.
    """
    refuses = True

    async def opened(*_: object) -> Quiet:
        if refuses:
            source.cut = True  # no broker tells any more who leads what, either
            raise AuthenticationError("wrong password")
        return Quiet()

    monkeypatch.setattr(broker_lane, "Connection", SimpleNamespace(open=opened))
    monkeypatch.setattr(broker_lane, "again_seconds", lambda *_: 3_600.0)
    monkeypatch.setattr(reading, "ROUTE_PAUSE_SECONDS", 0.001)
    source, sink = Unreachable(), Refusals()
    source.cut = False
    reader = SourceReader(cast(Cluster, source), Isolation.READ_COMMITTED, sink, 1 << 20)
    running = asyncio.create_task(reader.run())
    reader.want([Position(FIRST, 1, END, -1, True, 0)])
    await sink.reaches(lambda: sink.tries >= 2)

    refuses = source.cut = False
    await sink.reaches(lambda: (Channel.LIVE, FIRST, 1) in sink.parts)
    running.cancel()
    await asyncio.wait([running])


def test_a_broker_that_refuses_is_asked_less_and_less_often() -> None:
    """
    It would refuse again, and many wrong passwords in a row may lock an account.
    """
    refused = AuthenticationError("wrong password")

    pauses = [broker_lane.again_seconds(refused, tries) for tries in (1, 4, 5, 6, 7, 100)]

    assert pauses == pytest.approx([0.2, 1.6, 3.2, 6.4, 12.8, 15.0])


@pytest.mark.parametrize("all_gone", [True, False], ids=["no broker answers", "one does not"])
async def test_the_same_trouble_is_reported_once_in_a_while(
    all_gone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    However often it is tried again; at once if it is another, or if the broker was read meanwhile.
    """
    tries, words = 0, "it is gone"
    connections: list[Quiet] = []

    def tried() -> None:
        nonlocal tries
        tries += 1
        sink.came.set()
        if words:
            raise ConnectionFailedError(words)

    async def opened(*_: object) -> Quiet:
        if not all_gone:
            tried()
        connections.append(Quiet())
        return connections[-1]

    async def refresh(**_: float) -> ClusterInfo:
        if all_gone:
            tried()
        return source.info

    async def tried_often() -> None:
        until = tries + 5
        await sink.reaches(lambda: tries >= until)

    monkeypatch.setattr(broker_lane, "Connection", SimpleNamespace(open=opened))
    monkeypatch.setattr(broker_lane, "pause_seconds", lambda _: 0.001)
    monkeypatch.setattr(reading, "ROUTE_PAUSE_SECONDS", 0.001)
    source, sink = Source(), Refusals()
    monkeypatch.setattr(source, "refresh", refresh)
    reader = SourceReader(cast(Cluster, source), Isolation.READ_COMMITTED, sink, 1 << 20)
    running = asyncio.create_task(reader.run())
    reader.want([Position(FIRST, 1, END, -1, True, 0)])

    await tried_often()
    once = sink.tries
    words = "it refuses"
    await tried_often()
    twice = sink.tries
    words = ""
    await sink.reaches(lambda: (Channel.LIVE, FIRST, 1) in sink.parts)
    between = sink.tries
    words = "it is gone for good"
    connections[-1].cut = True
    await tried_often()
    running.cancel()
    await asyncio.wait([running])

    assert (once, twice - once) == (1, 1)
    assert sink.tries - between == 2  # what has ended the connection, and why there is no other


class Freezing(Quiet):
    """One whose broker may freeze: a request is then over when the connection is closed."""

    arriving_at: float | None = None

    def __init__(self) -> None:
        super().__init__()
        self.frozen = False
        self.asked = asyncio.Event()
        self._ended = asyncio.Event()

    def close(self, _: str) -> None:
        self.closed = True
        self._ended.set()

    async def send(
        self, key: int, version: int, pieces: Sequence[bytes], *, allocate: Callable[[int], memoryview]
    ) -> memoryview:
        if self.frozen:
            self.asked.set()
            await self._ended.wait()
            raise ConnectionFailedError("it was closed")
        return await super().send(key, version, pieces, allocate=allocate)


async def test_a_frozen_broker_that_has_left_the_cluster_is_waited_for_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    What it led is read from where it is led now, though no other partition has moved.
    """
    connections: list[Freezing] = []

    async def opened(*_: object) -> Freezing:
        connections.append(Freezing())
        return connections[-1]

    monkeypatch.setattr(broker_lane, "Connection", SimpleNamespace(open=opened))
    monkeypatch.setattr(reading, "UNREAD_LOOK_SECONDS", 0.01)
    monkeypatch.setattr(reading, "SILENT_SECONDS", 0.05)
    source, sink = Source(), Sink()
    reader = SourceReader(cast(Cluster, source), Isolation.READ_COMMITTED, sink, 1 << 20)
    running = asyncio.create_task(reader.run())
    reader.want([Position(FIRST, 1, END, -1, True, 0)])
    await sink.reaches(lambda: (Channel.LIVE, FIRST, 1) in sink.parts)

    connections[-1].frozen = True
    await connections[-1].asked.wait()
    led = {number: PartitionInfo(1, 1, (1,), (1,)) for number in LED_BY}
    topics = {"topic": TopicInfo("topic", TOPIC, False, led)}
    source.info = ClusterInfo("cluster", 1, {1: Address("broker", 1)}, topics)
    await sink.reaches(lambda: (1, FIRST, 0) in sink.codes)

    running.cancel()
    await asyncio.wait([running])


async def test_a_broker_that_has_moved_is_not_waited_for_at_its_old_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    Nobody may be left there. While an answer is arriving from there, it is waited for.
    """
    connections: list[tuple[Address, Freezing]] = []

    async def opened(address: Address, _: object) -> Freezing:
        connections.append((address, Freezing()))
        return connections[-1][1]

    monkeypatch.setattr(broker_lane, "Connection", SimpleNamespace(open=opened))
    monkeypatch.setattr(reading, "UNREAD_LOOK_SECONDS", 0.01)
    monkeypatch.setattr(reading, "SILENT_SECONDS", 0.05)
    source, sink = Source(), Sink()
    reader = SourceReader(cast(Cluster, source), Isolation.READ_COMMITTED, sink, 1 << 20)
    running = asyncio.create_task(reader.run())
    reader.want([Position(FIRST, 1, END, -1, True, 0)])
    await sink.reaches(lambda: (Channel.LIVE, FIRST, 1) in sink.parts)

    old = connections[-1][1]
    old.frozen = True
    await old.asked.wait()
    await asyncio.sleep(0.2)
    there = old.closed
    old.arriving_at = time.monotonic()
    now = Address("elsewhere", 2)
    source.info = replace(source.info, brokers={**source.info.brokers, 2: now})
    await asyncio.sleep(0.2)
    arriving = old.closed
    sink.codes.clear()
    old.arriving_at = None
    await sink.reaches(lambda: (2, FIRST, 0) in sink.codes)

    running.cancel()
    await asyncio.wait([running])
    assert (there, arriving, old.closed) == (False, False, True)
    assert connections[-1][0] == now


@pytest.mark.parametrize("moved", [True, False], ids=["it has moved", "it has left the cluster"])
@pytest.mark.parametrize("read_before", [True, False])
async def test_a_broker_is_not_waited_for_where_a_connection_to_it_is_being_opened_in_vain(
    moved: bool, read_before: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Nobody may be left there, not even to refuse it.
    """
    connections: list[tuple[Address, Freezing]] = []
    old, now = Address("broker", 2), Address("elsewhere", 2)
    dark = asyncio.Event()
    begun = asyncio.Event()

    async def opened(address: Address, _: object) -> Freezing:
        if address == old and dark.is_set():
            begun.set()
            await asyncio.Event().wait()
        connections.append((address, Freezing()))
        return connections[-1][1]

    monkeypatch.setattr(broker_lane, "Connection", SimpleNamespace(open=opened))
    monkeypatch.setattr(reading, "UNREAD_LOOK_SECONDS", 0.01)
    monkeypatch.setattr(reading, "SILENT_SECONDS", 0.05)
    source, sink = Source(), Sink()
    reader = SourceReader(cast(Cluster, source), Isolation.READ_COMMITTED, sink, 1 << 20)
    running = asyncio.create_task(reader.run())
    if not read_before:
        dark.set()
    reader.want([Position(FIRST, 1, END, -1, True, 0)])
    if read_before:
        await sink.reaches(lambda: (Channel.LIVE, FIRST, 1) in sink.parts)
        dark.set()
        connections[-1][1].cut = True
    await begun.wait()
    sink.codes.clear()
    led = {number: PartitionInfo(1, 1, (1,), (1,)) for number in LED_BY}
    topics = source.info.topics if moved else {"topic": TopicInfo("topic", TOPIC, False, led)}
    brokers = {1: Address("broker", 1)} | ({2: now} if moved else {})
    source.info = replace(source.info, brokers=brokers, topics=topics)
    await sink.reaches(lambda: (2 if moved else 1, FIRST, 0) in sink.codes)

    running.cancel()
    await asyncio.wait([running])
    assert connections[-1][0] == (now if moved else Address("broker", 1))


@pytest.mark.parametrize(
    "says",
    [
        pytest.param(answer([], throttle_ms=2_000, session=1), id="a quota is used up"),
        pytest.param(answer([], code=FETCH_SESSION_ID_NOT_FOUND, session=0), id="the session is lost"),
    ],
)
async def test_a_broker_that_says_nothing_is_not_one_without_news(
    says: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    It has left out all there is: the mirror would take it for a lag of 0.
    """
    connections: list[Evasive] = []

    async def opened(*_: object) -> Evasive:
        connections.append(Evasive())
        return connections[-1]

    monkeypatch.setattr(broker_lane, "Connection", SimpleNamespace(open=opened))
    monkeypatch.setattr(broker_lane, "HEARTBEAT_SECONDS", 0.0)
    sink = Sink()
    reader = SourceReader(cast(Cluster, Source()), Isolation.READ_COMMITTED, sink, 1 << 20)
    running = asyncio.create_task(reader.run())
    reader.want([Position(FIRST, 1, END, -1, True, 0)])
    await sink.reaches(lambda: sink.said >= 10)
    broker = connections[-1]
    said: list[int] = []
    for _ in range(2):
        broker.said.clear()
        broker.says = [says] * 10
        async with asyncio.timeout(5):
            await broker.said.wait()
        said.append(sink.said)
    broker.says = []
    await sink.reaches(lambda: sink.said > said[-1])

    running.cancel()
    await asyncio.wait([running])
    assert said[0] == said[1]


async def test_a_broker_that_a_quota_holds_back_is_not_one_that_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    It has said how long it will take: that each mirror asks instead of one for all would make it worse.
    """
    broker = Evasive()
    broker.says = [answer([], throttle_ms=60_000, session=1)]

    async def opened(*_: object) -> Evasive:
        return broker

    monkeypatch.setattr(broker_lane, "Connection", SimpleNamespace(open=opened))
    reader = SourceReader(cast(Cluster, Source()), Isolation.READ_COMMITTED, Sink(), 1 << 20)
    running = asyncio.create_task(reader.run())
    reader.want([Position(FIRST, 1, END, -1, True, 0)])
    await until(lambda: broker.asked >= 3, "it has said so", 5)
    held_back = reader.unread(1e-6)
    broker.cut = True
    broker.says = []
    await until(lambda: bool(reader.unread(1e-6)), "it is gone", 5)

    running.cancel()
    await asyncio.wait([running])
    assert held_back == set()


@asynccontextmanager
async def reading_of(
    monkeypatch: pytest.MonkeyPatch, source: Source, sink: Sink, *, silent_seconds: float = 3600.0
) -> AsyncIterator[SourceReader]:
    """A mirror wants both partitions, the first one first; in this block both are known to be behind."""

    async def opened(address: Address, _: object) -> Connection:
        return await source.brokers[address.port].open()

    monkeypatch.setattr(broker_lane, "Connection", SimpleNamespace(open=opened))
    monkeypatch.setattr(broker_lane, "SILENT_SECONDS", silent_seconds)
    reader = SourceReader(cast(Cluster, source), Isolation.READ_COMMITTED, sink, 1 << 20)
    running = asyncio.create_task(reader.run())
    reader.want([Position(FIRST, 1, 0, -1, True, 0), Position(SECOND, 1, 0, -1, True, 5)])
    try:
        source.brokers[1].answers.clear()
        await sink.more(2)
        source.brokers[1].answers.set()
        await sink.more(1, 1)
        await sink.only_from(2)
        yield reader
    finally:
        running.cancel()
        await asyncio.wait([running])


async def test_who_has_waited_for_his_turn_has_it_when_nobody_is_before_him(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    Of two ranks, and whichever of the two was found to be behind first.
    """
    source, sink = Source(), Sink()

    async with reading_of(monkeypatch, source, sink) as reader:
        reader.forget([FIRST])
        await sink.more(1)


async def test_nobody_waits_longer_than_a_second_for_a_broker_that_is_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    When it answers what comes first there is before all others again.
    """
    source, sink = Source(), Sink()

    async with reading_of(monkeypatch, source, sink, silent_seconds=0.05):
        source.brokers[2].answers.clear()
        await sink.more(1)
        source.brokers[2].answers.set()
        await sink.more(2)
        await sink.only_from(2)


async def test_nobody_waits_for_what_was_behind_on_a_connection_that_was_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    The broker is not reached any more: what it has counts when it has answered, and not before.
    """
    source, sink = Source(), Sink()

    async with reading_of(monkeypatch, source, sink):
        source.brokers[2].cut = True
        source.brokers[2].answers.clear()
        await sink.more(1, 200)
        source.brokers[2].cut = False
        source.brokers[2].answers.set()
        await sink.more(2)
        await sink.only_from(2)
