"""A relay, from its settings to its end."""

from __future__ import annotations

import asyncio
import signal

import structlog

from mirror import logs
from mirror.clusters import connected
from mirror.config import host_and_port
from mirror.config_relay import ListenSettings, RelaySettings
from mirror.kafka.tls import TlsOptions, make_listening_context
from mirror.relay.server import RelayServer

log = structlog.get_logger(__name__)

SIGNALS = (signal.SIGTERM, signal.SIGINT)


def run(settings: RelaySettings) -> int:
    """Serve mirrors until a signal comes; nothing has to be brought to an end then.

    Raises:
        TwinsiteError: The source cannot be reached, or the address cannot be listened on.
    """
    logs.set_up(level=settings.log.level, form=settings.log.format)
    asyncio.run(_run(settings))
    return 0


async def _run(settings: RelaySettings) -> None:
    stop = asyncio.Event()
    for one in SIGNALS:
        asyncio.get_running_loop().add_signal_handler(one, stop.set)
    listen = settings.listen
    tls = make_listening_context(_tls(listen)) if listen.certificate_file else None
    async with connected("source", settings.cluster) as cluster:
        cluster.follow(None)
        server = RelayServer(cluster, listen.connections_max)
        await server.start(*host_and_port(listen.address), tls)
        log.info("relay_listens", address=listen.address, port=server.port, tls=tls is not None)
        if tls is None or listen.client_ca_file is None:
            log.warning("relay_open", message="whoever reaches this port may read what the relay may")
        try:
            await stop.wait()
        finally:
            await server.close()


def _tls(listen: ListenSettings) -> TlsOptions:
    return TlsOptions(
        ca_file=listen.client_ca_file,
        certificate_file=listen.certificate_file,
        key_file=listen.key_file,
        key_password=listen.key_password,
    )
