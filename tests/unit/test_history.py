"""Summaries that are not as a run has left them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mirror.cli.comparisons import show_history
from mirror.cli.noting import write_metrics
from mirror.errors import UsageError
from spark_jobs.algorithms import Algorithm
from spark_jobs.extent import Extent
from spark_jobs.history import last_to_continue, runs
from spark_jobs.result import begun, failure, summary
from spark_jobs.sampling import Sample, next_sample
from tests.unit.test_reconcile_result import BEGAN_MS, SAME_LOG, result

WHOLE = summary(result(SAME_LOG))
ASKED = Extent(sample=Sample(8, 3))


@pytest.mark.parametrize(
    "document",
    [
        WHOLE,
        failure("r2", "east", BEGAN_MS, ASKED, Algorithm.SHA256, "no broker answers", "start one", {}),
        begun("r3", "east", BEGAN_MS, ASKED, Algorithm.SHA256),
    ],
    ids=["result", "failure", "begun"],
)
def test_what_a_run_leaves_is_sound(document: dict[str, Any], tmp_path: Path) -> None:
    leave(tmp_path / "r1", json.dumps(document))

    (run,) = runs(tmp_path)

    assert run.summary == document


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "cannot be read"),
        ("\0" * 64, "cannot be read"),
        ("[]", "is not a summary"),
        (json.dumps(WHOLE | {"started_at": "soon"}), "is not a summary: see started_at"),
        (json.dumps(WHOLE | {"started_at": 5}), "is not a summary: see started_at"),
        (json.dumps(WHOLE | {"topics": 5, "sample": 7}), "is not a summary: see topics, sample"),
        (json.dumps(WHOLE | {"source": None}), "is not a summary: see source"),
        (
            json.dumps({"flow": "east", "outcome": "match", "started_at": "2026-01-01"}),
            "see source, differences",
        ),
        (json.dumps({"flow": "east", "outcome": "failed"}), "is not a summary: see started_at"),
    ],
    ids=[
        "empty",
        "zeros",
        "list",
        "no_time",
        "number_as_time",
        "two_fields",
        "no_source",
        "no_result",
        "no_start",
    ],
)
def test_a_damaged_summary_is_shown_and_counts_for_nothing(
    text: str, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    Metrics are written when the work is done: what is wrong with another run must not hide its result.
    """
    leave(tmp_path / "r1", json.dumps(WHOLE))
    leave(tmp_path / "r2", text)

    known = runs(tmp_path)
    show_history(tmp_path, "table")
    write_metrics(tmp_path / "told.prom", "east", tmp_path)

    assert {run.name: run.outcome for run in known} == {"r1": "match", "r2": "damaged"}
    continued = last_to_continue(known, "east")
    assert continued is not None
    assert continued.name == "r1"
    assert next_sample(8, known, "east") == Sample(8, 0)
    shown = capsys.readouterr().out
    assert "damaged" in shown
    assert why in shown
    assert 'outcome{flow="east",outcome="match"} 1' in (tmp_path / "told.prom").read_text()


def test_a_folder_that_is_not_there_is_no_history(tmp_path: Path) -> None:
    """
    An empty table would say that nothing was ever compared.
    """
    with pytest.raises(UsageError, match=f"{tmp_path}/typo: there is no such folder"):
        show_history(tmp_path / "typo", "table")


def leave(folder: Path, text: str) -> None:
    folder.mkdir()
    (folder / "summary.json").write_text(text)
