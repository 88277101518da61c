"""Batches that are to be written again, and what goes on while that takes its time."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mirror.flow.context import Flow, Limits
from mirror.flow.ends import End, Seam, compare_ends, tail_of
from mirror.flow.intake import Intake, take_rest
from mirror.flow.partition import PartitionCopy
from mirror.flow.position import Proceed
from mirror.flow.receiving import Answers, Outcome, Receiver
from mirror.kafka.buffers import BufferPool
from mirror.kafka.codecs import inflate
from mirror.kafka.fetch import Fetched, FetchLimits, Key
from mirror.kafka.record_batch import HEADER_BYTES, LOG_APPEND_TIME, TRANSACTIONAL, walk
from mirror.model import OffsetMode, Reason, State, TopicPartition
from tests.unit.batches import CODECS, Codec, Entry, entries, old, v2
from tests.unit.target_model import Hooks, Meters

MIB = 1 << 20
KEY = Key(b"t" * 16, 0)
PACKED: tuple[Codec, ...] = ("gzip", "snappy", "lz4", "zstd")
SOON = 30.0
COUNT = 2_000
SPARSE = [Entry(offset, value=b"x" * 100) for offset in (*range(COUNT), *range(COUNT + 1, 2 * COUNT))]
"""One is missing in the middle, as compaction leaves it: all are to be written again."""


class Thread:
    """Where batches are written again: it waits until it is told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._looking, self._told = threading.Event(), threading.Event()
        monkeypatch.setattr("mirror.flow.receiving.take_rest", self._when_told)

    def _when_told(self, intake: Intake, records: memoryview, **how: Any) -> None:
        if len(records):
            self._looking.set()
            assert self._told.wait(SOON)
        take_rest(intake, records, **how)

    async def looks(self) -> None:
        """Return when it has something to do."""
        assert await asyncio.to_thread(self._looking.wait, SOON)

    def tell(self) -> None:
        """Let it go on."""
        self._told.set()


async def test_others_go_on_while_batches_are_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    What has come of another partition is taken meanwhile.
    """
    thread = Thread(monkeypatch)
    receiver, flow = begun()
    one, other = partition(0), partition(1)
    taking = asyncio.create_task(came(receiver, flow, one, bytes(v2(SPARSE))))
    await thread.looks()

    outcome = await came(receiver, flow, other, bytes(v2(entries(0, 3))))
    before_that = taking.done()
    thread.tell()

    assert (outcome, before_that) == (Outcome.TAKEN, False)
    assert await taking is Outcome.TAKEN
    assert (one.fetch_offset, other.fetch_offset) == (2 * COUNT, 3)
    assert not receiver.sorting


async def test_what_is_concluded_meanwhile_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Of a partition that is doubted while its batches are being written again nothing is taken.
    """
    thread = Thread(monkeypatch)
    receiver, flow = begun()
    copy = partition(0)
    taking = asyncio.create_task(came(receiver, flow, copy, bytes(v2(SPARSE))))
    await thread.looks()

    sorting = set(receiver.sorting)
    copy.doubt(0.0)
    thread.tell()

    assert await taking is Outcome.OVERTAKEN
    assert sorting == {copy.key}
    assert (copy.fetch_offset, copy.pending, receiver.sorting) == (0, False, set())


