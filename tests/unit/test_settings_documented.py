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
from mirror.errors import UsageError

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


def row_of(section: str, name: str) -> list[str]:
    """The cells of a setting's row on the page that is in the repository."""
    text = PAGE.read_text().split(f"## `{section}`\n")[1].split("\n## ")[0]
    (row,) = re.findall(rf"^\| `{name}` \|.*\|$", text, re.MULTILINE)
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]]


def linked(**link: object) -> Settings:
    """A flow whose source is behind a relay, with some settings of the link."""
    target, topics = {"bootstrap_servers": "west:9092"}, {"include": [".*"]}
    return parse({"link": {"relays": ["east:9650"], **link}, "target": target, "topics": topics})


@pytest.mark.parametrize(
    ("name", "written", "taken", "refused"),
    [
        ("compression", "`auto`, or 1 to 19", ["auto", 1, 19], ["fast", "", 0, 20]),
        ("connections", "`auto`, or 1 to 64", ["auto", 1, 64], ["many", "", 0, 65]),
        ("relays", "a list, or text", [["east:9650"], "east:9650"], [{}, 7]),
        ("window_bytes", "256 KiB to 1 GiB", [1 << 18, "1 GiB"], ["auto", (1 << 18) - 1, "2 GiB"]),
    ],
)
def test_every_form_of_a_value_is_on_the_page(
    name: str, written: str, taken: list[object], refused: list[object]
) -> None:
    """
    A word beside numbers was all there was, as if any text would do.
    """
    assert row_of("link", name)[2] == written
    for value in taken:
        linked(**{name: value})
    for value in refused:
        with pytest.raises(UsageError, match=name):
            linked(**{name: value})


def test_a_login_at_a_relay_is_not_on_the_page() -> None:
    """
    None is taken there: a relay knows mirrors by their certificates.
    """
    [words] = re.findall(r"^## `link\.security`\n\n(.*)\n", PAGE.read_text(), re.MULTILINE)
    sasl = {"mechanism": "PLAIN", "username": "west", "password": "secret"}

    assert words.endswith(", without `sasl`: `protocol` is `PLAINTEXT` or `SSL`.")
    assert "link.security.sasl" not in PAGE.read_text()
    assert [linked(security={"protocol": taken}).link is not None for taken in ("PLAINTEXT", "SSL")]
    for protocol in ("SASL_PLAINTEXT", "SASL_SSL"):
        with pytest.raises(UsageError, match="by their certificates"):
            linked(security={"protocol": protocol, "sasl": sasl})


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
    relayed = parse({name: section for name, section in first.items() if name != "source"} | third)
    assert relayed.way_to_source.servers == ("relay-1.east:9650", "relay-2.east:9650")
    assert checked(RelaySettings, relay, where="relay", folder=None).listen.address == "0.0.0.0:9650"
    told_apart = checked(RelaySettings, relay | roles, where="relay", folder=None).listen
    assert {*(told_apart.identities or {}).values()} == {*told_apart.roles}
