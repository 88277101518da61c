"""docs/commands.md names what there is: commands, exit codes, and the fields of the document of a copy."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from mirror.cli.config import config
from mirror.cli.main import COMMANDS
from mirror.cli.render import Totals, copy_document
from mirror.errors import ExitCode
from tests.unit.statuses import a_flow

PAGE = (Path(__file__).parents[2] / "docs" / "commands.md").read_text()


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_a_row(command: str) -> None:
    """
    A command that nobody can find does not exist.
    """
    assert re.search(rf"^\| `twinsite {command}\b", PAGE, re.MULTILINE)


def test_every_way_to_look_at_settings_is_named() -> None:
    """
    The row of ``twinsite config`` has all of its commands.
    """
    [row] = [line for line in PAGE.splitlines() if line.startswith("| `twinsite config` |")]

    assert {name for name in config.commands if f"`{name}`" in row} == {*config.commands}


@pytest.mark.parametrize("code", ExitCode)
def test_every_exit_code_has_a_row(code: ExitCode) -> None:
    """
    Scripts are written after this table.
    """
    assert f"\n| {code.value} | " in PAGE


def test_the_document_of_a_copy_has_the_fields_that_are_shown() -> None:
    """
    Names and nesting are those of the program, in its order.
    """
    [shown] = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)

    made = copy_document(a_flow(), Totals(1.0, 1.0, 1))

    assert _names(json.loads(shown)) == _names(made)


def _names(value: Any) -> Any:
    if isinstance(value, dict):
        return [(name, _names(held)) for name, held in value.items()]
    return [_names(held) for held in value] if isinstance(value, list) else None
