"""A lane through a relay, and what it tells the relay of partitions that are not written."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mirror.broker_codes import TOPIC_AUTHORIZATION_FAILED
from mirror.errors import BatchError
from mirror.flow.context import Flow, Limits, LinkLimits
from mirror.flow.lagging import LagMeter
from mirror.flow.linked import LinkLane
from mirror.flow.partition import PartitionCopy
from mirror.flow.position import Proceed
from mirror.flow.receiving import Room
from mirror.kafka.buffers import BufferPool
from mirror.kafka.fetch import Fetched, FetchLimits, Key
from mirror.link.channels import Came
from mirror.link.frames import Compression, Frames, Opener, Sealer
from mirror.link.greeting import Trouble
from mirror.link.parts import ASTRAY, Part, encode_parts
from mirror.link.protocol import RELAY_ITSELF, Channel, Position
from mirror.model import Batch, OffsetMode, Reason, State, TopicPartition
from tests.harness.daemon import until
from tests.unit.batches import entries, v2
from tests.unit.target_model import Hooks, Meters

MIB = 1 << 20
BUFFERS, EACH = 32 * MIB, 2 * MIB
FOR_WHAT_IS_BEHIND = BUFFERS - BUFFERS // 8


class Stream:
    """Notes which partitions are to be sent, and which no more; has its channels itself."""

    relay = "relay-1.east:9650"
    clock_offset_ms = None

    def __init__(self) -> None:
        self.forgotten: set[Key] = set()
        self.wanted: list[Position] = []
        self.frames: dict[int, asyncio.Queue[Came]] = {channel: asyncio.Queue() for channel in Channel}
        self.troubles: asyncio.Queue[Trouble] = asyncio.Queue()
        self.taken: list[int] = []
        self.piece_came_at: float | None = None
        self.channels = self
        self._sealer = Sealer(Compression(0))
        self._opener = Opener(self._sealer.key, 27)

    def part(self, copy: PartitionCopy, at: int, next_offset: int, end: int) -> Part:
        """Records of a partition, as it was wanted last, and where the source ends."""
        number = [position.number for position in self.wanted if position.key == copy.key][-1]
        records = v2(entries(at, next_offset - at)) if next_offset > at else b""
        fetched = Fetched(copy.key, 0, end, end, 0, None, [], memoryview(records))
        return Part(number, at, next_offset, fetched)

    def frame(self, channel: int, read_at: float, parts: Sequence[Part], node: int = 1) -> Came:
        """One with these parts has come."""
        pieces = self._sealer.seal(node, 0, encode_parts(parts))
        (arrived,) = Frames(BufferPool(0)).received(b"".join(pieces))
        return Came(channel, arrived, read_at)

    async def next_frame(self, channel: int) -> Came:
        """One that a test has put there."""
        return await self.frames[channel].get()

    async def next_trouble(self) -> Trouble:
        """One that a test has put there."""
        return await self.troubles.get()

    def took(self, came: Came) -> None:
        self.taken.append(came.channel)

    def piece_at(self) -> float | None:
        """Frames come whole, unless a test says when a piece has come."""
        return self.piece_came_at

    def opener(self, _: int) -> Opener:
        return self._opener

    def number_of(self, _: int, part: Part) -> int:
        return part.number

    def want(self, positions: Iterable[Position]) -> None:
        positions = list(positions)
        self.wanted += positions
        self.forgotten -= {position.key for position in positions}

    def forget(self, keys: Iterable[Key]) -> None:
        self.forgotten |= set(keys)


async def test_partitions_that_are_not_written_leave_room_for_the_others() -> None:
    """
    Six of them, as of a broker of the target that does not answer: a part of another one still fits.
    """
    lane, flow, stream = reading()

    for number in range(6):
        copy = partition(number)
        lane.update(copy)
        while copy.key not in stream.forgotten:
            bring(flow, copy)
            lane.update(copy)
        assert copy.queue.bytes >= EACH

    assert flow.pool.used_bytes + MIB <= FOR_WHAT_IS_BEHIND


async def test_a_partition_that_is_written_slowly_is_not_left_out_before_it_has_half() -> None:
    """
    What is on its way of it would have been sent in vain.
    """
    lane, flow, stream = reading()
    copy = partition(0)
    lane.update(copy)

    parts = 0
    while copy.key not in stream.forgotten:
        if parts % 2:
            sent, _ = copy.take()
            copy.answered(sent, appended=True, now=copy.acknowledged_at + 1)
            lane.update(copy)
        bring(flow, copy)
        lane.update(copy)
        parts += 1

    assert copy.queue.bytes == BUFFERS // 2


async def test_a_partition_that_is_written_again_is_read_again() -> None:
    """
    Though most of what waits for its broker still waits.
    """
    lane, flow, stream = reading()
    copy = partition(0)
    lane.update(copy)
    while copy.key not in stream.forgotten:
        bring(flow, copy)
        lane.update(copy)

    sent, _ = copy.take()
    copy.answered(sent, appended=True, now=1.0)
    lane.update(copy)
    await asyncio.sleep(0)

    assert stream.forgotten == set()


async def test_a_partition_has_room_for_more_than_one_part_whatever_the_settings_say() -> None:
    """
    Nothing is free, as one buffer is all there are: it would be left out each time something comes.
    """
    lane, flow, stream = reading(buffers=MIB, each=64 << 10)
    copy = partition(0)
    lane.update(copy)

    bring(flow, copy, size=MIB // 8)
    lane.update(copy)

    assert stream.forgotten == set()


async def test_what_waits_for_its_turn_is_as_late_as_its_own_news_say() -> None:
    """
    Frames of the same broker with what is more urgent say nothing of it; but while they come its source is
    not silent.
    """
    lane, flow, stream = reading()
    urgent, waiting = partition(0), partition(1)
    lane.update(urgent)
    lane.update(waiting)
    await asyncio.sleep(0)
    meter = LagMeter(flow, lane.answered_at, lane.arriving_at)
    first = [stream.part(urgent, 0, 10, 10**9), stream.part(waiting, 0, 100, 1_000)]

    await lane._take_frame(cast(Any, stream), stream.frame(Channel.BULK, 1.0, first))
    write(waiting, now=1.0)
    for second in range(2, 3_600):
        more = [stream.part(urgent, second + 8, second + 9, 10**9)]
        await lane._take_frame(cast(Any, stream), stream.frame(Channel.BULK, second, more))
        write(urgent, now=second)
    meanwhile = meter.measure(waiting, now=3_600.0, now_ms=0)
    silent = meter.silent(waiting, meanwhile, 3_600.0)
    at_last = [stream.part(waiting, 100, 1_000, 4_600)]
    await lane._take_frame(cast(Any, stream), stream.frame(Channel.BULK, 3_600.0, at_last))
    write(waiting, now=3_600.0)

    assert (meanwhile.heard_at, silent) == (1.0, False)
    assert meter.measure(waiting, now=3_601.0, now_ms=0).seconds == 3_600.0


@pytest.mark.parametrize("channel", [Channel.LIVE, 2])
async def test_what_did_not_come_up_to_its_end_is_as_late_as_its_own_news_say(channel: int) -> None:
    """
    It may be changing over, and is asked for by nobody meanwhile: frames without it say nothing of it, also
    where the stream is lost then. A piece of what comes shows that its source is not silent.
    """
    lane, flow, stream = reading()
    bursts, other = partition(0), partition(1)
    for copy in (bursts, other):
        lane.update(copy)
    await asyncio.sleep(0)
    meter = LagMeter(flow, lane.answered_at, lane.arriving_at)
    if channel != Channel.LIVE:
        lane._moved(channel, [(position.key, position.number) for position in stream.wanted])

    async def comes(by: int, read_at: float, *parts: Part) -> None:
        await lane._take_frame(cast(Any, stream), stream.frame(by, read_at, parts))
        write(bursts, now=read_at)

    await comes(channel, 1.0, stream.part(bursts, 0, 10, 10), stream.part(other, 0, 10, 10))
    await comes(channel, 2.0, stream.part(bursts, 10, 20, 100))
    await comes(channel, 60.0)
    meanwhile = meter.measure(bursts, now=60.0, now_ms=0)
    silent = meter.silent(bursts, meanwhile, 60.0)
    stream.piece_came_at = 59.5
    arriving = meter.silent(bursts, meanwhile, 60.0)
    lane._want(bursts.key, bursts)
    await asyncio.sleep(0)
    await comes(Channel.BULK, 61.0, stream.part(bursts, 20, 100, 5_000))

    assert (meanwhile.heard_at, silent, arriving) == (2.0, True, False)
    assert meter.measure(bursts, now=61.0, now_ms=0).seconds == 59.0


async def test_what_comes_up_to_its_end_after_all_needs_no_more_news_of_its_own() -> None:
    """
    Little that was not all of it: the rest comes by the same channel, and what frames leave out then is news
    again.
    """
    lane, flow, stream = reading()
    copy = partition(0)
    lane.update(copy)
    await asyncio.sleep(0)
    meter = LagMeter(flow, lane.answered_at, lane.arriving_at)

    for read_at, parts in ((1.0, [(0, 10)]), (2.0, [(10, 20)]), (600.0, [])):
        came = [stream.part(copy, at, next_offset, 20) for at, next_offset in parts]
        await lane._take_frame(cast(Any, stream), stream.frame(Channel.LIVE, read_at, came))
        write(copy, now=read_at)

    lag = meter.measure(copy, now=600.0, now_ms=0)
    assert (lag.late_seconds, lag.heard_at) == (0.0, 600.0)


@pytest.mark.parametrize(
    ("says", "again"),
    [
        pytest.param({}, False, id="nothing"),
        pytest.param({"error_code": ASTRAY}, False, id="that its leader is looked for"),
        pytest.param({"error_code": 5}, True, id="an error"),
        pytest.param({"diverging": (5, 60)}, True, id="that the source was truncated"),
        pytest.param({"records": memoryview(bytes(80))}, True, id="what is no batch"),
    ],
)
async def test_what_ends_before_the_copy_does_is_wanted_from_there(says: dict[str, Any], again: bool) -> None:
    """
    Parts of two channels overtake each other. The relay reads the partition no more, and said so of a place
    that the copy has passed.
    """
    lane, _, stream = reading()
    copy = partition(0)
    lane.update(copy)
    await asyncio.sleep(0)
    shared = [stream.part(copy, 0, 100, 100)]
    late = stream.part(copy, 50, 50, 100)
    late = late._replace(fetched=late.fetched._replace(**says))

    await lane._take_frame(cast(Any, stream), stream.frame(2, 1.0, shared))
    await lane._take_frame(cast(Any, stream), stream.frame(Channel.LIVE, 2.0, [late]))
    await asyncio.sleep(0)

    assert [position.offset for position in stream.wanted] == [0, 100] if again else [0]


@pytest.mark.parametrize("says", [0, ASTRAY])
async def test_what_comes_late_by_the_channel_before_says_nothing_of_the_one_by_which_more_comes(
    says: int,
) -> None:
    """
    Its frame was sent before the partition moved. What it brings is taken; but that its broker has no more
    news there, or that it is led by another, is not said of the new channel: nothing may come there at all.
    """
    lane, flow, stream = reading()
    moves, stays = partition(0), partition(1)
    for copy in (moves, stays):
        lane.update(copy)
    await asyncio.sleep(0)
    meter = LagMeter(flow, lane.answered_at, lane.arriving_at)
    [number] = [position.number for position in stream.wanted if position.key == moves.key]

    def late() -> Part:
        at = moves.fetch_offset
        if says == ASTRAY:
            part = stream.part(moves, at, at, at)
            return part._replace(fetched=part.fetched._replace(error_code=ASTRAY))
        return stream.part(moves, at, at + 10, at + 10)

    async def comes(channel: int, read_at: float, *parts: Part) -> None:
        await lane._take_frame(cast(Any, stream), stream.frame(channel, read_at, parts))
        write(moves, now=read_at)

    def lag(now: float) -> float | None:
        return meter.measure(moves, now=now, now_ms=0).late_seconds

    lane._moved(2, [(moves.key, number)])
    await comes(Channel.LIVE, 1.0, late(), stream.part(stays, 0, 10, 10))
    await comes(Channel.LIVE, 600.0)
    unheard = lane.answered_at(moves)
    await comes(2, 601.0, stream.part(moves, moves.fetch_offset, 50, 50))
    await comes(2, 602.0)
    shared = lag(602.0)
    await comes(Channel.LIVE, 603.0, late())
    await comes(2, 604.0)
    still_shared = lag(604.0)
    lane._moved(Channel.LIVE, [(moves.key, number)])
    back_again = lane.answered_at(moves)
    end = moves.fetch_offset
    await comes(Channel.LIVE, 605.0, stream.part(moves, end, end, end))
    await comes(Channel.LIVE, 606.0)

    assert (unheard, shared, still_shared, back_again) == (None, 0.0, 0.0, None)
    assert lag(606.0) == 0.0
    assert moves.next_offset == (50 if says == ASTRAY else 60)


@pytest.mark.parametrize("loses", ["leaves", "is wanted anew", "has moved", "is led by another"])
async def test_up_to_the_last_word_of_its_relay_an_idle_partition_was_complete(loses: str) -> None:
    """
    Whatever takes the way from it then: its own news may be hours old.
    """
    lane, flow, stream = reading()
    idle, other = partition(0), partition(1)
    for copy in (idle, other):
        lane.update(copy)
    await asyncio.sleep(0)
    meter = LagMeter(flow, lane.answered_at, lane.arriving_at)
    [number] = [position.number for position in stream.wanted if position.key == idle.key]
    parts = [stream.part(idle, 0, 10, 10), stream.part(other, 0, 10, 10)]
    await lane._take_frame(cast(Any, stream), stream.frame(Channel.LIVE, 1.0, parts))
    write(idle, now=1.0)
    await lane._take_frame(cast(Any, stream), stream.frame(Channel.LIVE, 18_000.0, []))

    if loses == "leaves":
        lane.leave(idle.key)
    elif loses == "is wanted anew":
        lane._want(idle.key, idle)
    elif loses == "has moved":
        lane._moved(2, [(idle.key, number)])
    else:
        astray = stream.part(idle, 10, 10, 10)
        astray = astray._replace(fetched=astray.fetched._replace(error_code=ASTRAY))
        await lane._take_frame(cast(Any, stream), stream.frame(Channel.LIVE, 18_000.5, [astray]))

    assert lane.answered_at(idle) is None
    assert meter.measure(idle, now=18_005.0, now_ms=0).seconds == 5.0


class Rereading(Hooks):
    """Other replicas are asked for a bad batch."""

    def reread(self, partition: PartitionCopy, bad: BatchError, node: int | None) -> None:
        """They have not answered yet."""


@pytest.mark.parametrize(
    "says",
    [
        pytest.param({"error_code": 29}, id="that it may not be read"),
        pytest.param({"error_code": 1}, id="that its log ends before"),
        pytest.param({"diverging": (5, 6)}, id="that the source was truncated"),
        pytest.param({"records": memoryview(bytes(80))}, id="what is no batch"),
        pytest.param({"records": memoryview(v2(entries(12, 3))), "high_watermark": 15}, id="what is cut off"),
    ],
)
async def test_an_answer_that_gives_nothing_of_a_partition_does_not_say_that_there_was_nothing(
    says: dict[str, Any],
) -> None:
    """
    Its broker had hung until then. How the source was is known up to the answer before.
    """
    lane, flow, stream = reading()
    flow.hooks = Rereading()
    idle, other = partition(0), partition(1)
    for copy in (idle, other):
        lane.update(copy)
    await asyncio.sleep(0)
    parts = [stream.part(idle, 0, 10, 10), stream.part(other, 0, 10, 10)]
    await lane._take_frame(cast(Any, stream), stream.frame(Channel.LIVE, 1.0, parts))
    write(idle, now=1.0)
    await lane._take_frame(cast(Any, stream), stream.frame(Channel.LIVE, 100.0, []))

    part = stream.part(idle, 10, 10, 10)
    part = part._replace(fetched=part.fetched._replace(**says))
    await lane._take_frame(cast(Any, stream), stream.frame(Channel.LIVE, 125.0, [part]))
    lane.leave(idle.key)

    assert lane.answered_at(idle) is None
    assert idle.complete_at == 100.0
    assert lane.answered_at(other) == 125.0


async def test_a_relay_that_cannot_read_a_broker_says_why_of_its_partitions_only() -> None:
    """
    Where it can read none, of all. That is no state yet: what counts is for how long nothing is heard.
    """
    lane, flow, stream = reading()
    flow.source.info = cast(Any, SimpleNamespace(leader=lambda tp: tp.partition))
    copies = [partition(number) for number in range(2)]
    for copy in copies:
        lane.update(copy)

    def said() -> list[str]:
        return [copy.unheard.why if copy.unheard else "" for copy in copies]

    taking = asyncio.create_task(lane._take_troubles(cast(Any, stream)))
    stream.troubles.put_nowait(Trouble(1, "refused"))
    await until(lambda: copies[1].unheard is not None, "it is noted", 5)
    of_one = said()
    stream.troubles.put_nowait(Trouble(RELAY_ITSELF, "none"))
    await until(lambda: copies[0].unheard is not None, "it is noted", 5)
    taking.cancel()

    assert of_one == ["", "relay relay-1.east:9650: refused"]
    assert said() == ["relay relay-1.east:9650: none"] * 2
    assert [(copy.state, copy.detail) for copy in copies] == [(State.ACTIVE, "")] * 2


@pytest.mark.parametrize("node", [RELAY_ITSELF, 1])
async def test_that_the_role_of_a_mirror_lacks_a_topic_only_the_relay_itself_says(node: int) -> None:
    """
    The same code of a broker is about what the relay may read.
    """
    lane, _, stream = reading()
    copy = partition(0)
    lane.update(copy)
    await asyncio.sleep(0)

    part = stream.part(copy, 0, 0, 0)
    part = part._replace(fetched=part.fetched._replace(error_code=TOPIC_AUTHORIZATION_FAILED))
    await lane._take_frame(cast(Any, stream), stream.frame(Channel.LIVE, 1.0, [part], node))

    assert (copy.state, copy.reason) == (State.BLOCKED, Reason.SOURCE_NOT_AUTHORIZED)
    assert ("listen.roles" in copy.detail) == (node == RELAY_ITSELF)


async def test_a_frame_larger_than_its_buffers_does_not_wait_for_the_share_of_others() -> None:
    """
    That is in use as long as anything is written anywhere.
    """
    lane, flow, stream = reading(buffers=8 * MIB, each=MIB)
    copy = partition(0)
    lane.update(copy)
    await asyncio.sleep(0)
    live = flow.pool.take(MIB)
    part = stream.part(copy, 0, 1_000, 1_000)
    came = stream.frame(Channel.BULK, 1.0, [part] * (1 + 8 * MIB // len(part.fetched.records)))
    stream.frames[Channel.BULK].put_nowait(came)

    taking = asyncio.create_task(lane._take_frames(cast(Any, stream), Channel.BULK))
    await until(lambda: bool(stream.taken), "it is taken", 5)

    taking.cancel()
    live.release()
    assert came.arrived.header.body_bytes > 8 * MIB


async def test_what_is_up_to_date_has_room_before_what_is_behind() -> None:
    """
    However large it is, and however little what is behind wants at a time.
    """
    _, flow, _ = reading()
    room, buffers = Room(flow, {}), [flow.pool.take(MIB) for _ in range(2)]
    came: list[str] = []

    async def take(what: str, size: int, *, first: bool) -> None:
        await room.enough(size, BUFFERS, first=first)
        came.append(what)

    tasks = [asyncio.create_task(take("live", BUFFERS, first=True))]
    await asyncio.sleep(0)
    tasks.append(asyncio.create_task(take("bulk", MIB, first=False)))
    for buffer in buffers:
        await asyncio.sleep(0)
        buffer.release()
        flow.room.set()
    await asyncio.wait_for(asyncio.gather(*tasks), 4)

    assert came == ["live", "bulk"]


def reading(buffers: int = BUFFERS, each: int = EACH) -> tuple[LinkLane, Flow, Stream]:
    """A lane whose stream has begun."""
    limits = Limits(
        fetch=FetchLimits(), partition_fetch_bytes_max=1 << 16, request_bytes_max=MIB,
        fetch_connections=1, append_connections=1, requests_in_flight_max=5, batches_in_flight_max=5,
        buffer_bytes_max=buffers, partition_buffer_bytes_max=each, gap_limit=1_000, padding_limit=0,
    )  # fmt: skip
    stream = Stream()
    flow = Flow(
        name="f", source=cast(Any, SimpleNamespace(last_answer_at=None)), target=cast(Any, None),
        limits=limits,
        pool=BufferPool(idle_bytes_max=0), instruments=Meters(), hooks=Hooks(), stream=cast(Any, stream),
    )  # fmt: skip
    return LinkLane(flow, LinkLimits(16 * MIB, 0, recode=True)), flow, stream


def partition(number: int) -> PartitionCopy:
    """One that goes on from its beginning."""
    one = TopicPartition("orders", number)
    copy = PartitionCopy(one, one, b"t" * 16, in_flight_max=5)
    copy.proceed(Proceed(0, 0, 0, 0, 0), OffsetMode.SAME, 0, 0.0)
    return copy


def write(copy: PartitionCopy, now: float) -> None:
    """The target has all that waits."""
    while copy.queue.batch_ready:
        sent, _ = copy.take()
        copy.answered(sent, appended=True, now=now)


def bring(flow: Flow, copy: PartitionCopy, size: int = MIB) -> None:
    """A part comes, in a buffer of its own."""
    buffer = flow.pool.take(size)
    at = copy.fetch_offset
    copy.queue.push([Batch(at, at + 1, 0, 0, buffer.memory[:size])], (), buffer)
    buffer.release()
