"""The values that travel through the mirror.

Offsets are source offsets unless named ``target_*``; ranges are half-open,
``[base_offset, next_offset)``. ``*_bytes`` are bytes on the wire, ``*_ms`` are
Kafka record timestamps (milliseconds since 1970), ``*_seconds`` are durations.

A leaf: it imports nothing of the project, anyone may import it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

OFFSET_MAX = 2**63 - 1
CONTROL_HEADER = "X-Twinsite-Control"
"""A request to change something must carry it, with "yes": a form on a web page cannot."""


class TopicPartition(NamedTuple):
    """One partition of one topic, named as at the source unless said otherwise."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class State(StrEnum):
    """What a partition of the flow is doing. Every state other than ACTIVE comes with a reason."""

    UNKNOWN = "UNKNOWN"
    """Not looked at yet: nothing may be concluded."""
    ACTIVE = "ACTIVE"
    """Copied as far as the source allows, or within the stated lag."""
    LAGGING = "LAGGING"
    """Being copied, behind by more than the stated lag."""
    STANDBY = "STANDBY"
    """Another mirror of the flow copies it; this one takes over when that one is gone."""
    PAUSED = "PAUSED"
    """Stopped by an operator; continues when told to, or when the mirror is restarted."""
    BLOCKED = "BLOCKED"
    """Cannot continue for the reason given; retried automatically where that can help."""
    DATA_LOSS = "DATA_LOSS"
    """Retention or DeleteRecords at the source overtook the mirror; continues only if told to."""
    DIVERGED = "DIVERGED"
    """The two logs no longer match; nothing is written until an operator decides."""
    TOPIC_RECREATED = "TOPIC_RECREATED"
    """The source topic was deleted and made again; nothing is written until an operator decides."""
    FENCED = "FENCED"
    """A newer epoch has written to the target partition; this mirror is deposed."""


class Reason(StrEnum):
    """Why a partition is in a state other than ACTIVE. A bounded set: it labels metrics."""

    STARTING = "starting"
    CATCHING_UP = "catching_up"
    RETENTION_NEAR = "retention_near"
    COMPACTION_NEAR = "compaction_near"
    OPERATOR = "operator"
    OPEN_TRANSACTION = "open_transaction"
    SOURCE_UNAVAILABLE = "source_unavailable"
    TARGET_UNAVAILABLE = "target_unavailable"
    NOT_ENOUGH_REPLICAS = "not_enough_replicas"
    STORAGE_ERROR = "storage_error"
    SOURCE_BEING_PREPARED = "source_being_prepared"
    SOURCE_NOT_AUTHORIZED = "source_not_authorized"
    TARGET_NOT_AUTHORIZED = "target_not_authorized"
    MARKERS_NOT_AUTHORIZED = "markers_not_authorized"
    TARGET_NOT_EMPTY = "target_not_empty"
    ANOTHER_FLOW = "another_flow"
    TARGET_PARTITIONS = "target_partitions"
    TARGET_TOPIC_MISSING = "target_topic_missing"
    NAME_NOT_POSSIBLE = "name_not_possible"
    NAME_COLLISION = "name_collision"
    REPLICATION_FACTOR = "replication_factor"
    GAP_TOO_LARGE = "gap_too_large"
    PREPARATION_REFUSED = "preparation_refused"
    CORRUPT_BATCH = "corrupt_batch"
    UNREADABLE_BATCH = "unreadable_batch"
    RECORD_TOO_LARGE = "record_too_large"
    RECORD_REFUSED = "record_refused"
    TIMESTAMP_REFUSED = "timestamp_refused"
    APPEND_TIMES = "append_times"
    NULL_KEY_REFUSED = "null_key_refused"
    LOG_START_MOVED = "log_start_moved"
    SOURCE_TRUNCATED = "source_truncated"
    TARGET_TRUNCATED = "target_truncated"
    FOREIGN_WRITE = "foreign_write"
    OFFSETS_DIFFER = "offsets_differ"
    STATE_LOST = "state_lost"
    STATE_UNUSABLE = "state_unusable"
    TOPIC_ID_CHANGED = "topic_id_changed"
    TOPIC_DELETED = "topic_deleted"
    RELAY_TOO_OLD = "relay_too_old"
    NEWER_EPOCH = "newer_epoch"
    ANOTHER_MIRROR = "another_mirror"
    INTERNAL_ERROR = "internal_error"


class OffsetMode(StrEnum):
    """How offsets of the target partition relate to those of the source."""

    SAME = "same"
    """Every record has its source offset; gaps are filled with control markers."""
    MAPPED = "mapped"
    """Records are dense at the target; the offset map translates exactly."""


def is_read_off_a_map(state: State, mode: OffsetMode | None) -> bool:
    """Whether a position comes from an offset map that another mirror writes: it may still be corrected."""
    return state is State.STANDBY and mode is not OffsetMode.SAME


