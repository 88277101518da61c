"""Commands that compare, where a disk, a folder or an option stands in the way; nothing is compared here."""

from __future__ import annotations

import errno
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mirror.cli import carrying, comparing, reconciling
from mirror.cli.main import main
from mirror.errors import AuthenticationError, NotAuthorizedError, TwinsiteError
from mirror.proving import asking
from spark_jobs import carried
from spark_jobs.algorithms import Hashing
from spark_jobs.documents import Scope
from spark_jobs.extent import Extent
from spark_jobs.history import runs
from spark_jobs.reconcile import note_elsewhere
from spark_jobs.result import Result
from spark_jobs.sites import UnansweredError
from tests.unit.test_reconcile_result import BEGAN_MS, SAME_LOG, result

SETTINGS = """
flow: east
source: {bootstrap_servers: '127.0.0.1:1'}
target: {bootstrap_servers: '127.0.0.1:2'}
topics: {include: ['.*']}
"""
SCOPE = Scope(
    flow="east",
    source_cluster_id="a",
    target_cluster_id="b",
    asked_at_ms=BEGAN_MS,
    extent=Extent("only orders", ("orders",)),
    append_only=[],
    compacted=[],
    hashing=Hashing(),
)
FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "runs/r1/report.html")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder with settings of two clusters that are not there."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "flow.yaml").write_text(SETTINGS)
    return tmp_path


