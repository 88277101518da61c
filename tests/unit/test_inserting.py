"""What becomes of a batch that a repair appends, whoever began it and however far it got: it stands once."""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from kafka.protocol.producer import ProduceRequest

from checkpoint.flow_state import FlowState
from checkpoint.model import Insertion, PartitionRecord
from mirror.errors import BrokerError, ConnectionFailedError, PartitionError, TwinsiteError
from mirror.flow import looking, reading
from mirror.flow.context import Flow
from mirror.flow.facts import Known
from mirror.flow.inserting import Standing, finish, insertion_of
from mirror.flow.looking import BusyError
from mirror.flow.memory import FlowMemory
from mirror.flow.records import Record
from mirror.kafka.fetch import Fetched, Key, Want
from mirror.kafka.offsets import CONSUMER, DEBUGGER, EARLIEST, ProducerState
from mirror.kafka.varint import encode_varint
from mirror.model import OffsetMode, Reason, TopicPartition
from tests.harness.memory_store import MemoryStore
from tests.unit.batches import Entry, read_v2, v2
from tests.unit.target_model import VERSION, said

ORDERS_0 = TopicPartition("orders", 0)
OURS, FOREIGN = 4711, 99
BEGAN_AT = 10
"""Where the target's log ended when the insertion was made."""
INVALID_RECORD, NOT_ENOUGH_REPLICAS = 87, 19


class Target:
    """A target partition that holds ten copies, and the broker that leads it.

    Attributes:
        start: Where the log starts.
        remembers: Whether the broker knows who has written.
        refuses: With which error code, if it does.
        sent: How many batches came.
        unread: Why it does not say where its log ends.
        deaf: The answer leaves the partition out.
        replicated_to: Up to where other replicas have the log; None for all of it.
        asked: How many questions and batches came.
        between: What happens once so many have come.
    """

    def __init__(self) -> None:
        self.start, self.remembers, self.refuses, self.sent = 0, True, 0, 0
        self.unread: TwinsiteError | None = None
        self.deaf = False
        self.replicated_to: int | None = None
        self.asked = 0
        self.between: dict[int, Callable[[], object]] = {}
        self._batches: list[tuple[int, int, memoryview]] = []
        self.append(v2([Entry(n, key=b"k%d" % n) for n in range(BEGAN_AT)], producer=(OURS, 0, 0)))
        info = SimpleNamespace(leader=lambda _: 1, topics={})
        self.name, self.info = "target", info

    @property
    def end(self) -> int:
        return self._batches[-1][1] if self._batches else 0

    @property
    def high_watermark(self) -> int:
        return self.end if self.replicated_to is None else min(self.end, self.replicated_to)

    @property
    def values(self) -> list[bytes | None]:
        """Those of the records behind the ten, in their order."""
        behind = [view for _, end, view in self._batches if end > BEGAN_AT]
        return [record.value for view in behind for record in read_v2(view)]

    def append(self, view: memoryview) -> int:
        base, batch = self.end, memoryview(bytearray(view))
        struct.pack_into(">q", batch, 0, base)
        self._batches.append((base, base + len(read_v2(batch)), batch))
        return base

    def write(self, key: bytes, value: bytes, *, producer: tuple[int, int, int]) -> None:
        """Somebody appends a record."""
        self.append(v2([Entry(0, key=key, value=value)], producer=producer))

    def lose(self, end: int) -> None:
        """What stands from there on is gone."""
        self._batches = [one for one in self._batches if one[1] <= end]

    def _standing(self, producer: tuple[int, int, int]) -> int | None:
        """Where a batch of this producer, epoch and sequence stands."""
        batches = self._batches
        return next((at for at, _, view in batches if struct.unpack_from(">qhi", view, 43) == producer), None)

    # -- what is asked of it -----------------------------------------------------------------------

    def _is_asked(self) -> None:
        self.between.pop(self.asked, lambda: None)()
        self.asked += 1

    async def list_offsets(
        self, _cluster: Any, tps: Collection[TopicPartition], which: int, *, replica_id: int = CONSUMER
    ) -> Any:
        self._is_asked()
        latest = self.end if replica_id == DEBUGGER else self.high_watermark
        return dict.fromkeys(tps, self.start if which == EARLIEST else self.unread or latest)

    async def describe_producer(self, _cluster: Any, tps: Collection[TopicPartition], who: int) -> Any:
        self._is_asked()
        epochs = [struct.unpack_from(">qh", view, 43) for _, _, view in self._batches]
        ours = max((epoch for producer, epoch in epochs if producer == who), default=-1)
        known = ours >= 0 and self.remembers
        return dict.fromkeys(tps, ProducerState(ours, 0, 0) if known else None)

    async def peek_at(
        self, _cluster: Any, _node: int, wants: Mapping[TopicPartition, Want], *_: object
    ) -> dict[TopicPartition, Fetched]:
        came = await self.peek_all_at(_cluster, _node, wants)
        return {tp: one for tp, one in came.items() if len(one.records)}

    async def peek_all_at(
        self, _cluster: Any, _node: int, wants: Mapping[TopicPartition, Want], *_: object
    ) -> dict[TopicPartition, Fetched]:
        [(tp, want)] = wants.items()
        assert want.offset >= self.start, "a broker refuses what lies before the log's start"
        end = self.high_watermark
        found = b"".join(bytes(view) for _, to, view in self._batches if want.offset < to <= end)
        records = memoryview(bytearray(found))
        return {tp: Fetched(Key(b"t" * 16, 0), 0, end, end, self.start, None, [], records)}

    def version(self, *_: object) -> int:
        return VERSION

    async def send(self, _key: int, _version: int, parts: Sequence[bytes | memoryview]) -> memoryview:
        self._is_asked()
        self.sent += 1
        request = ProduceRequest.decode(b"".join(parts), version=VERSION)
        ((part,),) = [topic.partition_data for topic in request.topic_data]
        if self.refuses:
            return said(self.refuses, -1)
        known = self._standing(struct.unpack_from(">qhi", part.records, 43)) if self.remembers else None
        base = self.append(memoryview(part.records)) if known is None else known
        answer = said(0, base, repeated=known is not None)
        return memoryview(bytes(answer).replace(b"orders", b"others")) if self.deaf else answer


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Target:
    one = Target()
    monkeypatch.setattr(looking, "list_offsets", one.list_offsets)
    monkeypatch.setattr(looking, "describe_producer", one.describe_producer)
    monkeypatch.setattr(looking, "peek_all_at", one.peek_all_at)
    monkeypatch.setattr(reading, "peek_at", one.peek_at)
    return one


