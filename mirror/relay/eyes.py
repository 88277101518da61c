"""The port of a relay for people, probes and Prometheus: ``/livez``, ``/readyz``, ``/metrics``, ``/status``.

Mirrors do not use it, and nothing can be changed through it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from aiohttp import web
from prometheus_client import CollectorRegistry

from mirror.api.relay_schema import relay_to_json
from mirror.api.serving import listen, metrics, port_for_people, probe
from mirror.errors import TwinsiteError
from mirror.kafka.cluster import Cluster
from mirror.model_relay import RelayStatus
from monitoring.health import Check, Verdict
from monitoring.relay_metrics import RelayExpiry

BODY_BYTES_MAX = 4096
PORT_HINT = (
    "another relay may run on this machine: choose a port with --api-port or api.port; "
    "0 takes any free one, -1 opens none"
)


class Eyes:
    """Serves the state of a relay.

    Attributes:
        port: Where it listens, once it does.

    Args:
        status: Takes a snapshot immediately.
        stopping: Whether the relay is being stopped, and takes no more mirrors.
    """

    def __init__(
        self,
        cluster: Cluster,
        registry: CollectorRegistry,
        status: Callable[[], RelayStatus],
        stopping: Callable[[], bool],
    ) -> None:
        self.port = 0
        self._cluster = cluster
        self._registry = registry
        self._take_status = status
        self._stopping = stopping
        routes = [
            web.get("/livez", self._livez),
            web.get("/readyz", self._readyz),
            web.get("/metrics", self._metrics),
            web.get("/status", self._status),
        ]
        self._runner = port_for_people(routes, body_bytes_max=BODY_BYTES_MAX)

    async def start(self, host: str, port: int) -> None:
        """Listen.

        Raises:
            UsageError: The address cannot be listened on.
        """
        await listen(self._runner, host, port, words="api: cannot listen on", port_hint=PORT_HINT)
        self.port = self._runner.addresses[0][1]

    async def close(self) -> None:
        """Stop listening; does nothing if it never has."""
        await self._runner.cleanup()

    async def _livez(self, request: web.Request) -> web.Response:
        return probe(request, Verdict((Check("event_loop", ok=True, reason="responds"),)))

    async def _readyz(self, request: web.Request) -> web.Response:
        waits_for = self._take_status().waits_for
        return probe(request, Verdict((self._mirrors(waits_for), await self._source(waits_for))))

    def _mirrors(self, waits_for: str) -> Check:
        if self._stopping():
            return Check("mirrors", ok=False, reason="the relay is being stopped")
        if waits_for:
            return Check("mirrors", ok=False, reason=f"not admitted yet: the relay waits for {waits_for}")
        return Check("mirrors", ok=True, reason="admitted")

    async def _source(self, waits_for: str) -> Check:
        if waits_for:
            return Check("source", ok=False, reason="not reached since start")
        try:
            await self._cluster.refresh(not_older_than_seconds=self._cluster.refresh_seconds)
        except TwinsiteError as error:
            return Check("source", ok=False, reason=str(error))
        return Check("source", ok=True, reason="answers")

    async def _metrics(self, request: web.Request) -> web.Response:
        return await metrics(request, self._registry)

    async def _status(self, _: web.Request) -> web.Response:
        return web.json_response(relay_to_json(self._take_status()))


def expiries(shown_until: float | None, cluster: Cluster) -> Iterator[RelayExpiry]:
    """When certificates expire: those that the relay shows to mirrors and to brokers, and those of brokers.

    A certificate that cannot be used, or whose expiry is not known, is left out: it has no series.

    Args:
        shown_until: Of the certificate that mirrors are shown, in seconds since 1970; None if there is none,
            or if it is not known.
    """
    ends = {
        "listen": shown_until,
        "client": cluster.options.security.certificate_valid_until,
        "broker": cluster.connections.certificate_valid_until,
    }
    yield from (RelayExpiry(cert, until) for cert, until in ends.items() if until is not None)
