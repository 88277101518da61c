"""Which columns of a table fit the screen, and how names are cut; above all for partitions. Pure.

A partition's name and state are always shown; what is needed least is left out first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from mirror.cli.output import clean, duration, number
from mirror.model import Forecast, PartitionStatus, State

SPACE = 2
"""Blanks between two columns."""
NAME_COLUMNS = 32
"""A longer name is cut before a column is left out for it."""
NAME_COLUMNS_MIN = 12
CUT = ".."
TARGET_NAMES = "target names"
NONE = "none"
"""The lag of a topic that the source no longer has: neither unknown, nor 0 as for a live copy."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column next to the partition's name.

    Attributes:
        is_optional: Shown only if some partition has text in it.
    """

    title: str
    words: Callable[[PartitionStatus], str]
    is_number: bool = True
    is_optional: bool = False

    def width(self, partitions: Sequence[PartitionStatus]) -> int:
        """The width of the widest of its cells and its title."""
        return max(len(self.title), *(len(self.words(one)) for one in partitions))


def _catch_up(one: PartitionStatus) -> str:
    """When a lagging partition will have caught up; empty for those with no lag, or that do not move."""
    if one.state is not State.LAGGING:
        return ""
    outlook = one.outlook
    return "never" if outlook.catch_up is Forecast.NEVER else duration(outlook.catch_up_seconds)


def _loss(one: PartitionStatus) -> str:
    """When records may be lost; empty if the state says that all is well, or that they are lost already."""
    seconds = one.outlook.retention_loss_seconds
    to_come = one.state not in {State.ACTIVE, State.DATA_LOSS}
    return duration(seconds) if to_come and seconds is not None else ""


def _lag_time(one: PartitionStatus) -> str:
    """The lag in time. Below a second it only swings with how often the source is heard from."""
    if one.topic_gone:
        return NONE
    seconds = one.lag_seconds
    return "< 1 s" if seconds is not None and seconds < 1 else duration(seconds)


STATE = Column("STATE", lambda one: one.state.value, is_number=False)
COLUMNS = (
    STATE,
    Column("REASON", lambda one: (one.reason or "").replace("_", " "), is_number=False),
    Column("OFFSETS", lambda one: one.offset_mode or "?", is_number=False),
    Column("NEXT", lambda one: number(one.next_offset)),
    Column("SOURCE END", lambda one: number(one.source_high_watermark)),
    Column("TARGET END", lambda one: number(one.target_log_end_offset)),
    Column("LAG", lambda one: NONE if one.topic_gone else number(one.lag_records)),
    Column("LAG TIME", _lag_time),
    Column("CAUGHT UP IN", _catch_up, is_optional=True),
    Column("LOSS IN", _loss, is_optional=True),
    Column("RECORDS", lambda one: number(one.records)),
)
LEFT_OUT_FIRST = (
    "RECORDS",
    "TARGET END",
    "OFFSETS",
    TARGET_NAMES,
    "SOURCE END",
    "NEXT",
    "CAUGHT UP IN",
    "LAG TIME",
    "LOSS IN",
    "LAG",
    "REASON",
)


@dataclass(frozen=True, slots=True)
class Layout:
    """What fits the screen.

    Attributes:
        columns: In the order shown.
        name_columns: Room for the partition's name.
        target_names: Whether the name at the target is shown with it.
    """

    columns: tuple[Column, ...]
    name_columns: int
    target_names: bool

    def name(self, one: PartitionStatus) -> str:
        """The partition's name, cut to the room there is."""
        return shortened(_name(one, target_names=self.target_names), self.name_columns, _number(one))


def layout(partitions: Sequence[PartitionStatus], width: int) -> Layout:
    """The richest table of these partitions that fits.

    Args:
        partitions: At least one.
        width: The screen's, in columns.
    """
    candidates = [
        column for column in COLUMNS if not column.is_optional or any(map(column.words, partitions))
    ]
    left_out, room = fitting(
        {column.title: column.width(partitions) for column in candidates},
        LEFT_OUT_FIRST,
        width,
        lambda without: _wanted(partitions, target_names=TARGET_NAMES not in without),
    )
    columns = tuple(column for column in candidates if column.title not in left_out)
    return Layout(columns, room, TARGET_NAMES not in left_out)


def fitting(
    widths: Mapping[str, int],
    left_out_first: Sequence[str],
    width: int,
    wanted: Callable[[Sequence[str]], int],
) -> tuple[Sequence[str], int]:
    """The titles for which there is no room, and the room left for names.

    Args:
        widths: The width of each column but that of names, by title.
        left_out_first: Titles, and whatever else makes room, in the order in which they are left out.
        width: The screen's, in columns.
        wanted: Returns the room that names need, given what is left out.
    """
    for count in range(len(left_out_first) + 1):
        left_out = left_out_first[:count]
        room = width - sum(wide + SPACE for title, wide in widths.items() if title not in left_out)
        if room >= wanted(left_out):
            break
    return left_out, max(room, NAME_COLUMNS_MIN)


def _wanted(partitions: Sequence[PartitionStatus], *, target_names: bool) -> int:
    """The room that names need. With target names they are shown whole, so all of it."""
    longest = max(len(_name(one, target_names=target_names)) for one in partitions)
    return longest if target_names else min(longest, NAME_COLUMNS)


def _name(one: PartitionStatus, *, target_names: bool) -> str:
    name = clean(one.topic) + _number(one)
    return f"{name} > {clean(one.target_topic)}" if target_names and one.target_topic != one.topic else name


def _number(one: PartitionStatus) -> str:
    return f"-{one.partition}"


def shortened(name: str, width: int, end: str) -> str:
    """Cut the middle out of a name that is too long; its ``end`` stays."""
    if len(name) <= width:
        return name
    room = max(width - len(CUT) - len(end), 0)
    head = room - room // 2
    return name[:head] + CUT + name[len(name) - len(end) - room // 2 :]
