"""What a job is doing, and how far it is: a bar on a terminal, a few plain lines per step elsewhere.

Everything goes to standard error. NO_COLOR turns colours off.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from mirror.cli.output import can_redraw, console, duration

LINE_EVERY_SECONDS = 10.0
LINE_EVERY_SHARE = 0.25
"""So a step has few lines however long it takes, and none if it is quick."""


class Steps(Protocol):
    """Shows steps while it is entered."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def say(self, words: str) -> None:
        """A step begins; the one before is over."""

    def tell(self, share: float) -> None:
        """This share of the step is done, from 0 to 1; may be called from any thread."""


class Bar:
    """A bar that moves, and is gone at the end."""

    def __init__(self, screen: Console, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = clock()
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[far]}", markup=False),
            console=screen,
            transient=True,
            redirect_stdout=False,
        )
        self._task = self._progress.add_task("", total=None, far="")

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def say(self, words: str) -> None:
        """Start the bar again; until :meth:`tell` is called it shows no share."""
        self._began = self._clock()
        self._progress.remove_task(self._task)
        self._task = self._progress.add_task(words, total=None, far="")
        self._progress.refresh()

    def tell(self, share: float) -> None:
        """Move the bar."""
        far = _far(share, self._clock() - self._began)
        self._progress.update(self._task, completed=share, total=1.0, far=far, refresh=True)


class Lines:
    """A line for each step, and one for each quarter of it that takes a while."""

    def __init__(self, screen: Console, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._screen = screen
        self._clock = clock
        self._words, self._began = "", clock()
        self._due_share, self._due_at = LINE_EVERY_SHARE, self._began + LINE_EVERY_SECONDS

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def say(self, words: str) -> None:
        """Write which step begins."""
        self._words, self._began = words, self._clock()
        self._due_share, self._due_at = LINE_EVERY_SHARE, self._began + LINE_EVERY_SECONDS
        self._screen.print(words)

    def tell(self, share: float) -> None:
        """Write a line when one is due; not at the end of a step, which the next one shows."""
        now = self._clock()
        if self._due_share <= share < 1.0 and now >= self._due_at:
            self._due_share = (share // LINE_EVERY_SHARE + 1) * LINE_EVERY_SHARE
            self._due_at = now + LINE_EVERY_SECONDS
            self._screen.print(f"{self._words}: {_far(share, now - self._began)}")


def _far(share: float, seconds: float) -> str:
    """``43 %, 5 min left``."""
    done = f"{math.floor(100 * share)} %"
    return f"{done}, {duration(seconds * (1 - share) / share)} left" if share else done


def steps(stream: TextIO) -> Steps:
    """A bar if the stream can redraw it, else lines."""
    screen = console(stream)
    return Bar(screen) if can_redraw(screen) else Lines(screen)
