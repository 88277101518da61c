"""What every state store promises, tried on all of them."""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio

from checkpoint import topic_store
from checkpoint.batches import BATCH_BYTES_MAX
from checkpoint.errors import CorruptStateError, StateTakenOverError, StateUnavailableError
from checkpoint.flow_state import FlowState
from checkpoint.map_chunk import CHUNK_RUNS
from checkpoint.model import PartitionRecord
from checkpoint.store import StateStore
from checkpoint.topic_store import LogPort, TopicStore
from mirror.errors import BrokerError
from mirror.model import OffsetMode, TopicPartition
from tests.contract.connected import connected, state_log
from tests.contract.memory_log import MemoryLog
from tests.harness.kafka import KafkaCluster
from tests.harness.memory_store import MemoryStore

pytestmark = pytest.mark.timeout(180)

Open = Callable[[], StateStore]
"""Opens the store anew, as after a restart."""
BROKERS = {"topic on 3.9": "source", "topic on 4.3": "target"}
"""The shared clusters of the two versions."""
PRODUCER_ID = 2**40
TOPIC_ID = "8c9ad3c1-0000-0000-0000-000000000001"
EPOCHS = itertools.count(1)


def guarded(log: LogPort) -> TopicStore:
    """A store that has taken the right to write from all before it."""
    writer = (PRODUCER_ID, next(EPOCHS))
    return TopicStore(log, writer=lambda: writer)


@pytest.fixture(params=["memory", "topic", "guarded topic", *BROKERS])
def kind(request: pytest.FixtureRequest) -> tuple[str, KafkaCluster | None]:
    """The kind of store, with the cluster it stands on."""
    name = BROKERS.get(request.param)
    return request.param, request.getfixturevalue(name) if name else None


@pytest_asyncio.fixture
async def open_store(kind: tuple[str, KafkaCluster | None]) -> AsyncIterator[Open]:
    name, brokers = kind
    if brokers is not None:
        async with connected(brokers) as cluster, state_log(brokers, cluster) as there:
            yield lambda: guarded(there)
        return
    items: dict[str, bytes] = {}
    in_memory = MemoryLog()
    kinds: dict[str, Open] = {
        "memory": lambda: MemoryStore(items),
        "topic": lambda: TopicStore(in_memory),
        "guarded topic": lambda: guarded(in_memory),
    }
    yield kinds[name]


# -- all stores ----------------------------------------------------------------------------------


async def test_a_new_store_is_empty(open_store: Open) -> None:
    """
    A flow that begins finds nothing, and that is no error.
    """
    store = open_store()

    assert await store.load() == {}


async def test_what_was_put_is_there_after_a_restart(open_store: Open) -> None:
    """
    Text and bytes of any value, empty ones too.
    """
    items: dict[str, bytes | None] = {"flow": b'{"a": 1}', "map/t/0/0": bytes(range(256)), "empty": b""}
    store = open_store()
    await store.put(items)

    found = await open_store().load()

    assert found == items


async def test_the_last_value_of_a_key_counts_and_none_removes_it(open_store: Open) -> None:
    """
    Other keys stay as they are.
    """
    store = open_store()
    await store.put({"a": b"1", "b": b"1", "c": b"1"})
    await store.put({"a": b"2", "b": None})

    found = await open_store().load()

    assert found == {"a": b"2", "c": b"1"}


async def test_removing_what_is_not_there_is_no_error(open_store: Open) -> None:
    """
    A put that failed half-way is simply put again.
    """
    store = open_store()
    await store.put({"gone": None})

    assert await open_store().load() == {}


async def test_more_than_one_batch_of_values_is_put_at_once(open_store: Open) -> None:
    """
    Two thousand partitions that begin together.
    """
    items: dict[str, bytes | None] = {f"partition/{n}": bytes([n % 256]) * 1000 for n in range(2000)}
    store = open_store()

    await store.put(items)

    assert await open_store().load() == items


async def test_putting_nothing_changes_nothing(open_store: Open) -> None:
    """
    An empty put is allowed.
    """
    store = open_store()
    await store.put({"a": b"1"})
    await store.put({})

    assert await open_store().load() == {"a": b"1"}