async def test_a_mistake_of_ours_in_the_closer_look_does_not_overrule_what_is_decided_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    What an operator has paused stays paused.
    """
    looking, told = threading.Event(), threading.Event()

    def mistake(*_: object, **__: object) -> None:
        looking.set()
        assert told.wait(SOON)
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("mirror.flow.receiving.take_rest", mistake)
    receiver, flow = begun()
    copy = partition(0)
    taking = asyncio.create_task(came(receiver, flow, copy, bytes(v2(SPARSE))))
    assert await asyncio.to_thread(looking.wait, SOON)

    copy.stop(State.PAUSED, Reason.OPERATOR, "paused by an operator", None)
    told.set()

    assert await taking is Outcome.REFUSED
    assert (copy.state, copy.reason, copy.look_due_at) == (State.PAUSED, Reason.OPERATOR, None)


async def test_a_lane_that_ends_meanwhile_leaves_the_partition_to_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    It is told that it wants to be read, and nothing was taken.
    """
    thread = Thread(monkeypatch)
    receiver, flow = begun()
    copy, changed = partition(0), list[PartitionCopy]()
    monkeypatch.setattr(flow.hooks, "changed", changed.append)
    taking = asyncio.create_task(came(receiver, flow, copy, bytes(v2(SPARSE))))
    await thread.looks()

    taking.cancel()
    thread.tell()

    with pytest.raises(asyncio.CancelledError):
        await taking
    assert changed == [copy]
    assert (copy.fetch_offset, copy.pending, receiver.sorting) == (0, False, set())


async def test_a_torn_batch_wants_no_closer_look() -> None:
    """
    Brokers hand out half of one at the end of nearly every answer: it is taken no notice of, at once.
    """
    receiver, flow = begun()
    copy = partition(0)
    torn = bytes(v2([Entry(3 + offset, value=b"x" * 100) for offset in range(COUNT)]))[:-1]

    taking = came(receiver, flow, copy, bytes(v2(entries(0, 3))) + torn)

    with pytest.raises(StopIteration) as done:
        taking.send(None)  # it waits for nothing
    assert done.value.value is Outcome.TAKEN
    assert copy.fetch_offset == 3


def kilobytes_of_a_megabyte(codec: Codec) -> bytes:
    """A batch that is to be written again, and is small only as long as it is compressed."""
    return bytes(v2([Entry(0, value=bytes(MIB)), Entry(1)], codec=codec, attributes=LOG_APPEND_TIME))


@pytest.mark.parametrize(
    "records",
    [
        *(pytest.param(kilobytes_of_a_megabyte(codec), id=codec) for codec in PACKED),
        pytest.param(bytes(old(1, [Entry(0, value=bytes(MIB))], codec="gzip")), id="an old format"),
        pytest.param(bytes(v2(SPARSE)), id="not compressed"),
    ],
)
async def test_what_becomes_much_is_written_again_in_another_thread(
    monkeypatch: pytest.MonkeyPatch, records: bytes
) -> None:
    """
    However little of it came: the loop, and all partitions, go on.
    """
    threads = looking_threads(monkeypatch)
    receiver, flow = begun()

    outcome = await came(receiver, flow, partition(0), records)

    assert outcome is Outcome.TAKEN
    assert len(threads) == 1
    assert threads[0] is not threading.current_thread()


@pytest.mark.parametrize(
    "records",
    [
        *(
            pytest.param(bytes(v2(entries(0, 9), codec=codec, attributes=LOG_APPEND_TIME)), id=codec)
            for codec in CODECS
        ),
        pytest.param(bytes(old(1, entries(0, 9))), id="an old format"),
        pytest.param(
            bytes(v2([Entry(0, value=bytes(MIB))], codec="gzip", attributes=TRANSACTIONAL)),
            id="passes as it is",
        ),
        pytest.param(bytes(v2(entries(0, 9), codec="gzip")) + bytes(40), id="a torn one behind it"),
    ],
)
async def test_little_is_looked_at_at_once(monkeypatch: pytest.MonkeyPatch, records: bytes) -> None:
    """
    What passes as it is is not inflated, and so is little, too.
    """
    threads = looking_threads(monkeypatch)
    receiver, flow = begun()

    outcome = await came(receiver, flow, partition(0), records)

    assert outcome is Outcome.TAKEN
    assert threads == [threading.current_thread()]


