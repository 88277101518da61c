"""A lane through a relay, and what it tells the relay of partitions that are not written."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, cast

from mirror.flow.context import Flow, Limits, LinkLimits
from mirror.flow.linked import LinkLane
from mirror.flow.partition import PartitionCopy
from mirror.flow.position import Proceed
from mirror.kafka.buffers import BufferPool
from mirror.kafka.fetch import Fetched, FetchLimits, Key
from mirror.link.frames import Compression, Frames, Opener, Sealer
from mirror.link.messages import Channel, Position
from mirror.link.parts import Part, encode_parts
from mirror.link.stream import Came
from mirror.model import Batch, OffsetMode, TopicPartition
from tests.unit.target_model import Hooks, Meters

MIB = 1 << 20
BUFFERS, EACH = 32 * MIB, 2 * MIB
FOR_WHAT_IS_BEHIND = BUFFERS - BUFFERS // 8


class Stream:
    """Notes which partitions are to be sent, and which no more."""

    relay = "relay-1.east:9650"

    def __init__(self) -> None:
        self.forgotten: set[Key] = set()
        self.wanted: list[Position] = []
        self._sealer = Sealer(Compression(0))

    def frame(self, key: Key, records: memoryview) -> Came:
        """What was wanted last has come, recoded."""
        at = self.wanted[-1].offset
        fetched = Fetched(key, 0, 9, 9, 0, None, [], records)
        parts = [Part(self.wanted[-1].number, at, at + 1, fetched)]
        pieces = self._sealer.seal(1, 0, encode_parts(parts, {key}))
        (arrived,) = Frames(BufferPool(0)).received(b"".join(pieces))
        return Came(Channel.BULK, arrived, 1.0)

    def opener(self, _: int) -> Opener:
        return Opener(self._sealer.key, 27)

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


def reading(buffers: int = BUFFERS, each: int = EACH) -> tuple[LinkLane, Flow, Stream]:
    """A lane whose stream has begun."""
    limits = Limits(
        fetch=FetchLimits(), partition_fetch_bytes_max=1 << 16, request_bytes_max=MIB,
        fetch_connections=1, append_connections=1, requests_in_flight_max=5, batches_in_flight_max=5,
        buffer_bytes_max=buffers, partition_buffer_bytes_max=each, gap_limit=1_000, padding_limit=0,
    )  # fmt: skip
    stream = Stream()
    flow = Flow(
        name="f", source=cast(Any, SimpleNamespace()), target=cast(Any, None), limits=limits,
        pool=BufferPool(idle_bytes_max=0), instruments=Meters(), hooks=Hooks(), stream=cast(Any, stream),
    )  # fmt: skip
    return LinkLane(flow, LinkLimits(16 * MIB, 0, recode=True)), flow, stream


def partition(number: int) -> PartitionCopy:
    """One that goes on from its beginning."""
    one = TopicPartition("orders", number)
    copy = PartitionCopy(one, one, b"t" * 16, in_flight_max=5)
    copy.proceed(Proceed(0, 0, 0, 0, 0), OffsetMode.SAME, 0, 0.0)
    return copy


def bring(flow: Flow, copy: PartitionCopy, size: int = MIB) -> None:
    """A part comes, in a buffer of its own."""
    buffer = flow.pool.take(size)
    at = copy.fetch_offset
    copy.queue.push([Batch(at, at + 1, 0, 0, buffer.memory[:size])], (), buffer)
    buffer.release()