async def test_an_offset_map_is_shortened_in_every_store(open_store: Open) -> None:
    """
    What is left is found after a restart, and goes on.
    """
    tp = TopicPartition("orders", 0)
    begins = PartitionRecord("orders", 0, TOPIC_ID, "orders", OffsetMode.MAPPED, True, 0, 0)
    runs = [(2 * n, n) for n in range(3 * CHUNK_RUNS)]
    store = open_store()
    state = FlowState(store)
    await state.load()
    await state.begin(begins, runs[:1])
    await state.extend_maps({tp: runs[1:]})

    await state.forget_below({tp: 2 * CHUNK_RUNS + 1})

    again = open_store()
    state = FlowState(again)
    await state.load()
    offsets = state.map(tp)
    assert offsets is not None
    assert list(offsets) == runs[2 * CHUNK_RUNS :]
    await state.extend_maps({tp: [(9000, 4000)]})


# -- the topic -----------------------------------------------------------------------------------


class CountingLog(MemoryLog):
    """Notes from where it is read."""

    def __init__(self) -> None:
        super().__init__()
        self.read_from: list[int] = []

    async def read(self, offset: int) -> bytes:
        self.read_from.append(offset)
        return await super().read(offset)


async def test_a_second_look_reads_only_what_is_new() -> None:
    """
    However long the log: the last batch known, to see that it stands, and what has come behind it.
    """
    log = CountingLog()
    writer, reader = TopicStore(log), TopicStore(log)
    for n in range(50):
        await writer.put({f"key-{n}": b"1"})
    before = await reader.load()
    await writer.put({"key-0": b"2", "key-1": None})
    log.read_from.clear()

    after = await reader.load()
    read_for_news = list(log.read_from)
    again = await reader.load()

    assert {key for key in before if before[key] != after.get(key)} == {"key-0", "key-1"}
    assert again == after
    assert read_for_news == [49, 50]
    assert log.read_from[2:] == [50]


async def test_when_somebody_has_last_written_is_seen_by_who_reads() -> None:
    """
    Though it is what was there before, as an owner repeats where it runs.
    """
    log = MemoryLog()
    writer, reader = TopicStore(log), TopicStore(log)
    seen = []
    for put in ({}, {"a": b"1"}, {}, {"a": b"1"}, {}):
        await writer.put(put)
        await reader.load()
        seen.append(reader.news_at)

    assert seen[0] == -math.inf
    assert seen[0] < seen[1] == seen[2] < seen[3] == seen[4]


async def test_what_a_reader_was_given_is_its_own() -> None:
    """
    Whoever changes it changes nothing of what the next look begins with.
    """
    log = MemoryLog()
    store = TopicStore(log)
    await store.put({"a": b"1"})

    (await store.load()).clear()

    assert await store.load() == {"a": b"1"}


async def test_a_log_that_lost_its_end_and_grew_again_is_read_anew() -> None:
    """
    After an unclean election other records stand where those were that are known.
    """
    log = MemoryLog()
    reader = TopicStore(log)
    await TopicStore(log).put({"a": b"1"})
    await TopicStore(log).put({"a": b"2", "b": b"2"})
    known = await reader.load()
    lost = log.batches.pop()
    log.batches.append(
        (lost[0], struct.pack(">q", lost[0]) + log.encode([(0, b"c", b"3"), (1, b"d", b"3")])[8:])
    )
    await TopicStore(log).put({"e": b"3"})

    found = await reader.load()

    assert known == {"a": b"2", "b": b"2"}
    assert found == {"a": b"1", "c": b"3", "d": b"3", "e": b"3"}


class TrimmedLog(MemoryLog):
    """A log whose first records were deleted by hand."""

    first = 0

    async def start(self) -> int:
        return self.first

    async def read(self, offset: int) -> bytes:
        if offset < self.first:
            raise BrokerError("OFFSET_OUT_OF_RANGE", 1, f"{offset} is below {self.first}")
        return await super().read(offset)


async def test_a_log_that_begins_behind_what_is_known_is_read_anew() -> None:
    """
    What was deleted is part of the state no more.
    """
    log = TrimmedLog()
    reader = TopicStore(log)
    await TopicStore(log).put({"a": b"1"})
    await reader.load()
    await TopicStore(log).put({"b": b"1"})
    await TopicStore(log).put({"c": b"1"})
    log.first = 2

    assert await reader.load() == {"c": b"1"}


async def test_compaction_between_two_looks_hides_nothing() -> None:
    """
    Removed keys stay removed, whether their records are still there or not.
    """
    log = MemoryLog()
    writer, reader = TopicStore(log), TopicStore(log)
    for n in range(9):
        await writer.put({f"key-{n % 3}": str(n).encode()})
    await reader.load()
    await writer.put({"key-0": None})
    await writer.put({"key-1": b"new"})
    log.compact()

    found = await reader.load()
    log.compact()

    assert found == await reader.load() == await TopicStore(log).load() == {"key-1": b"new", "key-2": b"8"}


