"""From damage to a match: found, planned, put right or accepted, and proven."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from kafka.record.util import calc_crc32c

from mirror.cli import main as cli
from tests.conftest import TopicFactory
from tests.harness.checker import read_partition
from tests.harness.data import Row, json_rows
from tests.harness.kafka import KafkaCluster
from tests.harness.loading import load
from tests.harness.segments import serve_segments, stored_batches
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


def test_keys_of_every_kind_of_damage_are_put_right(
    reconcile: Command,
    source: KafkaCluster,
    own_target: KafkaCluster,
    topic: TopicFactory,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """
    The target's disk has lost batches amid a compacted log, and holds another value in one; somebody has
    written a key again that was deleted.
    """
    name = asyncio.run(topic(source, prefix="kinds", cleanup_policy="compact"))
    load(source.bootstrap, name, [keyed(key, b"one") for key in range(20)])
    lost = [keyed(1, b"two"), keyed(2, None), keyed(30, b"new")]
    for row in (*lost, keyed(31, b"ping"), keyed(3, None)):
        load(source.bootstrap, name, [row])
    load(source.bootstrap, name, [keyed(key, b"one") for key in range(40, 50)])
    asyncio.run(copy(source, own_target, name, name, tmp_path, "--offsets", "mapped"))
    left = [
        batch.data.replace(b"ping", b"pong")
        for batch in stored_batches(own_target, name)
        if not 20 <= batch.offset < 23
    ]
    asyncio.run(serve_segments(own_target, name, {0: b"".join(map(with_crc, left))}))
    load(own_target.bootstrap, name, [keyed(3, b"back")])
    settings = settings_file(tmp_path / "f.yaml", source.bootstrap, own_target.bootstrap, name, flow=name)
    always = "--config", settings, "--folder", tmp_path / "runs"

    assert reconcile(*always) == 10
    (run,) = (tmp_path / "runs").iterdir()
    named = summary(tmp_path / "runs")["examples"]
    assert {(one["kind"], one["key"]) for one in named} == {
        ("stale", "k1"),
        ("not_yet_deleted", "k2"),
        ("missing", "k30"),
        ("changed", "k31"),
        ("resurrected", "k3"),
    }
    capsys.readouterr()
    assert cli.main(["repair", "--config", str(settings), "-o", "json", "--apply", str(run)]) == 0
    steps = json.loads(capsys.readouterr().out)["partitions"][0]["steps"]
    assert {step["key"]: step["status"] for step in steps} == dict.fromkeys(
        ("k1", "k2", "k30", "k31", "k3"), "appended"
    )
    assert reconcile(*always) == 0
    assert latest(source, name) == latest(own_target, name)


def with_crc(batch: bytes) -> bytes:
    """The batch with a checksum of what it holds."""
    crc: int = calc_crc32c(batch[21:])
    return batch[:17] + crc.to_bytes(4) + batch[21:]


def latest(cluster: KafkaCluster, name: str) -> dict[bytes | None, bytes]:
    """What each key says to a consumer; without those that were deleted."""
    said = {record.key: record.value for record in read_partition(cluster.bootstrap, name, 0)}
    return {key: value for key, value in said.items() if value is not None}


def foreign(document: dict[str, Any]) -> dict[str, list[list[int]]]:
    return {one["topic"]: one["foreign_target_offsets"] for one in document["partitions"]}


def summary(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((sorted(folder.iterdir())[-1] / "summary.json").read_text())
    return found
