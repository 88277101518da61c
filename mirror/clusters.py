"""From the settings of a cluster to a way to it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from mirror.config import ClusterSettings, host_and_port
from mirror.kafka.cluster import Cluster
from mirror.kafka.dial import Address, ConnectionOptions
from mirror.kafka.security import Security


@contextlib.asynccontextmanager
async def connected(name: str, settings: ClusterSettings) -> AsyncIterator[Cluster]:
    """A cluster that has answered once; its connections end with the block.

    Args:
        name: How people call it: ``source`` or ``target``.

    Raises:
        ConnectionFailedError: None of the bootstrap addresses answers.
        AuthenticationError: The cluster does not accept us, or we do not accept it.
    """
    options = ConnectionOptions(
        security=Security.from_settings(settings.security),
        client_id=settings.client_id,
        connect_timeout_seconds=settings.connect_timeout_seconds,
        request_timeout_seconds=settings.request_timeout_seconds,
    )
    bootstrap = [Address(*host_and_port(server)) for server in settings.bootstrap_servers]
    cluster = Cluster(name, bootstrap, options, refresh_seconds=settings.metadata_refresh_seconds)
    try:
        await cluster.start()
        yield cluster
    finally:
        await cluster.close()
