"""The port to which mirrors connect to read the source.

``GET /v1/kafka`` turns a connection into one to a broker, ``GET /v1/frames`` into a stream of frames,
``GET /v1/probe`` into one that is filled to find out what it carries;
``/livez`` and ``/readyz`` are for probes. There is one request to a connection.

Of connections that have ended only the newest epochs are remembered, and for a minute which mirrors held up
others. Relays do not know of each other: any number may run side by side.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from http import HTTPStatus

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from mirror.api.problems import Handler, ProblemError, problems
from mirror.api.serving import http_logger
from mirror.config_relay import ListenSettings
from mirror.config_values import host_and_port
from mirror.errors import TwinsiteError, UsageError
from mirror.kafka.cluster import Cluster
from mirror.kafka.connection import Connection
from mirror.kafka.dial import Address
from mirror.kafka.relayed import (
    BROKER,
    PATH,
    PROTOCOL,
    UNKNOWN_BROKER,
    UNKNOWN_STREAM,
)
from mirror.link.probe import PATH as PROBE_PATH
from mirror.link.probe import PROTOCOL as PROBE_PROTOCOL
from mirror.link.probe import RUNNING
from mirror.link.protocol import CARRIES, JOIN, Channel
from mirror.link.protocol import PATH as STREAM_PATH
from mirror.link.protocol import PROTOCOL as STREAM_PROTOCOL
from mirror.relay.access import Access, NotAdmittedError, Visitor, Way
from mirror.relay.audit import Audit
from mirror.relay.door import Door
from mirror.relay.guarding import Guard
from mirror.relay.hello import Epochs
from mirror.relay.identity import names_of
from mirror.relay.joined import Joined
from mirror.relay.lasting import lasting
from mirror.relay.pacing import Turnstile, follow
from mirror.relay.probe import Probe
from mirror.relay.sharing import Sharing
from mirror.relay.stream import Stream
from mirror.relay.tally import Handed, Tally
from mirror.relay.tunnel import GuardedTunnel, Tunnel
from mirror.relay.upgrading import check_protocol, handed_over
from mirror.timetable import Period

BODY_BYTES_MAX = 4096
HEADER_BYTES_MAX, HEADERS_MAX = 8190, 64
"""Of one header, or of the request line; and how many headers."""
SHUTDOWN_SECONDS = 1.0
DRAIN_SECONDS = 3.0
"""How long a relay that is being stopped waits for answers to requests in progress, and for mirrors to end
their streams.
"""
BROKERS_READ_AGAIN_SECONDS, TOPICS_READ_AGAIN_SECONDS = 1.0, 0.1
"""How often, at most, the cluster is asked for brokers and topics that are not known."""
BULK = Channel.BULK.name.lower()
CARRIED = {channel.name.lower(): channel for channel in Channel}
"""What a joined connection may carry, by the value of the parameter."""

PROTOCOLS = {
    Way.BROKER: PROTOCOL,
    Way.STREAM: STREAM_PROTOCOL,
    Way.JOINED: STREAM_PROTOCOL,
    Way.PROBE: PROBE_PROTOCOL,
}


class RelayServer:
    """Serves mirrors.

    Attributes:
        port: Where it listens, once it does.
        access: Who may connect, and how many are connected.
        tally: What has passed through, connections that have ended included.
        audit: What was let in, and what refused.

    Args:
        cluster: The source.
        rates: Limits on what all mirrors get together; the first that holds applies.
    """

    def __init__(self, cluster: Cluster, settings: ListenSettings, rates: Sequence[Period] = ()) -> None:
        self.port = 0
        self.access = Access(settings)
        self.audit = Audit()
        self.tally = Tally(cluster)
        self._cluster = cluster
        self._greeting_seconds = settings.greeting_timeout_seconds
        self._level_max = settings.level_max
        self._epochs = Epochs()
        self._turnstile = Turnstile()
        self._rates = rates
        self._sharing = Sharing(cluster)
        self._tasks: list[asyncio.Task[None]] = []
        self._streams: dict[str, Stream] = {}
        self._closing = False
        self._names: tuple[object, dict[bytes, str]] = (None, {})
        app = web.Application(middlewares=[self._welcome, problems], client_max_size=BODY_BYTES_MAX)
        app.add_routes(
            [
                web.get(PATH, self._kafka, allow_head=False),
                web.get(STREAM_PATH, self._stream, allow_head=False),
                web.get(PROBE_PATH, self._probe, allow_head=False),
                web.get("/livez", self._livez),
                web.get("/readyz", self._readyz),
            ]
        )
        app.on_response_prepare.append(_only_one_request)
        self._runner = web.AppRunner(
            app,
            access_log=None,
            shutdown_timeout=SHUTDOWN_SECONDS,
            max_line_size=HEADER_BYTES_MAX,
            max_field_size=HEADER_BYTES_MAX,
            max_headers=HEADERS_MAX,
            lingering_time=SHUTDOWN_SECONDS,
            auto_decompress=False,
            logger=http_logger(self.audit.no_request),
        )
        self._door = Door(
            self._new_handler,
            self.audit,
            greeting_seconds=self._greeting_seconds,
            guests_max=settings.connections_max,
        )

    @property
    def rate_now(self) -> float | None:
        """The most bytes a second that all mirrors get together; None: no limit."""
        return self._turnstile.pace.rate

    async def take(self, host: str, port: int, tls: ssl.SSLContext | None) -> None:
        """Bind the address, and let nobody in yet.

        Raises:
            UsageError: The address cannot be listened on.
        """
        with _listening_on(f"{host}:{port}"):
            self.port = await self._door.take(host, port, tls)

    async def start(self) -> None:
        """Listen.

        Raises:
            UsageError: The address cannot be listened on.
        """
        await self._runner.setup()
        with _listening_on(f"port {self.port}"):
            await self._door.open()
        clock = partial(datetime.now, UTC)
        calendar = partial(follow, self._turnstile, self._rates, clock)
        self._tasks = [
            asyncio.create_task(lasting("calendar", calendar)),
            asyncio.create_task(lasting("sharing", self._sharing.run)),
        ]

    async def close(self) -> None:
        """Stop listening; mirrors are told to go on elsewhere, and what is in progress has seconds to end."""
        self._closing = True
        for task in self._tasks:
            task.cancel()
        await self._door.close()
        remaining = list(self.tally.open)
        for one in remaining:
            one.drain()
        if remaining:
            await asyncio.wait([one.ended for one in remaining], timeout=DRAIN_SECONDS)
        for one in list(self.tally.open):
            one.close()
        await self._runner.cleanup()

    def _new_handler(self) -> RequestHandler:
        assert self._runner.server is not None
        return self._runner.server()

    @web.middleware
    async def _welcome(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """A request has arrived: its deadline no longer applies. One for something unknown is audited."""
        self._door.has_asked(request.transport)
        response = await handler(request)
        nothing = request.match_info.http_exception
        if nothing is not None:
            self.audit.no_request(request.remote or "", f"{request.method} {request.path}: {nothing.reason}")
        return response

    # -- connections that become something else ------------------------------------------------------

    async def _kafka(self, request: web.Request) -> web.StreamResponse:
        with self._let_in(request, Way.BROKER) as visitor:
            broker = await self._broker(request.query.get(BROKER))
            return await self._become(request, self._tunnel(broker, visitor), visitor, Way.BROKER)

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        token = request.query.get(JOIN)
        if token is not None:
            return await self._join(request, token)
        with self._let_in(request, Way.STREAM) as visitor:
            stream = Stream(
                self._cluster,
                self._epochs,
                self._turnstile,
                self._sharing,
                visitor,
                self.audit,
                greeting_seconds=self._greeting_seconds,
                level_max=self._level_max,
            )
            self._streams[stream.token] = stream
            try:
                return await self._become(request, stream, visitor, Way.STREAM)
            finally:
                del self._streams[stream.token]

    async def _join(self, request: web.Request, token: str) -> web.StreamResponse:
        """One more connection of a stream, for the identity that has begun it."""
        with self._let_in(request, Way.JOINED) as visitor:
            asked = request.query.get(CARRIES, BULK)
            carries = CARRIED.get(asked)
            if carries is None:
                detail = f"{CARRIES}={asked!r}: a connection carries {' or '.join(CARRIED)}"
                raise ProblemError(HTTPStatus.BAD_REQUEST, "bad_request", detail)
            stream = self._streams.get(token)
            if stream is None or stream.ended.done() or stream.visitor.identity != visitor.identity:
                detail = "no such stream here: it has ended, or it is at another relay behind this address"
                raise ProblemError(HTTPStatus.NOT_FOUND, UNKNOWN_STREAM, detail)
            return await self._become(request, Joined(stream, carries), visitor, Way.JOINED)

    async def _probe(self, request: web.Request) -> web.StreamResponse:
        """One at a time: two would measure each other."""
        with self._let_in(request, Way.PROBE) as visitor:
            if any(isinstance(one, Probe) for one in self.tally.open):
                detail = "another test of the link is running: retry in about a minute"
                raise ProblemError(HTTPStatus.SERVICE_UNAVAILABLE, RUNNING, detail)
            one = Probe(visitor.peer, self.audit, lambda: self.rate_now)
            return await self._become(request, one, visitor, Way.PROBE)

    @contextmanager
    def _let_in(self, request: web.Request, way: Way) -> Iterator[Visitor]:
        """Let a mirror in; it counts until the block ends. Every refusal is audited, those of the block too.

        Raises:
            ProblemError: It may not connect, or asks for another protocol.
        """
        peer, names = _peer(request), _names(request)
        try:
            check_protocol(request, PROTOCOLS[way])
            with self.access.entered(peer, names, way) as visitor:
                yield visitor
        except NotAdmittedError as refused:
            self.audit.not_let_in(peer, names, refused.code, str(refused))
            raise ProblemError(refused.status, refused.code, str(refused)) from refused
        except ProblemError as problem:
            self.audit.not_let_in(peer, names, problem.code, problem.detail)
            raise

    def _tunnel(self, broker: Connection, visitor: Visitor) -> Tunnel:
        if not visitor.limited:
            return Tunnel(broker, visitor, self.audit, greeting_seconds=self._greeting_seconds)
        role = visitor.role.name if visitor.role else ""
        guard = Guard(
            visitor.allows,
            self._topic_name,
            lambda: self._cluster.info.topics,
            f"role {role} of the relay does not include it: see listen.roles there",
        )
        return GuardedTunnel(
            broker,
            visitor,
            self.audit,
            greeting_seconds=self._greeting_seconds,
            guard=guard,
            look_again=partial(self._cluster.refresh, not_older_than_seconds=TOPICS_READ_AGAIN_SECONDS),
        )

    def _topic_name(self, topic_id: bytes) -> str | None:
        info, names = self._names
        if info is not self._cluster.info:
            info = self._cluster.info
            names = {topic.topic_id.bytes: name for name, topic in info.topics.items()}
            self._names = info, names
        return names.get(topic_id)

    async def _become(
        self, request: web.Request, other: Handed, visitor: Visitor, way: Way
    ) -> web.StreamResponse:
        if self._closing:
            other.close()
            raise ProblemError(
                HTTPStatus.SERVICE_UNAVAILABLE, "source_unavailable", "this relay is being stopped"
            )
        with self.tally.counting(other):
            self.audit.let_in(visitor, way)
            await handed_over(request, other, PROTOCOLS[way])
        return web.Response()  # for nobody: the connection is closed

    async def _broker(self, asked: str | None) -> Connection:
        """A new connection to the broker that is asked for, or to any.

        Raises:
            ProblemError: ``asked`` is no address, or that of no broker; or the source does not answer.
        """
        try:
            if asked is None:
                return await self._cluster.open_any()
            return await Connection.open(await self._address(asked), self._cluster.options)
        except TwinsiteError as error:
            detail = f"the source does not answer: {error}"
            raise ProblemError(HTTPStatus.SERVICE_UNAVAILABLE, "source_unavailable", detail) from error

    async def _address(self, asked: str) -> Address:
        """The address of a broker: a mirror gets to nothing else through a relay.

        Raises:
            ProblemError: ``asked`` is no address, or that of no broker.
            TwinsiteError: The source does not answer.
        """
        try:
            address = Address(*host_and_port(asked))
        except ValueError as error:
            raise ProblemError(
                HTTPStatus.BAD_REQUEST, "bad_request", f"{BROKER}={asked!r}: {error}"
            ) from error
        if address not in self._cluster.info.brokers.values():
            await self._cluster.refresh(not_older_than_seconds=BROKERS_READ_AGAIN_SECONDS)
        if address not in self._cluster.info.brokers.values():
            detail = f"{address} is not a broker of the source"
            raise ProblemError(HTTPStatus.NOT_FOUND, UNKNOWN_BROKER, detail)
        return address

    # -- probes --------------------------------------------------------------------------------------

    async def _livez(self, _: web.Request) -> web.Response:
        return web.Response(text="ok: the event loop responds\n")

    async def _readyz(self, _: web.Request) -> web.Response:
        try:
            await self._cluster.refresh(not_older_than_seconds=self._cluster.refresh_seconds)
        except TwinsiteError as error:
            return web.Response(status=HTTPStatus.SERVICE_UNAVAILABLE, text=f"source: {error}\n")
        return web.Response(text="ok: the source answers\n")


def _peer(request: web.Request) -> str:
    """The client's address, for people."""
    found = request.transport.get_extra_info("peername") if request.transport is not None else None
    return str(Address(*found[:2])) if found else ""


def _names(request: web.Request) -> tuple[str, ...]:
    """The names in the client's certificate; empty without one."""
    certificate = request.transport.get_extra_info("peercert") if request.transport is not None else None
    return names_of(certificate) if certificate else ()


async def _only_one_request(_: web.Request, response: web.StreamResponse) -> None:
    response.force_close()


@contextmanager
def _listening_on(address: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        words = f"cannot listen on {address}: {error.strerror}"
        hint = "choose another address with --listen, or listen in the settings"
        raise UsageError(words, hint=hint) from error
