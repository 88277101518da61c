"""Runs a relay, from its settings to its end."""

from __future__ import annotations

import asyncio
import contextlib
import math
import resource
from collections.abc import Callable, Iterator
from functools import partial

import structlog
from prometheus_client import CollectorRegistry

from mirror import logs
from mirror.clusters import reach, way_to
from mirror.config import host_and_port
from mirror.config_limits import periods_of
from mirror.config_relay import RelaySettings, warnings
from mirror.errors import TwinsiteError
from mirror.kafka.cluster import Cluster
from mirror.kafka.tls import ContextCache, make_listening_context, make_server_context
from mirror.logs import Repeats, warn_repeated
from mirror.relay.eyes import Eyes, expiries
from mirror.relay.files import tls_of
from mirror.relay.lasting import lasting
from mirror.relay.server import RelayServer
from mirror.relay.watching import Watch
from mirror.signals import Signals
from monitoring.relay_metrics import register_relay

log = structlog.get_logger(__name__)

FILES_OF_CONNECTION, FILES_BESIDES = 3, 200
"""Of each connection: its own, one to a broker, one of a connection without a request yet; and all others."""


def run(settings: RelaySettings) -> int:
    """Serve mirrors until a signal comes; what is under way then has seconds to end.

    The relay waits for a source that does not answer; the port for people is open meanwhile.

    Returns:
        The exit code.

    Raises:
        TwinsiteError: The source refuses or is too old, or an address cannot be listened on.
    """
    logs.set_up(level=settings.log.level, form=settings.log.format)
    for sentence in warnings(settings):
        log.warning("settings_warning", message=sentence)
    with Signals() as signals, asyncio.Runner() as runner:
        runner.run(_run(settings, signals.stop_of(runner.get_loop())))
    return 0


async def _run(settings: RelaySettings, stop: asyncio.Event) -> None:
    """Serve; a signal that comes before mirrors can connect ends the relay immediately."""
    listens = asyncio.Event()
    serving = asyncio.create_task(_serve(settings, stop, listens))
    told = asyncio.create_task(stop.wait())
    await asyncio.wait({serving, told}, return_when=asyncio.FIRST_COMPLETED)
    told.cancel()
    if not listens.is_set():
        serving.cancel()
    try:
        await serving
    except asyncio.CancelledError:
        if not stop.is_set():
            raise
        log.info("stopped", message="the signal came before the relay listened")


async def _serve(settings: RelaySettings, stop: asyncio.Event, listens: asyncio.Event) -> None:
    listen = settings.listen
    _make_room(listen.connections_max)
    shown = ContextCache(make_server_context)
    tls = make_listening_context(tls_of(listen), shown) if listen.certificate_file else None
    async with way_to("source", settings.cluster) as cluster:
        server = RelayServer(cluster, listen, periods_of(settings.limits))
        watch = Watch(server, cluster)
        eyes = await _watched(watch, cluster, settings, stop.is_set, shown)
        try:
            await server.take(*host_and_port(listen.address), tls)
            await reach(cluster, patience_seconds=math.inf, not_reached=watch.not_reached)
            with _kept_fresh(cluster):
                await server.start()
                watch.begun()
                listens.set()
                log.info("relay_listens", address=listen.address, port=server.port, tls=tls is not None)
                await stop.wait()
                log.info(
                    "relay_stopping", streams=len(server.tally.streams), tunnels=len(server.tally.tunnels)
                )
        finally:
            await server.close()
            await eyes.close()


def _make_room(connections_max: int) -> None:
    """Raise the limit of open files to what this many connections need; warn if the hard limit is lower."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = connections_max * FILES_OF_CONNECTION + FILES_BESIDES
    endless = hard == resource.RLIM_INFINITY
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed if endless else min(needed, hard), hard))
    if not endless and hard < needed:
        log.warning("few_open_files", allowed=hard, needed=needed, connections_max=connections_max)


@contextlib.contextmanager
def _kept_fresh(cluster: Cluster) -> Iterator[None]:
    """Keep the metadata of all topics up to date until the block ends."""
    cluster.follow(None)
    fresh = asyncio.create_task(lasting("metadata", partial(_keep_fresh, cluster)))
    try:
        yield
    finally:
        fresh.cancel()


async def _keep_fresh(cluster: Cluster) -> None:
    """Refresh the metadata as often as the settings say, until cancelled."""
    repeats = Repeats()
    while True:
        try:
            await cluster.refresh()
        except TwinsiteError as error:
            warn_repeated(
                log, repeats, cluster.name, "metadata_refresh_failed", cluster=cluster.name, error=str(error)
            )
        await asyncio.sleep(cluster.refresh_seconds)


async def _watched(
    watch: Watch,
    cluster: Cluster,
    settings: RelaySettings,
    stopping: Callable[[], bool],
    shown: ContextCache,
) -> Eyes:
    """The port for people; open if the settings ask for it.

    Args:
        shown: Has the certificate that mirrors are shown.
    """
    registry = CollectorRegistry()
    tls = tls_of(settings.listen)
    register_relay(registry, watch.take, lambda: expiries(shown.valid_until(tls), cluster))
    eyes = Eyes(cluster, registry, watch.take, stopping)
    if settings.api.port >= 0:
        await eyes.start(settings.api.host, settings.api.port)
        log.info("listening", host=settings.api.host, port=eyes.port)
    return eyes
