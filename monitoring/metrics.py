"""Prometheus metrics of the mirror, computed at each scrape.

The pipeline counts in plain integers. A scrape takes one snapshot of the flow and turns it into series; what
the snapshot does not know has no series. Only what a snapshot cannot hold, the distribution of durations, is
observed as it happens: once per request, never once per record.

Sources: docs/metrics.md; https://prometheus.io/docs/practices/naming/.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby, product
from typing import Any, Literal

from prometheus_client import CollectorRegistry, Counter, ProcessCollector, disable_created_metrics
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar, Sample
from prometheus_client.utils import floatToGoString

from mirror.model import FlowStatus, Forecast, OffsetMode, PartitionStatus, State, TopicPartition
from monitoring import catalogue
from monitoring.catalogue import Kind, Metric

Together = Callable[[Iterable[float]], float]

CLUSTERS = ("source", "target")
AUTH_REASONS = ("login", "tls")
TOPIC_CHARACTERS_MAX = 79
"""In an exemplar: OpenMetrics allows 128 for all names and values, of which the others may take 49."""


@dataclass(frozen=True, slots=True)
class _Reading:
    """How a metric is read from a partition, and how the values of a topic's partitions are combined."""

    metric: Metric
    read: Callable[[PartitionStatus], float | None]
    together: Together = sum
    misses: Callable[[PartitionStatus], object] | None = None
    """Whether a partition is known to miss something; for figures that may say that nothing is missing. A
    topic gets such a figure only if it is known of every partition, or if one of them misses something: until
    nothing is missing, one that misses something for ever."""


def _loss_pending(partition: PartitionStatus) -> float | None:
    if partition.lost_from is None or partition.lost_to is None:
        return None
    return partition.lost_to - partition.lost_from


def _lag_is_unknown(partition: PartitionStatus) -> bool:
    """Whether a partition has a lag that nobody knows; one whose topic is gone has none."""
    return partition.lag_seconds is None and not partition.topic_gone


def _misses_some(partition: PartitionStatus) -> bool:
    """False if nothing was missing or held back at the source's last answer, or if the lag is not known."""
    end = partition.source_high_watermark or 0
    return bool(partition.lag_seconds) and (partition.lag_records != 0 or (partition.next_offset or 0) < end)


def _catch_up(partition: PartitionStatus) -> float | None:
    return _projected(partition.outlook.catch_up, partition.outlook.catch_up_seconds)


def _projected(forecast: Forecast, seconds: float | None) -> float | None:
    return math.inf if forecast is Forecast.NEVER else seconds


_READINGS = (
    _Reading(catalogue.LAG_RECORDS, lambda p: p.lag_records, misses=lambda p: p.lag_records),
    _Reading(catalogue.LAG_SECONDS, lambda p: p.lag_seconds, max, misses=_misses_some),
    _Reading(catalogue.RETENTION_HEADROOM, lambda p: p.retention_headroom_seconds, min),
    _Reading(catalogue.TOMBSTONE_HEADROOM, lambda p: p.tombstone_headroom_seconds, min),
    _Reading(catalogue.CATCH_UP, _catch_up, max, misses=lambda p: _catch_up(p) == math.inf),
    _Reading(
        catalogue.RETENTION_LOSS,
        lambda p: _projected(p.outlook.retention_loss, p.outlook.retention_loss_seconds),
        min,
    ),
    _Reading(catalogue.LOSS_PENDING, _loss_pending),
    _Reading(catalogue.NEXT_OFFSET, lambda p: p.next_offset),
    _Reading(catalogue.SOURCE_LOG_START, lambda p: p.source_log_start_offset),
    _Reading(catalogue.SOURCE_HIGH_WATERMARK, lambda p: p.source_high_watermark),
    _Reading(catalogue.SOURCE_LAST_STABLE, lambda p: p.source_last_stable_offset),
    _Reading(catalogue.TARGET_LOG_END, lambda p: p.target_log_end_offset),
    _Reading(catalogue.RECORDS_COPIED, lambda p: p.records),
    _Reading(catalogue.APPENDED_BYTES, lambda p: p.bytes),
    _Reading(catalogue.BATCHES_COPIED, lambda p: p.batches),
    _Reading(catalogue.BATCHES_REENCODED, lambda p: p.batches_reencoded),
    _Reading(catalogue.DUPLICATES, lambda p: p.duplicates_suppressed),
)
_GAP_REASONS: Mapping[str, Callable[[PartitionStatus], int]] = {
    "expired": lambda p: p.lost_offsets,
    "aborted": lambda p: p.aborted_offsets,
    "marker": lambda p: p.marker_offsets,
    "compacted": lambda p: p.gap_offsets - p.lost_offsets - p.aborted_offsets - p.marker_offsets,
}
"""``compacted`` is the rest: offsets without a batch at the source, or without a record in it."""

