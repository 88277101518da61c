"""How partitions that mirrors have in common move: little by little, and none is left behind."""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import Container, Iterable
from typing import cast

import pytest

from mirror.errors import ConnectionFailedError
from mirror.kafka.cluster import Cluster
from mirror.kafka.cluster_info import ClusterInfo
from mirror.kafka.fetch import Isolation, Key
from mirror.link import protocol
from mirror.link.messages import Messages
from mirror.link.protocol import Channel, Down, Position
from mirror.relay import broker_lane, group, sharing
from mirror.relay.group import Group, Kind, Member, Who
from mirror.relay.place import Place
from mirror.relay.reading import SourceReader
from mirror.relay.sending import Sender
from mirror.relay.sharing import ALONE_SECONDS, Sharing
from tests.unit.test_relay_reading import END, FIRST, Quiet, Sink, Source

MOVES_MAX = 1_000
KEYS = [Key(bytes(16), number) for number in range(MOVES_MAX * 2 + 500)]
WAITS_MAX = 30_000
"""Bytes that a mirror may be told before it has read any."""


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand stand for ten thousand."""
    monkeypatch.setattr(group, "MOVES_MAX", MOVES_MAX)


class Reading:
    """What a mirror reads for itself: all of it up to its end."""

    def __init__(self, keys: Iterable[Key]) -> None:
        self.places = {key: Place(1, 0, -1, channel=Channel.LIVE) for key in keys}

    def at_end(self, but: Container[int]) -> set[Key]:
        return set(self.places)

    def hand_over(self, key: Key) -> tuple[Place, bool]:
        return self.places.pop(key), True

    def take_back(self, key: Key, place: Place, _: bool) -> None:
        assert key not in self.places
        self.places[key] = place


class Sending:
    """Shared channels of a mirror, with nothing on them."""

    def __init__(self) -> None:
        self._free = 2

    def begin_shared(self, _: bytes) -> int:
        self._free += 1
        return self._free

    def end_shared(self, channel: int) -> None:
        """Nothing is on it."""

    async def has_room(self, channel: int) -> None:
        """Never."""
        await asyncio.Event().wait()


class Mirror:
    """One that hears where its partitions are.

    Attributes:
        waits: Bytes that it has not read yet.
        reads: Of these, so many before each look.
        moves: Of how many partitions each message has told it.
        way: By which channel each comes.
    """

    def __init__(self, keys: Iterable[Key], *, reads: int = 1 << 30, flow: str = "f") -> None:
        self.waits = 0
        self.most_waited = 0
        self.reads = reads
        self.moves: list[int] = []
        self.way = dict.fromkeys(keys, 0)
        self.reading = Reading(self.way)
        self.member = Member(
            Who("east", flow, 4_000),
            Kind(Isolation.READ_COMMITTED, True),
            1 << 20,
            cast(SourceReader, self.reading),
            cast(Sender, Sending()),
            self.told,
            lambda: WAITS_MAX - self.waits,
            lambda _node, _words: None,
        )

    def told(self, data: bytes) -> None:
        self.waits += len(data)
        self.most_waited = max(self.most_waited, self.waits)
        for kind, payload in Messages().received(data):
            assert kind == Down.MOVED
            channel, moved = protocol.read_moved(payload)
            self.moves.append(len(moved))
            self.way |= {key: channel for key, _ in moved}

    def read(self) -> None:
        self.waits = max(self.waits - self.reads, 0)

    @property
    def shared(self) -> int:
        return sum(channel != Channel.LIVE for channel in self.way.values())


class Relayed(Cluster):
    """A cluster without brokers."""

    def __init__(self) -> None:
        self.info = ClusterInfo("cluster", -1, {}, {})

    async def refresh(self, **_: float) -> ClusterInfo:
        return self.info


def sharing_of(*mirrors: Mirror) -> Sharing:
    """All of these have come."""
    shares = Sharing(Relayed())
    for mirror in mirrors:
        shares.join(mirror.member)
    return shares


def look(shares: Sharing, *mirrors: Mirror) -> None:
    for mirror in mirrors:
        mirror.read()
    shares.go_on_returning()
    shares.look(0.0)


async def test_very_many_partitions_move_little_by_little() -> None:
    """
    As many with each look as one message may name; every one is read in one place only, all the while.
    """
    one, other = Mirror(KEYS), Mirror(KEYS)
    shares = sharing_of(one, other)

    for moved in (MOVES_MAX, 2 * MOVES_MAX, len(KEYS), len(KEYS)):
        look(shares, one, other)
        assert one.shared == other.shared == moved
        assert len(one.reading.places) == len(other.reading.places) == len(KEYS) - moved

    assert one.moves == other.moves == [MOVES_MAX, MOVES_MAX, len(KEYS) - 2 * MOVES_MAX]


class Counted(Key):
    """A partition of which it is counted how often it is looked up, here or in anything it is a part of."""

    looked_up = 0

    def __hash__(self) -> int:
        Counted.looked_up += 1
        return hash((self.topic_id, self.partition))


async def test_what_nobody_shares_costs_no_step_each() -> None:
    """
    Mirrors may read very many, and all streams of a relay wait while it looks for what they have in common.
    """
    common = Counted(bytes(16), 0)
    mirrors = [
        Mirror([*(Counted(bytes([one]) * 16, number) for number in range(1_000)), common])
        for one in range(1, 6)
    ]
    shares = sharing_of(*mirrors)

    Counted.looked_up = 0
    look(shares, *mirrors)

    assert [mirror.shared for mirror in mirrors] == [1] * 5
    assert Counted.looked_up < 200


async def test_a_mirror_with_room_for_little_reads_alone() -> None:
    """
    Others would get as little at a time.
    """
    one, little = Mirror(KEYS[:9]), Mirror(KEYS[:9])
    little.member.frame_bytes = sharing.FRAME_BYTES_MIN - 1
    shares = sharing_of(one, little)

    look(shares, one, little)

    assert one.shared == little.shared == 0


async def test_who_held_up_others_reads_alone_for_a_minute_though_he_comes_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    By another stream. Of very many the last ones are remembered.
    """
    monkeypatch.setattr(sharing, "ALONE_MAX", 2)
    slow, one, other = (Mirror(KEYS[:1], flow=flow) for flow in ("slow", "one", "other"))
    shares = sharing_of(slow, one, other)
    look(shares, slow, one, other)
    began = time.monotonic()
    shares._alone(slow.member)
    shares.leave(slow.member)
    back = Mirror(KEYS[:1], flow="slow")
    shares.join(back.member)

    look(shares, back, one, other)
    at_once = [mirror.shared for mirror in (back, one, other)]
    shares.look(began + ALONE_SECONDS - 1)
    later = back.shared
    shares.look(began + ALONE_SECONDS + 5)
    at_last = [mirror.shared for mirror in (back, one, other)]
    for mirror in (back, one, other):
        shares._alone(mirror.member)

    assert (at_once, later, at_last) == ([0, 1, 1], 0, [1, 1, 1])
    assert {who.flow for who in shares._alone_until} == {"one", "other"}


