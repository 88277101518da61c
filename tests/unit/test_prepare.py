"""What is looked at before the padding of a target partition is deleted."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import kafka.errors
import pytest
from kafka.protocol.producer import ProduceRequest

from mirror.errors import BrokerError, ConnectionFailedError, PartitionError
from mirror.flow import prepare as preparing
from mirror.flow.context import Flow
from mirror.flow.position import Prepare
from mirror.flow.prepare import NotPreparableError
from mirror.kafka.append import Outcome
from mirror.kafka.fetch import Fetched, Key, Want
from mirror.kafka.record_batch import null_batch, seal, walk
from mirror.model import Reason, TopicPartition
from tests.unit.batches import entries, v2
from tests.unit.target_model import VERSION, said

ORDERS_0 = TopicPartition("orders", 0)
OURS, FOREIGN = 4711, 9_999


def padding(base_offset: int, count: int, producer_id: int = OURS) -> bytes:
    """Null records, as they stand in a log."""
    view = null_batch(count, timestamp_ms=1_700_000_000_000)
    seal(view, producer_id, 0, base_offset)
    view[:8] = base_offset.to_bytes(8)
    return bytes(view)


class Target:
    """A broker with a log of batches, of which it hands out one at a time, and which takes no more."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, batches: dict[int, bytes]) -> None:
        self.deleted: list[int] = []
        self._batches = batches
        for name in ("peek_at", "delete_records"):
            monkeypatch.setattr(preparing, name, getattr(self, name))

    async def peek_at(self, _cluster: object, _node: int, wants: dict[TopicPartition, Want]) -> Any:
        at = wants[ORDERS_0].offset
        if at not in self._batches:
            return {}
        view = memoryview(self._batches[at])
        return {ORDERS_0: Fetched(Key(bytes(16), 0), 0, 0, 0, 0, None, [], view)}

    async def delete_records(
        self, _cluster: object, below: dict[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        self.deleted.append(below[ORDERS_0])
        return below


class Unwilling:
    """A connection to a broker that takes no padding."""

    def version(self, *_: object) -> int:
        return 9

    async def send(self, *_: Any) -> bytes | memoryview:
        return b""


class Willing(Unwilling):
    """One to a broker that takes padding, and appends it where its log ends.

    Attributes:
        taken: Of each batch: producer id and epoch, sequence, records.
    """

    def __init__(self, end: int) -> None:
        self.taken: list[tuple[int, int, int, int]] = []
        self._end = end

    async def send(self, *asked: Any) -> bytes | memoryview:
        request = ProduceRequest.decode(b"".join(asked[-1]), version=VERSION)
        ((part,),) = [topic.partition_data for topic in request.topic_data]
        ((header, _),) = walk(memoryview(part.records))
        self.taken.append((header.producer_id, header.producer_epoch, header.base_sequence, header.records))
        return said(0, self._end)


async def trim(decision: Prepare, connection: Unwilling | None = None) -> None:
    """Prepare a partition, which has its padding already, or is to get none."""

    async def writer(*_: object) -> Unwilling:
        return connection or Unwilling()

    cluster = SimpleNamespace(info=SimpleNamespace(leader=lambda _: -1))
    flow = SimpleNamespace(target=cluster, producer_id=OURS, producer_epoch=0, writer=writer)
    await preparing.prepare(cast(Flow, flow), ORDERS_0, decision)


async def test_padding_that_is_all_ours_is_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Batch by batch up to where the copy is to start.
    """
    target = Target(monkeypatch, {40: padding(40, 30), 70: padding(70, 30)})

    await trim(Prepare(100, 40, 100, sequence=0))

    assert target.deleted == [0, 100]


async def test_a_record_of_somebody_else_amid_the_padding_is_not_deleted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    The last batch is ours, so the end of the log says nothing of it.
    """
    target = Target(
        monkeypatch,
        {0: padding(0, 60), 60: bytes(v2(entries(60, 1), producer=(FOREIGN, 0, 0))), 61: padding(61, 39)},
    )

    with pytest.raises(PartitionError, match=r"target offset 60, .* producer id 9999") as refused:
        await trim(Prepare(100, 0, 100, sequence=0))

    assert refused.value.reason is Reason.FOREIGN_WRITE
    assert target.deleted == [0]


async def test_padding_is_ours_and_goes_on_where_the_last_try_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    With our producer id, and the epoch and sequence that the look has found: the broker takes no piece of it
    twice.
    """
    target, willing = Target(monkeypatch, {0: padding(0, 40), 40: padding(40, 60)}), Willing(40)

    await trim(Prepare(100, 0, 40, sequence=7, producer_epoch=3), willing)

    assert willing.taken == [(OURS, 3, 7, 60)]
    assert target.deleted == [0, 100]


async def test_padding_that_lands_elsewhere_has_another_writer(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Nothing of what stands there is deleted.
    """
    target = Target(monkeypatch, {40: padding(40, 61)})

    with pytest.raises(PartitionError, match="offset 40 landed at 41") as refused:
        await trim(Prepare(100, 0, 40, sequence=7), Willing(41))

    assert refused.value.reason is Reason.FOREIGN_WRITE
    assert target.deleted == [0]


@pytest.mark.parametrize("start", [0, 39])
async def test_a_topic_that_takes_no_more_padding_is_not_copied_as_it_is(
    monkeypatch: pytest.MonkeyPatch, start: int
) -> None:
    """
    Some of it stands there already, and would be taken for records of others.
    """
    Target(monkeypatch, {})
    monkeypatch.setattr(preparing, "decode_answer", lambda _: {ORDERS_0: Outcome(87, -1, 0, None)})

    with pytest.raises(PartitionError) as refused:
        await trim(Prepare(100, start, 40, sequence=0))

    assert not isinstance(refused.value, NotPreparableError)
    assert refused.value.reason is Reason.PREPARATION_REFUSED


async def test_what_is_not_on_all_replicas_yet_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    It cannot be read, so nobody knows whose it is.
    """
    target = Target(monkeypatch, {0: padding(0, 60)})

    with pytest.raises(ConnectionFailedError, match="offset 60 is not on all in-sync replicas"):
        await trim(Prepare(100, 0, 100, sequence=0))

    assert target.deleted == [0]


@pytest.mark.parametrize(
    "code", [10, 18, 32, 43, 44, 76, 87], ids=lambda code: kafka.errors.for_code(code).__name__
)
async def test_a_topic_that_takes_no_padding_may_be_copied_with_other_offsets(
    monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """
    Whatever it is that its broker does not like, as long as nothing of it stands there.
    """
    Target(monkeypatch, {})
    monkeypatch.setattr(preparing, "decode_answer", lambda _: {ORDERS_0: Outcome(code, -1, 0, None)})

    with pytest.raises(NotPreparableError) as refused:
        await trim(Prepare(100, 40, 40, sequence=0))

    assert refused.value.target_log_end_offset == 40


async def test_a_broker_that_does_not_know_us_any_more_is_looked_at_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    UNKNOWN_PRODUCER_ID says nothing of what the topic takes.
    """
    Target(monkeypatch, {})
    monkeypatch.setattr(preparing, "decode_answer", lambda _: {ORDERS_0: Outcome(59, -1, 0, None)})

    with pytest.raises(BrokerError) as refused:
        await trim(Prepare(100, 40, 40, sequence=0))

    assert refused.value.retriable
