"""From the settings of a cluster to a way to it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import structlog

from mirror.config import ConnectionSettings, LinkSettings, Settings, host_and_port
from mirror.kafka.cluster import Cluster
from mirror.kafka.dial import Address, ConnectionOptions, Relays
from mirror.kafka.failures import retrying
from mirror.kafka.fetch import FETCH, FETCH_VERSION
from mirror.kafka.security import Security
from mirror.logs import Repeats, log_retry

log = structlog.get_logger(__name__)

START_SECONDS = 30.0
"""For so long a cluster that does not answer is tried again, unless somebody has more patience."""
UNREACHED_EVERY_SECONDS = 10.0
"""How often it is said that a cluster does not answer, at most."""


@contextlib.asynccontextmanager
async def connected(
    name: str, settings: ConnectionSettings, *, patience_seconds: float = START_SECONDS
) -> AsyncIterator[Cluster]:
    """A cluster that has answered once; its connections end with the block.

    Args:
        name: How people call it: ``source`` or ``target``.
        patience_seconds: For how long it is tried again, where that can help.

    Raises:
        ConnectionFailedError: None of the bootstrap addresses answers.
        AuthenticationError: The cluster does not accept us, or we do not accept it.
        UnsupportedVersionError: Its brokers are too old.
    """
    bootstrap = [Address(*host_and_port(server)) for server in settings.servers]
    options = ConnectionOptions(
        security=Security.from_settings(settings.security),
        client_id=settings.client_id,
        connect_timeout_seconds=settings.connect_timeout_seconds,
        request_timeout_seconds=settings.request_timeout_seconds,
        relays=Relays(bootstrap) if isinstance(settings, LinkSettings) else None,
    )
    cluster = Cluster(name, bootstrap, options, refresh_seconds=settings.metadata_refresh_seconds)
    try:
        log.info("reaching_cluster", cluster=name, servers=list(settings.servers))
        repeats = Repeats(every_seconds=UNREACHED_EVERY_SECONDS)
        say = log_retry(log, repeats, "cluster_not_reached", cluster=name)
        await cluster.start(timeout_seconds=patience_seconds, before_sleep=say)
        async for attempt in retrying(patience_seconds, before_sleep=say):
            with attempt:
                (await cluster.any_connection()).version(FETCH, FETCH_VERSION, "Fetch", lowest=FETCH_VERSION)
        yield cluster
    finally:
        await cluster.close()


@contextlib.asynccontextmanager
async def both_connected(
    settings: Settings, *, patience_seconds: float, reached: Callable[[str], None]
) -> AsyncIterator[tuple[Cluster, Cluster]]:
    """Source and target, asked at the same time; their connections end with the block.

    Args:
        patience_seconds: As for :func:`connected`.
        reached: Told the name of each cluster that has answered.

    Raises:
        TwinsiteError: As for :func:`connected`; of the one that failed first.
    """
    async with contextlib.AsyncExitStack() as stack:

        async def reach(name: str, one: ConnectionSettings) -> Cluster:
            way = connected(name, one, patience_seconds=patience_seconds)
            cluster = await stack.enter_async_context(way)
            reached(name)
            return cluster

        tasks = [
            asyncio.create_task(reach(name, one))
            for name, one in (("source", settings.way_to_source), ("target", settings.target))
        ]
        try:
            source, target = await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        yield source, target
