"""A single look at a broker's log."""

from __future__ import annotations

from typing import Any, cast

import pytest

from mirror.errors import ConnectionFailedError
from mirror.kafka.connection import Connection
from mirror.kafka.fetch import FETCH_VERSION, Key, Want
from mirror.kafka.peek import peek
from tests.unit.test_fetch_codec import answer

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
