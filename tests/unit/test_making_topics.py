"""How many topics are made in one request."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from mirror.kafka.topics import NewTopic, create_topics


class Controller:
    """Makes everything that is asked for, and counts it."""

    name = "target"

    def __init__(self) -> None:
        self.asked: list[list[int]] = []

    async def call_controller(self, request: Any) -> Any:
        self.asked.append([topic.num_partitions for topic in request.topics])
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
