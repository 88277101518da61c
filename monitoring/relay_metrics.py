"""Prometheus metrics of a relay, computed at each scrape.

A scrape takes one snapshot and turns it into series. Labels are channels, codes and levels, which are few;
whose streams there are is in the status.

Sources: docs/metrics.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from mirror.model_relay import ChannelTotals, RelayStatus
from monitoring import catalogue
from monitoring.catalogue import Kind, Metric

TUNNEL = "tunnel"
Samples = Mapping[str, float]
"""Measured values by the value of the metric's one label."""


class RelayExpiry(NamedTuple):
    """Until when a certificate is valid, in seconds since 1970.

    Attributes:
        cert: ``listen``, shown to mirrors; ``client``, shown to brokers; ``broker``, shown by brokers.
    """

    cert: str
    valid_until: float


class RelayCollector(Collector):
    """Turns a snapshot of a relay into series, at each scrape.

    Args:
        status: Takes the snapshot.
        expiries: The certificates that can be read.
    """

    def __init__(
        self, status: Callable[[], RelayStatus], expiries: Callable[[], Iterable[RelayExpiry]]
    ) -> None:
        self._status = status
        self._expiries = expiries

    def describe(self) -> Iterable[Family]:
        """The families without samples, so that registering takes no snapshot."""
        return [_family(metric) for metric in catalogue.RELAY_METRICS]

    def collect(self) -> Iterable[Family]:
        """All series of one snapshot."""
        status = self._status()
        yield from _of_relay(status)
        yield from _of_streams(status)
        yield from _of_channels(status)
        yield _one(catalogue.RELAY_READ, status.bytes_read)
        yield _each(catalogue.RELAY_REFUSED, status.refused)
        yield _each(catalogue.RELAY_CERT_EXPIRY, {one.cert: one.valid_until for one in self._expiries()})


def _of_relay(status: RelayStatus) -> Iterator[Family]:
    source = status.source_cluster_id
    yield _each(catalogue.RELAY_BUILD_INFO, {status.version: 1})
    yield _each(catalogue.RELAY_SOURCE_INFO, {source: 1} if source else {})
    yield _one(catalogue.RELAY_START, status.started_at_ms / 1000)
    yield _one(catalogue.RELAY_CONNECTIONS, status.connections)
    yield _one(catalogue.RELAY_CONNECTIONS_MAX, status.connections_max)
    yield _one(catalogue.RELAY_RATE_LIMIT, status.rate_limit_bytes_per_second)


def _of_streams(status: RelayStatus) -> Iterator[Family]:
    streams = status.streams
    levels = Counter(str(stream.level) for stream in streams if stream.level is not None)
    yield _one(catalogue.RELAY_STREAMS, len(streams))
    yield _one(catalogue.RELAY_STREAMS_WAITING, sum(stream.waits for stream in streams))
    yield _each(catalogue.RELAY_STREAMS_LEVEL, levels)
    yield _each(catalogue.RELAY_CONGESTION, dict.fromkeys(sorted({one.congestion for one in streams}), 1))
    yield _one(catalogue.RELAY_TUNNELS, status.tunnels)
    yield _one(catalogue.RELAY_PARTITIONS, sum(stream.partitions_wanted for stream in streams))


def _of_channels(status: RelayStatus) -> Iterator[Family]:
    def each(metric: Metric, read: Callable[[ChannelTotals], float], more: Samples | None = None) -> Family:
        return _each(metric, {"live": read(status.live), "bulk": read(status.bulk), **(more or {})})

    yield each(catalogue.RELAY_SENT, lambda of: of.bytes_sent, {TUNNEL: status.tunnelled_bytes})
    yield each(catalogue.RELAY_RECORDS, lambda of: of.records_bytes)
    yield each(catalogue.RELAY_FRAMES, lambda of: of.frames)
    yield each(catalogue.RELAY_WAITED, lambda of: of.waited_seconds)
    yield each(catalogue.RELAY_HELD, lambda of: of.held_seconds)
    yield each(catalogue.RELAY_SEALED, lambda of: of.sealed_seconds)


def _one(metric: Metric, value: float | None) -> Family:
    """A family with one series, or with none if there is no value."""
    family = _family(metric)
    if value is not None:
        family.add_metric([], value)
    return family


def _each(metric: Metric, samples: Samples) -> Family:
    family = _family(metric)
    for label, value in samples.items():
        family.add_metric([label], value)
    return family


def _family(metric: Metric) -> CounterMetricFamily | GaugeMetricFamily:
    kind = CounterMetricFamily if metric.kind is Kind.COUNTER else GaugeMetricFamily
    return kind(metric.name, metric.help, labels=metric.labels)


def register_relay(
    registry: CollectorRegistry,
    status: Callable[[], RelayStatus],
    expiries: Callable[[], Iterable[RelayExpiry]],
) -> None:
    """Register the metrics of a relay and of its process; arguments as for :class:`RelayCollector`."""
    registry.register(RelayCollector(status, expiries))
    ProcessCollector(registry=registry)
