"""Datagrams between two processes: also when none arrives."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.harness.jvm import REPOSITORY

SECONDS_MAX = 20.0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may have as much room for datagrams")
def test_receiving_ends_when_every_datagram_was_lost() -> None:
    taker = sys.executable, "-m", "tests.harness.datagrams", "take", "127.0.0.1"

    took = subprocess.run(
        taker, cwd=REPOSITORY, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, timeout=SECONDS_MAX
    )

    assert took.stdout.splitlines()[1] == b"[]"
