"""How far a copy has come: figures from snapshots, lines in a log, a bar on a terminal."""

from __future__ import annotations

import errno
import io
from dataclasses import replace

import pytest

from mirror.cli.progress import LINE_EVERY_SECONDS, Bar, Estimate, Lines, reporter
from mirror.model import PartitionStatus
from tests.unit.statuses import a_flow, a_partition, an_unknown_partition


class Clock:
    """Stands still until moved."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class FullDisk(io.StringIO):
    def flush(self) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_progress_counts_from_where_each_partition_was_found() -> None:
    """
    A copy that goes on after a restart begins at nothing, not at nine tenths.
    """
    estimate = Estimate(started_at=100.0)

    estimate.figures(a_flow(a_partition(next_offset=900, records=0, gap_offsets=0)), 100.0)
    figures = estimate.figures(a_flow(a_partition(next_offset=950, records=50, bytes=5_000)), 110.0)

    assert (figures.done, figures.total) == (50, 100)
    assert (figures.partitions_there, figures.partitions) == (0, 1)
    assert (figures.seconds, figures.bytes, figures.bytes_per_second) == (10.0, 5_000, 500.0)


def test_progress_counts_what_was_copied_before_it_was_first_asked() -> None:
    """
    A small copy is over by then, and a quick one half done: each of its offsets counts all the same.
    """
    estimate = Estimate(started_at=100.0)
    over = a_partition(next_offset=1_000, records=190, gap_offsets=10)
    half_done = a_partition("audit", next_offset=500, records=350, gap_offsets=50)

    figures = estimate.figures(a_flow(over, half_done), 101.0)

    assert (figures.done, figures.total, figures.partitions_there) == (600, 1_100, 1)


def test_the_goal_does_not_move_with_the_producers() -> None:
    """
    What is written after the start never makes the copy more than complete.
    """
    estimate = Estimate(started_at=0.0)

    estimate.figures(a_flow(a_partition(next_offset=0, goal_offset=100)), 1.0)
    figures = estimate.figures(
        a_flow(a_partition(next_offset=180, source_high_watermark=200, goal_offset=100)), 2.0
    )

    assert (figures.done, figures.total, figures.partitions_there) == (100, 100, 1)


def test_a_partition_that_was_not_looked_at_counts_for_nothing_yet() -> None:
    """
    Unknown is not zero: it is no partition that is there.
    """
    figures = Estimate(started_at=0.0).figures(a_flow(a_partition(), an_unknown_partition()), 1.0)

    assert (figures.partitions_there, figures.partitions) == (1, 2)


def test_a_line_is_written_now_and_then_and_one_at_the_end() -> None:
    """
    A log of a copy that took an hour has some hundred lines, not one for each snapshot.
    """
    clock, stream = Clock(), io.StringIO()

    with Lines(stream, clock=clock) as lines:
        for next_offset in (0, 100, 200, 250):
            lines.show(a_flow(a_partition(next_offset=next_offset, source_high_watermark=1_000)))
            clock.now += LINE_EVERY_SECONDS / 2

    written = stream.getvalue().splitlines()
    assert len(written) == 2
    assert "20 %, 200 of 1 000 offsets, 0 of 1 partitions complete" in written[0]
    assert "25 %, 250 of 1 000 offsets" in written[1]


def test_a_copy_does_not_end_because_its_progress_cannot_be_written() -> None:
    """
    Standard error leads to a full disk: neither a line nor the last one is worth the copy and its document.
    """
    clock = Clock()

    with Lines(FullDisk(), clock=clock) as lines:
        clock.now += LINE_EVERY_SECONDS
        lines.show(a_flow())
        lines.show(a_flow(a_partition(next_offset=999)))


def test_a_copy_that_saw_nothing_writes_nothing() -> None:
    """
    An error says what happened; a line about nothing would not help.
    """
    stream = io.StringIO()

    with Lines(stream, clock=Clock()):
        assert stream.getvalue() == ""

    assert stream.getvalue() == ""


@pytest.mark.parametrize(
    ("kind", "stream", "shown"),
    [("xterm", Terminal(), Bar), ("dumb", Terminal(), Lines), ("xterm", io.StringIO(), Lines)],
)
def test_a_terminal_gets_a_bar_and_a_file_gets_lines(
    monkeypatch: pytest.MonkeyPatch, kind: str, stream: io.StringIO, shown: type
) -> None:
    """
    What the stream is decides; a terminal that cannot move its cursor could not move a bar.
    """
    monkeypatch.setenv("TERM", kind)

    assert isinstance(reporter(stream), shown)


@pytest.mark.parametrize(
    ("seen", "share"),
    [
        ([a_partition()], 1.0),
        ([an_unknown_partition()], None),
        ([a_partition(goal_offset=1_500), an_unknown_partition()], None),
        ([a_partition(goal_offset=None, next_offset=1), a_partition(partition=1)], None),
        ([], None),
    ],
)
def test_where_nothing_is_left_to_copy_all_of_it_is_there(
    seen: list[PartitionStatus], share: float | None
) -> None:
    """
    A small copy may be over before it is looked at; what is not known is not over.
    """
    figures = Estimate(started_at=0.0).figures(replace(a_flow(), partitions=tuple(seen)), 1.0)

    assert figures.share == share


def test_the_bar_of_a_copy_that_was_over_at_once_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A bar that only wanders would say that it was not looked at yet.
    """
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    stream = Terminal()

    with Bar(stream, clock=Clock()) as bar:
        bar.show(a_flow(a_partition()))

    assert "100%" in stream.getvalue().rsplit("\x1b[2K", 1)[1]


def test_the_bar_shows_the_share_and_the_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    NO_COLOR takes the colours away and leaves the bar.
    """
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    clock, stream = Clock(), Terminal()

    with Bar(stream, clock=clock) as bar:
        bar.show(a_flow(a_partition(next_offset=0, goal_offset=100)))
        clock.now += 1
        bar.show(a_flow(a_partition(next_offset=50, goal_offset=100)))

    shown = stream.getvalue()
    assert "50%" in shown
    assert "0 of 1 partitions complete" in shown
    assert "\x1b[3" not in shown
