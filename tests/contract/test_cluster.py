"""Connections of a cluster: opened when needed, shared, and all of them closed at the end."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from mirror.errors import ConnectionFailedError
from mirror.kafka.connection_pool import SILENT_SECONDS
from mirror.kafka.transactions import current_token
from tests.contract.connected import NUMBERS, connected
from tests.harness.daemon import until
from tests.harness.kafka import KafkaCluster

pytestmark = pytest.mark.timeout(120)


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


async def test_a_broker_that_does_not_answer_is_not_asked_what_others_know(tmp_path: Path) -> None:
    """
    It is frozen while one question waits for it; its idle connections are still open, and came first.
    """
    async with (
        KafkaCluster.start(version="4.3", nodes=2, name="two", work_dir=tmp_path) as brokers,
        connected(brokers) as cluster,
    ):
        for node in (2, 1):
            await cluster.connection(node)
        await brokers.broker(1).freeze()
        asking = asyncio.create_task(cluster.hear_from(1))
        connection = await cluster.connection(1)
        await until(lambda: connection.unanswered_seconds > SILENT_SECONDS, "it is silent for long")

        async with asyncio.timeout(15):
            await cluster.refresh()

        assert not asking.done()
        await brokers.broker(1).thaw()
        await asking


async def test_a_connection_opened_ahead_is_the_one_that_is_used(target: KafkaCluster) -> None:
    """
    Whoever needs it waits for it, not for a second one; a broker that is not there troubles nobody.
    """
    async with connected(target) as cluster:
        [node] = cluster.info.brokers
        nobody = 4_711

        cluster.open_ahead([node, nobody])
        first, second = await asyncio.gather(cluster.connection(node), cluster.connection(node))

        assert first is second
        with pytest.raises(ConnectionFailedError, match="broker 4711 is currently not in the cluster"):
            await cluster.connection(nobody)

    assert first.closed
