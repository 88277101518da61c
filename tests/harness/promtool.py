"""Prometheus' own checker of metrics and rules."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence

import pytest


def promtool(arguments: Sequence[str], text: bytes = b"") -> str:
    """Run ``promtool arguments...`` with ``text`` as its standard input; what it complains about.

    Skips the test where promtool is not installed, and says which package has it.

    Returns:
        Its output; nothing when all is well with metrics.

    Raises:
        AssertionError: It ended with a code; carries what it said.
    """
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("promtool is not installed (Debian: apt-get install prometheus)")
    done = subprocess.run([program, *arguments], input=text, capture_output=True, timeout=30, check=False)
    said = (done.stdout + done.stderr).decode()
    assert done.returncode == 0, said
    return said
