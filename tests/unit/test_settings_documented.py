"""docs/settings.md says of every setting what the settings themselves say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from mirror.cli.settings_page import page
from mirror.config import Settings, parse
from mirror.config_problems import checked, paths
from mirror.config_relay import RelaySettings

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"


def test_the_page_is_the_one_that_the_settings_make() -> None:
    """
    Who changes a setting runs ``twinsite config docs > docs/settings.md``.
    """
    assert PAGE.read_text() == page()


@pytest.mark.parametrize("path", [path for path in paths(Settings) if not path.startswith("target.")])
def test_no_setting_is_left_out(path: str) -> None:
    """
    A setting has a row, a section has a heading.
    """
    name = path.rsplit(".", 1)[-1]

    assert f"## `{path}`" in page() or f"| `{name}` |" in page()


def test_every_row_says_something_in_every_column() -> None:
    """
    A setting without words, default or values would be a row with an empty cell.
    """
    rows = [line for line in page().splitlines() if line.startswith("| `")]

    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]] for row in rows]

    assert len(rows) > 40
    assert all(len(row) == 4 and all(row) for row in cells)


def test_the_examples_are_accepted() -> None:
    """
    Who copies the first example gets a flow; the second one fits into it, the third stands for its source.
    """
    blocks = re.findall(r"```yaml\n(.*?)```", page(), re.DOTALL)
    first, second, third, relay, roles = (yaml.safe_load(text) for text in blocks)

    made = parse(first)

    assert made.topics.include == (r"orders\..*", "audit")
    assert parse(first | second).target.security.protocol == "SASL_SSL"
    linked = parse({name: section for name, section in first.items() if name != "source"} | third)
    assert linked.way_to_source.servers == ("relay-1.east:9650", "relay-2.east:9650")
    assert checked(RelaySettings, relay, where="relay", folder=None).listen.address == "0.0.0.0:9650"
    told_apart = checked(RelaySettings, relay | roles, where="relay", folder=None).listen
    assert {*(told_apart.identities or {}).values()} == {*told_apart.roles}
