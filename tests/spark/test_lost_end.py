"""A target that has lost the end of its log, as from an older backup of its disk: only the mirror knows."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer

from mirror.acknowledged import Mirror
from mirror.cli import main as cli
from mirror.clusters import both_connected
from mirror.proving import asking
from mirror.proving.wanted import Wanted
from spark_jobs.documents import scope_of_document
from spark_jobs.history import SUMMARY
from spark_jobs.window import Range
from tests.conftest import TopicFactory
from tests.faults.flows import mirror_of, reached, says
from tests.harness.checker import watermarks
from tests.harness.daemon import until
from tests.harness.data import Row, json_rows
from tests.harness.kafka import KafkaCluster
from tests.harness.loading import load
from tests.harness.process import Twinsite
from tests.harness.segments import lose_ends
from tests.spark.commands import Command, settings_file
from tests.spark.sites import settings_of
from tests.spark.test_mapped import copy as mirrored
from tests.unit.statuses import a_flow, a_partition

pytestmark = pytest.mark.timeout(240)

OF_OTHERS = 7
"""Records that a target topic holds before the copy begins: its offsets are not the source's then."""
FIRST = [Row(key=b"k%d" % key, value=b"one") for key in range(100)]
SECOND = [
    *(Row(key=b"k%d" % key, value=b"two") for key in range(25)),
    *(Row(key=b"k%d" % key, value=None) for key in range(25, 40)),
    *(Row(key=b"n%d" % key, value=b"one") for key in range(10)),
]
"""What the target will lose: updates, tombstones and new keys."""
LOST = Range(100, 150)
LATER = [Row(key=b"later", value=b"x")]


