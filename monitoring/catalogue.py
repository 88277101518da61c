"""The names of all metrics, their types, labels and help texts, in one place.

One prefix, base units, ``_total`` for counters, 0/1 series for enums. Labels are bounded: a topic and a
partition, and words from fixed sets; never an offset, a host or the text of an error. What is not known has
no series: it never reads 0.

A test checks that docs/metrics.md says the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

PREFIX = "twinsite_"

FLOW = ("flow",)
TOPIC = ("flow", "topic")
PARTITION = ("flow", "topic", "partition")

LATENCY_BUCKETS_SECONDS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.02, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0),
)
"""From a good loopback to a bad intercontinental link."""


class Kind(StrEnum):
    """Types of Prometheus' text format."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. ``labels`` are those of a registry with a series per partition.

    Attributes:
        name: The whole name, as scraped.
        help: One line.
    """

    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str

    def per_topic(self) -> tuple[str, ...]:
        """The labels of a registry with one series per topic."""
        return tuple(label for label in self.labels if label != "partition")


def _gauge(name: str, labels: tuple[str, ...], help_: str) -> Metric:
    return Metric(PREFIX + name, Kind.GAUGE, labels, help_)


def _counter(name: str, labels: tuple[str, ...], help_: str) -> Metric:
    return Metric(PREFIX + name, Kind.COUNTER, labels, help_)


def _histogram(name: str, labels: tuple[str, ...], help_: str) -> Metric:
    return Metric(PREFIX + name, Kind.HISTOGRAM, labels, help_)


# -- of the flow -------------------------------------------------------------------------------------

BUILD_INFO = _gauge("build_info", ("flow", "version"), "Always 1; labelled with the running version.")
FLOW_INFO = _gauge(
    "flow_info",
    ("flow", "source_cluster_id", "target_cluster_id"),
    "Always 1, once both clusters are known; labelled with their IDs.",
)
FLOW_START = _gauge(
    "flow_start_timestamp_seconds", FLOW, "When the mirror of this flow started, in seconds since 1970."
)
OWNER = _gauge("owner", FLOW, "1 while this mirror owns the flow and may copy it, 0 while it stands by.")
FENCING_EPOCH = _gauge("fencing_epoch", FLOW, "Producer epoch with which the flow writes to the target.")
BYTES_ON_WIRE = _counter(
    "bytes_on_wire_total",
    ("flow", "direction"),
    "Bytes on the wire, received from the source or sent to the target: mostly record batches.",
)
LINK_RTT = _gauge(
    "link_rtt_seconds",
    FLOW,
    "Round trip to the relay, including the wait behind data in flight; measured every 2 s.",
)
PEER_CLOCK_SKEW = _gauge(
    "peer_clock_skew_seconds", FLOW, "How far the relay's clock is ahead of the mirror's."
)
TOPICS_IGNORED = _gauge(
    "topics_ignored",
    FLOW,
    "Source topics that are not copied: left out by the include and exclude lists, internal, or copies of "
    "the target's topics.",
)
PARTITIONS = _gauge("partitions", ("flow", "state"), "Partitions of the flow in each state.")
PARTITIONS_MAPPED = _gauge(
    "partitions_mapped", FLOW, "Partitions whose offsets are not the source's: an offset map translates them."
)
LAG_UNKNOWN = _gauge(
    "partitions_lag_unknown",
    FLOW,
    "Partitions whose lag in seconds is unknown: they have no twinsite_lag_seconds series.",
)
FLOW_BACKLOG = _gauge(
    "flow_backlog_seconds",
    FLOW,
    "Time until the whole backlog of the flow is copied, at the pace of the last minute; +Inf: never.",
)

# -- of a partition, or of all partitions of a topic ---------------------------------------------------

STATE = _gauge(
    "partition_state", (*PARTITION, "state"), "1 for the current state of the partition, 0 for the others."
)
REASON = _gauge(
    "partition_reason",
    (*PARTITION, "state", "reason"),
    "1 for the reason of the current state; other reasons have no series.",
)
LAG_RECORDS = _gauge(
    "lag_records",
    PARTITION,
    "Source offsets below the last stable offset, as last reported, that are not on the target.",
)
LAG_SECONDS = _gauge(
    "lag_seconds", PARTITION, "Upper bound of the age of the oldest record that is not on the target."
)
RETENTION_HEADROOM = _gauge(
    "retention_headroom_seconds",
    PARTITION,
    "Time until retention at the source may remove an uncopied record, if nothing more is copied.",
)
TOMBSTONE_HEADROOM = _gauge(
    "tombstone_headroom_seconds",
    PARTITION,
    "Lower bound of the time until compaction may remove an uncopied tombstone whose key was copied.",
)
CATCH_UP = _gauge(
    "catch_up_seconds",
    PARTITION,
    "Time until nothing is missing, at the pace of the last minute; +Inf: never, 0: within the stated lag.",
)
RETENTION_LOSS = _gauge(
    "retention_loss_seconds",
    PARTITION,
    "Time until retention removes an uncopied record, at the pace of the last minute; +Inf: never.",
)
LOSS_PENDING = _gauge(
    "loss_pending_offsets",
    PARTITION,
    "Offsets removed at the source before they were copied, while the partition waits for a decision.",
)
NEXT_OFFSET = _gauge("next_offset", PARTITION, "Source offset of the next record to copy.")
SOURCE_LOG_START = _gauge("source_log_start_offset", PARTITION, "First offset of the source's log.")
SOURCE_HIGH_WATERMARK = _gauge("source_high_watermark", PARTITION, "High watermark at the source.")
SOURCE_LAST_STABLE = _gauge(
    "source_last_stable_offset",
    PARTITION,
    "Last stable offset at the source; its high watermark with read_uncommitted.",
)
TARGET_LOG_END = _gauge("target_log_end_offset", PARTITION, "Log end offset of the target partition.")
RECORDS_COPIED = _counter("records_copied_total", PARTITION, "Records acknowledged by the target.")
APPENDED_BYTES = _counter(
    "appended_bytes_total", PARTITION, "Bytes of record batches acknowledged by the target."
)
BATCHES_COPIED = _counter("batches_copied_total", PARTITION, "Record batches acknowledged by the target.")
BATCHES_REENCODED = _counter(
    "batches_reencoded_total",
    PARTITION,
    "Record batches that could not be copied untouched and were re-encoded.",
)
GAP_RECORDS = _counter(
    "gap_records_total",
    (*PARTITION, "reason"),
    "Source offsets without a record at the target: filled with markers or skipped in the offset map.",
)
DUPLICATES = _counter(
    "duplicates_suppressed_total",
    PARTITION,
    "Sent records that the target already had: not written twice, or not sent again.",
)

# -- told by the pipeline, one observation a request ----------------------------------------------------

COPY_LATENCY = _histogram(
    "copy_latency_seconds",
    FLOW,
    "From a record's timestamp to the target's acknowledgement, one observation per request.",
)
REQUEST_DURATION = _histogram(
    "request_duration_seconds", ("flow", "api"), "From sending a request to a broker to its response."
)
THROTTLED = _counter(
    "throttled_seconds_total",
    ("flow", "api"),
    "How long broker quotas have throttled the mirror, as reported in the brokers' responses.",
)
AUTH_FAILURES = _counter(
    "auth_failures_total",
    ("flow", "cluster", "reason"),
    "Connections that were not opened because one side rejected the other.",
)
CRC_FAILURES = _counter(
    "crc_failures_total",
    ("flow", "where"),
    "Record batches that failed their CRC check, as read or at the target; none was appended.",
)

FLOW_METRICS = (
    *(BUILD_INFO, FLOW_INFO, FLOW_START, OWNER, FENCING_EPOCH),
    *(BYTES_ON_WIRE, LINK_RTT, PEER_CLOCK_SKEW, TOPICS_IGNORED, PARTITIONS, PARTITIONS_MAPPED),
    *(LAG_UNKNOWN, FLOW_BACKLOG),
)
OFFSET_METRICS = (NEXT_OFFSET, SOURCE_LOG_START, SOURCE_HIGH_WATERMARK, SOURCE_LAST_STABLE, TARGET_LOG_END)
"""Of single partitions only: they mean nothing for a topic."""
PARTITION_METRICS = (
    *(STATE, REASON, LAG_RECORDS, LAG_SECONDS, RETENTION_HEADROOM, TOMBSTONE_HEADROOM),
    *(CATCH_UP, RETENTION_LOSS, LOSS_PENDING),
    *OFFSET_METRICS,
    *(RECORDS_COPIED, APPENDED_BYTES, BATCHES_COPIED, BATCHES_REENCODED, GAP_RECORDS, DUPLICATES),
)
# -- read at each scrape, beside the snapshot ------------------------------------------------------------

CONFIG_HASH = _gauge(
    "config_hash_info",
    ("flow", "hash"),
    "Always 1; labelled with a SHA-256 hash of the settings, without api, log and secrets.",
)
CERT_EXPIRY = _gauge(
    "cert_expiry_timestamp_seconds",
    ("flow", "cluster", "cert"),
    "When a certificate expires, in seconds since 1970.",
)

REQUESTS_IN_FLIGHT = _gauge(
    "requests_in_flight",
    ("flow", "cluster"),
    "Unanswered requests to brokers, including those that brokers hold until there is something new.",
)

PEER_UP = _gauge(
    "peer_up",
    ("flow", "cluster"),
    "1 if the last request to the cluster, or to the relay in front of it, was answered, else 0.",
)
FENCED_REQUESTS = _counter(
    "fenced_requests_total",
    FLOW,
    "Requests that the target or a relay rejected because of a newer epoch, counted per partition; includes "
    "writes to the flow's state.",
)

# -- of the last comparison of both sites, written to a file -----------------------------------------------

RECONCILE_SUCCESS = _gauge(
    "reconcile_last_success_timestamp_seconds",
    FLOW,
    "Start of the last comparison that found both sites the same, in seconds since 1970.",
)
RECONCILE_RUN = _gauge(
    "reconcile_last_run_timestamp_seconds",
    FLOW,
    "Start of the last comparison, whatever its outcome, in seconds since 1970.",
)
RECONCILE_OUTCOME = _gauge(
    "reconcile_outcome", ("flow", "outcome"), "1 for the outcome of the last comparison, 0 for the others."
)
RECONCILE_MISMATCHES = _gauge(
    "reconcile_mismatches",
    ("flow", "kind"),
    "Differences that the last comparison found, by kind; unnamed: those that were only counted.",
)
RECONCILE_UNCOMPARED = _gauge(
    "reconcile_uncompared_offsets",
    ("flow", "why"),
    "Source offsets that the last comparison could not compare with anything.",
)
RECONCILE_RECORDS = _gauge(
    "reconcile_compared_records", FLOW, "Source records that the last comparison covered."
)
RECONCILE_BYTES = _gauge(
    "reconcile_compared_bytes", FLOW, "Bytes of source keys and values that the last comparison covered."
)
RECONCILE_DURATION = _gauge("reconcile_duration_seconds", FLOW, "How long the last comparison took.")

INSTRUMENT_METRICS = (COPY_LATENCY, REQUEST_DURATION, THROTTLED, AUTH_FAILURES, CRC_FAILURES)
SURROUNDING_METRICS = (CONFIG_HASH, CERT_EXPIRY, REQUESTS_IN_FLIGHT, PEER_UP, FENCED_REQUESTS)
RECONCILE_METRICS = (
    *(RECONCILE_SUCCESS, RECONCILE_RUN, RECONCILE_OUTCOME, RECONCILE_MISMATCHES, RECONCILE_UNCOMPARED),
    *(RECONCILE_RECORDS, RECONCILE_BYTES, RECONCILE_DURATION),
)
"""In a file that ``twinsite reconcile`` leaves; a mirror has none of them."""
ALL = (*FLOW_METRICS, *PARTITION_METRICS, *INSTRUMENT_METRICS, *SURROUNDING_METRICS)
"""Every metric of a mirror; those of the process (``process_*``) come from prometheus_client."""

# -- of a relay, on a port of its own ------------------------------------------------------------------

RELAY_BUILD_INFO = _gauge("relay_build_info", ("version",), "Always 1; the version of the relay.")
RELAY_SOURCE_INFO = _gauge(
    "relay_source_info", ("source_cluster_id",), "Always 1; the cluster that the relay reads."
)
RELAY_START = _gauge("relay_start_timestamp_seconds", (), "When the relay started, in seconds since 1970.")
RELAY_CONNECTIONS = _gauge(
    "relay_connections", (), "Connections of mirrors, including those still being set up."
)
RELAY_CONNECTIONS_MAX = _gauge("relay_connections_max", (), "The most connections that the relay accepts.")
RELAY_RATE_LIMIT = _gauge(
    "relay_rate_limit_bytes_per_second",
    (),
    "The limit now in force for all mirrors together; no series without a limit.",
)
RELAY_STREAMS = _gauge("relay_streams", (), "Open streams of frames.")
RELAY_STREAMS_WAITING = _gauge(
    "relay_streams_waiting", (), "Streams with frames that wait for the link or for the mirror."
)
RELAY_STREAMS_LEVEL = _gauge(
    "relay_streams_at_level",
    ("level",),
    "Open streams by the zstd level for partitions that are behind; 0 is none.",
)
RELAY_CONGESTION = _gauge(
    "relay_congestion_info", ("congestion",), "Always 1; the congestion control of open streams."
)
RELAY_TUNNELS = _gauge("relay_tunnels", (), "Connections of mirrors that are passed on to brokers.")
RELAY_PARTITIONS = _gauge("relay_partitions_wanted", (), "Partitions that all streams together read.")
RELAY_SENT = _counter("relay_sent_bytes_total", ("channel",), "Bytes sent to mirrors, in frames and tunnels.")
RELAY_RECORDS = _counter(
    "relay_records_bytes_total", ("channel",), "Bytes of the batches in frames, before frames are compressed."
)
RELAY_FRAMES = _counter("relay_frames_total", ("channel",), "Frames made.")
RELAY_WAITED = _counter(
    "relay_waited_seconds_total",
    ("channel",),
    "How long frames could have been made but had to wait for the link.",
)
RELAY_HELD = _counter(
    "relay_held_seconds_total",
    ("channel",),
    "How long frames could have been made but had to wait until the mirror took earlier ones.",
)
RELAY_SEALED = _counter("relay_sealed_seconds_total", ("channel",), "How long frames were being compressed.")
RELAY_READ = _counter("relay_read_bytes_total", (), "Bytes that brokers have sent to the relay.")
RELAY_REFUSED = _counter(
    "relay_refused_total",
    ("code",),
    "How often a mirror was not let in, was refused something, or had a stream or link test ended.",
)
RELAY_CERT_EXPIRY = _gauge(
    "relay_cert_expiry_timestamp_seconds",
    ("cert",),
    "When a certificate of the relay or of its brokers expires, in seconds since 1970.",
)
RELAY_METRICS = (
    *(RELAY_BUILD_INFO, RELAY_SOURCE_INFO, RELAY_START, RELAY_CONNECTIONS, RELAY_CONNECTIONS_MAX),
    *(
        RELAY_RATE_LIMIT,
        RELAY_STREAMS,
        RELAY_STREAMS_WAITING,
        RELAY_STREAMS_LEVEL,
        RELAY_CONGESTION,
        RELAY_TUNNELS,
    ),
    *(RELAY_PARTITIONS, RELAY_SENT, RELAY_RECORDS, RELAY_FRAMES, RELAY_WAITED, RELAY_HELD, RELAY_SEALED),
    *(RELAY_READ, RELAY_REFUSED, RELAY_CERT_EXPIRY),
)
"""Every metric of a relay; a mirror has none of them."""
