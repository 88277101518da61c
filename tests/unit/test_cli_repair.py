"""What of a repair's options cannot be meant, and what one knows of those before it."""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from mirror import service
from mirror.cli import main as cli
from mirror.cli import repairing
from mirror.config import Settings
from mirror.model import FlowStatus, TopicPartition
from mirror.repairing.model import Begun, Note, Repaired
from spark_jobs.findings import Kind
from spark_jobs.plan import PLAN, Beyond, PartitionPlan, Plan, plan_to_document
from spark_jobs.window import Range
from tests.unit.statuses import a_flow, a_partition

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


def test_the_record_of_repairs_is_on_disk_before_anything_is_done_after_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    So is the name of a new file in its folder: else a power cut takes the file, and the batch stands.
    """
    synced: list[str] = []

    def sync(number: int) -> None:
        lines = (folder / "repairs.jsonl").read_text().count("\n")
        synced.append("folder" if stat.S_ISDIR(os.fstat(number).st_mode) else f"file of {lines}")

    monkeypatch.setattr(os, "fsync", sync)

    repaired(folder, monkeypatch, appends(5), appends(7))
    repaired(folder, monkeypatch, appends(9))

    assert synced == ["file of 1", "folder", "file of 2", "file of 3", "folder"]


def test_a_file_system_that_does_not_sync_folders_is_in_the_way_of_no_repair(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sync(number: int) -> None:
        if stat.S_ISDIR(os.fstat(number).st_mode):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(os, "fsync", sync)

    repaired(folder, monkeypatch, appends(5))

    assert repaired(folder, monkeypatch) == {TopicPartition("orders", 0): Begun(5, 1, 1)}


def test_a_folder_that_cannot_be_synced_for_another_reason_ends_the_repair(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def sync(number: int) -> None:
        if stat.S_ISDIR(os.fstat(number).st_mode):
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    async def repair(
        _settings: object, _plan: object, _wanted: object, note: Note, _begun: object
    ) -> Sequence[object]:
        note(appends(5))
        return []

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(repairing, "repair", repair)

    assert cli.main(["repair", "--config", str(folder / "flow.yaml"), "--apply", str(folder)]) == 1
    said = " ".join(capsys.readouterr().err.split())
    assert "Input/output error" in said
    assert "readable and writable" in said


LOG = PartitionPlan(
    name=TopicPartition("orders", 0),
    target_topic="orders",
    topic_id="id",
    is_compacted=False,
    target_end=11,
    mends=[],
    beyond_repair=[Beyond(kind=Kind.EXTRA, source_offset=None, target_offset=10, records=1)],
    unnamed=0,
    pending=Range(0, 0),
)
"""An append-only log to which somebody else has written."""


def told(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    done: Repaired,
    *options: str,
) -> tuple[int, str]:
    """The exit code, and what is said of a repair that did this."""
    some = replace(RUN, partitions=(done.plan,))
    (folder / PLAN).write_text(json.dumps(plan_to_document(some)))

    async def repair(*_: object) -> Sequence[Repaired]:
        return [done]

    monkeypatch.setattr(repairing, "repair", repair)
    code = cli.main(["repair", "--config", str(folder / "flow.yaml"), *options, str(folder)])
    return code, " ".join(capsys.readouterr().out.split())


def test_a_partition_that_was_refused_is_not_said_to_go_on(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    done = Repaired(LOG, why_not="others have written to it", foreign=[(10, 11)])

    code, said = told(folder, monkeypatch, capsys, done, "--apply")

    assert code == 3
    assert "nothing more was written: others have written to it" in said
    assert "stay where they are" not in said
    assert "reconcile again" not in said


def test_a_partition_that_was_refused_is_not_said_to_be_copied(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    late = replace(LOG, beyond_repair=[], pending=Range(20, 50))

    assert (
        "30 source offsets not at the target yet would be copied"
        in (told(folder, monkeypatch, capsys, Repaired(late))[1])
    )
    code, said = told(folder, monkeypatch, capsys, Repaired(late, why_not="the topic is another one"))

    assert code == 3
    assert "30 source offsets not at the target yet" in said
    assert "would be copied" not in said


KEYED = replace(LOG, is_compacted=True, target_end=20, beyond_repair=[], pending=Range(20, 50))
"""A compacted topic whose target has lost its end, or was made again and holds nothing."""


@pytest.mark.parametrize(
    "why_not",
    [
        "it keeps the source's offsets, and what is appended would shift what follows",
        "the target topic was created again, and what it holds is no copy of this flow's",
    ],
)
def test_nothing_is_copied_into_a_topic_of_which_a_partition_was_refused(
    why_not: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    What is copied is whole topics, and to that partition nothing may be written. Other topics are copied.
    """
    neighbour = replace(KEYED, name=TopicPartition("orders", 1), pending=Range(7, 9))
    other = replace(KEYED, name=TopicPartition("bills", 0), target_topic="bills", pending=Range(3, 5))
    plans = (KEYED, neighbour, other)
    (folder / PLAN).write_text(json.dumps(plan_to_document(replace(RUN, partitions=plans))))
    copied: list[str] = []

    async def repair(*_: object) -> Sequence[Repaired]:
        return [Repaired(KEYED, why_not=why_not)]

    async def run(settings: Settings, **_: object) -> FlowStatus:
        copied.extend(settings.topics.include)
        return a_flow(a_partition("bills", next_offset=5))

    monkeypatch.setattr(repairing, "repair", repair)
    monkeypatch.setattr(service, "run", run)

    def said(*options: str) -> str:
        assert cli.main(["repair", "--config", str(folder / "flow.yaml"), *options, str(folder)]) == 3
        return " ".join(capsys.readouterr().out.split())

    left = "not at the target yet: nothing is copied while a partition of the topic is refused"
    looked, done = said(), said("--apply")

    assert copied == ["bills"]
    assert f"orders-0: 30 source offsets {left} orders-1: 2 source offsets {left}" in looked
    assert f"orders-0: 30 source offsets {left} orders-1: 2 source offsets {left}" in done
    assert "bills-0: 2 source offsets not at the target yet would be copied" in looked
    assert "bills-0: 2 source offsets not at the target yet: ACTIVE" in done
    noted = [json.loads(line) for line in (folder / "repairs.jsonl").read_text().splitlines()]
    assert [(one["event"], one["topic"]) for one in noted] == [("copies", "bills"), ("copied", "bills")]


@pytest.mark.parametrize("options", [["--accept"], ["--apply", "--accept"]])
def test_where_others_records_were_let_stay_another_comparison_says_what_is_left(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: Sequence[str],
) -> None:
    """
    To accept them once more, or to copy the topic again, is no choice before that.
    """
    code, said = told(folder, monkeypatch, capsys, Repaired(LOG, foreign=[(10, 11)]), *options)

    assert code == 3
    assert "reconcile again" in said
    assert "cannot be put right" not in said
    assert "copy the topic again" not in said
    _, document = told(folder, monkeypatch, capsys, Repaired(LOG, foreign=[(10, 11)]), "-o", "json", *options)
    (beyond,) = json.loads(document)["beyond_repair"]
    assert beyond["choices"] == ["reconcile again: what follows those offsets is in its place then"]
