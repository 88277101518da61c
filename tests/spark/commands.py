"""``twinsite reconcile`` in this process, in the session that is there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Protocol

from mirror.cli import main as cli


def settings_file(path: Path, source: str, target: str, topics: str, flow: str = "proof") -> Path:
    """Settings of a flow, in a file."""
    document = {
        "flow": flow,
        "source": {"bootstrap_servers": source},
        "target": {"bootstrap_servers": target},
        "topics": {"include": [topics]},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document))
    return path


class Command(Protocol):
    """``twinsite reconcile ARGUMENTS...``; answers its exit code."""

    def __call__(self, *arguments: object) -> int: ...


def reconcile(*arguments: object) -> int:
    """The command, in the thread whose session it is to use: tests of commands have no event loop."""
    return cli.main(["reconcile", *map(str, arguments)])
