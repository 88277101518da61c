"""Signals that end a mirror: the first asks it to end, the second ends the process.

The second one works whatever the process is busy with. An event loop would see it only in its next turn, and
while a pattern takes for ever on the name of a topic there is no next turn.

A hangup ends what has a terminal, as it would anyway, and nothing that was started to ignore it, as by nohup.
Sent to a service it asks for settings to be read again: that is not done, and the log says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn, Self

import structlog

SIGNALS = (signal.SIGTERM, signal.SIGINT)
TERMINAL = "/dev/tty"
"""The controlling terminal; only a process that has one can open it."""
CURSOR_SHOWN = b"\x1b[?25h\n"

log = structlog.get_logger(__name__)


class Signals:
    """Takes signals while it is entered, in the main thread; afterwards the former handlers are back."""

    def __init__(self) -> None:
        self._stop = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._first: signal.Signals | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        self._before = {one: signal.signal(one, self._on_signal) for one in SIGNALS}
        if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL and not _has_terminal():
            self._before[signal.SIGHUP] = signal.signal(signal.SIGHUP, self._on_hangup)
        return self

    def __exit__(self, *_: object) -> None:
        for one, handler in self._before.items():
            signal.signal(one, handler or signal.SIG_DFL)

    def stop_of(self, loop: asyncio.AbstractEventLoop) -> asyncio.Event:
        """The event that the first signal sets, in this loop, even one that has come already."""
        self._loop = loop
        self._pass_on()
        return self._stop

    def _on_signal(self, number: int, _frame: object) -> None:
        if self._first is not None:
            _end(signal.Signals(number))
        self._first = signal.Signals(number)
        self._pass_on()

    def _on_hangup(self, _number: int, _frame: object) -> None:
        self._in_the_loop(_read_nothing_again)

    def _pass_on(self) -> None:
        if self._first is not None:
            self._in_the_loop(partial(self._tell, self._first))

    def _in_the_loop(self, call: Callable[[], None]) -> None:
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the mirror has ended
                self._loop.call_soon_threadsafe(call)

    def _tell(self, received: signal.Signals) -> None:
        log.info("stopping", signal=received.name)
        self._stop.set()


def _has_terminal() -> bool:
    """Whether a window that is closed hangs up this process, wherever its output goes."""
    try:
        os.close(os.open(TERMINAL, os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True


def _read_nothing_again() -> None:
    log.warning(
        "settings_not_read_again",
        message="restart to use other settings; certificates and secrets in files are reread anyway",
    )


def _end(received: signal.Signals) -> NoReturn:
    """End at once, and put nothing in order except the cursor: a bar on the terminal has hidden it."""
    with contextlib.suppress(OSError, ValueError):
        if sys.stderr.isatty():
            os.write(sys.stderr.fileno(), CURSOR_SHOWN)
    os._exit(128 + received)