def answering(answer: Any) -> Callable[..., Any]:
    """Stands for what would need Spark: answers, or raises, whatever it is asked."""

    def stand_in(*_: object, **__: object) -> Any:
        if isinstance(answer, BaseException):
            raise answer
        return answer

    return stand_in


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--metrics-file", "gone/told.prom"), "--metrics-file: gone is not a directory"),
        (("--metrics-file", "flow.yaml/told.prom"), "--metrics-file: flow.yaml is not a directory"),
        (("--folder", "flow.yaml/runs"), "--folder flow.yaml/runs: Not a directory"),
        (("--from-offset", "9", "--to-offset", "3"), "--from-offset 9 is not before --to-offset 3"),
        (
            ("--since", "2026-11-23", "--until", "2026-11-22"),
            "is not before --until 2026-11-22T00:00:00+00:00",
        ),
    ],
)
def test_what_cannot_be_done_is_refused_before_a_cluster_is_asked(
    options: tuple[str, ...],
    said: str,
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(asking, "scope", answering(AssertionError("a cluster was asked")))

    assert main(["reconcile", "--config", "flow.yaml", *options]) == 2
    assert said in capsys.readouterr().err
    assert not runs(here / "reconcile")


@pytest.mark.parametrize(
    "command",
    [("reconcile",), ("reconcile", "scope", "proof"), ("reconcile", "digest", "--site", "source", "proof")],
)
def test_a_copy_of_what_is_uncommitted_is_not_compared(
    command: tuple[str, ...], here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    Both sites are read as who reads what is committed sees them: aborted records would be called extra.
    """
    (here / "flow.yaml").write_text(SETTINGS + "read: {isolation: read_uncommitted}\n")
    (here / "proof").mkdir()
    monkeypatch.setattr(asking, "scope", answering(AssertionError("a cluster was asked")))

    assert main([*command, "--config", "flow.yaml"]) == 2
    assert "read.isolation: read_uncommitted" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--metrics-file", "--folder"])
def test_a_folder_that_may_not_be_written_to_is_refused(
    option: str, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    Whatever runs the tests may write everywhere, so the system's answer is made up.
    """
    (here / "closed").mkdir()
    monkeypatch.setattr(os, "access", lambda place, how: place != Path("closed") or how == os.R_OK)
    named = "closed/told.prom" if option == "--metrics-file" else "closed"

    assert main(["reconcile", "--config", "flow.yaml", option, named]) == 2
    assert f"{option}: closed is not writable" in capsys.readouterr().err


def test_a_result_stands_where_its_metrics_cannot_be_written(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    Somebody has removed the directory during the hours it took.
    """
    (here / "node_exporter").mkdir()

    def match(_settings: object, _wanted: object, place: Path, *_: object, **__: object) -> Result:
        shutil.rmtree("node_exporter")
        found = result(SAME_LOG)
        note_elsewhere(place, place, found)
        return found

    monkeypatch.setattr(reconciling, "_compare", match)

    code = main(["reconcile", "--config", "flow.yaml", "--metrics-file", "node_exporter/told.prom"])

    printed = capsys.readouterr()
    assert code == 0
    assert "match: the copy is the original" in printed.out
    assert "warning: node_exporter/.told.prom: No such file or directory" in printed.err


def test_a_disk_that_is_full_at_the_end_is_named_and_the_run_is_not_completed(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(reconciling, "_compare", answering(FULL))

    assert main(["reconcile", "--config", "flow.yaml"]) == 1
    assert "error: runs/r1/report.html: No space left on device\nhint: " in capsys.readouterr().err
    (noted,) = runs(here / "reconcile")
    assert (noted.outcome, noted.summary["error"]) == (
        "failed",
        "runs/r1/report.html: No space left on device",
    )


@pytest.mark.parametrize(
    ("command", "job"),
    [
        (("scope", "--config", "flow.yaml", "proof"), "begin"),
        (("digest", "--config", "flow.yaml", "--site", "source", "proof"), "digest"),
    ],
)
def test_a_disk_that_is_full_is_a_line_and_no_traceback_where_nothing_is_noted(
    command: tuple[str, ...], job: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(carrying, job, answering(FULL))

    assert main(["reconcile", *command]) == 1
    assert capsys.readouterr().err.startswith("error: runs/r1/report.html: No space left on device\nhint: ")


@pytest.mark.parametrize("error", [NotAuthorizedError("no right"), AuthenticationError("wrong password")])
@pytest.mark.parametrize("command", [(), ("scope", "proof")])
def test_a_cluster_that_refuses_leaves_every_comparison_not_completed(
    command: tuple[str, ...],
    error: TwinsiteError,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """
    Whether it is carried or not: scripts know of one code for that.
    """
    monkeypatch.setattr(asking, "scope", answering(error))

    assert main(["reconcile", *command, "--config", "flow.yaml"]) == 1
    assert capsys.readouterr().err.endswith(f"error: {error}\nhint: {error.hint}\n")


@pytest.mark.parametrize("where", ["records_of", "spark_session"])
def test_a_cluster_that_refuses_leaves_an_answer_not_given(
    where: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    Likewise, also where a secret is not at the site to which the comparison was carried.
    """

    async def asked(*_: object) -> Scope:
        return SCOPE

    monkeypatch.setattr(asking, "scope", asked)
    assert main(["reconcile", "scope", "--config", "flow.yaml", "proof"]) == 0
    monkeypatch.setattr(carried, "unanswered", answering([("q1", None)]))
    monkeypatch.setattr(comparing, where, answering(NotAuthorizedError("no right")))
    capsys.readouterr()

    assert main(["reconcile", "digest", "--config", "flow.yaml", "--site", "source", "proof"]) == 1
    assert "error: no right\n" in capsys.readouterr().err


def test_what_is_no_matter_of_disks_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A name that does not resolve should have been named where it was met.
    """
    monkeypatch.setattr(carrying, "begin", answering(socket.gaierror(socket.EAI_NONAME, "no such name")))

    with pytest.raises(socket.gaierror):
        main(["reconcile", "scope", "--config", "flow.yaml", "proof"])


def test_a_carried_comparison_is_unfinished_until_it_has_ended(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    Where it was begun, and where the answers are compared, which may be another machine.
    """

    async def asked(*_: object) -> Scope:
        return SCOPE

    monkeypatch.setattr(asking, "scope", asked)
    elsewhere = "compare", "proof", "--folder", "elsewhere"

    codes = [main(["reconcile", "scope", "--config", "flow.yaml", "proof"])]
    begun = runs(here / "reconcile")
    seen = []
    for answer in (FULL, UnansweredError("the source has not answered"), result(SAME_LOG), FULL):
        monkeypatch.setattr(carrying, "_compare_answers", answering(answer))
        codes.append(main(["reconcile", *elsewhere]))
        (run,) = runs(here / "elsewhere")
        seen.append((run.outcome, run.summary.get("folder")))
        pages = [*(here / "elsewhere").rglob("report.html")]
        assert bool(pages) == (run.outcome == "failed"), "of an attempt that failed, as long as it stands"
    capsys.readouterr()

    assert codes == [0, 1, 3, 0, 1]
    (noted,) = begun
    assert (noted.name, noted.outcome, noted.flow) == ("20231114T221320Z-proof", "unfinished", "east")
    assert (noted.topics, noted.summary["wanted"]) == (("orders",), "only orders")
    assert noted.summary["folder"] == str(here / "proof")
    ended = "match", str(here / "proof")
    assert seen == [("failed", None), ("unfinished", str(here / "proof")), ended, ended]
    assert main(["reconcile", "history"]) == 0
    assert "unfinished" in capsys.readouterr().out
