"""A mirror in the test's own process: run for a while, or until it has copied what is there."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from mirror import service
from mirror.config import Settings, parse
from mirror.model import FlowStatus, PartitionStatus, Reason, State
from tests.harness.kafka import KafkaCluster
from tests.harness.process import WAIT_SECONDS


def flow_of(
    source: KafkaCluster, target: KafkaCluster, topic: str, topics: dict[str, Any] | None = None, **more: Any
) -> Settings:
    """A flow of its own for one topic, which looks for changes every second."""
    return parse(
        {
            "flow": topic,
            **source.source_settings,
            "target": {"bootstrap_servers": target.bootstrap},
            "topics": {"include": [re.escape(topic)], "refresh_seconds": 1} | (topics or {}),
            "api": {"port": -1},
        }
        | more
    )


async def mirror_once(wanted: Settings) -> FlowStatus:
    return await service.run(wanted, stop=asyncio.Event(), once=True, timeout_seconds=WAIT_SECONDS)


Condition = Callable[[dict[int, PartitionStatus]], bool]
FlowCondition = Callable[[FlowStatus], bool]


@asynccontextmanager
async def watching(
    wanted: Settings, wait_seconds: float = WAIT_SECONDS
) -> AsyncIterator[Callable[[FlowCondition], Awaitable[None]]]:
    """Run a mirror for the block; yields a function that waits until its status meets a condition.

    The function raises ``TimeoutError`` after ``wait_seconds``.
    """
    stop, heard = asyncio.Event(), asyncio.Event()
    last: list[FlowStatus] = []

    def hear(status: FlowStatus) -> None:
        last[:] = [status]
        heard.set()

    async def until(condition: FlowCondition) -> None:
        async with asyncio.timeout(wait_seconds):
            while not (last and condition(last[0])):
                heard.clear()
                await heard.wait()

    mirror = asyncio.create_task(service.run(wanted, stop=stop, on_status=hear))
    try:
        yield until
    finally:
        stop.set()
        await mirror


@asynccontextmanager
async def running(wanted: Settings) -> AsyncIterator[Callable[[Condition], Awaitable[None]]]:
    """Like :func:`watching`, for conditions on its partitions."""

    def seen(status: FlowStatus) -> dict[int, PartitionStatus]:
        return {partition.partition: partition for partition in status.partitions}

    async with watching(wanted) as until:
        yield lambda condition: until(lambda status: bool(seen(status)) and condition(seen(status)))


def states(partitions: dict[int, PartitionStatus]) -> list[tuple[State, Reason | None]]:
    return [(partitions[number].state, partitions[number].reason) for number in sorted(partitions)]