def record(key: bytes, value: bytes) -> Record:
    tail = encode_varint(len(key)) + key + encode_varint(len(value)) + value + b"\0"
    return Record(0, 1_700_000_000_000, tail)


def repair() -> Insertion:
    """Two records that are about to be appended; with the first epoch above the flow's."""
    return insertion_of([record(b"a", b"mended a"), record(b"b", b"mended b")], OURS, 0, BEGAN_AT)


class Repairing:
    """A flow that has written down what it is about to append."""

    def __init__(self, target: Target, insertion: Insertion) -> None:
        async def writer(*_: object) -> Target:
            return target

        self.flow = cast(Flow, SimpleNamespace(producer_id=OURS, target=target, writer=writer))
        self.insertion = insertion
        self._items: dict[str, bytes] = {}

    async def begin(self) -> Repairing:
        state = FlowState(MemoryStore(self._items))
        copied = PartitionRecord(
            topic="orders",
            partition=0,
            topic_id="8c9ad3c1-0000-0000-0000-000000000001",
            target_topic="orders",
            mode=OffsetMode.MAPPED,
            prepared=True,
            start_offset=0,
            target_start_offset=0,
        )
        await state.begin(copied, [(0, 0)])
        await state.begin_insertion(ORDERS_0, self.insertion)
        return self

    async def finish(self) -> Standing:
        """As whoever comes next does, with nothing in memory."""
        state = FlowState(MemoryStore(self._items))
        await state.load()
        return await finish(self.flow, FlowMemory(state), ORDERS_0, ORDERS_0, self.insertion)

    async def known(self) -> Known:
        """What is known after a restart."""
        state = FlowState(MemoryStore(self._items))
        await state.load()
        known = FlowMemory(state).known(ORDERS_0)
        assert known is not None
        return known

    async def inserted(self, end: int) -> list[int]:
        """Of the target offsets below ``end``, those that are known to be no copies."""
        return [offset for offset in range(end) if (await self.known()).insertions.holds(offset)]


