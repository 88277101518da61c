"""Every event that is logged is explained on its page, and no other."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("mirror", "checkpoint", "monitoring")
LOGGERS = ("log.", "self._log.")
SAYING = {"warn_repeated", "log_retry", "self._warn_of"}
"""Functions that log an event given to them by name."""


def events_of(source: str) -> Iterator[str]:
    """The events a module logs: the last text among the arguments that have no name, or what a line is called
    that somebody else has written.
    """
    for node in [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Assign)]:
        if any(ast.unparse(target).endswith("['event']") for target in node.targets):
            yield ast.literal_eval(node.value)
    for call in [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]:
        says = ast.unparse(call.func)
        texts = [arg.value for arg in call.args if isinstance(arg, ast.Constant)]
        names = [text for text in texts if isinstance(text, str)]
        if (says.startswith(LOGGERS) or says in SAYING) and names:
            yield names[-1]


def test_the_page_has_every_event_and_no_other() -> None:
    """
    An operator looks an event up by its name; one that is gone would only mislead.
    """
    sources = [path.read_text() for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    logged = {event for source in sources for event in events_of(source)}

    rows = re.findall(r"^\| (`.*?`) \|", (ROOT / "docs" / "logs.md").read_text(), flags=re.M)
    explained = {event for row in rows for event in re.findall(r"`(\w+)`", row)}

    assert "partition_state_changed" in logged
    assert logged == explained
