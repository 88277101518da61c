"""From the settings of a cluster to a way to it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import structlog

from mirror.config import ClusterSettings, host_and_port
from mirror.kafka.cluster import Cluster
from mirror.kafka.dial import Address, ConnectionOptions
from mirror.kafka.fetch import FETCH, FETCH_VERSION
from mirror.kafka.security import Security
from mirror.logs import Repeats, log_retry

log = structlog.get_logger(__name__)

UNREACHED_EVERY_SECONDS = 5.0
"""How often it is said that a cluster does not answer, at most."""


@contextlib.asynccontextmanager
async def connected(name: str, settings: ClusterSettings) -> AsyncIterator[Cluster]:
    """A cluster that has answered once; its connections end with the block.

    Args:
        name: How people call it: ``source`` or ``target``.

    Raises:
        ConnectionFailedError: None of the bootstrap addresses answers.
        AuthenticationError: The cluster does not accept us, or we do not accept it.
        UnsupportedVersionError: Its brokers are too old.
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
        log.info("reaching_cluster", cluster=name, servers=list(settings.bootstrap_servers))
        repeats = Repeats(every_seconds=UNREACHED_EVERY_SECONDS)
        await cluster.start(before_sleep=log_retry(log, repeats, "cluster_not_reached", cluster=name))
        (await cluster.any_connection()).version(FETCH, FETCH_VERSION, "Fetch", lowest=FETCH_VERSION)
        yield cluster
    finally:
        await cluster.close()
