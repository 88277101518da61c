"""What is asked of the target when partitions are looked at."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from mirror.errors import ConnectionFailedError
from mirror.flow.looking import look_at_target
from mirror.model import TopicPartition
from tests.unit.target_side import Cluster, a_topic

ORDERS_0 = TopicPartition("orders", 0)


class Frozen(Cluster):
    """A cluster that does not answer.

    Attributes:
        requests: What it was asked in vain.
    """

    def __init__(self) -> None:
        super().__init__("target", orders={})
        self.topics["orders"] = a_topic("orders", 1)
        self.requests: list[str] = []

    async def call(self, request: Any, **_: object) -> Any:
        self.requests.append(type(request).__name__)
        raise ConnectionFailedError("no answer for 30 s")


async def test_a_broker_that_does_not_answer_is_asked_one_thing_only() -> None:
    """
    Each question to it takes as long as it may, and all partitions between the same brokers wait meanwhile.
    """
    target = Frozen()
    flow = SimpleNamespace(target=target, producer_id=4711)

    looks = await look_at_target(cast(Any, flow), [ORDERS_0])

    assert isinstance(looks[ORDERS_0], ConnectionFailedError)
    assert target.requests == ["DescribeProducersRequest"]