Labels = dict[str, str]


@dataclass(frozen=True, slots=True)
class _Group:
    """Partitions that share their series: one, or all of a topic. All samples share the labels object."""

    labels: Labels
    partitions: Sequence[PartitionStatus]


class FlowCollector(Collector):
    """Turns a snapshot of the flow into series, at each scrape."""

    def __init__(self, status: Callable[[], FlowStatus], *, per_partition: bool = True) -> None:
        """
        Args:
            status: Takes the snapshot, once per scrape; must be cheap.
            per_partition: False for one series per topic: counts are summed, the worst lag and the least
                headroom count, a state is 1 if any partition is in it, offsets are left out.
        """
        self._status = status
        self._per_partition = per_partition
        skipped = () if per_partition else catalogue.OFFSET_METRICS
        self._readings = tuple(reading for reading in _READINGS if reading.metric not in skipped)

    def describe(self) -> Iterable[Family]:
        """The families without samples, so that registering takes no snapshot."""
        skipped = () if self._per_partition else catalogue.OFFSET_METRICS
        for metric in (*catalogue.FLOW_METRICS, *catalogue.PARTITION_METRICS):
            if metric not in skipped:
                yield self._family(metric)

    def collect(self) -> Iterable[Family]:
        """All series of one snapshot."""
        status = self._status()
        yield from self._of_flow(status)
        groups = tuple(self._groups(status))
        yield self._states(groups)
        yield self._reasons(groups)
        for reading in self._readings:
            yield self._read(reading, groups)
        yield self._gap_records(groups)

    def _family(self, metric: Metric) -> Family:
        labels = metric.labels if self._per_partition else metric.per_topic()
        if metric.kind is Kind.COUNTER:
            return CounterMetricFamily(metric.name, metric.help, labels=labels)
        return GaugeMetricFamily(metric.name, metric.help, labels=labels)

    # -- of the flow -----------------------------------------------------------------------------

    def _of_flow(self, status: FlowStatus) -> Iterator[Family]:
        flow = {"flow": status.flow}
        yield self._one(catalogue.BUILD_INFO, flow | {"version": status.version}, 1)
        yield self._clusters(status)
        yield self._one(catalogue.FLOW_START, flow, status.started_at_ms / 1000)
        yield self._one(catalogue.OWNER, flow, int(status.owner))
        yield self._one(catalogue.FENCING_EPOCH, flow, status.producer_epoch)
        yield self._bytes(status)
        link, offset_ms = status.link, status.link.clock_offset_ms if status.link else None
        yield self._one(catalogue.LINK_RTT, flow, link.round_trip_seconds if link else None)
        yield self._one(catalogue.PEER_CLOCK_SKEW, flow, None if offset_ms is None else offset_ms / 1000)
        yield self._one(catalogue.TOPICS_IGNORED, flow, status.topics_ignored)
        yield self._counts(status)
        mapped = sum(one.offset_mode is OffsetMode.MAPPED for one in status.partitions)
        yield self._one(catalogue.PARTITIONS_MAPPED, flow, None if status.waits_for else mapped)
        unknown = sum(map(_lag_is_unknown, status.partitions))
        yield self._one(catalogue.LAG_UNKNOWN, flow, None if status.waits_for else unknown)
        whole = status.outlook
        yield self._one(catalogue.FLOW_BACKLOG, flow, _projected(whole.backlog, whole.backlog_seconds))

    def _clusters(self, status: FlowStatus) -> Family:
        source, target = status.source_cluster_id, status.target_cluster_id
        labels = {
            "flow": status.flow,
            "source_cluster_id": source or "",
            "target_cluster_id": target or "",
        }
        return self._one(catalogue.FLOW_INFO, labels, 1 if source and target else None)

    def _one(self, metric: Metric, labels: Labels, value: float | None) -> Family:
        family = self._family(metric)
        if value is not None:
            _add(family, labels, value)
        return family

    def _bytes(self, status: FlowStatus) -> Family:
        family = self._family(catalogue.BYTES_ON_WIRE)
        for direction, count in (("fetched", status.bytes_fetched), ("appended", status.bytes_appended)):
            _add(family, {"flow": status.flow, "direction": direction}, count)
        return family

    def _counts(self, status: FlowStatus) -> Family:
        family = self._family(catalogue.PARTITIONS)
        if status.waits_for:
            return family
        counts = dict.fromkeys(State, 0)
        for partition in status.partitions:
            counts[partition.state] += 1
        for state, count in counts.items():
            _add(family, {"flow": status.flow, "state": state.value}, count)
        return family

    # -- of partitions ---------------------------------------------------------------------------

    def _groups(self, status: FlowStatus) -> Iterator[_Group]:
        flow = status.flow
        if self._per_partition:
            for one in status.partitions:
                labels = {"flow": flow, "topic": one.topic, "partition": str(one.partition)}
                yield _Group(labels, (one,))
        else:
            by_topic = sorted(status.partitions, key=lambda partition: partition.topic)
            for topic, members in groupby(by_topic, key=lambda partition: partition.topic):
                yield _Group({"flow": flow, "topic": topic}, tuple(members))

    def _states(self, groups: Sequence[_Group]) -> Family:
        family = self._family(catalogue.STATE)
        for group in groups:
            present = {partition.state for partition in group.partitions}
            for state in State:
                _add(family, group.labels | {"state": state.value}, int(state in present))
        return family

    def _reasons(self, groups: Sequence[_Group]) -> Family:
        family = self._family(catalogue.REASON)
        for group in groups:
            present = {(one.state.value, one.reason.value) for one in group.partitions if one.reason}
            for state, reason in sorted(present):
                _add(family, group.labels | {"state": state, "reason": reason}, 1)
        return family

    def _read(self, reading: _Reading, groups: Sequence[_Group]) -> Family:
        family = self._family(reading.metric)
        for group in groups:
            values = [value for one in group.partitions if (value := reading.read(one)) is not None]
            if not values:
                continue
            known_of_all = len(values) == len(group.partitions)
            if known_of_all or reading.misses is None or any(map(reading.misses, group.partitions)):
                _add(family, group.labels, reading.together(values))
        return family

    def _gap_records(self, groups: Sequence[_Group]) -> Family:
        family = self._family(catalogue.GAP_RECORDS)
        for group in groups:
            for reason, read in _GAP_REASONS.items():
                _add(family, group.labels | {"reason": reason}, sum(map(read, group.partitions)))
        return family


