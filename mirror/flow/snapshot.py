"""A picture of the flow for people and metrics, taken without disturbing it."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from checkpoint.model import OwnerRecord
from mirror import __version__
from mirror.flow.announcing import word_of
from mirror.flow.context import Flow
from mirror.flow.hints import hint
from mirror.flow.lagging import LagMeter
from mirror.flow.outlook import NOTHING_EXPECTED, Outlooks, Projection, of_flow
from mirror.flow.owner import Owner
from mirror.flow.partition import PartitionCopy
from mirror.link.stream import LinkStream
from mirror.model import (
    FlowStatus,
    LinkStatus,
    OwnerStatus,
    PartitionStatus,
    TopicLeftOut,
    TopicPartition,
)
from monitoring.tombstones import Tombstones, tombstone_headroom_seconds


@dataclass(slots=True)
class Snapshots:
    """Takes snapshots of one flow.

    Attributes:
        meter: Measures how far behind a partition is; states are decided elsewhere.
        outlooks: What is to be expected of a partition.
        tombstones: How long a source topic keeps tombstones.
        lost_ranges: The ledger: source ranges [from, to) of a partition that were given up.
        owner_word: Where the owner says it runs.
    """

    flow: Flow
    owner: Owner
    meter: LagMeter
    outlooks: Outlooks
    tombstones: Callable[[str], Tombstones]
    lost_ranges: Callable[[TopicPartition], tuple[tuple[int, int], ...]]
    owner_word: Callable[[], OwnerRecord | None]
    started_at_ms: int
    started_at: float

    def take(
        self,
        partitions: Iterable[PartitionCopy],
        topics_ignored: int,
        left_out: tuple[TopicLeftOut, ...] = (),
        *,
        ended_seconds: float = 0.0,
    ) -> FlowStatus:
        """The flow as it is now.

        Args:
            ended_seconds: How long ago copying ended. Nobody reads the source since, so lags are reported as
                they were then.
        """
        now, now_ms = time.monotonic(), int(time.time() * 1000)
        flow = self.flow
        known = flow.producer_id >= 0
        then, then_ms = now - ended_seconds, now_ms - int(ended_seconds * 1000)
        seen = [self._partition(p, then, then_ms) for p in sorted(partitions, key=_by_name)]
        return FlowStatus(
            flow=flow.name,
            version=__version__,
            source_cluster_id=flow.source.info.cluster_id or None,
            target_cluster_id=flow.target.info.cluster_id or None,
            producer_id=flow.producer_id if known else None,
            producer_epoch=flow.producer_epoch if known else None,
            owner=self.owner.held,
            started_at_ms=self.started_at_ms,
            uptime_seconds=now - self.started_at,
            cpu_seconds=time.process_time(),
            resident_bytes=resident_bytes(),
            bytes_fetched=flow.source.connections.bytes_received
            + (flow.stream.bytes_received if flow.stream else 0),
            bytes_appended=flow.target.connections.bytes_sent,
            partitions=tuple(status for status, _ in seen),
            topics_ignored=topics_ignored,
            link=_link(flow.stream) if flow.stream else None,
            outlook=of_flow([projection for _, projection in seen if projection is not None]),
            topics_left_out=left_out,
            copied_by=self._copied_by(),
        )

    def _copied_by(self) -> OwnerStatus | None:
        """Where the other mirror that copies runs; None if this one copies, or if that is not known.

        A coordinator that has lost its last records may still name this mirror: None then, too.
        """
        owner = self.owner
        is_other = not owner.held and owner.seen != owner.token
        return _owner(word_of(self.owner_word(), owner.seen)) if is_other else None

    def _partition(
        self, p: PartitionCopy, now: float, now_ms: int
    ) -> tuple[PartitionStatus, Projection | None]:
        """The status of one partition, and what is to be expected of it; None if its topic is gone."""
        lag = self.meter.measure(p, now=now, now_ms=now_ms)
        projection = NOTHING_EXPECTED
        if not p.topic_gone:
            projection = self.outlooks.project(p, p.state, lag.progress, lag, now=now, now_ms=now_ms)
        lost = p.lost or (None, None)
        status = PartitionStatus(
            topic=p.tp.topic,
            partition=p.tp.partition,
            target_topic=p.target.topic,
            state=p.state,
            reason=p.reason,
            detail=p.detail,
            hint=hint(p.state, p.reason),
            offset_mode=p.mode,
            source_log_start_offset=p.source_log_start_offset,
            source_high_watermark=p.source_high_watermark,
            source_last_stable_offset=p.source_last_stable_offset,
            next_offset=p.next_offset,
            target_log_end_offset=None if p.copied_elsewhere else p.acknowledged_target_offset,
            lag_records=lag.records,
            lag_seconds=lag.seconds,
            records=p.counters.records,
            bytes=p.counters.bytes,
            batches=p.counters.batches,
            batches_reencoded=p.counters.batches_reencoded,
            gap_offsets=p.counters.gap_offsets,
            lost_from=lost[0],
            lost_to=lost[1],
            lost_offsets=p.counters.lost_offsets,
            aborted_offsets=p.counters.aborted_offsets,
            marker_offsets=p.counters.marker_offsets,
            duplicates_suppressed=p.counters.duplicates,
            lost_ranges=self.lost_ranges(p.tp),
            retention_headroom_seconds=_limited(projection.headroom_seconds),
            tombstone_headroom_seconds=tombstone_headroom_seconds(
                lag.progress, lag.late_seconds, self.tombstones(p.tp.topic), now=now
            ),
            goal_offset=p.goal_offset,
            outlook=projection.status(),
            topic_gone=p.topic_gone,
        )
        return status, None if p.topic_gone else projection


def _limited(seconds: float | None) -> float | None:
    """The seconds as the status has them: None also for what never comes."""
    return None if seconds is None or math.isinf(seconds) else seconds


def _by_name(partition: PartitionCopy) -> tuple[str, int]:
    return partition.tp


def resident_bytes() -> int:
    """Resident memory of this process, in bytes."""
    with open("/proc/self/statm", encoding="ascii") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def peak_resident_bytes() -> int:
    """The most memory this process has had resident, in bytes.

    Linux's ``ru_maxrss`` also includes what the parent had when it started us; this does not.
    """
    with open("/proc/self/status", encoding="ascii", errors="replace") as status:
        peak = next(line for line in status if line.startswith("VmHWM:"))
    return int(peak.split()[1]) * 1024


def _owner(word: OwnerRecord | None) -> OwnerStatus | None:
    return None if word is None else OwnerStatus(word.host, word.process_id, word.since_ms, word.url)


def _link(stream: LinkStream) -> LinkStatus:
    welcome, choice = stream.welcome, stream.choice
    return LinkStatus(
        relay=str(stream.relay),
        version=welcome.relay,
        congestion=welcome.congestion,
        connections=stream.connections,
        rate_limit_bytes_per_second=stream.rate_limit,
        round_trip_seconds=stream.round_trip_seconds,
        clock_offset_ms=stream.clock_offset_ms,
        level=choice.level if choice else None,
        window_bytes=choice.window_bytes if choice else None,
        recode=choice.recode if choice else None,
        why=choice.why if choice else "",
    )