async def test_mirrors_that_name_another_leader_epoch_read_alone() -> None:
    """
    Of what was replaced after that of one of them the broker would not tell the other. Where they have come
    to the same one they share, with those that do already.
    """
    mirrors = old, _, late = [Mirror(KEYS[:2]) for _ in range(3)]
    for mirror, epoch in zip(mirrors, (1, 2, 1), strict=True):
        mirror.member.reader.places[KEYS[0]].fetched_epoch = epoch
    shares = sharing_of(*mirrors)

    look(shares, *mirrors)
    first = [set(mirror.reading.places) for mirror in mirrors]
    both = next(one for one in shares._groups if KEYS[0] in one.wanted)
    apart = set(both.members)
    both.reader.places[KEYS[0]].fetched_epoch = 2
    look(shares, *mirrors)

    assert apart == {old.member, late.member}
    assert first == [set(), {KEYS[0]}, set()]
    assert [mirror.shared for mirror in mirrors] == [2, 2, 2]
    assert [set(one.wanted) for one in shares._groups] == [set(KEYS[:2])]


async def test_mirrors_that_are_too_slow_are_waited_for_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A group is held up no longer by ten of them than by one.
    """
    monkeypatch.setattr(group, "SLOW_SECONDS", 0.2)
    mirrors = [Mirror(KEYS[:1]) for _ in range(10)]
    given_up: list[Member] = []
    held_up = Group(Relayed(), [mirror.member for mirror in mirrors], given_up.append)

    began = asyncio.get_running_loop().time()
    await held_up._room()
    took = asyncio.get_running_loop().time() - began

    assert given_up == [mirror.member for mirror in mirrors]
    assert 0.2 <= took < 1.0


async def test_what_zstd_has_goes_with_the_group() -> None:
    """
    At once: others know it on.
    """
    group_of_two = Group(Relayed(), [Mirror(KEYS[:1]).member for _ in range(2)], lambda _: None)
    window = weakref.ref(group_of_two._press.sealer._window)
    before = window() is not None

    group_of_two.close()

    assert before
    assert window() is None


async def test_a_mirror_is_told_no_more_than_it_reads() -> None:
    """
    Its link is slow: everything moves all the same, and it never looks as if it did not read at all.
    """
    slow, other = Mirror(KEYS, reads=5_000), Mirror(KEYS)
    shares = sharing_of(slow, other)

    looks = 0
    while slow.shared < len(KEYS):
        looks += 1
        look(shares, slow, other)
        assert slow.shared == other.shared
    assert looks < 20
    assert slow.most_waited < WAITS_MAX + 100

    shares.leave(other.member)
    while slow.shared:
        assert len(slow.reading.places) == len(KEYS) - slow.shared
        look(shares, slow)
    assert slow.most_waited < WAITS_MAX + 100
    assert slow.reading.places.keys() == set(KEYS)
    assert len(slow.moves) < 40


async def test_what_is_wanted_otherwise_meanwhile_does_not_come_back() -> None:
    """
    Its turn to go back would have come later.
    """
    one, other = Mirror(KEYS), Mirror(KEYS)
    shares = sharing_of(one, other)
    for _ in range(3):
        look(shares, one, other)
    one.reads = 0
    shares.leave(other.member)
    waits = next(key for key in KEYS if one.way[key] != Channel.LIVE)

    shares.released(one.member, [waits])
    one.reads = 1 << 30
    for _ in range(3):
        look(shares, one)

    assert one.reading.places.keys() == set(KEYS) - {waits}


async def test_all_comes_back_soon_to_a_mirror_that_shares_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    The next of them as soon as it has read of those before, not with the next look.
    """
    one, other = Mirror(KEYS), Mirror(KEYS)
    shares = sharing_of(one, other)
    for _ in range(3):
        look(shares, one, other)
    shares.leave(other.member)
    monkeypatch.setattr(sharing, "LOOK_SECONDS", 3600.0)

    running = asyncio.create_task(shares.run())
    async with asyncio.timeout(5):
        while one.shared:
            one.read()
            await asyncio.sleep(0.001)

    running.cancel()
    assert one.reading.places.keys() == set(KEYS)


