"""Snapshots of flows for tests: a healthy partition, changed where a test says so."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mirror.flow.hints import hint
from mirror.model import (
    FlowOutlook,
    FlowStatus,
    Forecast,
    LinkStatus,
    OffsetMode,
    Outlook,
    OwnerStatus,
    PartitionStatus,
    Reason,
    State,
)

CAUGHT_UP = Outlook(Forecast.EXPECTED, 0.0, Forecast.NEVER, None, 12.5, 12.5)
LATE = Outlook(Forecast.NEVER, None, Forecast.EXPECTED, 7_800.0, 40.0, 10.0)
"""Of a copy that retention will overtake in two hours and ten minutes."""
_HEALTHY = PartitionStatus(
    topic="orders",
    partition=0,
    target_topic="east.orders",
    state=State.ACTIVE,
    reason=None,
    detail="",
    hint="",
    offset_mode=OffsetMode.SAME,
    source_log_start_offset=100,
    source_high_watermark=1_000,
    source_last_stable_offset=1_000,
    next_offset=1_000,
    target_log_end_offset=1_000,
    lag_records=0,
    lag_seconds=0.4,
    records=890,
    bytes=89_000,
    batches=9,
    batches_reencoded=1,
    gap_offsets=10,
    goal_offset=1_000,
    outlook=CAUGHT_UP,
)


def a_partition(topic: str = "orders", partition: int = 0, **changes: Any) -> PartitionStatus:
    """A copied partition, with these fields changed; the hint fits its state."""
    made = replace(_HEALTHY, topic=topic, partition=partition, target_topic=f"east.{topic}", **changes)
    return replace(made, hint=hint(made.state, made.reason))


def an_unknown_partition(topic: str = "fresh", partition: int = 0) -> PartitionStatus:
    """A partition nothing is known of yet."""
    unknown = dict.fromkeys(
        [
            "offset_mode",
            "source_log_start_offset",
            "source_high_watermark",
            "source_last_stable_offset",
            "next_offset",
            "target_log_end_offset",
            "lag_records",
            "lag_seconds",
            "goal_offset",
        ]
    )
    counts = dict.fromkeys(["records", "bytes", "batches", "batches_reencoded", "gap_offsets"], 0)
    return a_partition(
        topic,
        partition,
        state=State.UNKNOWN,
        reason=Reason.STARTING,
        outlook=Outlook(),
        **unknown,
        **counts,
    )


def a_late_partition(topic: str = "late", partition: int = 0) -> PartitionStatus:
    """A partition that lags more and more."""
    return a_partition(
        topic,
        partition,
        state=State.LAGGING,
        reason=Reason.RETENTION_NEAR,
        detail="200 offsets behind; at this pace records are lost in 2 h 10 min, before it has caught up",
        lag_records=200,
        lag_seconds=33.5,
        next_offset=800,
        retention_headroom_seconds=3_600.0,
        outlook=LATE,
    )


def a_loss(topic: str = "audit", partition: int = 2) -> PartitionStatus:
    """A partition that retention has overtaken."""
    return a_partition(
        topic,
        partition,
        state=State.DATA_LOSS,
        reason=Reason.LOG_START_MOVED,
        detail="50 offsets, 1000 to 1050, were removed at the source before they were copied",
        lag_seconds=7_200.5,
        lag_records=80,
        lost_from=1_000,
        lost_to=1_050,
        lost_offsets=7,
        lost_ranges=((903, 910),),
        retention_headroom_seconds=0.0,
        tombstone_headroom_seconds=79_199.5,
        outlook=Outlook(Forecast.NEVER, None, Forecast.EXPECTED, 0.0, None, 0.0),
    )


def a_flow(*partitions: PartitionStatus, **changes: Any) -> FlowStatus:
    """A flow of these partitions, or of one healthy one."""
    made = FlowStatus(
        flow="east-to-west",
        version="0.1.0",
        source_cluster_id="SOURCE",
        target_cluster_id="TARGET",
        producer_id=2003,
        producer_epoch=0,
        owner=True,
        started_at_ms=1_700_000_000_500,
        uptime_seconds=60.25,
        cpu_seconds=1.5,
        resident_bytes=80_000_000,
        bytes_fetched=95_000,
        bytes_appended=89_000,
        partitions=partitions or (a_partition(),),
        topics_ignored=3,
        outlook=FlowOutlook(
            *(Forecast.EXPECTED, 1_200.0, Forecast.EXPECTED, 7_800.0, 52.5, 110.5),
            *(5_000, Forecast.EXPECTED, 90.0),
        ),
    )
    return replace(made, **changes)


def a_standby(*partitions: PartitionStatus, owner: OwnerStatus | None, **changes: Any) -> FlowStatus:
    """A flow that another mirror copies, by its own word; of these partitions, or of one."""
    stood_by = partitions or (
        a_partition(
            state=State.STANDBY,
            reason=Reason.ANOTHER_MIRROR,
            detail="the owner of the flow is another mirror",
            target_log_end_offset=None,
            lag_records=None,
            lag_seconds=None,
            outlook=Outlook(),
        ),
    )
    return a_flow(*stood_by, owner=False, copied_by=owner, outlook=FlowOutlook(), **changes)


def a_link(**changes: Any) -> LinkStatus:
    """A stream from a relay, an ocean away."""
    made = LinkStatus(
        relay="relay-1.east:9650",
        version="0.1.0",
        congestion="bbr",
        connections=1,
        rate_limit_bytes_per_second=None,
        round_trip_seconds=0.1015,
        clock_offset_ms=-250.0,
        level=3,
        window_bytes=16 << 20,
        recode=True,
        why="not measured yet",
    )
    return replace(made, **changes)
