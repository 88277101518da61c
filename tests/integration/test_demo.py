"""``make demo``, with less data: it comes to its end, and leaves nothing behind when it is stopped."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.harness.jvm import REPOSITORY

pytestmark = pytest.mark.timeout(240)

SMALL = ("--packages", "12000", "--mbit-per-second", "10", "--no-link", "--no-proof")
"""Without the link that root may have: relays that keep to a rate are what everybody else gets."""
DEMO = (sys.executable, "-m", "bench.demo", *SMALL)


@contextmanager
def started(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A running demo; killed at the end of the block if it still runs.

    Args:
        folder: Where its files go.
    """
    environment = {**os.environ, "TMPDIR": str(folder)}
    with subprocess.Popen(DEMO, cwd=REPOSITORY, env=environment, stdout=subprocess.PIPE, text=True) as demo:
        try:
            yield demo
        finally:
            demo.kill()


def processes_of(folder: Path) -> list[str]:
    """Command lines that name a folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return [command for command in found if str(folder) in command]


def test_a_small_demo_comes_to_its_end(tmp_path: Path) -> None:
    """
    A relay and the mirror are killed on the way, and the copy is exact.
    """
    with started(tmp_path) as demo:
        said, _ = demo.communicate(timeout=200)

    assert demo.returncode == 0, said
    assert "with relays that keep to 10 Mbit/s" in said.replace("\n", " ")
    assert "killing the relay in use" in said
    assert "killing the mirror" in said
    assert "the copy is exact" in said
    assert list(tmp_path.iterdir()) == []


def test_a_demo_that_is_stopped_leaves_nothing_behind(tmp_path: Path) -> None:
    """
    Not even while one of its threads waits for a broker, which is gone first.
    """
    with started(tmp_path) as demo:
        assert demo.stdout is not None
        before = next((line for line in demo.stdout if line.startswith("loading")), "it has ended")
        ran = processes_of(tmp_path)
        demo.terminate()
        said = demo.stdout.read()
        demo.wait(20)

    assert before.startswith("loading")
    assert len(ran) == 2, "both brokers"
    assert "\nstopped; " in said
    assert demo.returncode == 143
    assert processes_of(tmp_path) == []
    assert list(tmp_path.iterdir()) == []
