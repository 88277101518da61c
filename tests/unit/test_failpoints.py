"""Every failpoint is one at which a fault test kills somebody: none is added that nobody visits."""

from __future__ import annotations

import ast
import runpy
from collections.abc import Iterator
from pathlib import Path

import pytest

from mirror import failpoints
from mirror.failpoints import NAMES, OF_MIRROR, OF_RELAY, OF_REPAIR
from tests.faults import steps
from tests.faults.steps import step_of

ROOT = Path(__file__).parents[2]
PACKAGES = ("mirror", "checkpoint")


def reached() -> Iterator[str]:
    """The name in each call of ``reach`` in the code."""
    for package in PACKAGES:
        for file in (ROOT / package).rglob("*.py"):
            yield from _reached_in(ast.parse(file.read_text()))


def _reached_in(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "reach":
            name = node.args[0]
            if isinstance(name, ast.Constant) and isinstance(name.value, str):
                yield name.value


def test_failpoints_are_known_by_their_names_and_each_is_in_the_code() -> None:
    """
    One with another name could not be armed; one that is nowhere would be visited by no process.
    """
    assert set(reached()) == NAMES


def test_mirrors_are_killed_at_every_failpoint_of_theirs() -> None:
    """
    Whoever adds one adds a kill, or a word why there is none.
    """
    later = {steps.PARTITIONS_ADDED, steps.SETTINGS_CHANGED, steps.ACLS_ADDED}
    killed = {step_of(failpoint) for failpoint, _ in steps.OF_MIRRORS} | later

    assert killed == OF_MIRROR
    assert set(steps.OF_REPAIRS) == OF_REPAIR


def test_mirrors_are_killed_at_every_failpoint_of_theirs_that_they_reach_through_a_relay() -> None:
    """
    It is another way to read, with other steps before and behind.
    """
    killed = {step_of(failpoint) for failpoint, _ in steps.OF_RELAYED_MIRRORS} | {steps.PARTITIONS_ADDED}

    assert killed | set(steps.NOT_THROUGH_A_RELAY) == NAMES - OF_RELAY
    assert killed.isdisjoint(steps.NOT_THROUGH_A_RELAY)
    assert all(steps.NOT_THROUGH_A_RELAY.values())


def test_relays_are_killed_later_only_at_failpoints_of_theirs() -> None:
    """
    Each is visited; how late is said by name.
    """
    assert set(steps.LATER) <= OF_RELAY


@pytest.mark.parametrize("setting", [None, ""])
def test_without_the_variable_nothing_is_armed(setting: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    What every process runs at each step then is a function that does nothing at all.
    """
    if setting is None:
        monkeypatch.delenv("TWINSITE_FAILPOINTS", raising=False)
    else:
        monkeypatch.setenv("TWINSITE_FAILPOINTS", setting)

    loaded = runpy.run_path(str(failpoints.__file__))

    empty = compile("def reach(name):\n    return", "empty", "exec").co_consts[0]
    assert loaded["ARMED"] == ""
    assert loaded["reach"].__code__.co_code == empty.co_code
    assert loaded["reach"].__code__.co_names == ()


def test_with_it_only_what_it_names_is_armed(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A slip in a name would be a test that kills nobody.
    """
    monkeypatch.setenv("TWINSITE_FAILPOINTS", "produce_sent:3,claimed")
    loaded = runpy.run_path(str(failpoints.__file__))
    monkeypatch.setenv("TWINSITE_FAILPOINTS", "produce_snet")

    with pytest.raises(ValueError, match="no failpoint 'produce_snet'"):
        runpy.run_path(str(failpoints.__file__))

    assert loaded["ARMED"] == "produce_sent:3,claimed"
    loaded["reach"]("registered")
    loaded["reach"]("produce_sent")
