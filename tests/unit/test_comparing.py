"""Which of the runs before are those that a comparison goes on behind, and of which metrics speak."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from mirror.cli.comparing import wanted_of, write_metrics
from mirror.config import parse
from spark_jobs.algorithms import Algorithm
from spark_jobs.extent import Extent, extent_to_document
from spark_jobs.sampling import Sample

SETTINGS = parse(
    {
        "flow": "east",
        "source": {"bootstrap_servers": "a:1"},
        "target": {"bootstrap_servers": "b:1"},
        "topics": {"include": ["orders"]},
    }
)
OPTIONS: dict[str, Any] = {
    "digest": Algorithm.XXHASH64,
    "topic": (),
    "from_offset": None,
    "to_offset": None,
    "since": None,
    "until": None,
    "same_offsets": False,
    "url": None,
}


def note(folder: Path, extent: Extent, outcome: str = "match") -> None:
    """A run behind those that are there."""
    at = len(list(folder.iterdir()))
    document = extent_to_document(extent) | {
        "flow": "east",
        "outcome": outcome,
        "started_at": f"2026-01-01T00:00:0{at}.000Z",
        "digest": "xxhash64",
        "source": {"records": 100 + at, "bytes": 1},
    }
    (folder / f"r{at}").mkdir()
    (folder / f"r{at}" / "summary.json").write_text(json.dumps(document))


@pytest.mark.parametrize(
    ("options", "turn"),
    [({}, 3), ({"topic": ("orders",)}, 2), ({"since": 5}, 6), ({"since": 9, "until": 10}, 0)],
    ids=["all", "topics", "since", "between"],
)
def test_a_sample_goes_on_behind_samples_of_as_much(
    tmp_path: Path, options: dict[str, Any], turn: int
) -> None:
    """
    What was left out of one has not had its turn. Runs that failed had none, whatever they were to look at.
    """
    note(tmp_path, Extent(sample=Sample(8, 2)), "incomplete")
    note(tmp_path, Extent(topics=("orders",), sample=Sample(8, 1)))
    note(tmp_path, Extent(limits=("since",), sample=Sample(8, 5)))
    note(tmp_path, Extent(sample=Sample(8, 6)), "failed")

    wanted = wanted_of(SETTINGS, tmp_path, OPTIONS | options, since_last_match=False, sample="1/8")

    assert wanted.sample is not None
    assert wanted.sample.turn == turn
    assert wanted.extent.sample == Sample(**asdict(wanted.sample))


@pytest.mark.parametrize(
    ("extent", "continues"),
    [
        (Extent(), "r1"),
        (Extent(limits=("since_last_match",)), "r1"),
        (Extent(limits=("from_offset",)), "r0"),
        (Extent(topics=("orders",)), "r0"),
        (Extent(sample=Sample(8, 0)), "r0"),
    ],
)
def test_a_run_goes_on_behind_the_last_one_that_left_nothing_out(
    tmp_path: Path, extent: Extent, continues: str
) -> None:
    note(tmp_path, Extent())
    note(tmp_path, extent)

    wanted = wanted_of(SETTINGS, tmp_path, OPTIONS, since_last_match=True, sample=None)

    assert wanted.continues is not None
    assert wanted.continues.name == continues
    assert list(wanted.extent.limits) == ["since_last_match"]


@pytest.mark.parametrize(
    "limited",
    [Extent(topics=("orders",)), Extent(limits=("until",)), Extent(limits=("since", "since_last_match"))],
    ids=["topics", "until", "since"],
)
def test_metrics_speak_of_runs_that_left_something_out_only_where_there_is_no_other(
    tmp_path: Path, limited: Extent
) -> None:
    runs, told = tmp_path / "runs", tmp_path / "told.prom"
    runs.mkdir()
    note(runs, limited)
    write_metrics(told, "east", runs)
    only = said(told)
    note(runs, Extent(limits=("since_last_match",)), "mismatch")
    note(runs, limited)
    write_metrics(told, "east", runs)

    assert only["twinsite_reconcile_compared_records"] == 100
    assert only["twinsite_reconcile_last_success_timestamp_seconds"] > 0
    assert said(told)["twinsite_reconcile_compared_records"] == 101
    assert "twinsite_reconcile_last_success_timestamp_seconds" not in said(told)


def said(path: Path) -> dict[str, float]:
    """Values by the names of metrics."""
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    return {line.partition("{")[0]: float(line.rpartition(" ")[2]) for line in lines}