async def test_a_log_that_was_not_read_for_an_hour_is_read_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    The last batch known stands as it stood; what says that a key was removed has come and gone.
    """
    log = MemoryLog()
    reader, writer = TopicStore(log), TopicStore(log)
    for name in ("map/t/0/0", "flow"):
        await writer.put({name: b"1"})
    before = await reader.load()
    await writer.put({"map/t/0/0": None})
    await writer.put({"map/t/0/1": b"2"})
    log.batches = [log.batches[1], log.batches[3]]
    monkeypatch.setattr(topic_store, "KNOWN_FOR_SECONDS", 0.0)

    after = await reader.load()

    assert (sorted(before), sorted(after)) == (["flow", "map/t/0/0"], ["flow", "map/t/0/1"])


async def test_compaction_takes_nothing_away_that_counts() -> None:
    """
    The cleaner leaves the last record of each key, gaps between them, and later no removed keys at all.
    """
    log = MemoryLog()
    store = TopicStore(log)
    for n in range(50):
        await store.put({f"key-{n % 7}": str(n).encode(), "always": str(n).encode()})
    await store.put({"key-0": None})
    before = await TopicStore(log).load()

    log.compact()

    assert await TopicStore(log).load() == before
    assert len(before) == 7
    assert "key-0" not in before


async def test_writing_goes_on_after_compaction() -> None:
    """
    The log end does not move when records before it vanish.
    """
    log = MemoryLog()
    store = TopicStore(log)
    await store.put({"a": b"1"})
    await store.put({"a": b"2"})
    log.compact()

    await store.put({"b": b"1"})

    assert await TopicStore(log).load() == {"a": b"2", "b": b"1"}


async def test_a_batch_written_twice_because_its_answer_was_lost_does_no_harm() -> None:
    """
    The log end is two batches further, and both hold the same.
    """
    log = MemoryLog()
    store = TopicStore(log)
    await store.put({"a": b"1"})
    log.lose_answers = 1

    await store.put({"a": b"2", "b": None})
    await store.put({"c": b"3"})

    assert await TopicStore(log).load() == {"a": b"2", "c": b"3"}


async def test_a_writer_notices_that_another_one_has_written() -> None:
    """
    Its picture is old; it loads again before it may go on.
    """
    log = MemoryLog()
    old, new = TopicStore(log), TopicStore(log)
    await old.put({"a": b"1"})
    await new.load()
    await new.put({"a": b"2"})

    with pytest.raises(StateTakenOverError):
        await old.put({"b": b"1"})

    assert (await old.load())["a"] == b"2"
    await old.put({"b": b"2"})


async def test_values_that_fit_one_batch_are_written_whole_or_not_at_all() -> None:
    """
    One put, one batch, as long as it is below half a megabyte.
    """
    log = MemoryLog()
    store = TopicStore(log)

    await store.put({f"key-{n}": bytes(100) for n in range(1000)})

    assert len(log.batches) == 1
    assert len(log.batches[0][1]) < BATCH_BYTES_MAX


async def test_a_log_that_cannot_be_read_to_its_end_is_not_taken_for_a_short_one() -> None:
    """
    Half a state would be worse than none.
    """
    log = MemoryLog()
    store = TopicStore(log)
    await store.put({"a": b"1"})
    await store.put({"b": b"1"})
    del log.batches[1]

    with pytest.raises(StateUnavailableError, match="only up to offset 1, but ends at 2"):
        await TopicStore(log).load()


async def test_a_damaged_batch_is_refused() -> None:
    """
    By its CRC.
    """
    log = MemoryLog()
    await TopicStore(log).put({"a": b"value"})
    base, batch = log.batches[0]
    log.batches[0] = (base, batch.replace(b"value", b"other"))

    with pytest.raises(CorruptStateError, match="does not match its CRC"):
        await TopicStore(log).load()


async def test_a_record_without_a_key_is_refused() -> None:
    """
    Nothing of ours writes one: it is the wrong topic, or somebody else's record.
    """
    log = MemoryLog()
    await log.append(log.encode([(0, None, b"value")]))

    with pytest.raises(CorruptStateError, match="without a key"):
        await TopicStore(log).load()
