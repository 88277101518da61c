"""Every failpoint is one at which a fault test kills somebody: none is added that nobody visits."""

from __future__ import annotations

import ast
import runpy
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from checkpoint import flow_state
from mirror import failpoints
from mirror.failpoints import NAMES, OF_MIRROR, OF_RELAY, OF_REPAIR, Write
from tests.faults import steps
from tests.faults.steps import step_of

ROOT = Path(__file__).parents[2]
PACKAGES = ("mirror", "checkpoint")


def modules() -> Iterator[ast.Module]:
    """The code, but for where failpoints have their names."""
    for package in PACKAGES:
        for file in (ROOT / package).rglob("*.py"):
            if file != ROOT / "mirror" / "failpoints.py":
                yield ast.parse(file.read_text())


def reached() -> Iterator[str]:
    """The name in each call of ``reach`` in the code, but for that behind all writes to the state."""
    for node in (node for tree in modules() for node in ast.walk(tree)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "reach":
            name = node.args[0]
            if isinstance(name, ast.Constant) and isinstance(name.value, str):
                yield name.value


def written() -> Iterator[Write]:
    """The kind of each write to the state in the code."""
    for node in (node for tree in modules() for node in ast.walk(tree)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "Write":
            yield Write[node.attr]


def test_failpoints_are_known_by_their_names_and_each_is_in_the_code() -> None:
    """
    One with another name could not be armed; one that is nowhere would be visited by no process.
    """
    assert set(reached()) | set(written()) == NAMES


def test_each_kind_of_write_to_the_state_is_one_write() -> None:
    """
    Two writes of one name would be one failpoint, and a kill at the first would hide the second.
    """
    assert Counter(written()) == Counter(Write)
    assert set(Write).isdisjoint(reached())


def test_no_write_to_the_state_goes_past_its_failpoint() -> None:
    """
    All of them go through one function, which asks what they are for.
    """
    tree = ast.parse(Path(flow_state.__file__).read_text())
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.AsyncFunctionDef)]
    putting = [one for one in functions if "self._store.put(" in ast.unparse(one)]

    assert [one.name for one in putting] == ["_put"]
    assert ast.unparse(putting[0]).endswith("await self._store.put(items)\n    reach(write)")


def test_mirrors_are_killed_at_every_failpoint_of_theirs() -> None:
    """
    Whoever adds one adds a kill, or a word why there is none.
    """
    killed = {step_of(failpoint) for failpoint, _ in steps.OF_MIRRORS} | steps.LATER_OF_MIRRORS

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
