"""One log of record batches, in memory and on brokers of both versions."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from checkpoint.topic_store import LogPort
from tests.contract.connected import BROKERS, connected, state_log
from tests.contract.memory_log import MemoryLog
from tests.harness.kafka import KafkaCluster


@pytest.fixture(params=["memory", *BROKERS])
def brokers(request: pytest.FixtureRequest) -> KafkaCluster | None:
    """The cluster the log is on, None for the log in memory."""
    name = BROKERS.get(request.param)
    return request.getfixturevalue(name) if name else None


@pytest_asyncio.fixture
async def log(brokers: KafkaCluster | None) -> AsyncIterator[LogPort]:
    if brokers is None:
        yield MemoryLog()
        return
    async with connected(brokers) as cluster, state_log(brokers, cluster) as log:
        yield log
