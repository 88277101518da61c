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
    Somebody else has written to a compacted and to an append-only copy, in the place of what came next.
    """
    state = asyncio.run(topic(source, prefix="mended", cleanup_policy="compact"))
    log = asyncio.run(topic(source, prefix="mended"))
    load(source.bootstrap, state, [*(keyed(key, b"one") for key in range(50)), keyed(7, None)])
    load(source.bootstrap, log, json_rows(1000, 100))
    asyncio.run(copy(source, target, "mended-.*", log, tmp_path, "--offsets", "mapped"))
    settings = settings_file(tmp_path / "f.yaml", source.bootstrap, target.bootstrap, "mended-.*", flow=log)
    always = "--config", settings, "--folder", tmp_path / "runs"
    load(target.bootstrap, state, [keyed(7, b"back"), keyed(8, b"wrong"), keyed(99, b"zombie")])
    load(target.bootstrap, log, [Row(key=b"zombie", value=b"x")])
    load(source.bootstrap, log, json_rows(500, 100, seed=2))

    assert reconcile(*always) == 10
    (run,) = (tmp_path / "runs").iterdir()

    def repair(*more: str) -> tuple[int, dict[str, Any]]:
        capsys.readouterr()
        code = cli.main(["repair", "--config", str(settings), "-o", "json", *more, str(run)])
        return code, json.loads(capsys.readouterr().out)

    code, looked = repair()
    steps = {step["key"]: step["status"] for one in looked["partitions"] for step in one["steps"]}
    assert (code, steps) == (3, {"k7": "planned", "k8": "planned", "k99": "planned"})
    assert [one["differences"] for one in looked["beyond_repair"]] == [{"changed": 1}]

    code, done = repair("--apply", "--accept")
    foreign = {one["topic"]: one["foreign_target_offsets"] for one in done["partitions"]}
    assert (code, foreign[log]) == (3, [[1000, 1001]]), "another comparison has to say what is left"
    assert [one["state"] for one in done["not_copied"]] == ["ACTIVE"]
    assert reconcile(*always) == 0
    accepted = {one["topic"]: one["accepted"] for one in summary(tmp_path / "runs")["partitions"]}
    assert accepted == {state: [], log: [[1000, 1001]]}


def summary(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((sorted(folder.iterdir())[-1] / "summary.json").read_text())
    return found
