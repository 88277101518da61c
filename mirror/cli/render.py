"""A status as people read it, and the document that a finished copy leaves. Pure.

Worst first: what needs attention is above what does not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from mirror.cli.columns import SPACE, STATE, layout
from mirror.cli.output import clean, duration, number, plain, size
from mirror.model import (
    FlowStatus,
    Forecast,
    LinkStatus,
    OffsetMode,
    PartitionStatus,
    Reason,
    State,
    TopicLeftOut,
    only_on,
    owned_by,
)
from mirror.moments import moment

SCHEMA = 1
ROWS_MAX = 60
"""With more partitions only those not ACTIVE get a row, and no more than these, unless all are asked for."""
ALIKE_MAX = 10
"""How many partitions with the same state and hint are listed one by one, unless all are asked for."""
FEWER_ALIKE = (3, 1)
"""The same when there is little room."""
TABLE_LINES = 4
"""What the table needs at least: titles, two partitions, and how many more there are."""
RANGES_MAX = 3
LEFT_OUT_MAX = 3
NOTHING_COPIED = (
    "  hint: no topic of the source matches topics.include and topics.exclude, or none was found yet"
)
NO_ROOM = Text("and more that does not fit the screen")

STYLES = {
    State.ACTIVE: "green",
    State.LAGGING: "cyan",
    State.UNKNOWN: "cyan",
    State.STANDBY: "cyan",
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
    State.STANDBY,
    State.LAGGING,
    State.ACTIVE,
)


@dataclass(frozen=True, slots=True)
class Totals:
    """What a copy has cost: wall time, processor time and the most memory of this process."""

    seconds: float
    cpu_seconds: float
    peak_memory_bytes: int


# -- the table -----------------------------------------------------------------------------------------


def status_table(status: FlowStatus, *, everything: bool = False, one_screen: bool = False) -> RenderableType:
    """The flow in a line, a table of partitions, and what to do about those in trouble.

    Args:
        everything: A row for every partition, however many.
        one_screen: No more lines than the screen has.
    """
    return _StatusTable(status, everything, one_screen)


@dataclass(frozen=True, slots=True)
class _StatusTable:
    """Fits itself to the screen at the moment it is drawn."""

    status: FlowStatus
    everything: bool
    one_screen: bool

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        partitions = sorted(self.status.partitions, key=_by_need)
        head = _headline(self.status)
        rows: Sequence[PartitionStatus] = self._rows(partitions)
        notes = self._notes(partitions, self._alike_max)
        if self.one_screen:
            lines = _Lines(console, options)
            room = options.max_height - lines.of(head)
            notes = self._notes_in(lines, room, partitions)
            rows = _rows_in(room - lines.of(*notes), partitions)
        yield head
        if rows:
            yield _table(rows, options.max_width)
        hidden = len(partitions) - len(rows)
        if hidden:
            how = "they do not fit the screen" if self.one_screen else "--all shows them"
            yield Text(f"and {number(hidden)} other partitions ({how})")
        yield from notes

    @property
    def _alike_max(self) -> int | None:
        return None if self.everything else ALIKE_MAX

    def _rows(self, partitions: Sequence[PartitionStatus]) -> Sequence[PartitionStatus]:
        if self.everything or len(partitions) <= ROWS_MAX:
            return partitions
        return [one for one in partitions if one.state is not State.ACTIVE][:ROWS_MAX]

    def _notes(self, partitions: Sequence[PartitionStatus], alike_max: int | None) -> list[Text]:
        """What to say below the table. For STANDBY partitions the headline does, if it names who copies."""
        told = [one for one in partitions if one.detail and not _in_order(one)]
        if _stands_by(self.status) and self.status.copied_by is not None:
            told = [one for one in told if one.state is not State.STANDBY]
        lost = [one for one in partitions if one.lost_ranges]
        return [*_troubles(told, alike_max), *_losses(lost, alike_max), *_catching_up(partitions)]

    def _notes_in(self, lines: _Lines, room: int, partitions: Sequence[PartitionStatus]) -> list[Text]:
        """As many notes as leave half of the room to the table; every hint comes before more partitions."""
        share = max(room // 2, room - len(partitions) - 1)
        for alike_max in (self._alike_max, *FEWER_ALIKE):
            notes = self._notes(partitions, alike_max)
            if lines.of(*notes) <= share:
                return notes
        if lines.of(*notes) <= room - TABLE_LINES:
            return notes
        while notes and lines.of(*notes, NO_ROOM) > room - TABLE_LINES:
            notes = notes[:-1]
        return [*notes, NO_ROOM]


@dataclass(frozen=True, slots=True)
class _Lines:
    """Counts lines as they will be on a screen."""

    console: Console
    options: ConsoleOptions

    def of(self, *parts: RenderableType) -> int:
        return sum(len(self.console.render_lines(part, self.options, pad=False)) for part in parts)


def _rows_in(room: int, partitions: Sequence[PartitionStatus]) -> Sequence[PartitionStatus]:
    """As many as fit below the titles; the last line says how many do not."""
    return partitions if len(partitions) < room else partitions[: max(0, room - 2)]


def _by_need(partition: PartitionStatus) -> tuple[int, str, int]:
    return (_WORST_FIRST.index(partition.state), partition.topic, partition.partition)


def _headline(status: FlowStatus) -> Text:
    counts = Counter(partition.state for partition in status.partitions)
    states = ", ".join(f"{number(counts[state])} {state}" for state in _WORST_FIRST if counts[state])
    records = sum(partition.records for partition in status.partitions)
    copied = sum(partition.bytes for partition in status.partitions)
    words = (
        f"flow {clean(status.flow)}: {states or 'no partitions'}; {number(records)} records, "
        f"{size(copied)} copied in {duration(status.uptime_seconds)}; "
        f"cpu {duration(status.cpu_seconds)}, memory {size(status.resident_bytes)}"
    )
    if any(one.offset_mode is OffsetMode.MAPPED for one in status.partitions):
        words += f"\n  {_offset_modes(status.partitions)}"
    if status.link is not None:
        words += f"\n  {_link(status.link)}"
    if counts[State.LAGGING]:
        words += f"\n  {_outlook(status)}"
    if _stands_by(status):
        words += f"\n  {_standing_by(status)}"
    for known, what in (
        (True, "as copies of what the target has"),
        (False, "as possible copies of what the target has"),
    ):
        topics = [one for one in status.topics_left_out if one.is_known is known]
        if topics:
            words += f"\n  {_left_out(topics, what)}"
    if status.waits_for:
        return Text(f"{words}\n  waits for {clean(status.waits_for)}")
    nothing = not status.partitions and not status.topics_left_out
    return Text(f"{words}\n{NOTHING_COPIED}" if nothing else words)


def _offset_modes(partitions: Sequence[PartitionStatus]) -> str:
    """How many partitions have which mode; only worth a line if some are mapped."""
    counts = Counter(one.offset_mode for one in partitions)
    modes = ", ".join(f"{number(counts[mode])} {mode}" for mode in OffsetMode if counts[mode])
    return f"offsets: {modes}"


def _stands_by(status: FlowStatus) -> bool:
    return not status.owner and any(one.state is State.STANDBY for one in status.partitions)


def _standing_by(status: FlowStatus) -> str:
    """Who copies, where to ask how the copy is, and what becomes of this mirror."""
    other = status.copied_by
    after = "this one takes over when that one ends or makes no progress"
    if other is None:
        return f"stands by: {owned_by(None)}; {after}"
    place = f"{clean(other.host)}, process {other.process_id}, since {moment(other.since_ms)}"
    words = f"stands by: {owned_by(place)}; {after}"
    if not other.url:
        return words
    url, there = clean(other.url), clean(only_on(other.url, other.host))
    return f"{words}\n  ask it{there} for the status: twinsite status --url {url}"


def _left_out(topics: Sequence[TopicLeftOut], what: str) -> str:
    """How many, and a few of them by name."""
    names = ", ".join(clean(one.topic) for one in topics[:LEFT_OUT_MAX])
    more = ", ..." if len(topics) > LEFT_OUT_MAX else ""
    return f"topics left out, {what}: {number(len(topics))} ({names}{more})"


def _outlook(status: FlowStatus) -> str:
    """When the backlog will be copied, when the last partition will have caught up, when records are lost."""
    whole = status.outlook
    words = f"{number(whole.backlog_records)} offsets behind; at this pace all is copied "
    words += f"{_when(whole.backlog, whole.backlog_seconds)}, the last partition "
    words += _when(whole.catch_up, whole.catch_up_seconds)
    if whole.retention_loss_seconds is not None:
        words += f", and records are lost in {duration(whole.retention_loss_seconds)}"
    return words


def _when(forecast: Forecast, seconds: float | None) -> str:
    return "never" if forecast is Forecast.NEVER else f"in {duration(seconds)}"


def _link(link: LinkStatus) -> str:
    """How far the relay is, and how it sends."""
    words = f"through relay {clean(link.relay)}: {clean(link.congestion)}"
    if link.round_trip_seconds is not None:
        words += f", round trip {link.round_trip_seconds * 1000:.1f} ms"
    if link.connections > 1:
        words += f", {link.connections} connections"
    if link.rate_limit_bytes_per_second is not None:
        words += f", at most {link.rate_limit_bytes_per_second * 8 / 1e6:g} Mbit/s"
    if link.level is None:
        return words
    window = f" over {link.window_bytes >> 20} MiB" if link.window_bytes else ""
    inflated = ", batches inflated" if link.recode else ""
    return f"{words}; zstd level {link.level}{window}{inflated} ({clean(link.why)})"


def _table(partitions: Sequence[PartitionStatus], width: int) -> Table:
    fitting = layout(partitions, width)
    table = Table(box=None, pad_edge=False, padding=(0, SPACE, 0, 0), header_style="bold")
    table.add_column("PARTITION", no_wrap=True)
    for column in fitting.columns:
        table.add_column(column.title, justify="right" if column.is_number else "left", no_wrap=True)
    for one in partitions:
        words = (
            plain(column.words(one), STYLES[one.state] if column is STATE else "")
            for column in fitting.columns
        )
        table.add_row(plain(fitting.name(one)), *words)
    return table


# -- below the table -----------------------------------------------------------------------------------


def _troubles(partitions: Sequence[PartitionStatus], alike_max: int | None) -> Iterator[Text]:
    """What was seen of each partition, grouped by state and hint.

    Args:
        alike_max: How many of each group are listed; None for all.
    """
    groups: dict[tuple[State, str], list[PartitionStatus]] = {}
    for one in partitions:
        groups.setdefault((one.state, one.hint), []).append(one)
    for (state, hint), group in groups.items():
        yield from _trouble(state, hint, group, alike_max)


def _in_order(partition: PartitionStatus) -> bool:
    """Whether it needs no attention: records are copied as fast as both clusters allow."""
    return partition.state is State.ACTIVE or partition.reason is Reason.CATCHING_UP


def _trouble(
    state: State, hint: str, group: Sequence[PartitionStatus], alike_max: int | None
) -> Iterator[Text]:
    for one in group[:alike_max]:
        yield plain(f"{one.topic}-{one.partition}: {state}: {one.detail}", STYLES[state])
    rest = len(group[alike_max:]) if alike_max is not None else 0
    if rest:
        yield Text(f"and {number(rest)} more, {state} like these", STYLES[state])
    if hint:
        yield plain(f"  hint: {hint}")


def _catching_up(partitions: Sequence[PartitionStatus]) -> Iterator[Text]:
    """One note for all that are catching up: the table shows how far each is."""
    group = [one for one in partitions if one.reason is Reason.CATCHING_UP]
    if group:
        yield plain(f"{number(len(group))} {State.LAGGING}, catching up", STYLES[State.LAGGING])
        yield plain(f"  hint: {group[0].hint}")


def _losses(group: Sequence[PartitionStatus], alike_max: int | None) -> Iterator[Text]:
    for one in group[:alike_max]:
        offsets = sum(end - begin for begin, end in one.lost_ranges)
        ranges = ", ".join(f"{begin} to {end}" for begin, end in one.lost_ranges[-RANGES_MAX:])
        which = ranges if len(one.lost_ranges) <= RANGES_MAX else f"the last of them {ranges}"
        yield plain(f"{one.topic}-{one.partition}: {number(offsets)} offsets given up: {which}", "dim")
    rest = len(group[alike_max:]) if alike_max is not None else 0
    if rest:
        yield Text(f"and {number(rest)} more that have given up offsets", "dim")


# -- the document --------------------------------------------------------------------------------------


def copy_document(status: FlowStatus, totals: Totals) -> dict[str, Any]:
    """The document that a finished copy leaves: each partition, then the totals."""
    partitions = sorted(status.partitions, key=lambda one: (one.topic, one.partition))
    return {
        "schema": SCHEMA,
        "flow": status.flow,
        "complete": status.is_there,
        "source_cluster_id": status.source_cluster_id,
        "target_cluster_id": status.target_cluster_id,
        "partitions": [_partition(one) for one in partitions],
        "topics_left_out": [asdict(one) for one in status.topics_left_out],
        "totals": {
            "partitions": len(partitions),
            "partitions_there": sum(one.is_there for one in partitions),
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
        "there": one.is_there,
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
        "lost_from": one.lost_from,
        "lost_to": one.lost_to,
        "lost_offsets": one.lost_offsets,
        "lost_ranges": [list(lost) for lost in one.lost_ranges],
        "records": one.records,
        "bytes": one.bytes,
        "batches": one.batches,
        "batches_reencoded": one.batches_reencoded,
        "gap_offsets": one.gap_offsets,
    }
