"""Metrics of a mirror's surroundings: its settings, its requests and whether they are answered, and how long
certificates are valid.

Read at each scrape, so that a renewed certificate shows at once.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from monitoring.catalogue import (
    CERT_EXPIRY,
    CONFIG_HASH,
    FENCED_REQUESTS,
    PEER_UP,
    REQUESTS_IN_FLIGHT,
    Metric,
)

HASH_DIGITS = 16


class Expiry(NamedTuple):
    """Until when a certificate is valid, in seconds since 1970.

    Attributes:
        cluster: ``source`` or ``target``.
        cert: ``client``, the mirror's own, or ``broker``, the one that the brokers show.
    """

    cluster: str
    cert: str
    valid_until: float


def settings_hash(document: Mapping[str, Any]) -> str:
    """A hash that is equal for equal settings, wherever they come from and in whatever order.

    Args:
        document: The settings as shown to people, without secrets.
    """
    text = json.dumps(document, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:HASH_DIGITS]


class Surroundings(Collector):
    """What is read at each scrape, in addition to the snapshot of the flow.

    Args:
        config_hash: See :func:`settings_hash`.
        expiries: The certificates that can be read.
        in_flight: How many requests wait for their answer, by cluster.
        up: Whether the last request was answered, by cluster; None if there was none yet.
        fenced: How many requests were refused because of a newer epoch.
    """

    def __init__(
        self,
        flow: str,
        config_hash: str,
        *,
        expiries: Callable[[], Iterable[Expiry]],
        in_flight: Callable[[], Mapping[str, int]],
        up: Callable[[], Mapping[str, bool | None]],
        fenced: Callable[[], int],
    ) -> None:
        self._flow = flow
        self._config_hash = config_hash
        self._expiries = expiries
        self._in_flight = in_flight
        self._up = up
        self._fenced = fenced

    def describe(self) -> Iterable[Family]:
        """The families without samples, so that registering reads no file."""
        return [*map(_family, (CONFIG_HASH, CERT_EXPIRY, REQUESTS_IN_FLIGHT, PEER_UP)), _refused()]

    def collect(self) -> Iterable[Family]:
        """The settings, each certificate that can be read, and what became of requests."""
        config, certificates, requests, ups = map(
            _family, (CONFIG_HASH, CERT_EXPIRY, REQUESTS_IN_FLIGHT, PEER_UP)
        )
        fenced = _refused()
        config.add_metric([self._flow, self._config_hash], 1)
        for expiry in self._expiries():
            certificates.add_metric([self._flow, expiry.cluster, expiry.cert], expiry.valid_until)
        for cluster, count in self._in_flight().items():
            requests.add_metric([self._flow, cluster], count)
        for cluster, is_up in self._up().items():
            if is_up is not None:
                ups.add_metric([self._flow, cluster], int(is_up))
        fenced.add_metric([self._flow], self._fenced())
        return [config, certificates, requests, ups, fenced]


def _family(metric: Metric) -> GaugeMetricFamily:
    return GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)


def _refused() -> CounterMetricFamily:
    return CounterMetricFamily(FENCED_REQUESTS.name, FENCED_REQUESTS.help, labels=FENCED_REQUESTS.labels)