def is_there(state: State, mode: OffsetMode | None, next_offset: int | None, goal_offset: int | None) -> bool:
    """Whether a copy that is to end has reached its goal, and nothing has gone wrong with it since.

    If its source is still being written to, it may be behind again when the status is taken.
    """
    if state not in {State.ACTIVE, State.LAGGING, State.STANDBY} or is_read_off_a_map(state, mode):
        return False
    return next_offset is not None and goal_offset is not None and next_offset >= goal_offset


class Batch(NamedTuple):
    """One record batch of format v2 without offset gaps, ready to be appended.

    Attributes:
        base_offset: Source offset of its first record.
        next_offset: Source offset after its last record: ``base_offset`` + number of records.
        leader_epoch: Leader epoch at the source, -1 where unknown.
        max_timestamp_ms: Largest record timestamp.
        view: The bytes of the batch, writable, header included. Producer fields and CRC are
            rewritten in place just before it is sent; the payload is never touched.
    """

    base_offset: int
    next_offset: int
    leader_epoch: int
    max_timestamp_ms: int
    view: memoryview

    @property
    def records(self) -> int:
        return self.next_offset - self.base_offset


class Gap(NamedTuple):
    """Source offsets ``[base_offset, next_offset)`` that hold no record for a consumer.

    Transaction markers, aborted records, empty batches and what compaction removed are all the same to a
    consumer; where they follow each other they are one gap.

    Attributes:
        lost: There were records, they were removed before they were copied, and that was accepted.
        aborted: How many of the offsets belong to batches of aborted transactions.
        markers: How many are those of the markers that end transactions.
    """

    base_offset: int
    next_offset: int
    lost: bool = False
    aborted: int = 0
    markers: int = 0

    @property
    def offsets(self) -> int:
        return self.next_offset - self.base_offset

    def cut(self, offsets: int) -> tuple[Gap, Gap]:
        """The first ``offsets`` offsets of it, and the rest.

        Which offset was what is no longer known: those without a batch are taken first, markers last.
        """
        at = self.base_offset + offsets
        without = self.offsets - self.aborted - self.markers
        aborted = min(self.aborted, max(0, offsets - without))
        markers = max(0, offsets - without - self.aborted)
        return (
            self._replace(next_offset=at, aborted=aborted, markers=markers),
            self._replace(base_offset=at, aborted=self.aborted - aborted, markers=self.markers - markers),
        )


class Forecast(StrEnum):
    """What is said of a future event; only with the first value come seconds."""

    EXPECTED = "expected"
    """In the stated number of seconds, if everything goes on as in the last minute; 0: already."""
    NEVER = "never"
    """Not at this pace."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Outlook:
    """What happens if all goes on as in the last minute; seconds are null unless it is expected."""

    catch_up: Forecast = Forecast.UNKNOWN
    """When the copy has caught up; never: it does not gain on the source."""
    catch_up_seconds: float | None = None
    """Also 0 within the stated lag."""
    retention_loss: Forecast = Forecast.UNKNOWN
    """When retention at the source removes the first uncopied record; never: it will be copied before."""
    retention_loss_seconds: float | None = None
    produced_per_second: float | None = None
    """Source offsets, at the source; null if it was not heard for long enough, or has been idle."""
    copied_per_second: float | None = None
    """Source offsets, by the copy."""


@dataclass(frozen=True, slots=True)
class FlowOutlook(Outlook):
    """For all partitions: when the last one has caught up and the first one loses records; rates are sums.

    What is already lost is no future loss. Backlog and rates are those of partitions that are being copied:
    not paused, blocked or lost. One that is caught up and has no known rate does not change the rates.
    """

    backlog_records: int | None = None
    """Source offsets not copied; null while that of a partition is not known."""
    backlog: Forecast = Forecast.UNKNOWN
    """When all of that is copied, if partitions leave unused capacity to each other."""
    backlog_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """A snapshot of one partition for people and for metrics. ``None`` is unknown, never zero."""

    topic: str
    partition: int
    target_topic: str
    state: State
    reason: Reason | None
    detail: str
    """One sentence: what was seen, with the offsets concerned. Empty when ACTIVE."""
    hint: str
    """What an operator can do about it. Empty when ACTIVE."""
    offset_mode: OffsetMode | None
    source_log_start_offset: int | None
    source_high_watermark: int | None
    source_last_stable_offset: int | None
    """How far the flow reads; with read_uncommitted that is the high watermark."""
    next_offset: int | None
    """Source offset of the next record to copy; everything below is on the target."""
    target_log_end_offset: int | None
    lag_records: int | None
    """Source offsets from ``next_offset`` to the last stable offset, as last seen; 0 only if seen lately."""
    lag_seconds: float | None
    """Upper bound of the age of the oldest record that is not on the target; never 0."""
    records: int
    bytes: int
    batches: int
    batches_reencoded: int
    gap_offsets: int
    """Offsets filled with control markers (same) or skipped in the map (mapped), since start."""
    lost_from: int | None = None
    lost_to: int | None = None
    lost_offsets: int = 0
    """Offsets given up since start: removed at the source before they were copied, and the loss accepted."""
    aborted_offsets: int = 0
    """Offsets of the gaps that are those of batches of aborted transactions."""
    marker_offsets: int = 0
    """Offsets of the gaps that are those of transaction markers of the source."""
    duplicates_suppressed: int = 0
    """Records not written, or not sent again, because the target had them already, since start."""
    lost_ranges: tuple[tuple[int, int], ...] = ()
    """Source ranges [from, to) given up since the copy of this partition began, in this process or before."""
    retention_headroom_seconds: float | None = None
    """Until retention at the source may remove a record that was not copied, if nothing more is copied; 0 if
    it has. By size as fast as the log's start was seen to move. None: never, or not known."""
    tombstone_headroom_seconds: float | None = None
    """Lower bound of the time until compaction at the source may remove an uncopied tombstone whose key was
    copied."""
    goal_offset: int | None = None
    """Where a copy that is to end has reached its end; None if it is to go on, or that is not known yet."""
    outlook: Outlook = Outlook()
    topic_gone: bool = False
    """The source has no such topic any more: nothing is missing, so there is no lag."""

    @property
    def is_there(self) -> bool:
        """Whether a copy that was to end has reached its end here; see :func:`is_there`."""
        return is_there(self.state, self.offset_mode, self.next_offset, self.goal_offset)


