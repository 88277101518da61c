"""One port for people, probes and Prometheus.

``GET /`` a page, ``/livez``, ``/readyz``, ``/metrics``, ``/status``, ``/offsets/translate``;
``POST /partitions/...`` and ``/topics/...`` to pause, resume and accept a loss.

The server asks the mirror and decides nothing. It listens on the loopback address
unless told otherwise.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Set
from dataclasses import dataclass
from typing import Protocol

from aiohttp import web
from prometheus_client import CollectorRegistry

from mirror.api.control import Control, ControlHandlers, Lost
from mirror.api.page import CONTENT_SECURITY_POLICY, PAGE
from mirror.api.problems import ProblemError
from mirror.api.schema import status_to_json
from mirror.api.serving import listen, metrics, port_for_people, probe, url_of
from mirror.model import OFFSET_MAX, FlowStatus, TopicPartition
from monitoring.health import Heartbeats, Readiness, livez, readyz

BODY_BYTES_MAX = 16 * 1024
SCHEMA = 1
PORT_HINT = (
    "another mirror may run on this machine: choose a port with --api-port or api.port; "
    "0 takes any free one, -1 opens none"
)


class Translate(Protocol):
    """Translates an offset of a partition to the other side, exactly."""

    async def __call__(self, tp: TopicPartition, offset: int, /, *, reverse: bool, committed: bool) -> int:
        """Translate.

        Args:
            tp: The source partition.
            offset: At the source; with ``reverse`` at the target.
            committed: It is a group's committed offset: the next one it reads.

        Raises:
            UnknownPartitionError: The flow does not copy this partition.
            TwinsiteError: There is no exact answer; none is guessed.
        """


@dataclass(frozen=True, slots=True)
class Backend:
    """What the server asks.

    Attributes:
        status: Takes a snapshot of the flow, at once.
        readiness: What is known of readiness, at once.
        heartbeats: Signs of life from the main tasks.
        translate: See :data:`Translate`.
        registry: All metrics.
    """

    status: Callable[[], FlowStatus]
    readiness: Callable[[], Readiness]
    heartbeats: Heartbeats
    control: Control
    translate: Translate
    registry: CollectorRegistry


class ApiServer:
    """Serves a running mirror."""

    def __init__(
        self,
        backend: Backend,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        remote_control: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Args:
            host: Address to listen on.
            port: 0 for any free one, see :attr:`port`.
            remote_control: Take POSTs from other machines too. There is no login: put something in front.
            clock: The monotonic clock of the heartbeats.
        """
        self._backend = backend
        self._host = host
        self._asked_port = port
        self._remote_control = remote_control
        self._clock = clock
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        """Listen.

        Raises:
            UsageError: The address cannot be listened on.
        """
        runner = port_for_people(self._routes(), body_bytes_max=BODY_BYTES_MAX)
        await listen(runner, self._host, self._asked_port, words="cannot listen on", port_hint=PORT_HINT)
        self._runner = runner

    async def close(self) -> None:
        """Stop listening; requests in progress have a second to end."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def serve(self, backend: Backend) -> None:
        """Ask this backend from now on; connections stay open."""
        self._backend = backend

    def _take_status(self) -> FlowStatus:
        return self._backend.status()

    async def pause(self, tp: TopicPartition) -> None:
        """See :class:`Control`."""
        await self._backend.control.pause(tp)

    async def resume(self, tp: TopicPartition) -> None:
        """See :class:`Control`."""
        await self._backend.control.resume(tp)

    async def accept_loss(self, tp: TopicPartition, shown: Lost | None = None) -> None:
        """See :class:`Control`."""
        await self._backend.control.accept_loss(tp, shown)

    @property
    def url(self) -> str:
        """Where it can be asked; call it after :meth:`start`."""
        return url_of(self._host, self.port)

    @property
    def port(self) -> int:
        """The port listened on; call it after :meth:`start`."""
        assert self._runner is not None, "not started"
        port = self._runner.addresses[0][1]
        assert isinstance(port, int)
        return port

    def _routes(self) -> list[web.RouteDef]:
        control = ControlHandlers(self, self._take_status, remote=self._remote_control)
        return [
            web.get("/", self._index),
            web.get("/livez", self._livez),
            web.get("/readyz", self._readyz),
            web.get("/metrics", self._metrics),
            web.get("/status", self._status),
            web.get("/offsets/translate", self._translate),
            *control.routes(),
        ]

    # -- reading -------------------------------------------------------------------------------

    async def _index(self, _: web.Request) -> web.Response:
        headers = {"Content-Security-Policy": CONTENT_SECURITY_POLICY}
        return web.Response(text=PAGE, content_type="text/html", headers=headers)

    async def _livez(self, request: web.Request) -> web.Response:
        return probe(request, livez(self._backend.heartbeats.beats, self._clock()))

    async def _readyz(self, request: web.Request) -> web.Response:
        return probe(request, readyz(self._backend.readiness()))

    async def _metrics(self, request: web.Request) -> web.Response:
        return await metrics(request, self._backend.registry)

    async def _status(self, _: web.Request) -> web.Response:
        return web.json_response(status_to_json(self._backend.status()))

    async def _translate(self, request: web.Request) -> web.Response:
        _check_names(request, {"topic", "partition", "offset", "reverse", "committed"})
        tp = TopicPartition(_text(request, "topic"), _number(request, "partition"))
        offset = _number(request, "offset")
        reverse, committed = _flag(request, "reverse"), _flag(request, "committed")
        translated = await self._backend.translate(tp, offset, reverse=reverse, committed=committed)
        source, target = (translated, offset) if reverse else (offset, translated)
        return web.json_response(
            {"schema": SCHEMA, **tp._asdict(), "source_offset": source, "target_offset": target}
        )


def _check_names(request: web.Request, known: Set[str]) -> None:
    """Refuse unknown and repeated parameters: if they were ignored, another question would be answered."""
    for name in request.query:
        if name not in known:
            words = f"unknown parameter {name}: known are {', '.join(sorted(known))}"
            raise ProblemError(400, "bad_request", words)
        if len(request.query.getall(name)) > 1:
            raise ProblemError(400, "bad_request", f"parameter {name} is given more than once")


def _text(request: web.Request, name: str) -> str:
    value = request.query.get(name)
    if not value:
        raise ProblemError(400, "bad_request", f"parameter {name} is missing")
    return value


def _number(request: web.Request, name: str) -> int:
    text = _text(request, name)
    if not (text.isascii() and text.isdigit() and len(text) <= 19 and int(text) <= OFFSET_MAX):
        raise ProblemError(400, "bad_request", f"parameter {name} must be a whole number, 0 or more")
    return int(text)


def _flag(request: web.Request, name: str) -> bool:
    value = request.query.get(name, "false")
    if value not in {"", "true", "false"}:
        raise ProblemError(400, "bad_request", f"parameter {name} must be true or false")
    return value != "false"
