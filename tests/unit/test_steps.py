"""What a job shows of its steps: a bar on a terminal, few lines in a log."""

from __future__ import annotations

import io

import pytest

from mirror.cli.output import console
from mirror.cli.steps import LINE_EVERY_SECONDS, Bar, Lines, Steps, steps


class Clock:
    """Stands still until moved."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def lines(shares: list[float], seconds: float) -> list[str]:
    """What is written of a step that is told so much, so many seconds apart."""
    clock, stream = Clock(), io.StringIO()
    with Lines(console(stream), clock=clock) as shown:
        shown.say("asking the source: digests")
        for share in shares:
            clock.now += seconds
            shown.tell(share)
    return stream.getvalue().splitlines()


def test_a_step_that_takes_its_time_has_a_line_for_each_quarter() -> None:
    """
    The log of a nightly job stays short.
    """
    percents = [number / 100 for number in range(101)]

    assert lines(percents, 60.0) == [
        "asking the source: digests",
        "asking the source: digests: 25 %, 78 min left",
        "asking the source: digests: 50 %, 51 min left",
        "asking the source: digests: 75 %, 25 min left",
    ]


def test_a_step_that_takes_no_time_has_one_line() -> None:
    assert lines([0.2, 0.5, 0.9, 1.0], LINE_EVERY_SECONDS / 5) == ["asking the source: digests"]


def test_what_goes_back_is_not_told_twice() -> None:
    """
    Spark learns of more tasks only when it gets to them.
    """
    assert len(lines([0.5, 0.4, 0.5, 0.6], 20.0)) == 2


def test_each_step_begins_anew() -> None:
    clock, stream = Clock(), io.StringIO()

    with Lines(console(stream), clock=clock) as shown:
        for words in ("one", "two"):
            shown.say(words)
            clock.now += 20
            shown.tell(0.5)

    assert stream.getvalue().splitlines() == ["one", "one: 50 %, 20 s left", "two", "two: 50 %, 20 s left"]


def test_the_bar_shows_the_step_and_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    What the step before had reached is gone with it, and so is the bar at the end.
    """
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    clock, stream = Clock(), Terminal()

    with Bar(console(stream), clock=clock) as shown:
        shown.say("asking the source: [digests]")
        clock.now += 30
        shown.tell(0.25)
        first = last_drawn(stream)
        shown.say("asking the target: [digests]")
        second = last_drawn(stream)

    assert "asking the source: [digests]" in first
    assert "25 %, 90 s left" in first
    assert "asking the target: [digests]" in second
    assert "%" not in second
    assert "asking" not in last_drawn(stream)


def last_drawn(stream: io.StringIO) -> str:
    return stream.getvalue().rsplit("\x1b[2K", 1)[1]


@pytest.mark.parametrize(
    ("kind", "stream", "shown"),
    [("xterm", Terminal(), Bar), ("dumb", Terminal(), Lines), ("xterm", io.StringIO(), Lines)],
)
def test_a_terminal_gets_a_bar_and_a_file_gets_lines(
    monkeypatch: pytest.MonkeyPatch, kind: str, stream: io.StringIO, shown: type[Steps]
) -> None:
    monkeypatch.setenv("TERM", kind)

    assert isinstance(steps(stream), shown)