def test_what_a_target_has_lost_at_its_end_is_named_and_copied_again(
    reconcile: Command,
    source: KafkaCluster,
    own_target: KafkaCluster,
    topic: TopicFactory,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """
    A log with the same offsets, one with others, and a compacted one. To the target alone all that is missing
    is on its way; the mirror knows what it had, also once it stands still for that.
    """
    same, mapped, state = names = [
        asyncio.run(topic(source, prefix="lost-end", cleanup_policy=policy))
        for policy in ("delete", "delete", "compact")
    ]
    asyncio.run(own_target.create_topic(mapped))
    load(own_target.bootstrap, mapped, json_rows(OF_OTHERS, 100))
    runs, settings = tmp_path / "runs", tmp_path / "f.yaml"
    settings_file(settings, source.bootstrap, own_target.bootstrap, "lost-end-.*", flow=same)
    always = "--config", settings, "--folder", runs
    command = mirror_of(source, own_target, "lost-end-.*", same, "--offsets", "auto")

    with Twinsite.run(*command, work_dir=tmp_path) as mirror:
        for rows in (FIRST, SECOND):
            copy(mirror, source, names, rows)
        asyncio.run(lose_ends(own_target, {same: 100, mapped: OF_OTHERS + 100, state: 100}))
        asked = "--url", f"http://127.0.0.1:{mirror.port}"
        assert reconcile("scope", *always, tmp_path / "alone") == 0
        assert reconcile("scope", *always, *asked, tmp_path / "told") == 0
        leave_match(runs, tmp_path / "told" / "scope.json")
        assert reconcile("scope", *always, *asked, "--since-last-match", tmp_path / "since") == 0
        assert reconcile("scope", *always, tmp_path / "seen") == 0
        assert scoped(tmp_path / "seen") == [(None, LOST, Range(150, 150))] * 3, (
            "an earlier match has seen it"
        )
        assert scoped(tmp_path / "alone") == [(None, Range(100, 100), LOST)] * 3
        assert scoped(tmp_path / "told") == [(150, LOST, Range(150, 150))] * 3
        assert scoped(tmp_path / "since") == scoped(tmp_path / "told"), "it was proven before it was lost"
        for name in names:
            load(source.bootstrap, name, LATER)
            asyncio.run(says(mirror, name, "DIVERGED", "target_truncated"))

        assert reconcile(*always, *asked) == 10
        found, kinds = summary(runs), differences(runs)
        assert "for 3 of 3 partitions" in (latest(runs) / "report.html").read_text()
        repaired = repair(settings, latest(runs), capsys)
        assert reconcile(*always, *asked) == 0
        assert cli.main(["resume", same, *asked]) == 0
        copy(mirror, source, [same], LATER)

    assert [(one["lost"], one["acknowledged"]) for one in found["partitions"]] == [([*LOST], 150)] * 3
    missing = [("missing", offset) for offset in range(*LOST)]
    assert kinds[same] == kinds[mapped] == missing
    assert Counter(kind for kind, _ in kinds[state]) == {"stale": 25, "not_yet_deleted": 15, "missing": 10}
    assert repaired[0] == 0, repaired[1]
    assert (repaired[1]["partitions"], repaired[1]["beyond_repair"]) == ([], [])


async def test_what_a_transaction_of_others_holds_up_is_not_lost(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    Nobody who reads committed records sees the copy behind it: what the mirror says is there has not arrived.
    """
    name = await topic(source, prefix="held")
    await target.create_topic(name)
    load(source.bootstrap, name, FIRST)
    producer = Producer({"bootstrap.servers": target.bootstrap, "transactional.id": name})
    producer.init_transactions(20)
    producer.begin_transaction()
    producer.produce(name, b"of others")
    producer.flush(20)
    await mirrored(source, target, name, name, tmp_path, "--offsets", "mapped")
    settings = settings_of(source, target, name, flow=name)
    async with both_connected(settings, patience_seconds=20, reached=lambda _: None) as (here, there):
        clusters = {"source_cluster_id": here.info.cluster_id, "target_cluster_id": there.info.cluster_id}
    ends = {"next_offset": 100, "target_log_end_offset": 101}
    status = a_flow(replace(a_partition(name, **ends), target_topic=name), flow=name, **clusters)

    scope = await asking.scope(settings, Wanted(mirror=Mirror("http://mirror", lambda: status)))
    producer.abort_transaction(20)

    (log,) = scope.append_only
    assert (log.acknowledged, log.window.pending) == (100, Range(0, 100))
    assert not log.lost.offsets
    await until(lambda: watermarks(target.bootstrap, name) == {0: (0, 102)}, "the abort is written", 20)


def copy(mirror: Twinsite, source: KafkaCluster, names: Sequence[str], rows: Sequence[Row]) -> None:
    """Write to some topics, and wait until that is copied."""
    ends = {name: watermarks(source.bootstrap, name)[0][1] + len(rows) for name in names}
    for name in names:
        load(source.bootstrap, name, rows)
    there = mirror.wait_for(
        lambda: all(reached(mirror, name) == ends[name] for name in names), "all is copied"
    )
    asyncio.run(there)


def leave_match(runs: Path, scope: Path) -> None:
    """A run of long ago that found everything to be the same that a scope is about."""
    document = json.loads(scope.read_text())
    partitions = [
        log | {"source_offsets": log["window"]["source"]}
        for log in (*document["append_only"], *document["compacted"])
    ]
    run = runs / "20200101T000000Z-0000"
    run.mkdir(parents=True)
    nothing = {"records": 0, "bytes": 0}
    match = {"outcome": "match", "started_at": "2020-01-01T00:00:00+00:00", "differences": {}, "unnamed": 0}
    match |= {"source": nothing, "target": nothing, "partitions": partitions}
    (run / SUMMARY).write_text(json.dumps(document | match))


def latest(runs: Path) -> Path:
    return sorted(runs.iterdir())[-1]


def summary(runs: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((latest(runs) / SUMMARY).read_text())
    found["partitions"].sort(key=lambda one: one["topic"])
    return found


def scoped(folder: Path) -> list[tuple[int | None, Range, Range]]:
    """How far the mirror is, what is lost and what is on its way, in source offsets, of each partition."""
    scope = scope_of_document(json.loads((folder / "scope.json").read_text()), "scope")
    return [(log.acknowledged, log.lost, log.window.pending) for log in scope.logs]


def differences(runs: Path) -> dict[str, list[tuple[str, int]]]:
    """Kind and source offset of all that differs, by topic."""
    found: dict[str, list[tuple[str, int]]] = {}
    for row in pq.read_table(latest(runs) / "differences").to_pylist():
        found.setdefault(row["topic"], []).append((row["kind"], row["source_offset"]))
    return found


def repair(settings: Path, run: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    """What ``twinsite repair --apply`` ends with, and says."""
    capsys.readouterr()
    code = cli.main(["repair", "--config", str(settings), "-o", "json", "--apply", str(run)])
    return code, json.loads(capsys.readouterr().out)
