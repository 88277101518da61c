"""The file of metrics that a comparison leaves."""

from __future__ import annotations

import re
from dataclasses import replace

from monitoring import catalogue
from monitoring.comparisons import Comparison, textfile
from tests.harness.promtool import promtool

OUTCOMES = ["match", "mismatch", "failed"]
DONE = Comparison(
    flow="east",
    began_at=1_700_000_000.0,
    outcome="mismatch",
    mismatches={"missing": 2, "extra": 0},
    uncompared={"pending": 7, "lost": 0},
    records=10,
    bytes=1000,
    seconds=3.5,
)


def series(text: bytes) -> dict[str, float]:
    found = re.findall(r"^(twinsite_\w+(?:\{.*\})?) (\S+)$", text.decode(), re.M)
    return {name.replace("twinsite_reconcile_", ""): float(value) for name, value in found}


def test_a_comparison_that_was_completed_says_what_it_found() -> None:
    assert series(textfile(DONE, 1_600_000_000.0, OUTCOMES)) == {
        'last_success_timestamp_seconds{flow="east"}': 1_600_000_000.0,
        'last_run_timestamp_seconds{flow="east"}': 1_700_000_000.0,
        'outcome{flow="east",outcome="match"}': 0,
        'outcome{flow="east",outcome="mismatch"}': 1,
        'outcome{flow="east",outcome="failed"}': 0,
        'mismatches{flow="east",kind="missing"}': 2,
        'mismatches{flow="east",kind="extra"}': 0,
        'uncompared_offsets{flow="east",why="pending"}': 7,
        'uncompared_offsets{flow="east",why="lost"}': 0,
        'compared_records{flow="east"}': 10,
        'compared_bytes{flow="east"}': 1000,
        'duration_seconds{flow="east"}': 3.5,
    }


def test_of_a_comparison_that_was_not_completed_nothing_reads_zero() -> None:
    failed = Comparison(flow="east", began_at=1.0, outcome="failed")

    names = series(textfile(failed, None, OUTCOMES))

    assert not [name for name in names if not name.startswith(("last_run", "outcome"))]


def test_promtool_finds_nothing_to_complain_about() -> None:
    text = textfile(replace(DONE, outcome="match"), 1.0, OUTCOMES)

    assert promtool(["check", "metrics"], text) == ""
    assert {metric.name for metric in catalogue.RECONCILE_METRICS} <= set(re.findall(r"\w+", text.decode()))
