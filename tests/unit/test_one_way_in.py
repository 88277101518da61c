"""What a mirror can do it can through a relay: a test that runs one way in only says why."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.one_way_in import MODULES, TESTS

ROOT = Path(__file__).parents[1]
FOLDERS = ("faults", "integration")
OF_A_RELAY = re.compile(r"relay|through|wan$", re.IGNORECASE)
"""What is called so puts a relay before a source, or is the link before one."""
ALL = "*"
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def direct_modules() -> Iterator[tuple[str, dict[str, Definition]]]:
    """Name and definitions of each module with tests, but for those that are about relays."""
    for folder in FOLDERS:
        for file in sorted((ROOT / folder).glob("test_*.py")):
            if not file.name.startswith("test_relay_") and not file.name.endswith("_relayed.py"):
                body = ast.parse(file.read_text()).body
                yield f"{folder}/{file.name}", {one.name: one for one in body if isinstance(one, Definition)}


def run_again() -> Iterator[tuple[str, str]]:
    """Module and name of each test that another module runs through a relay; ``ALL`` for all of it."""
    for folder in FOLDERS:
        for file in (ROOT / folder).glob("test_*_relayed.py"):
            for node in ast.parse(file.read_text()).body:
                if isinstance(node, ast.ImportFrom) and node.module:
                    module = node.module.removeprefix("tests.").replace(".", "/") + ".py"
                    yield from ((module, one.name) for one in node.names)


def has_a_relay(test: str, defined: dict[str, Definition]) -> bool:
    """Whether a test uses one, or a fixture or another part of its module does that it uses."""
    seen, to_see = {test}, [test]
    while to_see:
        for node in ast.walk(defined[to_see.pop()]):
            name = node.id if isinstance(node, ast.Name) else node.arg if isinstance(node, ast.arg) else ""
            if OF_A_RELAY.search(name):
                return True
            if name in defined and name not in seen:
                seen.add(name)
                to_see.append(name)
    return False


def test_whoever_adds_a_test_of_mirrors_runs_it_through_a_relay_or_says_why_not() -> None:
    """
    In a module that ends with ``_relayed``, or by a word in tests/one_way_in.py; there none is left of what
    is gone, or runs both ways in by now.
    """
    again = set(run_again())
    one_way = {
        module: [
            name
            for name in sorted(defined)
            if name.startswith("test_")
            and again.isdisjoint({(module, ALL), (module, name)})
            and not has_a_relay(name, defined)
        ]
        for module, defined in direct_modules()
    }
    of_tests = {module: names for module, names in one_way.items() if names and module not in MODULES}

    assert of_tests == {module: sorted(reasons) for module, reasons in TESTS.items()}
    assert [module for module in MODULES if not one_way.get(module)] == []


def test_a_reason_is_a_sentence() -> None:
    """
    None is left empty.
    """
    assert min(map(len, MODULES.values())) > 20
    assert min(len(why) for reasons in TESTS.values() for why in reasons.values()) > 20
