"""The status of a relay as people read it. Pure."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from mirror.cli.columns import NAME_COLUMNS, SPACE, fitting, shortened
from mirror.cli.output import clean, duration, number, plain, size
from mirror.model_relay import RelayStatus, StreamStatus

ROWS_MAX = 60
"""How many streams are shown, unless all are asked for; the rest is only counted."""
NAME = "FLOW"
TITLES = ("FROM", "IDENTITY", "ROLE", "SINCE", "ROUND TRIP", "PARTITIONS", "SENT", "SHARE", "LEVEL")
NUMBERS = frozenset({"SINCE", "ROUND TRIP", "PARTITIONS", "SENT", "SHARE", "LEVEL"})
LEFT_OUT_FIRST = ("IDENTITY", "ROLE", "SHARE", "SINCE", "LEVEL", "ROUND TRIP", "PARTITIONS", "FROM", "SENT")
NO_STREAMS = "  no mirror has a stream open"


def relay_table(
    status: RelayStatus, *, everything: bool = False, now_ms: float | None = None
) -> RenderableType:
    """The relay in some lines, and a row for each stream.

    Args:
        everything: A row for every stream, however many.
        now_ms: The wall clock, in milliseconds since 1970; None for the present.
    """
    now_ms = time.time() * 1000 if now_ms is None else now_ms
    parts: list[RenderableType] = [_headline(status)]
    shown = status.streams if everything else status.streams[:ROWS_MAX]
    if shown:
        parts.append(_Streams(shown, now_ms))
    hidden = len(status.streams) - len(shown)
    if hidden:
        parts.append(Text(f"and {number(hidden)} other streams (--all shows them)"))
    parts += [
        plain(f"{one.flow}, from {one.peer}: level {one.level}: {one.why}", "dim") for one in shown if one.why
    ]
    return Group(*parts)


def _headline(status: RelayStatus) -> Text:
    sent = status.live.bytes_sent + status.bulk.bytes_sent
    records = status.live.records_bytes + status.bulk.records_bytes
    share = f", {sent / records:.3f} of their size" if records else ""
    words = (
        f"relay of cluster {clean(status.source_cluster_id or '?')}: {number(len(status.streams))} streams, "
        f"{number(status.tunnels)} connections to brokers; {size(records)} of records sent as {size(sent)}"
        f"{share}, in {duration(status.uptime_seconds)}; cpu {duration(status.cpu_seconds)}, "
        f"memory {size(status.resident_bytes)}"
    )
    if status.connections >= status.connections_max:
        words += (
            f"\n  full: all {number(status.connections_max)} connections of listen.connections_max are in use"
        )
    if status.rate_limit_bytes_per_second is not None:
        words += f"\n  limits: at most {status.rate_limit_bytes_per_second * 8 / 1e6:g} Mbit/s at this time"
    refused = ", ".join(f"{code} {number(count)}" for code, count in sorted(status.refused.items()) if count)
    if refused:
        words += f"\n  refused since the start: {clean(refused)} (its log says who and why)"
    if status.waits_for:
        return Text(f"{words}\n  waits for {clean(status.waits_for)}")
    return Text(words if status.streams else f"{words}\n{NO_STREAMS}")


@dataclass(frozen=True, slots=True)
class _Streams:
    """A row for each stream, with the columns for which the screen has room."""

    streams: Sequence[StreamStatus]
    now_ms: float

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        names = [clean(one.flow or "?") for one in self.streams]
        rows = [dict(zip(TITLES, map(clean, _row(one, self.now_ms)), strict=True)) for one in self.streams]
        widths = {title: max(len(title), *(len(row[title]) for row in rows)) for title in TITLES}
        longest = min(max(len(NAME), *map(len, names)), NAME_COLUMNS)
        left_out, room = fitting(widths, LEFT_OUT_FIRST, options.max_width, lambda _: longest)
        table = Table(box=None, pad_edge=False, padding=(0, SPACE, 0, 0), header_style="bold")
        table.add_column(NAME, no_wrap=True)
        titles = [title for title in TITLES if title not in left_out]
        for title in titles:
            table.add_column(title, justify="right" if title in NUMBERS else "left", no_wrap=True)
        for name, row in zip(names, rows, strict=True):
            table.add_row(Text(shortened(name, room, "")), *(Text(row[title]) for title in titles))
        yield table


def _row(one: StreamStatus, now_ms: float) -> tuple[str, ...]:
    sent = one.live.bytes_sent + one.bulk.bytes_sent
    records = one.live.records_bytes + one.bulk.records_bytes
    trip = one.round_trip_seconds
    return (
        one.peer,
        one.identity or "-",
        one.role or "-",
        duration(max(now_ms - one.began_at_ms, 0) / 1000),
        "?" if trip is None else f"{trip * 1000:.1f} ms",
        number(one.partitions_wanted),
        f"{size(sent)}{' (waits)' if one.waits else ''}",
        f"{sent / records:.3f}" if records else "?",
        "?" if one.level is None else str(one.level),
    )