async def test_a_mirror_goes_on_where_its_group_was_though_that_reads_no_more() -> None:
    """
    The group has met an error and has told nobody yet: each mirror meets it itself, where its copy ends.
    """
    one, other = Mirror(KEYS[:1]), Mirror(KEYS[:1])
    shares = sharing_of(one, other)
    look(shares, one, other)
    reader = shares._groups[0].reader
    reader.places[KEYS[0]].offset, reader.places[KEYS[0]].fetched_epoch = 200, 5
    reader.forget(KEYS[:1])

    shares._alone(one.member)

    for mirror in (one, other):
        place = mirror.reading.places[KEYS[0]]
        assert (place.offset, place.fetched_epoch) == (200, 5)


async def test_a_rank_counts_when_a_mirror_reads_for_itself_again() -> None:
    """
    It was said while others read for it, or while what came back was still too much.
    """
    one, other = Mirror(KEYS), Mirror(KEYS)
    shares = sharing_of(one, other)
    for _ in range(3):
        look(shares, one, other)

    shares.rank(one.member, [(KEYS[0], 45)])
    one.reads = 0
    shares.leave(other.member)
    waits = next(key for key in KEYS if one.way[key] != Channel.LIVE)
    shares.rank(one.member, [(waits, 46)])
    one.reads = 1 << 30
    for _ in range(3):
        look(shares, one)

    ranked = {key: place.rank for key, place in one.reading.places.items() if place.rank}
    assert ranked == {KEYS[0]: 45, waits: 46}


class Few:
    """A broker that takes so many connections, and no more.

    Attributes:
        refuses: Others are refused, or wait for ever.
    """

    def __init__(self, most: int, *, refuses: bool) -> None:
        self.refuses = refuses
        self._left = most

    async def open(self, *_: object) -> Quiet:
        self._left -= 1
        if self._left >= 0:
            return Quiet()
        if not self.refuses:
            await asyncio.Event().wait()
        raise ConnectionFailedError("it takes no more connections")


async def is_read(sink: Sink) -> None:
    """The mirror hears of the partition, by a channel of its own."""
    await sink.reaches(lambda: (Channel.LIVE, FIRST, 1) in sink.parts)


@pytest.mark.parametrize("refuses", [True, False], ids=["refused", "hangs"])
async def test_what_a_group_cannot_read_its_mirrors_read_again(
    refuses: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Both have two connections to the broker, and it has none for a group. So it stays for a while.
    """
    monkeypatch.setattr(broker_lane, "Connection", Few(4, refuses=refuses))
    monkeypatch.setattr(sharing, "UNREAD_SECONDS", 0.2)
    source, sinks = cast(Cluster, Source()), [Sink(), Sink()]
    mirrors = [Mirror([FIRST]) for _ in sinks]
    shares, running = Sharing(source), []
    for mirror, sink in zip(mirrors, sinks, strict=True):
        reader = SourceReader(source, Isolation.READ_COMMITTED, sink, 1 << 20)
        running.append(asyncio.create_task(reader.run()))
        reader.want([Position(FIRST, 1, END, -1, True, 0)])
        mirror.member.reader = reader
        shares.join(mirror.member)
        await is_read(sink)
        sink.parts.clear()

    shares.look(time.monotonic())
    shared = [mirror.shared for mirror in mirrors]
    async with asyncio.timeout(10):
        while mirrors[0].shared:
            await asyncio.sleep(0.01)
            shares.look(now := time.monotonic())
    for sink in sinks:
        await is_read(sink)
    shares.look(now + sharing.ALONE_SECONDS - 1)
    soon = [mirror.shared for mirror in mirrors]
    shares.look(now + sharing.ALONE_SECONDS + 1)
    later = [mirror.shared for mirror in mirrors]

    for mirror in mirrors:
        shares.leave(mirror.member)
    for task in running:
        task.cancel()
    await asyncio.wait(running)
    assert (shared, soon, later) == ([1, 1], [0, 0], [1, 1])
