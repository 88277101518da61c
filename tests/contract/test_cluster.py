"""Connections of a cluster: opened when needed, shared, and all of them closed at the end."""

from __future__ import annotations

import asyncio

import pytest

from mirror.kafka.transactions import current_token
from tests.contract.connected import NUMBERS, connected
from tests.harness.kafka import KafkaCluster

pytestmark = pytest.mark.timeout(60)


async def test_questions_asked_at_once_share_what_connections_there_are(target: KafkaCluster) -> None:
    """
    While each is busy with the answer for another: none is opened over one that is open, and forgotten.
    """
    async with connected(target) as cluster:
        known = {await cluster.any_connection()}

        names = [f"nobody-{next(NUMBERS)}" for _ in range(20)]
        await asyncio.gather(*(current_token(cluster, name) for name in names))
        known |= set(await asyncio.gather(*(cluster.any_connection() for _ in range(20))))

        open_ones = {connection for connection in known if not connection.closed}

    assert len(open_ones) <= 2
    assert all(connection.closed for connection in open_ones)
