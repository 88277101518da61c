"""Puts a mirror's metrics together: those of its flow, of its clusters, and of its surroundings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry

from mirror.config import Settings, shown
from mirror.errors import AuthenticationError
from mirror.kafka.cluster import Cluster
from mirror.model import FlowStatus
from monitoring.metrics import Instruments, register
from monitoring.surroundings import Expiry, Surroundings, settings_hash


def instruments_of(registry: CollectorRegistry, flow: str, clusters: Iterable[Cluster]) -> Instruments:
    """The instruments of a flow; from now on they count when a cluster and we do not accept each other."""
    instruments = Instruments(registry, flow)
    for cluster in clusters:
        cluster.on_auth_failure = _counter(instruments, cluster.name)
    return instruments


def _counter(instruments: Instruments, cluster: str) -> Callable[[AuthenticationError], None]:
    return lambda error: instruments.count_auth_failure(cluster, error.metric_reason)


def register_metrics(
    registry: CollectorRegistry,
    settings: Settings,
    status: Callable[[], FlowStatus],
    clusters: Iterable[Cluster],
    fenced: Callable[[], int] = int,
    not_reached: Callable[[], Iterable[str]] = tuple,
) -> None:
    """Register everything that is read at a scrape.

    Args:
        status: Takes a snapshot of the flow.
        fenced: Returns how many requests were refused because of a newer epoch.
        not_reached: Returns the names of clusters that were asked but are not in ``clusters`` yet.
    """
    known = tuple(clusters)
    register(registry, status, per_partition=settings.api.partition_metrics)
    surroundings = Surroundings(
        settings.flow,
        settings_hash(_of_the_flow(settings)),
        expiries=lambda: expiries(known),
        in_flight=lambda: {cluster.name: cluster.connections.unanswered for cluster in known},
        up=lambda: dict.fromkeys(not_reached(), False) | {cluster.name: cluster.up for cluster in known},
        fenced=fenced,
    )
    registry.register(surroundings)


def _of_the_flow(settings: Settings) -> dict[str, Any]:
    """The settings as shown, without those that are each mirror's own: where it listens, how it logs."""
    return {name: value for name, value in shown(settings).items() if name not in {"api", "log"}}


def expiries(clusters: Iterable[Cluster]) -> Iterator[Expiry]:
    """The expiry of our own certificate for each cluster, and the earliest of those its brokers have shown.

    A certificate that cannot be used is left out: what is not known has no series, and connecting says why.
    """
    for cluster in clusters:
        until = cluster.options.security.certificate_valid_until
        if until is not None:
            yield Expiry(cluster.name, "client", until)
        until = cluster.connections.certificate_valid_until
        if until is not None:
            yield Expiry(cluster.name, "broker", until)
