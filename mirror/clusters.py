"""Connects to the clusters that the settings describe."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable

import structlog
from tenacity import RetryCallState

from mirror.config import ConnectionSettings, LinkSettings, Settings, host_and_port
from mirror.errors import hint_of
from mirror.kafka.cluster import Cluster
from mirror.kafka.dial import Address, ConnectionOptions, Relays
from mirror.kafka.failures import BeforeSleep, retrying
from mirror.kafka.fetch import FETCH, FETCH_VERSION
from mirror.kafka.security import Security
from mirror.link.loops import both
from mirror.logs import Repeats, log_retry

log = structlog.get_logger(__name__)

START_SECONDS = 30.0
"""How long a cluster that does not answer is retried, unless the caller has more patience."""
UNREACHED_EVERY_SECONDS = 10.0
"""Least time between two log lines that say that a cluster does not answer."""


NotReached = Callable[[str, str], None]
"""Called with the name of a cluster, and with what went wrong and what to do, as in the log."""


@contextlib.asynccontextmanager
async def connected(
    name: str,
    settings: ConnectionSettings,
    *,
    patience_seconds: float = START_SECONDS,
    not_reached: NotReached = lambda _, __: None,
) -> AsyncIterator[Cluster]:
    """A cluster that has answered once; its connections end with the block.

    Args:
        name: ``source`` or ``target``, for messages.
        patience_seconds, not_reached: As for :func:`reach`.

    Raises:
        TwinsiteError: As for :func:`reach`.
    """
    async with way_to(name, settings) as cluster:
        await reach(cluster, patience_seconds=patience_seconds, not_reached=not_reached)
        yield cluster


@contextlib.asynccontextmanager
async def way_to(name: str, settings: ConnectionSettings) -> AsyncIterator[Cluster]:
    """A cluster that was not contacted yet; its connections end with the block."""
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
        yield cluster
    finally:
        await cluster.close()


async def reach(
    cluster: Cluster,
    *,
    patience_seconds: float = START_SECONDS,
    not_reached: NotReached = lambda _, __: None,
) -> None:
    """Wait until a cluster has answered for the first time.

    Args:
        patience_seconds: How long to retry, where that can help.
        not_reached: Called before each retry with the reason.

    Raises:
        ConnectionFailedError: None of the bootstrap addresses answers.
        AuthenticationError: The cluster does not accept us, or we do not accept it.
        UnsupportedVersionError: Its brokers are too old.
    """
    say = _saying(cluster.name, not_reached)
    await cluster.start(timeout_seconds=patience_seconds, before_sleep=say)
    async for attempt in retrying(patience_seconds, before_sleep=say):
        with attempt:
            (await cluster.any_connection()).version(FETCH, FETCH_VERSION, "Fetch", lowest=FETCH_VERSION)


def _saying(name: str, not_reached: NotReached) -> BeforeSleep:
    repeats = Repeats(every_seconds=UNREACHED_EVERY_SECONDS)
    logged = log_retry(log, repeats, "cluster_not_reached", cluster=name)

    def say(state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome is not None else None
        hint = hint_of(error)
        not_reached(name, f"{error} ({hint})" if hint else str(error))
        logged(state)

    return say


@contextlib.asynccontextmanager
async def both_connected(
    settings: Settings,
    *,
    patience_seconds: float,
    reached: Callable[[str], None],
    not_reached: NotReached = lambda _, __: None,
) -> AsyncIterator[tuple[Cluster, Cluster]]:
    """Source and target, contacted at the same time; their connections end with the block.

    Args:
        patience_seconds: As for :func:`connected`.
        reached: Called with the name of each cluster that has answered.
        not_reached: As for :func:`connected`.

    Raises:
        TwinsiteError: As for :func:`connected`; of the cluster that failed first.
    """
    async with contextlib.AsyncExitStack() as stack:

        async def one_connected(name: str, one: ConnectionSettings) -> Cluster:
            way = connected(name, one, patience_seconds=patience_seconds, not_reached=not_reached)
            cluster = await stack.enter_async_context(way)
            reached(name)
            return cluster

        yield await both(
            one_connected("source", settings.way_to_source), one_connected("target", settings.target)
        )
