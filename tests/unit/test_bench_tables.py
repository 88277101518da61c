"""What benches show and save: medians, every contestant on a line, and figures of before can be read."""

from __future__ import annotations

import io
import json
from dataclasses import asdict

import pytest
from rich.console import Console
from rich.table import Table

from bench import copying, standing
from bench.contestants import CONTESTANTS, DEFAULT, OURS, TUNED
from bench.copying import Case
from bench.measuring import Run
from bench.run import WIDTH
from bench.standing import Latency, Standing

FAST, SLOW = (
    Run(1382.4, 12.8, 10.8, 117.0, 11.6, 1444.2, 10.7),
    Run(31.2, 153.4, 107.1, 12937.2, 15.0, 29.3, 141.7),
)
ROUNDS = [Latency(2.0, 9.0, 30.0, 1500), Latency(4.0, 60.0, 20.0, 1500), Latency(3.0, 10.0, 40.0, 1500)]
FOUND = Standing(
    {OURS: ROUNDS, DEFAULT: ROUNDS, TUNED: ROUNDS}, [1.0, 9.0, 2.0], [110.0, 118.5, 112.4], 121.0
)


def printed(table: Table) -> list[str]:
    """Its lines, as wide as the bench prints them."""
    page = io.StringIO()
    Console(width=WIDTH, file=page).print(table)
    return page.getvalue().splitlines()


def test_every_contestant_has_a_line_with_all_its_figures() -> None:
    """
    However large they are.
    """
    case = Case(100, "lz4", 64, 1000, old=True)
    runs = {name: [FAST if name == OURS else SLOW] * 3 for name in CONTESTANTS}

    lines = printed(copying.table(f"{case}", runs))

    rows = {
        cells[0]: cells[1:]
        for line in lines
        if len(cells := [cell.strip() for cell in line.split("│")[1:-1]]) > 1
    }
    assert list(rows) == list(CONTESTANTS)
    assert rows[DEFAULT] == [
        "31", "153.4", "15.0", "107.1", "12,937", "44.31", "12.0", "110.6", "29", "141.7", "49.29", "13.2",
    ]  # fmt: skip


def test_what_stands_is_judged_by_medians() -> None:
    """
    One round that was disturbed is none of them.
    """
    latency, idle, *_ = standing.judged(FOUND)

    assert (latency.found, idle.found) == (10.0, 2.0)


def test_what_stands_is_shown_by_medians_and_memory_all_the_way() -> None:
    """
    Each figure has its own median.
    """
    page = "\n".join(printed(standing.table(FOUND)))

    assert "medians of 3" in page
    assert page.count("3.0 / 10.0 / 30.0 ms") == 3
    assert "2.00 % of a core" in page
    assert "110 118 112 MB, peak 121" in page


@pytest.mark.parametrize("rounds", [1, 3])
def test_what_stands_is_read_as_it_was_saved(rounds: int) -> None:
    """
    Also what was saved when there was one round.
    """
    saved = json.loads(json.dumps(asdict(FOUND)))
    if rounds == 1:
        saved["latency"] = {name: of[0] for name, of in saved["latency"].items()}
        saved["idle_core_percent"] = saved["idle_core_percent"][0]

    found = standing.from_json(saved)

    assert found.latency == dict.fromkeys((OURS, DEFAULT, TUNED), ROUNDS[:rounds])
    assert found.idle_core_percent == [1.0, 9.0, 2.0][:rounds]
    assert (found.resident_megabytes, found.peak_megabytes) == ([110.0, 118.5, 112.4], 121.0)


def test_each_round_begins_with_another_contestant() -> None:
    """
    Who comes first is slower.
    """
    orders = [copying.rotated(["a", "b", "c"], turn) for turn in range(4)]

    assert orders == [["a", "b", "c"], ["b", "c", "a"], ["c", "a", "b"], ["a", "b", "c"]]
