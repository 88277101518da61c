"""The port on which mirrors come to read the source.

``GET /v1/kafka`` turns a connection into one to a broker, ``GET /v1/frames`` into a stream of frames;
``/livez`` and ``/readyz`` are for probes.

Nothing is remembered between connections: any number of relays may stand beside each other.
"""

from __future__ import annotations

import ssl
from http import HTTPStatus

import structlog
from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from mirror.api.problems import ProblemError, problems
from mirror.config_values import host_and_port
from mirror.errors import TwinsiteError, UsageError
from mirror.kafka.cluster import Cluster
from mirror.kafka.connection import Connection
from mirror.kafka.dial import Address
from mirror.kafka.relayed import BROKER, OTHER_PROTOCOL, PATH, PROTOCOL, UNKNOWN_BROKER
from mirror.link.messages import PATH as STREAM_PATH
from mirror.link.messages import PROTOCOL as STREAM_PROTOCOL
from mirror.relay.stream import Epochs, Stream
from mirror.relay.tunnel import Tunnel

log = structlog.get_logger(__name__)

BODY_BYTES_MAX = 4096
SHUTDOWN_SECONDS = 1.0
BROKERS_READ_AGAIN_SECONDS = 1.0
"""Of brokers that are not known the cluster is asked so often, at most."""
SWITCHING = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: {}\r\n\r\n"


class RelayServer:
    """Serves mirrors.

    Attributes:
        port: Where it listens, once it does.
    """

    def __init__(self, cluster: Cluster, connections_max: int) -> None:
        """
        Args:
            cluster: What is read.
            connections_max: Of mirrors, to brokers, at the same time.
        """
        self.port = 0
        self._cluster = cluster
        self._connections_max = connections_max
        self._epochs = Epochs()
        self._open: set[Tunnel | Stream] = set()
        app = web.Application(middlewares=[problems], client_max_size=BODY_BYTES_MAX)
        app.add_routes(
            [
                web.get(PATH, self._kafka, allow_head=False),
                web.get(STREAM_PATH, self._stream, allow_head=False),
                web.get("/livez", self._livez),
                web.get("/readyz", self._readyz),
            ]
        )
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=SHUTDOWN_SECONDS)

    async def start(self, host: str, port: int, tls: ssl.SSLContext | None) -> None:
        """Listen.

        Raises:
            UsageError: The address cannot be listened on.
        """
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, host, port, ssl_context=tls).start()
        except OSError as error:
            await self._runner.cleanup()
            words = f"cannot listen on {host}:{port}: {error.strerror}"
            raise UsageError(
                words, hint="choose another address with --listen, or listen in the settings"
            ) from error
        self.port = self._runner.addresses[0][1]

    async def close(self) -> None:
        """Listen no more; connections of mirrors end."""
        for one in list(self._open):
            one.close()
        await self._runner.cleanup()

    # -- connections that become something else ------------------------------------------------------

    async def _kafka(self, request: web.Request) -> web.StreamResponse:
        self._check(request, PROTOCOL)
        broker = await self._broker(request.query.get(BROKER))
        return await self._become(request, Tunnel(broker, request.remote or ""), PROTOCOL)

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        self._check(request, STREAM_PROTOCOL)
        stream = Stream(self._cluster, self._epochs, request.remote or "")
        return await self._become(request, stream, STREAM_PROTOCOL)

    def _check(self, request: web.Request, protocol: str) -> None:
        asked = request.headers.get("Upgrade", "")
        if asked != protocol:
            detail = f"this relay speaks {protocol} there, asked for was {asked or 'no protocol'}"
            raise ProblemError(HTTPStatus.UPGRADE_REQUIRED, OTHER_PROTOCOL, detail)
        if len(self._open) >= self._connections_max:
            detail = f"{self._connections_max} connections of mirrors are open: no more are allowed"
            raise ProblemError(HTTPStatus.SERVICE_UNAVAILABLE, "too_many_connections", detail)

    async def _become(
        self, request: web.Request, other: Tunnel | Stream, protocol: str
    ) -> web.StreamResponse:
        self._open.add(other)
        try:
            await _handed_over(request, other, protocol)
        finally:
            self._open.discard(other)
        return web.Response()  # for nobody: the connection is closed

    async def _broker(self, asked: str | None) -> Connection:
        """A new connection to the broker that is asked for, or to any.

        Raises:
            ProblemError: There is none of that address, or it does not answer.
        """
        try:
            address = await self._address(asked)
            return await Connection.open(address, self._cluster.options)
        except TwinsiteError as error:
            detail = f"the source does not answer: {error}"
            raise ProblemError(HTTPStatus.SERVICE_UNAVAILABLE, "source_unavailable", detail) from error

    async def _address(self, asked: str | None) -> Address:
        """Brokers only: nobody gets anywhere else through a relay."""
        if asked is None:
            return (await self._cluster.any_connection()).address
        try:
            address = Address(*host_and_port(asked))
        except ValueError as error:
            raise ProblemError(
                HTTPStatus.BAD_REQUEST, "bad_request", f"{BROKER}={asked!r}: {error}"
            ) from error
        if address not in self._cluster.info.brokers.values():
            await self._cluster.refresh(not_older_than_seconds=BROKERS_READ_AGAIN_SECONDS)
        if address not in self._cluster.info.brokers.values():
            raise ProblemError(HTTPStatus.NOT_FOUND, UNKNOWN_BROKER, f"{address} is no broker of the source")
        return address

    # -- probes --------------------------------------------------------------------------------------

    async def _livez(self, _: web.Request) -> web.Response:
        return web.Response(text="ok: the event loop turned to answer this\n")

    async def _readyz(self, _: web.Request) -> web.Response:
        try:
            await self._cluster.refresh(not_older_than_seconds=self._cluster.refresh_seconds)
        except TwinsiteError as error:
            return web.Response(status=HTTPStatus.SERVICE_UNAVAILABLE, text=f"source: {error}\n")
        return web.Response(text="ok: the source answers\n")


async def _handed_over(request: web.Request, other: Tunnel | Stream, protocol: str) -> None:
    """Let something else have the connection of a request, to its end."""
    transport, handler = request.transport, request.protocol
    assert isinstance(handler, RequestHandler)
    try:
        if transport is None or transport.is_closing():
            other.close()
            return
        transport.set_protocol(other)
        other.connection_made(transport)
        transport.write(SWITCHING.format(protocol).encode())
        await other.ended
    finally:
        other.close()
        handler.connection_lost(None)  # the transport tells it no more
