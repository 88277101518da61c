"""How much of a process is in memory, and how many files it has open: as the kernel counts."""

from __future__ import annotations

import os
from pathlib import Path

from tests.harness.process import Twinsite


def resident_bytes(process: Twinsite) -> int:
    """Of its memory what is in RAM."""
    lines = Path(f"/proc/{process.process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) << 10


def files_of(process: Twinsite) -> int:
    """How many files it has open."""
    return len(os.listdir(f"/proc/{process.process.pid}/fd"))
