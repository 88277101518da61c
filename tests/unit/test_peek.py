"""A single look at a broker's log."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from mirror.errors import ConnectionFailedError
from mirror.kafka.connection import Connection
from mirror.kafka.fetch import FETCH_VERSION, Key, Want
from mirror.kafka.peek import peek, peek_all_at, peek_at
from mirror.model import TopicPartition
from tests.unit.batches import entries, v2
from tests.unit.target_side import a_topic
from tests.unit.test_fetch_codec import Said, answer

WANTS = {Key(b"t" * 16, 0): Want(5, -1, -1, 1 << 20)}


class Broker:
    """Answers with these bytes."""

    address = "broker:9092"

    def __init__(self, says: bytes) -> None:
        self._says = says

    def version(self, *_: object, **__: object) -> int:
        return FETCH_VERSION

    async def send(self, *_: Any) -> memoryview:
        return memoryview(self._says)


async def test_what_a_quota_holds_back_is_not_missing() -> None:
    """
    The last record of a copy would pass unseen, as one that the source has no more. It is asked for again.
    """
    throttled = cast(Connection, Broker(answer([], throttle_ms=2_000, session=0)))

    with pytest.raises(ConnectionFailedError, match="throttled by a quota for 2000 ms") as refused:
        await peek(throttled, WANTS)

    assert refused.value.retriable


async def test_where_nothing_stands_nothing_comes() -> None:
    """
    A broker without a quota that leaves a partition out has nothing there.
    """
    assert await peek(cast(Connection, Broker(answer([], session=0))), WANTS) == []


@pytest.mark.parametrize("full", [True, False])
async def test_where_nothing_stands_is_told_of_all_partitions_if_it_is_so_of_each(full: bool) -> None:
    """
    Beside one that fills the answer, others may have been left out for want of room.
    """
    topic, held = a_topic("orders", 2), bytes(v2(entries(5, 1)))
    said = [
        Said(0, 0, 6, 6, 0, None, held if full else b"", None, None),
        Said(1, 0, 9, 9, 0, None, b"", None, None),
    ]
    broker = Broker(answer([(topic.topic_id.bytes, said)], session=0))

    async def connection(_: int) -> Broker:
        return broker

    info = SimpleNamespace(topics={"orders": topic})
    cluster = cast(Any, SimpleNamespace(name="source", info=info, connection=connection))
    wants = {TopicPartition("orders", number): Want(5, -1, -1, 1 << 20) for number in (0, 1)}

    some = await peek_at(cluster, 1, wants)
    all_said = await peek_all_at(cluster, 1, wants)

    assert [tp.partition for tp in some] == ([0] if full else [])
    assert [(tp.partition, one.high_watermark) for tp, one in all_said.items()] == (
        [(0, 6)] if full else [(0, 6), (1, 9)]
    )