@dataclass(frozen=True, slots=True)
class LinkStatus:
    """The stream from a relay, while there is one."""

    relay: str
    """HOST:PORT of the relay."""
    version: str
    """Of the relay."""
    congestion: str
    """Congestion control of the relay's kernel on this connection; bbr if it has it."""
    connections: int
    """How many connections carry the stream."""
    rate_limit_bytes_per_second: float | None
    """The rate that link.limits allows now; null: no limit."""
    round_trip_seconds: float | None
    """As last measured; null before the first time."""
    clock_offset_ms: float | None
    """How far the relay's clock is ahead of ours; null before it was measured."""
    level: int | None
    """The level of zstd for partitions that are behind; null until the relay has reported it."""
    window_bytes: int | None
    """Repetitions within this many bytes are sent once; 0: not looked for; null: not reported yet."""
    recode: bool | None
    """Whether lz4, gzip and snappy batches are inflated before they are sent; null: not reported yet."""
    why: str
    """The measurements for which the relay chose this."""


@dataclass(frozen=True, slots=True)
class TopicLeftOut:
    """A topic that the lists want and that is not copied."""

    topic: str
    """Its name at the source."""
    reason: str
    """copy_of_target, undecided, not_known or gone_round."""
    detail: str
    """What was seen, in words."""

    @property
    def is_known(self) -> bool:
        """Whether it is known that there is nothing of it to copy."""
        return self.reason != "not_known"


@dataclass(frozen=True, slots=True)
class OwnerStatus:
    """Where the mirror that holds the right to copy the flow runs, as it reports itself."""

    host: str
    process_id: int
    since_ms: int
    """When it took the right, in milliseconds since 1970."""
    url: str
    """Address of its port, reachable at least from its own machine; empty when it has none."""


def only_on(url: str, host: str) -> str:
    """The words ``, on HOST,`` if an address can be reached only on its own machine; otherwise none."""
    return f", on {host}," if re.match(r"http://(127\.|localhost:|\[::1\])", url) else ""


def owned_by(place: str | None) -> str:
    """Who the owner of a flow is, in words: the same wherever a mirror says that it is another one.

    Args:
        place: Host and process of the owner; None if it has not reported where it runs. It may be gone then:
            only that it has the right to copy is certain.
    """
    return f"the owner of the flow is {'another mirror' if place is None else f'the mirror on {place}'}"


@dataclass(frozen=True, slots=True)
class FlowStatus:
    """A snapshot of the whole mirror."""

    flow: str
    version: str
    source_cluster_id: str | None
    target_cluster_id: str | None
    producer_id: int | None
    producer_epoch: int | None
    owner: bool
    """Whether it holds the right to copy the flow; otherwise it stands by."""
    started_at_ms: int
    uptime_seconds: float
    cpu_seconds: float
    resident_bytes: int
    bytes_fetched: int
    bytes_appended: int
    partitions: tuple[PartitionStatus, ...]
    topics_ignored: int | None = 0
    """Source topics that are not copied; null before they were looked at."""
    waits_for: str = ""
    """What a mirror that has not begun waits for, and what went wrong last; empty once it has begun."""
    link: LinkStatus | None = None
    """The stream from a relay; null if there is none, or none just now."""
    outlook: FlowOutlook = FlowOutlook()
    topics_left_out: tuple[TopicLeftOut, ...] = ()
    """Topics that the lists want and that are not copied all the same, and why."""
    copied_by: OwnerStatus | None = None
    """Who copies while this mirror stands by; null if it is this one, or has not reported where it runs."""

    @property
    def is_there(self) -> bool:
        """Whether a copy that was to end has reached its end in every partition, and there is at least one.

        False while it is not known of a topic whether it is one to copy.
        """
        known = all(topic.is_known for topic in self.topics_left_out)
        return known and bool(self.partitions) and all(one.is_there for one in self.partitions)
