"""A command as somebody at a terminal sees it: a pseudo terminal with a window of a given size.

::

    with on_terminal("status", "--watch", lines=24, columns=80) as seen:
        seen.wait_for(lambda shown: "ACTIVE" in shown, "the table is there")
        seen.resize(12, 80)
"""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from tests.harness.daemon import NotReadyError
from tests.harness.jvm import REPOSITORY, dying_with_us
from tests.harness.process import COMMAND, WAIT_SECONDS

_OTHERS = ("TWINSITE_", "NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES")
"""Environment variables that would change what is seen."""


class OnTerminal:
    """One process at a terminal; made by :func:`on_terminal`.

    Attributes:
        shown: All it has written so far, control characters included.
    """

    def __init__(self, process: subprocess.Popen[bytes], terminal: int) -> None:
        self.process = process
        self.shown = ""
        self._terminal = terminal

    def resize(self, lines: int, columns: int) -> None:
        """Make the window larger or smaller."""
        set_size(self._terminal, lines, columns)

    def wait_for(self, condition: Callable[[str], bool], what: str, seconds: float = WAIT_SECONDS) -> None:
        """Read until a condition holds for all that was written.

        Raises:
            NotReadyError: It did not in time, or the process ended first; carries what was written last.
        """
        ends_at = time.monotonic() + seconds
        while not condition(self.shown):
            if not self._read(ends_at - time.monotonic()):
                raise NotReadyError(f"{what}: not seen\n{self.shown[-4000:]}")

    def finished(self, seconds: float = WAIT_SECONDS) -> int:
        """Read to the end; returns the exit code.

        Raises:
            NotReadyError: It still runs after that time.
        """
        ends_at = time.monotonic() + seconds
        while self._read(ends_at - time.monotonic()):
            pass
        try:
            return self.process.wait(max(0.0, ends_at - time.monotonic()))
        except subprocess.TimeoutExpired as late:
            raise NotReadyError(f"it still runs\n{self.shown[-4000:]}") from late

    def _read(self, seconds: float) -> bool:
        """False when there is nothing more, or nothing in time."""
        ready, _, _ = select.select([self._terminal], [], [], max(0.0, seconds))
        if not ready:
            return False
        try:
            data = os.read(self._terminal, 1 << 16)
        except OSError:  # EIO: the last process at this terminal has ended
            return False
        self.shown += data.decode(errors="replace")
        return True


@contextmanager
def on_terminal(
    *args: str,
    lines: int,
    columns: int,
    kind: str = "xterm-256color",
    command: Sequence[str] = COMMAND,
) -> Iterator[OnTerminal]:
    """Start ``twinsite args...`` at a terminal and kill it at the end of the block if it still runs.

    Args:
        command: What is started in place of twinsite.
    """
    ours, theirs = pty.openpty()
    set_size(ours, lines, columns)
    environment = {key: value for key, value in os.environ.items() if not key.startswith(_OTHERS)}
    try:
        process = subprocess.Popen(
            dying_with_us((*command, *args)),
            cwd=REPOSITORY,
            env=environment | {"TERM": kind},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
        )
    finally:
        os.close(theirs)
    try:
        yield OnTerminal(process, ours)
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def set_size(terminal: int, lines: int, columns: int) -> None:
    """Set the size of a window, as a terminal emulator does when it is drawn."""
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
