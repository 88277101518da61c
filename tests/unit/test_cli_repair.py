"""What of a repair's options cannot be meant, and what one knows of those before it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from mirror.cli import main as cli
from mirror.cli import repairing
from mirror.model import TopicPartition
from mirror.repairing.model import Begun, Note
from spark_jobs.plan import PLAN, Plan, plan_to_document

RUN = Plan(run="r", flow="east", source_cluster_id="a", target_cluster_id="b", made_at_ms=0, partitions=())
KEYS = ["größe"]
SETTINGS = """
flow: east
source: {bootstrap_servers: "a:1"}
target: {bootstrap_servers: "b:1"}
topics: {include: [orders]}
"""


def test_to_write_and_to_write_nothing_cannot_both_be_wanted(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["repair", "--config", "nowhere.yaml", "--dry-run", "--apply", "plan"]) == 2
    assert "--dry-run and --apply exclude each other" in capsys.readouterr().err


def test_a_dry_run_is_what_happens_anyhow(capsys: pytest.CaptureFixture[str]) -> None:
    """
    It gets as far as reading the settings.
    """
    assert cli.main(["repair", "--config", "nowhere.yaml", "--dry-run", "plan"]) == 2
    assert "nowhere.yaml" in capsys.readouterr().err


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of a run with a plan; ``flow.yaml`` beside it."""
    (tmp_path / "flow.yaml").write_text(SETTINGS)
    (tmp_path / PLAN).write_text(json.dumps(plan_to_document(RUN)))
    return tmp_path


class Killed(BaseException):
    """A repair that is ended right behind what it has noted."""


def repaired(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *notes: Mapping[str, object]
) -> Mapping[TopicPartition, Begun]:
    """What a repair knows of those before it that notes these lines, and is killed."""
    known: list[Mapping[TopicPartition, Begun]] = []

    async def repair(
        _settings: object, _plan: object, _wanted: object, note: Note, begun: Mapping[TopicPartition, Begun]
    ) -> Sequence[object]:
        known.append(begun)
        for line in notes:
            note(line)
        raise Killed

    monkeypatch.setattr(repairing, "repair", repair)
    with pytest.raises(Killed):
        cli.main(["repair", "--config", str(folder / "flow.yaml"), "--apply", str(folder)])
    return known[0]


def appends(target_offset: int) -> Mapping[str, object]:
    at = {"topic": "orders", "partition": 0, "target_offset": target_offset, "producer_epoch": 1}
    return {"event": "appends", **at, "records": KEYS}


@pytest.mark.parametrize("left", [-1, -6, -9, 5])
def test_a_line_that_was_cut_off_takes_none_with_it(
    left: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    The disk was full, or the machine lost its power; in the middle of a letter perhaps. What was noted next
    is known all the same.
    """
    repaired(folder, monkeypatch, appends(5))
    audit = folder / "repairs.jsonl"
    audit.write_bytes(audit.read_bytes()[:left])
    seen = repaired(folder, monkeypatch, appends(9))

    assert seen in ({}, {TopicPartition("orders", 0): Begun(5, 1, 1)})
    assert repaired(folder, monkeypatch) == {TopicPartition("orders", 0): Begun(9, 1, 1)}
    assert audit.read_bytes().count(b"\n") == 2
