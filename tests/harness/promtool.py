"""Prometheus' own checker of metrics and rules."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence


def promtool(arguments: Sequence[str], text: bytes = b"") -> str:
    """Run ``promtool arguments...`` with ``text`` as its standard input.

    Returns:
        Its output; empty if it has checked metrics and all is well.

    Raises:
        AssertionError: It ended with a code other than 0; carries its output.
        FileNotFoundError: It is not installed; scripts/bootstrap does that.
    """
    done = subprocess.run(["promtool", *arguments], input=text, capture_output=True, timeout=30, check=False)
    said = (done.stdout + done.stderr).decode()
    assert done.returncode == 0, said
    return said