def _add(family: Family, labels: Labels, value: float) -> None:
    """Add a sample without copying its labels; the family's own method would copy them."""
    name = family.name + "_total" if family.type == "counter" else family.name
    family.samples.append(Sample(name, labels, value))


class _Durations:
    """One histogram's counts, without prometheus_client's lock: only the event loop observes."""

    __slots__ = ("_buckets", "_exemplars", "_sum")

    def __init__(self) -> None:
        self._buckets = [0] * (len(catalogue.LATENCY_BUCKETS_SECONDS) + 1)
        self._exemplars: list[Exemplar | None] = [None] * len(self._buckets)
        self._sum = 0.0

    def observe(self, seconds: float, exemplar: dict[str, str] | None = None) -> None:
        bucket = bisect_left(catalogue.LATENCY_BUCKETS_SECONDS, seconds)
        self._buckets[bucket] += 1
        self._sum += seconds
        if exemplar is not None:
            self._exemplars[bucket] = Exemplar(exemplar, seconds, time.time())

    def add_to(self, family: HistogramMetricFamily, labels: Sequence[str]) -> None:
        """Add these counts to the family, cumulative as a scrape wants them."""
        bounds = map(floatToGoString, (*catalogue.LATENCY_BUCKETS_SECONDS, float("inf")))
        counts: Iterator[float] = accumulate(self._buckets)
        buckets: list[Any] = list(zip(bounds, counts, self._exemplars, strict=True))
        family.add_metric(labels, buckets, self._sum)


