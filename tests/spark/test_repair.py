"""From damage to a match: found, planned, put right or accepted, and proven."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from mirror.cli import main as cli
from tests.conftest import TopicFactory
from tests.harness.data import Row, json_rows, load
from tests.harness.kafka import KafkaCluster
from tests.spark.commands import Command, settings_file
from tests.spark.test_mapped import copy

SAID_MS = 1_700_000_000_000


def keyed(key: int, value: bytes | None) -> Row:
    return Row(key=b"k%d" % key, value=value, timestamp_ms=SAID_MS)


def test_what_is_found_is_put_right_or_accepted_and_then_both_sites_match(
    reconcile: Command,
    source: KafkaCluster,
    target: KafkaCluster,
    topic: TopicFactory,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """
    Somebody else has written to compacted copies and to an append-only one, in the place of what came next:
    to one of them only what it said already.
    """
    state = asyncio.run(topic(source, prefix="mended", cleanup_policy="compact"))
    again = asyncio.run(topic(source, prefix="mended", cleanup_policy="compact"))
    log = asyncio.run(topic(source, prefix="mended"))
    load(source.bootstrap, again, [keyed(key, b"one") for key in range(50)])
    load(source.bootstrap, state, [*(keyed(key, b"one") for key in range(50)), keyed(7, None)])
    load(source.bootstrap, log, json_rows(1000, 100))
    asyncio.run(copy(source, target, "mended-.*", log, tmp_path, "--offsets", "mapped"))
    settings = settings_file(tmp_path / "f.yaml", source.bootstrap, target.bootstrap, "mended-.*", flow=log)
    always = "--config", settings, "--folder", tmp_path / "runs"
    load(target.bootstrap, state, [keyed(7, b"back"), keyed(8, b"wrong"), keyed(99, b"zombie")])
    load(target.bootstrap, again, [keyed(7, b"wrong"), keyed(7, b"one"), keyed(8, b"one")])
    load(target.bootstrap, log, [Row(key=b"zombie", value=b"x")])
    load(source.bootstrap, log, json_rows(500, 100, seed=2))

    assert reconcile(*always) == 10
    (run,) = (tmp_path / "runs").iterdir()

    def repair(*more: str) -> tuple[int, dict[str, Any]]:
        capsys.readouterr()
        code = cli.main(["repair", "--config", str(settings), "-o", "json", *more, str(run)])
        return code, json.loads(capsys.readouterr().out)

    code, looked = repair("--dry-run")
    steps = {step["key"]: step["status"] for one in looked["partitions"] for step in one["steps"]}
    assert (code, steps) == (3, {"k7": "planned", "k8": "planned", "k99": "planned"})
    assert [one["differences"] for one in looked["beyond_repair"]] == [{"changed": 1}]
    assert foreign(looked) == {state: [[51, 54]], again: [[50, 53]], log: [[1000, 1001]]}
    refusals = {one["topic"]: one["why_not"] for one in looked["partitions"]}
    assert "--accept" in refusals.pop(log)
    assert refusals == {state: None, again: None}

    code, done = repair("--apply", "--accept")
    assert code == 3, "another comparison has to say what is left"
    assert foreign(done) == foreign(looked)
    assert [one["state"] for one in done["not_copied"]] == ["ACTIVE"]
    load(source.bootstrap, again, [keyed(9, b"two")])
    asyncio.run(copy(source, target, "mended-.*", log, tmp_path, "--offsets", "mapped"))
    assert reconcile(*always) == 0
    compared = summary(tmp_path / "runs")["partitions"]
    assert {one["topic"]: one["accepted"] for one in compared} == {state: [], again: [], log: [[1000, 1001]]}
    assert [one["pending"] for one in compared] == [None] * 3

    assert foreign(repair()[1]) == {state: []}, "nothing stands still any more"


def foreign(document: dict[str, Any]) -> dict[str, list[list[int]]]:
    return {one["topic"]: one["foreign_target_offsets"] for one in document["partitions"]}


def summary(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((sorted(folder.iterdir())[-1] / "summary.json").read_text())
    return found
