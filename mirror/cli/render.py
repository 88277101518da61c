"""A status as people read it, and the document a copy that has ended leaves behind. Pure.

Worst first: what needs somebody stands above what does not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from mirror.cli.output import clean, duration, number, plain, size
from mirror.model import FlowStatus, PartitionStatus, Reason, State

SCHEMA = 1
ROWS_MAX = 60
"""Above this only what is not ACTIVE gets a row of its own, unless all are asked for."""
TROUBLES_MAX = 20
NOTHING_COPIED = (
    "  hint: no topic of the source matches topics.include and topics.exclude, or none was found yet"
)

STYLES = {
    State.ACTIVE: "green",
    State.LAGGING: "cyan",
    State.UNKNOWN: "cyan",
    State.PAUSED: "yellow",
    State.BLOCKED: "yellow",
    State.DATA_LOSS: "bold red",
    State.DIVERGED: "bold red",
    State.TOPIC_RECREATED: "bold red",
    State.FENCED: "bold red",
}
_WORST_FIRST = (
    State.FENCED,
    State.DIVERGED,
    State.TOPIC_RECREATED,
    State.DATA_LOSS,
    State.BLOCKED,
    State.PAUSED,
    State.UNKNOWN,
    State.LAGGING,
    State.ACTIVE,
)


@dataclass(frozen=True, slots=True)
class Totals:
    """What a copy has cost: wall time, processor time and the most memory of this process."""

    seconds: float
    cpu_seconds: float
    peak_memory_bytes: int


def is_there(partition: PartitionStatus) -> bool:
    """Whether a copy that was to end has reached its end here.

    A partition that goes on being written to may be behind again when the status is taken.
    """
    if partition.next_offset is None or partition.goal_offset is None:
        return False
    return partition.state in {State.ACTIVE, State.LAGGING} and partition.next_offset >= partition.goal_offset


# -- the table -----------------------------------------------------------------------------------------


def status_table(status: FlowStatus, *, everything: bool = False) -> RenderableType:
    """The flow in a line, a table of partitions, and what to do about those in trouble.

    Args:
        everything: A row for every partition, however many.
    """
    shown = sorted(status.partitions, key=_by_need)
    if len(shown) > ROWS_MAX and not everything:
        shown = [partition for partition in shown if partition.state is not State.ACTIVE][:ROWS_MAX]
    parts: list[RenderableType] = [_headline(status)]
    if shown:
        parts.append(_rows(shown))
    if not status.partitions:
        parts.append(Text(NOTHING_COPIED))
    hidden = len(status.partitions) - len(shown)
    if hidden:
        parts.append(Text(f"and {number(hidden)} other partitions (--all shows them)"))
    return Group(*parts, *_troubles(shown))


def _by_need(partition: PartitionStatus) -> tuple[int, str, int]:
    return (_WORST_FIRST.index(partition.state), partition.topic, partition.partition)


def _headline(status: FlowStatus) -> Text:
    counts = Counter(partition.state for partition in status.partitions)
    states = ", ".join(f"{number(counts[state])} {state}" for state in _WORST_FIRST if counts[state])
    records = sum(partition.records for partition in status.partitions)
    copied = sum(partition.bytes for partition in status.partitions)
    return Text(
        f"flow {clean(status.flow)}: {states or 'no partitions'}; {number(records)} records, "
        f"{size(copied)} copied in {duration(status.uptime_seconds)}; "
        f"cpu {duration(status.cpu_seconds)}, memory {size(status.resident_bytes)}"
    )


def _rows(partitions: Sequence[PartitionStatus]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("PARTITION", overflow="fold")
    for name in ("STATE", "REASON", "OFFSETS"):
        table.add_column(name, no_wrap=True)
    for name in ("NEXT", "SOURCE END", "TARGET END", "LAG", "LAG TIME", "RECORDS"):
        table.add_column(name, justify="right", no_wrap=True)
    for one in partitions:
        table.add_row(*_cells(one))
    return table


def _cells(one: PartitionStatus) -> Iterable[Text]:
    name = f"{one.topic}-{one.partition}"
    return (
        plain(name if one.target_topic == one.topic else f"{name} > {one.target_topic}"),
        plain(one.state, STYLES[one.state]),
        plain((one.reason or "").replace("_", " ")),
        plain(one.offset_mode or "?"),
        plain(number(one.next_offset)),
        plain(number(one.source_high_watermark)),
        plain(number(one.target_log_end_offset)),
        plain(number(one.lag_records)),
        plain(duration(one.lag_seconds)),
        plain(number(one.records)),
    )


def _troubles(partitions: Iterable[PartitionStatus]) -> list[Text]:
    """What was seen of each partition in trouble; those with the same way out stand together."""
    wanted = [one for one in partitions if one.detail and not _in_order(one)]
    groups: dict[tuple[State, str], list[PartitionStatus]] = {}
    for one in wanted[:TROUBLES_MAX]:
        groups.setdefault((one.state, one.hint), []).append(one)
    lines = [line for (state, hint), group in groups.items() for line in _trouble(state, hint, group)]
    rest = len(wanted) - TROUBLES_MAX
    return [*lines, Text(f"and {rest} other partitions in trouble")] if rest > 0 else lines


def _in_order(partition: PartitionStatus) -> bool:
    """Whether it needs nobody: records are copied as fast as both clusters allow."""
    return partition.state is State.ACTIVE or partition.reason is Reason.CATCHING_UP


def _trouble(state: State, hint: str, group: Iterable[PartitionStatus]) -> Iterable[Text]:
    for one in group:
        yield plain(f"{one.topic}-{one.partition}: {state}: {one.detail}", STYLES[state])
    if hint:
        yield plain(f"  hint: {hint}")


# -- the document --------------------------------------------------------------------------------------


def copy_document(status: FlowStatus, totals: Totals) -> dict[str, Any]:
    """What a copy that has ended leaves behind: each partition, then the whole."""
    partitions = sorted(status.partitions, key=lambda one: (one.topic, one.partition))
    there = sum(map(is_there, partitions))
    return {
        "schema": SCHEMA,
        "flow": status.flow,
        "complete": there == len(partitions),
        "source_cluster_id": status.source_cluster_id,
        "target_cluster_id": status.target_cluster_id,
        "partitions": [_partition(one) for one in partitions],
        "totals": {
            "partitions": len(partitions),
            "partitions_there": there,
            "records": sum(one.records for one in partitions),
            "batches": sum(one.batches for one in partitions),
            "bytes": sum(one.bytes for one in partitions),
            "bytes_fetched": status.bytes_fetched,
            "bytes_appended": status.bytes_appended,
            "seconds": round(totals.seconds, 3),
            "cpu_seconds": round(totals.cpu_seconds, 3),
            "peak_memory_bytes": totals.peak_memory_bytes,
        },
    }


def _partition(one: PartitionStatus) -> dict[str, Any]:
    return {
        "topic": one.topic,
        "partition": one.partition,
        "target_topic": one.target_topic,
        "there": is_there(one),
        "state": one.state.value,
        "reason": one.reason.value if one.reason else None,
        "detail": one.detail,
        "hint": one.hint,
        "offset_mode": one.offset_mode.value if one.offset_mode else None,
        "source": {
            "log_start_offset": one.source_log_start_offset,
            "high_watermark": one.source_high_watermark,
            "last_stable_offset": one.source_last_stable_offset,
            "next_offset": one.next_offset,
            "goal_offset": one.goal_offset,
        },
        "target": {"log_end_offset": one.target_log_end_offset},
        "lag_records": one.lag_records,
        "lost_offsets": one.lost_offsets,
        "records": one.records,
        "bytes": one.bytes,
        "batches": one.batches,
        "batches_reencoded": one.batches_reencoded,
        "gap_offsets": one.gap_offsets,
    }
