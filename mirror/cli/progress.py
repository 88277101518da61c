"""How far a copy with ``--once`` has come: a bar on a terminal, a plain line now and then elsewhere.

Everything goes to standard error. NO_COLOR turns colours off.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol, Self, TextIO

from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from mirror.cli.output import can_redraw, console, duration, number, size
from mirror.model import FlowStatus, PartitionStatus, TopicPartition

LINE_EVERY_SECONDS = 5.0
REFRESHES_PER_SECOND = 4


@dataclass(frozen=True, slots=True)
class Figures:
    """Where the copy stands. Offsets, not records: gaps count too."""

    done: int
    total: int
    partitions_there: int
    partitions_known: int
    partitions: int
    bytes: int
    bytes_per_second: float
    seconds: float

    @property
    def share(self) -> float | None:
        """From 0 to 1; None until it is known for every partition what there is to copy."""
        if not self.partitions_known == self.partitions > 0:
            return None
        return self.done / self.total if self.total else 1.0


@dataclass(slots=True)
class Estimate:
    """Compares where each partition is with where this run began to copy it."""

    started_at: float
    _from: dict[TopicPartition, int] = field(default_factory=dict)

    def figures(self, status: FlowStatus, now: float) -> Figures:
        """Take in a snapshot.

        Args:
            now: On the clock of ``started_at``.
        """
        done = total = there = known = 0
        for one in status.partitions:
            if one.next_offset is None or one.goal_offset is None:
                continue
            start = self._from.setdefault(TopicPartition(one.topic, one.partition), _begun(one))
            end = max(one.goal_offset, start)
            reached = min(max(one.next_offset, start), end)
            done, total, there = done + reached - start, total + end - start, there + (reached == end)
            known += 1
        seconds = now - self.started_at
        copied = sum(one.bytes for one in status.partitions)
        rate = copied / seconds if seconds > 0 else 0.0
        return Figures(done, total, there, known, len(status.partitions), copied, rate, seconds)


def _begun(one: PartitionStatus) -> int:
    """Where this run began: the position when first seen, less what was copied or passed over until then.

    What was copied twice, for example after the target lost its end, counts twice; so 0 is the least.
    """
    return max((one.next_offset or 0) - one.records - one.gap_offsets, 0)


class Reporter(Protocol):
    """Shows snapshots while it is entered."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def show(self, status: FlowStatus) -> None:
        """Called a few times a second."""


class Bar:
    """A bar that moves. What is logged meanwhile through ``sys.stderr`` appears above it."""

    def __init__(self, stream: TextIO, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._estimate = Estimate(clock())
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[figures]}"),
            TimeRemainingColumn(compact=True),
            console=console(stream),
            redirect_stdout=False,
            refresh_per_second=REFRESHES_PER_SECOND,
        )
        self._task = self._progress.add_task("starting", total=None, figures="")

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def show(self, status: FlowStatus) -> None:
        """Move the bar."""
        figures = self._estimate.figures(status, self._clock())
        self._progress.update(
            self._task,
            description="copying",
            completed=figures.share or 0.0,
            total=None if figures.share is None else 1.0,
            figures=f"{_partitions(figures)}  {size(figures.bytes_per_second)}/s",
        )


class Lines:
    """A line every few seconds, and one at the end. If lines cannot be written the copy goes on without."""

    def __init__(self, stream: TextIO, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._estimate = Estimate(clock())
        self._due_at = clock() + LINE_EVERY_SECONDS
        self._last: Figures | None = None
        self._written: Figures | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._last is not None and self._last is not self._written:
            self._write(self._last)

    def show(self, status: FlowStatus) -> None:
        """Write a line when one is due."""
        now = self._clock()
        self._last = self._estimate.figures(status, now)
        if now >= self._due_at:
            self._due_at = now + LINE_EVERY_SECONDS
            self._write(self._last)

    def _write(self, figures: Figures) -> None:
        self._written = figures
        share = "?" if figures.share is None else f"{math.floor(100 * figures.share)}"
        offsets = f"{number(figures.done)} of {number(figures.total)} offsets"
        amounts = f"{size(figures.bytes)}, {size(figures.bytes_per_second)}/s"
        line = f"{duration(figures.seconds)}: {share} %, {offsets}, {_partitions(figures)}, {amounts}\n"
        with contextlib.suppress(OSError):
            self._stream.write(line)
            self._stream.flush()


def _partitions(figures: Figures) -> str:
    return f"{number(figures.partitions_there)} of {number(figures.partitions)} partitions complete"


def reporter(stream: TextIO) -> Reporter:
    """A bar if the stream can redraw it, else lines."""
    return Bar(stream) if can_redraw(console(stream)) else Lines(stream)
