"""Metrics of what a mirror runs with: its settings, its requests, and how long certificates are valid.

Read at each scrape, so that a certificate that was renewed shows at once.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from prometheus_client.metrics_core import GaugeMetricFamily
from prometheus_client.registry import Collector

from monitoring.catalogue import CERT_EXPIRY, CONFIG_HASH, REQUESTS_IN_FLIGHT, Metric

HASH_DIGITS = 16


class Expiry(NamedTuple):
    """Until when a certificate is valid, in seconds since 1970.

    Attributes:
        cluster: ``source`` or ``target``.
        cert: ``client``, what the mirror shows, or ``broker``, what it is shown.
    """

    cluster: str
    cert: str
    valid_until: float


def settings_hash(document: Mapping[str, Any]) -> str:
    """The same for the same settings, wherever they come from; the order of keys does not matter.

    Args:
        document: As shown to people, without secrets.
    """
    text = json.dumps(document, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:HASH_DIGITS]


class Surroundings(Collector):
    """What is read at each scrape, beside the snapshot of the flow.

    Args:
        config_hash: See :func:`settings_hash`.
        expiries: Tells what is known of certificates; one that cannot be read is left out.
        in_flight: Tells how many requests wait for their answer, by cluster.
    """

    def __init__(
        self,
        flow: str,
        config_hash: str,
        *,
        expiries: Callable[[], Iterable[Expiry]],
        in_flight: Callable[[], Mapping[str, int]],
    ) -> None:
        self._flow = flow
        self._config_hash = config_hash
        self._expiries = expiries
        self._in_flight = in_flight

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """The families without samples: registering reads no file."""
        return [_family(CONFIG_HASH), _family(CERT_EXPIRY), _family(REQUESTS_IN_FLIGHT)]

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """The settings, each certificate that can be seen, and what waits for its answer."""
        config, certificates, requests = self.describe()
        config.add_metric([self._flow, self._config_hash], 1)
        for expiry in self._expiries():
            certificates.add_metric([self._flow, expiry.cluster, expiry.cert], expiry.valid_until)
        for cluster, count in self._in_flight().items():
            requests.add_metric([self._flow, cluster], count)
        return [config, certificates, requests]


def _family(metric: Metric) -> GaugeMetricFamily:
    return GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)