def test_an_insertion_is_the_first_batch_of_a_new_epoch() -> None:
    """
    So the broker refuses whoever has not heard of it, and it is known wherever it stands.
    """
    insertion = insertion_of([record(b"a", b"1"), record(b"b", b"2")], OURS, 6, 50)

    header = struct.unpack_from(">qhi", insertion.batch, 43)
    assert header == (OURS, 7, 0)
    assert (insertion.target_offset, insertion.records, insertion.producer_epoch) == (50, 2, 7)
    assert [(one.key, one.value) for one in read_v2(insertion.batch)] == [(b"a", b"1"), (b"b", b"2")]


async def test_it_is_appended_and_noted(broker: Target) -> None:
    """
    With the offsets at which it stands, and the epoch with which the partition is written to from now on.
    """
    one = await Repairing(broker, repair()).begin()

    standing = await one.finish()

    known = await one.known()
    assert standing == Standing(10)
    assert broker.values == [b"mended a", b"mended b"]
    assert await one.inserted(20) == [10, 11]
    assert (known.insertion, known.producer_epoch) == (None, 1)


@pytest.mark.parametrize("remembers", [True, False])
async def test_what_stands_already_is_not_appended_again(broker: Target, remembers: bool) -> None:
    """
    Whoever sent it ended before it was noted, and the broker may have forgotten by whom it was written.
    """
    one = await Repairing(broker, repair()).begin()
    broker.append(memoryview(one.insertion.batch))
    broker.remembers = remembers

    standing = await one.finish()

    assert (standing, broker.sent) == (Standing(10), 0)
    assert await one.inserted(20) == [10, 11]


async def test_it_stands_behind_whatever_was_written_since_it_was_made(broker: Target) -> None:
    """
    What others have written there is no copy either; what this flow has written is one.
    """
    one = await Repairing(broker, repair()).begin()
    broker.write(b"x", b"foreign", producer=(FOREIGN, 1, 0))
    broker.write(b"c", b"copy", producer=(OURS, 0, 10))

    standing = await one.finish()

    assert standing == Standing(12)
    assert await one.inserted(20) == [10, 12, 13]


@pytest.mark.parametrize(
    "producer",
    [(FOREIGN, 1, 0), (OURS, 0, 0), (OURS, 1, 2)],
    ids=["of another", "of the epoch before", "later"],
)
async def test_another_batch_is_not_taken_for_it(broker: Target, producer: tuple[int, int, int]) -> None:
    """
    It alone is ours, of its epoch, and the first one of that. Where that is gone nobody knows where it stood.
    """
    one = await Repairing(broker, repair()).begin()
    broker.write(b"x", b"another", producer=producer)

    if producer == (OURS, 1, 2):
        with pytest.raises(PartitionError):
            await one.finish()
        assert broker.values == [b"another"]
    else:
        assert await one.finish() == Standing(11)
        assert broker.values == [b"another", b"mended a", b"mended b"]


async def test_a_key_that_was_written_meanwhile_keeps_what_it_was_given(broker: Target) -> None:
    """
    Its newer record is appended once more, behind what says something older, as an insertion of its own.
    """
    one = await Repairing(broker, repair()).begin()
    broker.write(b"b", b"newer b", producer=(OURS, 0, 10))
    broker.write(b"c", b"newer c", producer=(OURS, 0, 11))

    standing = await one.finish()

    known = await one.known()
    assert standing == Standing(12, overtaken=frozenset({b"b"}), again=Standing(14))
    assert broker.values == [b"newer b", b"newer c", b"mended a", b"mended b", b"newer b"]
    assert await one.inserted(20) == [12, 13, 14]
    assert (known.insertion, known.producer_epoch) == (None, 2)


async def test_one_that_the_broker_will_never_have_leaves_nothing(broker: Target) -> None:
    """
    The words say why; the partition is written to as before.
    """
    one = await Repairing(broker, repair()).begin()
    broker.refuses = INVALID_RECORD

    standing = await one.finish()

    known = await one.known()
    assert standing.at is None
    assert "INVALID_RECORD" in standing.refusal
    assert (known.insertion, known.producer_epoch) == (None, 0)
    assert await one.inserted(20) == []


