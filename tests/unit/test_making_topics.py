"""How many topics are made in one request."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mirror.errors import ConnectionFailedError
from mirror.kafka.topics import NewTopic, create_topics


class Controller:
    """Makes everything that is asked for, and counts it.

    Args:
        hangs_at: To this request, counted from 0, it does not answer.
    """

    name = "target"

    def __init__(self, hangs_at: int = -1) -> None:
        self.asked: list[list[int]] = []
        self._hangs_at = hangs_at

    async def call_controller(self, request: Any) -> Any:
        self.asked.append([topic.num_partitions for topic in request.topics])
        if len(self.asked) - 1 == self._hangs_at:
            await asyncio.Event().wait()
        made = [
            SimpleNamespace(name=topic.name, error_code=0, error_message=None) for topic in request.topics
        ]
        return SimpleNamespace(topics=made)


@pytest.mark.parametrize(
    ("partitions", "requests"),
    [
        ([], []),
        ([1] * 201, [[1] * 200, [1]]),
        ([900, 900, 200, 1], [[900, 900, 200], [1]]),
        ([5, 3_000, 5], [[5], [3_000], [5]]),
    ],
)
async def test_a_request_is_for_so_many_topics_and_so_many_partitions(
    partitions: list[int], requests: list[list[int]]
) -> None:
    """
    A controller refuses one for more than it writes at once, each time; a topic that is larger goes alone.
    """
    controller = Controller()
    topics = [NewTopic(f"t{number}", count, 1, {}) for number, count in enumerate(partitions)]

    made = await create_topics(cast(Any, controller), topics)

    assert controller.asked == requests
    assert made == {topic.name: True for topic in topics}


async def test_what_was_made_is_told_though_a_later_request_is_not_answered() -> None:
    """
    The one behind it is not sent: it would wait as long.
    """
    controller = Controller(hangs_at=1)
    topics = [NewTopic(name, 1_500, 1, {}) for name in ("t0", "t1", "t2")]

    made = await create_topics(cast(Any, controller), topics, timeout_ms=50)

    assert len(controller.asked) == 2
    assert made.pop("t0") is True
    assert [(name, type(error)) for name, error in made.items()] == [
        ("t1", ConnectionFailedError),
        ("t2", ConnectionFailedError),
    ]
