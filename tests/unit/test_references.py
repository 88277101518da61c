"""What docstrings refer to is there: modules move, and who follows a reference wants to arrive."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("bench", "checkpoint", "mirror", "monitoring", "spark_jobs", "tests")
REFERENCE = re.compile(rf":(?:attr|class|data|func|meth|mod):`((?:{'|'.join(PACKAGES)})\.[\w.]+)`")


def leads_nowhere(reference: str) -> bool:
    """Whether no module, or nothing in it, has this name."""
    names = reference.split(".")
    for count in range(len(names), 0, -1):
        try:
            found: object = importlib.import_module(".".join(names[:count]))
        except ModuleNotFoundError:
            continue
        for name in names[count:]:
            found = getattr(found, name, None)
        return found is None
    return True


def test_every_reference_arrives() -> None:
    """
    Modules, classes, functions and what belongs to them.
    """
    files = [file for package in PACKAGES for file in (ROOT / package).rglob("*.py")]
    found = {
        (str(file.relative_to(ROOT)), name) for file in files for name in REFERENCE.findall(file.read_text())
    }

    assert ("mirror/relay/joined.py", "mirror.relay.sending.Sender.add") in found
    assert [(file, name) for file, name in sorted(found) if leads_nowhere(name)] == []
