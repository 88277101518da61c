"""``status --watch`` on a real terminal: one screen that is drawn again, and a terminal left as it was."""

from __future__ import annotations

import signal

import pytest

from mirror.api.schema import status_to_json
from tests.harness.terminal import on_terminal
from tests.unit.fake_mirror import serving
from tests.unit.statuses import a_flow, a_loss, a_partition

HOME, OTHER_SCREEN, FIRST_SCREEN, CURSOR = "\x1b[H", "\x1b[?1049h", "\x1b[?1049l", "\x1b[?25h"


def frames(shown: str) -> list[str]:
    """What was drawn, each time from the upper left corner; all but the last are complete."""
    return shown.split(HOME)[2:]


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
def test_watching_draws_one_screen_again_and_again(end: signal.Signals) -> None:
    """
    A hundred partitions do not scroll a window of 24 lines, nor one that is made lower meanwhile.
    """
    healthy = [a_partition("orders", number) for number in range(100)]

    with serving() as mirror:
        mirror.answers["/status"] = (200, status_to_json(a_flow(*healthy, a_loss("audit"))))
        command = ("status", "--watch", "--every", "0.1", "--url", mirror.url)
        with on_terminal(*command, lines=24, columns=80) as seen:
            seen.wait_for(lambda shown: len(frames(shown)) > 3, "it is drawn again")
            first = frames(seen.shown)[:-1]
            seen.resize(12, 80)
            seen.wait_for(lambda shown: frames(shown)[-2].count("\n") == 11, "it is drawn for the window")
            seen.process.send_signal(end)
            code = seen.finished()

    assert OTHER_SCREEN in seen.shown
    for frame in first:
        assert frame.count("\n") == 23
        assert frame.index("audit-2") < frame.index("orders-0")
        assert "other partitions (they do not fit the screen)" in frame
    assert code == 128 + end
    assert seen.shown.rstrip().endswith(FIRST_SCREEN)
    assert CURSOR in seen.shown


def test_a_terminal_that_cannot_move_its_cursor_gets_one_table_after_the_other() -> None:
    """
    An editor's shell, say: there everything that is written stays.
    """
    with serving() as mirror:
        mirror.answers["/status"] = (200, status_to_json(a_flow()))
        command = ("status", "--watch", "--every", "0.1", "--url", mirror.url)
        with on_terminal(*command, lines=24, columns=80, kind="dumb") as seen:
            seen.wait_for(lambda shown: shown.count("orders-0") > 2, "it is written again")

    assert "\x1b" not in seen.shown