async def test_one_that_is_refused_for_now_is_tried_again_later(broker: Target) -> None:
    """
    It stays written down: whoever comes next brings it to its end.
    """
    one = await Repairing(broker, repair()).begin()
    broker.refuses = NOT_ENOUGH_REPLICAS

    with pytest.raises(BrokerError, match="NOT_ENOUGH_REPLICAS"):
        await one.finish()
    waiting = (await one.known()).insertion
    broker.refuses = 0
    standing = await one.finish()

    assert waiting == one.insertion
    assert standing == Standing(10)


async def test_one_of_which_nothing_was_answered_is_looked_for_and_not_sent_twice(broker: Target) -> None:
    """
    It may stand.
    """
    one = await Repairing(broker, repair()).begin()
    broker.deaf = True

    with pytest.raises(ConnectionFailedError, match="omits the partition"):
        await one.finish()
    standing = await one.finish()

    assert (standing, broker.sent) == (Standing(10), 1)
    assert broker.values == [b"mended a", b"mended b"]


async def test_nothing_is_sent_before_it_is_known_that_it_does_not_stand(broker: Target) -> None:
    """
    A broker that does not say where its log ends is asked again later.
    """
    one = await Repairing(broker, repair()).begin()
    broker.unread = ConnectionFailedError("target: it does not answer")

    with pytest.raises(ConnectionFailedError, match="does not answer"):
        await one.finish()

    assert broker.sent == 0
    assert (await one.known()).insertion == one.insertion


@pytest.mark.parametrize("remembers", [True, False])
async def test_one_that_is_not_on_all_replicas_yet_is_not_gone(broker: Target, remembers: bool) -> None:
    """
    Nobody can read it yet: it is looked for again later, and not sent twice.
    """
    one = await Repairing(broker, repair()).begin()
    broker.append(memoryview(one.insertion.batch))
    broker.remembers, broker.replicated_to = remembers, BEGAN_AT

    with pytest.raises(BusyError, match="2 offsets before target offset 12 are not on all in-sync replicas"):
        await one.finish()
    waiting = (await one.known()).insertion
    broker.replicated_to = None
    standing = await one.finish()

    assert waiting == one.insertion
    assert (standing, broker.sent) == (Standing(10), 0)


@pytest.mark.parametrize("questions", range(6))
async def test_one_that_lands_while_it_is_looked_for_stands_once(broker: Target, questions: int) -> None:
    """
    It was sent by a repair that is gone, and comes late: between any two questions.
    """
    one = await Repairing(broker, repair()).begin()
    broker.between[questions] = lambda: broker.append(memoryview(one.insertion.batch))

    try:
        standing = await one.finish()
    except BusyError:
        standing = await one.finish()

    assert standing == Standing(10)
    assert broker.values == [b"mended a", b"mended b"]
    assert await one.inserted(20) == [10, 11]


@pytest.mark.parametrize("questions", range(5))
async def test_one_that_a_new_leader_does_not_have_is_sent_again(broker: Target, questions: int) -> None:
    """
    The one before had appended it, and nobody acknowledged that: it was never there.
    """
    one = await Repairing(broker, repair()).begin()
    broker.append(memoryview(one.insertion.batch))
    broker.replicated_to = BEGAN_AT
    broker.between[questions] = lambda: broker.lose(BEGAN_AT)

    try:
        standing = await one.finish()
    except BusyError:
        standing = await one.finish()

    assert standing == Standing(10)
    assert broker.sent == 1


@pytest.mark.parametrize("lost", ["the repair", "what was before it"])
async def test_one_that_is_gone_is_for_an_operator(broker: Target, lost: str) -> None:
    """
    What was written behind it is not where the flow's state has it, and to append it again mends nothing.
    """
    one = await Repairing(broker, repair()).begin()
    if lost == "the repair":
        broker.append(memoryview(one.insertion.batch))
        broker.write(b"c", b"copy", producer=(OURS, 1, 2))
        broker.start = 12
    else:
        broker.lose(9)

    with pytest.raises(PartitionError, match="nobody knows where it stood") as found:
        await one.finish()

    assert found.value.reason is Reason.TARGET_TRUNCATED
    assert broker.sent == 0
