"""The port of a mirror that has not begun: alive, not ready, and it says what it waits for.

A mirror that runs for ever waits for ever: when both sides are restarted after an outage,
the mirror need not be, and probes can tell a mirror that waits from one that hangs.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import structlog
from prometheus_client import CollectorRegistry

from mirror import __version__
from mirror.config import Settings
from mirror.errors import NothingKnownError
from mirror.flow.snapshot import resident_bytes
from mirror.model import FlowStatus, TopicPartition
from mirror.observing import register_metrics
from monitoring.health import Heartbeats, Readiness

if TYPE_CHECKING:
    from mirror.api.server import ApiServer, Backend

log = structlog.get_logger(__name__)


class Waiting:
    """A flow of which nothing is known yet.

    Attributes:
        reached: Names of the clusters that have answered.
        started_at_ms, started_at: When the mirror was started, in milliseconds since 1970, and monotonic.
    """

    def __init__(self, settings: Settings) -> None:
        self.reached: set[str] = set()
        self._step = ""
        self._failures: dict[str, str] = {}
        self._settings = settings
        self.started_at = time.monotonic()
        self.started_at_ms = int(time.time() * 1000)

    def tell(self, step: str) -> None:
        """Note what is waited for, with what went wrong last."""
        self._step = step

    def not_reached(self, cluster: str, why: str) -> None:
        """Note what went wrong last with a cluster that has not answered, and what can be done about it."""
        self._failures[cluster] = why

    @property
    def missing(self) -> list[str]:
        """Names of the clusters that have not answered."""
        return sorted({"source", "target"} - self.reached)

    @property
    def unexplained(self) -> bool:
        """Whether a cluster has not answered, and nobody knows why; what is known comes with a hint."""
        return not self._failures.keys() >= set(self.missing)

    @property
    def waits_for(self) -> str:
        """What is waited for, with what went wrong last, in words; clusters come first. Never empty."""
        missing = self.missing
        if not missing:
            return self._step or "the flow to begin"
        words = f"{' and '.join(missing)} to answer"
        failures = [self._failures[name] for name in missing if name in self._failures]
        return f"{words}: {'; '.join(failures)}" if failures else words

    def status(self) -> FlowStatus:
        """A status without partitions and clusters: unknown values are None, ``waits_for`` is set."""
        return FlowStatus(
            flow=self._settings.flow,
            version=__version__,
            source_cluster_id=None,
            target_cluster_id=None,
            producer_id=None,
            producer_epoch=None,
            owner=False,
            started_at_ms=self.started_at_ms,
            uptime_seconds=time.monotonic() - self.started_at,
            cpu_seconds=time.process_time(),
            resident_bytes=resident_bytes(),
            bytes_fetched=0,
            bytes_appended=0,
            partitions=(),
            topics_ignored=None,
            waits_for=self.waits_for,
        )

    def _silent(self) -> set[str]:
        """Clusters that were asked but have not answered."""
        return self._failures.keys() - self.reached

    def readiness(self) -> Readiness:
        """Not ready, with which cluster is missing and what is waited for."""
        return Readiness(
            settings_loaded=True,
            source_reached="source" in self.reached,
            target_reached="target" in self.reached,
            flow_running=False,
            waits_for=self.waits_for,
        )

    def backend(self) -> Backend:
        """What the port serves while the mirror waits."""
        from mirror.api.server import Backend

        registry = CollectorRegistry()
        register_metrics(registry, self._settings, self.status, (), not_reached=self._silent)
        return Backend(self.status, self.readiness, Heartbeats(), self, self._translate, registry)

    async def pause(self, tp: TopicPartition) -> None:
        """Always raises NothingKnownError: nothing is copied yet."""
        raise self._not_yet(tp)

    async def resume(self, tp: TopicPartition) -> None:
        """Always raises NothingKnownError: nothing is copied yet."""
        raise self._not_yet(tp)

    async def accept_loss(self, tp: TopicPartition, _: tuple[int, int] | None = None) -> None:
        """Always raises NothingKnownError: nothing is copied yet."""
        raise self._not_yet(tp)

    async def _translate(self, tp: TopicPartition, _: int, /, **__: bool) -> int:
        raise self._not_yet(tp)

    def _not_yet(self, tp: TopicPartition) -> NothingKnownError:
        return NothingKnownError(tp, self.waits_for)


@contextlib.asynccontextmanager
async def opened_port(settings: Settings, waiting: Waiting) -> AsyncIterator[ApiServer | None]:
    """The port, open while the block lasts. It serves ``waiting`` until it gets another backend.

    None if the settings want no port.

    Raises:
        UsageError: The address cannot be listened on.
    """
    api = settings.api
    if api.port < 0:
        yield None
        return
    from mirror.api.server import ApiServer  # a quarter of the start-up time, which --once saves

    server = ApiServer(waiting.backend(), host=api.host, port=api.port, remote_control=api.remote_control)
    await server.start()
    log.info("listening", host=api.host, port=server.port)
    try:
        yield server
    finally:
        await server.close()