def looking_threads(monkeypatch: pytest.MonkeyPatch) -> list[threading.Thread]:
    """In which threads batches are looked at closely from now on."""
    threads: list[threading.Thread] = []

    def look(intake: Intake, records: memoryview, **how: Any) -> None:
        threads.append(threading.current_thread())
        take_rest(intake, records, **how)

    monkeypatch.setattr("mirror.flow.receiving.take_rest", look)
    return threads


async def test_the_last_record_copied_is_compared_in_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Where the bytes are not the same they are inflated, also those of the target; of the source's answer only
    the batch that the record is in.
    """
    _, flow = begun()
    first, second = (
        v2(entries(at, 9), codec="gzip", attributes=LOG_APPEND_TIME, max_timestamp_ms=7) for at in (0, 9)
    )
    copied = v2([entry._replace(timestamp_ms=7) for entry in entries(0, 9)], codec="gzip")
    source = memoryview(bytearray(bytes(first) + bytes(second)))
    answers = {id(flow.source): source, id(flow.target): copied}
    inflated: list[tuple[bytes, threading.Thread]] = []

    async def peek_at(cluster: Any, _node: int, wants: Any, *_: Any) -> dict[TopicPartition, Fetched]:
        return {tp: Fetched(KEY, 0, 18, 18, 0, None, [], answers[id(cluster)]) for tp in wants}

    def look(codec: int, data: memoryview, bytes_max: int) -> bytes:
        inflated.append((bytes(data), threading.current_thread()))
        return inflate(codec, data, bytes_max)

    for module in ("ends", "replicas"):
        monkeypatch.setattr(f"mirror.flow.{module}.peek_all_at", peek_at)
    monkeypatch.setattr("mirror.flow.encode.inflate", look)
    ((header, view),) = walk(copied)
    one = TopicPartition("orders", 0)

    found = await compare_ends(flow, {one: End(one, 8, 8, -1, tail_of(header, view))})

    assert found == {one: Seam(9, None)}
    payloads, threads = [data for data, _ in inflated], {thread for _, thread in inflated}
    assert bytes(first[HEADER_BYTES:]) in payloads
    assert bytes(copied[HEADER_BYTES:]) in payloads
    assert bytes(second[HEADER_BYTES:]) not in payloads
    assert threading.current_thread() not in threads


def begun() -> tuple[Receiver, Flow]:
    limits = Limits(
        fetch=FetchLimits(), partition_fetch_bytes_max=1 << 16, request_bytes_max=MIB,
        fetch_connections=1, append_connections=1, requests_in_flight_max=5, batches_in_flight_max=5,
        buffer_bytes_max=8 * MIB, partition_buffer_bytes_max=MIB, gap_limit=1_000, padding_limit=0,
    )  # fmt: skip
    info = SimpleNamespace(partition=lambda _: None, leader=lambda _: -1)
    flow = Flow(
        name="f", source=cast(Any, SimpleNamespace(name="source", info=info)),
        target=cast(Any, SimpleNamespace(name="target", info=info)), limits=limits,
        pool=BufferPool(idle_bytes_max=0), instruments=Meters(), hooks=Hooks(),
    )  # fmt: skip
    return Receiver(flow, lambda _: False), flow


def partition(number: int) -> PartitionCopy:
    """One that goes on from its beginning."""
    one = TopicPartition("orders", number)
    copy = PartitionCopy(one, one, b"t" * 16, in_flight_max=5)
    copy.proceed(Proceed(0, 0, 0, 0, 0), OffsetMode.SAME, 0, 0.0)
    return copy


async def came(receiver: Receiver, flow: Flow, copy: PartitionCopy, records: bytes) -> Outcome:
    """A part of an answer that holds these records."""
    buffer = flow.pool.take(len(records))
    memory = buffer.memory[: len(records)]
    memory[:] = records
    end = 10 * COUNT
    fetched = Fetched(copy.key, 0, end, end, 0, None, [], memory)
    try:
        return await receiver.take(copy, fetched, copy.fetch_offset, buffer, Answers(0.0, None))
    finally:
        buffer.release()
