"""Which columns a table has room for, and how names are cut; the table of partitions above all. Pure.

Which partition it is and what state it is in are always there; what is needed least is left out first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from mirror.cli.output import clean, duration, number
from mirror.model import Forecast, PartitionStatus, State

SPACE = 2
"""Between two columns."""
NAME_COLUMNS = 32
"""A longer name is cut before a column is left out for it."""
NAME_COLUMNS_MIN = 12
CUT = ".."
TARGET_NAMES = "target names"
NONE = "none"
"""The lag of a topic that the source does not have any more: neither unknown, nor 0 as of a live copy."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column beside the partition's name.

    Attributes:
        is_optional: It is there only where some partition has words in it.
    """

    title: str
    words: Callable[[PartitionStatus], str]
    is_number: bool = True
    is_optional: bool = False

    def width(self, partitions: Sequence[PartitionStatus]) -> int:
        """What its cells take, and its title."""
        return max(len(self.title), *(len(self.words(one)) for one in partitions))


def _catch_up(one: PartitionStatus) -> str:
    """Of a partition that lags; others have nothing to catch up, or do not."""
    if one.state is not State.LAGGING:
        return ""
    outlook = one.outlook
    return "never" if outlook.catch_up is Forecast.NEVER else duration(outlook.catch_up_seconds)


def _loss(one: PartitionStatus) -> str:
    """Of a partition that may lose records: where all is well, or lost already, its state says so."""
    seconds = one.outlook.retention_loss_seconds
    to_come = one.state not in {State.ACTIVE, State.DATA_LOSS}
    return duration(seconds) if to_come and seconds is not None else ""


def _lag_time(one: PartitionStatus) -> str:
    """Below a second it goes up and down between two words of the source, and says no more than that."""
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
    """What fits.

    Attributes:
        columns: In their order.
        name_columns: Room for the partition's name.
        target_names: Whether the name at the target stands beside it.
    """

    columns: tuple[Column, ...]
    name_columns: int
    target_names: bool

    def name(self, one: PartitionStatus) -> str:
        """Which partition it is, in the room there is."""
        return shortened(_name(one, target_names=self.target_names), self.name_columns, _number(one))


def layout(partitions: Sequence[PartitionStatus], width: int) -> Layout:
    """The richest table of these partitions that fits.

    Args:
        partitions: At least one.
        width: Of the screen, in columns.
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
    """The titles for which there is no room, and the room that is there for names.

    Args:
        widths: Of each column beside the names, by its title.
        left_out_first: Titles, and whatever else makes room, in the order in which they are left out.
        width: Of the screen, in columns.
        wanted: What names take, by what is left out.
    """
    for count in range(len(left_out_first) + 1):
        left_out = left_out_first[:count]
        room = width - sum(wide + SPACE for title, wide in widths.items() if title not in left_out)
        if room >= wanted(left_out):
            break
    return left_out, max(room, NAME_COLUMNS_MIN)


def _wanted(partitions: Sequence[PartitionStatus], *, target_names: bool) -> int:
    """Two names are shown whole or not at all."""
    longest = max(len(_name(one, target_names=target_names)) for one in partitions)
    return longest if target_names else min(longest, NAME_COLUMNS)


def _name(one: PartitionStatus, *, target_names: bool) -> str:
    name = clean(one.topic) + _number(one)
    return f"{name} > {clean(one.target_topic)}" if target_names and one.target_topic != one.topic else name


def _number(one: PartitionStatus) -> str:
    return f"-{one.partition}"


def shortened(name: str, width: int, end: str) -> str:
    """A name that is too long loses its middle; its ``end`` stays."""
    if len(name) <= width:
        return name
    room = max(width - len(CUT) - len(end), 0)
    head = room - room // 2
    return name[:head] + CUT + name[len(name) - len(end) - room // 2 :]