class _DurationsCollector(Collector):
    """Turns the observations of one flow into series."""

    def __init__(self, flow: str, latency: _Durations, requests: dict[str, _Durations]) -> None:
        self._flow = flow
        self._latency = latency
        self._requests = requests

    def collect(self) -> Iterable[Family]:
        latency = _histogram(catalogue.COPY_LATENCY)
        self._latency.add_to(latency, (self._flow,))
        requests = _histogram(catalogue.REQUEST_DURATION)
        for api, durations in self._requests.items():
            durations.add_to(requests, (self._flow, api))
        return latency, requests


class Instruments:
    """What the pipeline observes as it happens: once per request, never once per record."""

    def __init__(self, registry: CollectorRegistry, flow: str) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._latency = _Durations()
        self._requests: dict[str, _Durations] = {}
        registry.register(_DurationsCollector(flow, self._latency, self._requests))
        crc = catalogue.CRC_FAILURES
        self._crc_failures = Counter(crc.name, crc.help, crc.labels, registry=registry)
        for where in CLUSTERS:
            self._crc_failures.labels(flow, where)
        auth = catalogue.AUTH_FAILURES
        self._auth_failures = Counter(auth.name, auth.help, auth.labels, registry=registry)
        for cluster, reason in product(CLUSTERS, AUTH_REASONS):
            self._auth_failures.labels(flow, cluster, reason)
        throttled = Counter(
            catalogue.THROTTLED.name, catalogue.THROTTLED.help, catalogue.THROTTLED.labels, registry=registry
        )
        self._throttled = {api: throttled.labels(flow, api) for api in ("fetch", "produce")}
        self._flow = flow

    def observe_copy_latency(self, seconds: float, tp: TopicPartition, offset: int) -> None:
        """Observe the time from a record's timestamp to its acknowledgement by the target.

        A record from the future, by a clock that is ahead, counts as 0. The last record of each bucket is its
        exemplar; a topic name too long for one is cut off.

        Args:
            tp: The record's partition at the source.
            offset: The record's source offset.
        """
        topic = (
            tp.topic if len(tp.topic) <= TOPIC_CHARACTERS_MAX else tp.topic[: TOPIC_CHARACTERS_MAX - 1] + "…"
        )
        exemplar = {"topic": topic, "partition": str(tp.partition), "offset": str(offset)}
        self._latency.observe(max(seconds, 0.0), exemplar)

    def observe_request(self, api: str, seconds: float) -> None:
        """Observe the time from sending a request to a broker to its answer.

        Args:
            api: Kafka's name of the request in small letters, e.g. ``produce``; a label, so from a fixed set.
        """
        durations = self._requests.get(api)
        if durations is None:
            durations = self._requests[api] = _Durations()
        durations.observe(seconds)

    def count_throttled(self, api: Literal["fetch", "produce"], seconds: float) -> None:
        """Count the seconds for which a broker throttles us, according to its answer; mostly 0."""
        if seconds > 0:
            self._throttled[api].inc(seconds)

    def count_auth_failure(self, cluster: str, reason: str) -> None:
        """Count a connection that was not opened because one side did not accept the other.

        Args:
            cluster: One of ``CLUSTERS``.
            reason: One of ``AUTH_REASONS``.
        """
        self._auth_failures.labels(self._flow, cluster, reason).inc()

    def count_crc_failure(self, where: Literal["source", "target"]) -> None:
        """Count a batch that did not match its CRC; ``where`` says whose bytes they were."""
        self._crc_failures.labels(self._flow, where).inc()


def _histogram(metric: Metric) -> HistogramMetricFamily:
    return HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)


def register(
    registry: CollectorRegistry,
    status: Callable[[], FlowStatus],
    *,
    per_partition: bool = True,
) -> None:
    """Register the metrics of a flow and of the process. A registry takes one flow.

    Args:
        registry: Never the global one, so that two mirrors in one process (tests) stay separate.
        status: As for :class:`FlowCollector`.
        per_partition: As for :class:`FlowCollector`.

    Raises:
        ValueError: The registry has a flow already.
    """
    registry.register(FlowCollector(status, per_partition=per_partition))
    ProcessCollector(registry=registry)
