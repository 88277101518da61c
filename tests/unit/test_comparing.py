"""Which of the runs before are those that a comparison goes on behind, and of which metrics speak."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import pytest

from mirror.cli.comparing import wanted_of
from mirror.cli.comparisons import show_history
from mirror.cli.noting import NotCompletedError, check_places, noted, write_metrics
from mirror.config import parse
from mirror.errors import TwinsiteError, UsageError
from spark_jobs import reconcile
from spark_jobs.algorithms import Algorithm
from spark_jobs.documents import Scope
from spark_jobs.extent import Extent, extent_to_document
from spark_jobs.failures import SparkFailedError
from spark_jobs.logs import Compared
from spark_jobs.reconcile import note_begun
from spark_jobs.result import begun
from spark_jobs.sampling import Sample
from spark_jobs.sites import Sites

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
        "differences": {},
        "unnamed": 0,
        "partitions": [{"pending": [5, 8], "lost": None}, {"pending": [0, 1]}],
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
    assert 'twinsite_reconcile_uncompared_offsets{flow="east",why="pending"} 4' in told.read_text()
    assert only["twinsite_reconcile_last_success_timestamp_seconds"] > 0
    assert said(told)["twinsite_reconcile_compared_records"] == 101
    assert "twinsite_reconcile_last_success_timestamp_seconds" not in said(told)


def said(path: Path) -> dict[str, float]:
    """Values by the names of metrics."""
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    return {line.partition("{")[0]: float(line.rpartition(" ")[2]) for line in lines}


def test_a_damaged_summary_is_named_and_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """
    It stops neither the next comparison nor its metrics, and history shows it.
    """
    note(tmp_path, Extent())
    note(tmp_path, Extent())
    (tmp_path / "r1" / "summary.json").write_text("{")

    wanted = wanted_of(SETTINGS, tmp_path, OPTIONS, since_last_match=True, sample=None)
    write_metrics(tmp_path / "told.prom", "east", tmp_path)
    show_history(tmp_path, "json")

    assert wanted.continues is not None
    assert wanted.continues.name == "r0"
    printed = capsys.readouterr()
    assert f"{tmp_path / 'r1'}: left out: summary.json cannot be read" in printed.err
    assert {one["run"]: one["outcome"] for one in json.loads(printed.out)} == {"r0": "match", "r1": "damaged"}
    assert said(tmp_path / "told.prom")["twinsite_reconcile_compared_records"] == 100


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"from_offset": 9, "to_offset": 3}, "--from-offset 9 is not before --to-offset 3"),
        ({"from_offset": 9, "to_offset": 9}, "--from-offset 9 is not before --to-offset 9"),
        ({"since": 2_000, "until": 1_000}, r"--since 1970-01-01T00:00:02\+00:00 is not before --until"),
    ],
)
def test_limits_between_which_nothing_lies_are_refused(
    tmp_path: Path, limits: dict[str, Any], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        wanted_of(SETTINGS, tmp_path, OPTIONS | limits, since_last_match=False, sample=None)


def test_a_run_that_has_not_ended_is_shown_and_counts_for_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    As one that is carried between the sites, and that nobody goes on with.
    """
    note(tmp_path, Extent())
    document = begun("r1", "east", 1_800_000_000_000, Extent(sample=Sample(8, 3)), Algorithm.XXHASH64)
    note_begun(tmp_path / "r1", tmp_path / "carried", document)

    wanted = wanted_of(SETTINGS, tmp_path, OPTIONS, since_last_match=True, sample="1/8")
    write_metrics(tmp_path / "told.prom", "east", tmp_path)
    show_history(tmp_path, "json")

    assert wanted.sample == Sample(8, 0)
    assert wanted.continues is not None
    assert wanted.continues.name == "r0"
    shown = {one["run"]: one for one in json.loads(capsys.readouterr().out)}
    assert (shown["r1"]["outcome"], shown["r1"]["folder"]) == ("unfinished", str(tmp_path / "carried"))
    assert said(tmp_path / "told.prom")["twinsite_reconcile_compared_records"] == 100


@pytest.mark.parametrize("option", ["--metrics-file", "--folder"])
def test_where_nothing_could_be_left_nothing_is_begun(tmp_path: Path, option: str) -> None:
    file = tmp_path / "file"
    file.write_text("")
    folder, metrics = (file / "runs", None) if option == "--folder" else (tmp_path, file / "told.prom")

    with pytest.raises(UsageError, match=option):
        check_places(folder, metrics)


def test_what_a_disk_refuses_ends_a_comparison_without_a_result_and_is_noted() -> None:
    told: list[TwinsiteError] = []

    with pytest.raises(NotCompletedError, match="No space left on device") as raised, noted(told.append):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "runs/r1/report.html")

    assert raised.value.exit_code == 1
    assert [str(one) for one in told] == ["runs/r1/report.html: No space left on device"]


def test_metrics_that_cannot_be_written_leave_the_result_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    note(tmp_path, Extent())

    write_metrics(tmp_path / "gone" / "told.prom", "east", tmp_path)

    assert "the metrics are still those of an older run" in capsys.readouterr().err


def test_the_name_of_a_damaged_run_writes_nothing_on_a_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    Its escapes are written out.
    """
    folder = tmp_path / "proof\x1b[2J"
    folder.mkdir()
    note(folder, Extent())
    (folder / "r0" / "summary.json").write_text("{")

    wanted_of(SETTINGS, folder, OPTIONS, since_last_match=True, sample=None)

    assert r"proof\x1b[2J/r0: left out: " in capsys.readouterr().err


def test_why_a_site_could_not_be_read_is_said_also_where_nothing_is_left_to_compare(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    The only topic is deleted meanwhile: that it is not there is no mistake in the command.
    """
    asked: list[object] = []

    def ask(_leaving: object) -> Scope:
        if asked:
            raise UsageError("none of the topics at the source matches orders")
        asked.append(_leaving)
        return cast(Scope, None)

    def compare(*_: object) -> list[Compared]:
        raise SparkFailedError("asking the source: digests: UnknownTopicOrPartitionException")

    monkeypatch.setattr(reconcile, "compare", compare)

    with pytest.raises(NotCompletedError, match="UnknownTopicOrPartition") as failed, noted(lambda _: None):
        reconcile.compare_as_it_stands(ask, lambda _: cast(Sites, None))

    assert failed.value.exit_code == 1
