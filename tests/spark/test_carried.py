"""Two sites that do not see each other, and a folder that is carried between them."""

from __future__ import annotations

import asyncio
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import spark_jobs.reconcile
from spark_jobs.failures import SparkFailedError
from spark_jobs.history import runs
from tests.harness.data import Row, json_rows
from tests.harness.kafka import KafkaCluster
from tests.harness.loading import load
from tests.spark.commands import Command, settings_file
from tests.spark.planting import plant, seen
from tests.spark.planting_keys import plant_keys
from tests.spark.sites import create_topics, write_both
from tests.spark.test_planted import in_order

ROUNDS_MAX = 8


@pytest.mark.timeout(400)
def test_what_is_carried_between_the_sites_is_enough_to_name_all_that_differs(
    spark: SparkSession, reconcile: Command, source: KafkaCluster, target: KafkaCluster, tmp_path: Path
) -> None:
    """
    Each site is read with settings in which the other's address is wrong, and told how to hash.
    """
    made = {f"carried-{seed}": plant(seed, plants=3) for seed in range(4)}
    made["carried-long"] = plant(5, records=40_000, plants=3, kinds=("missing", "extra", "value"))
    keyed = plant_keys(1, plants=3, others=600)
    for cluster in (source, target):
        asyncio.run(create_topics(cluster, made))
        settled = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": "1"}
        asyncio.run(create_topics(cluster, ["carried-keys"], **settled))
    asyncio.run(write_both(source, target, {**made, "carried-keys": keyed}))
    nowhere = "127.0.0.1:1"
    carried, history, metrics = (tmp_path / name for name in ("carried", "history", "twinsite.prom"))
    kept_here, kept_there = (tmp_path / name for name in ("here", "there"))
    settings, at_source, at_target = (
        settings_file(tmp_path / f"{here}-{there}.yaml", here, there, "carried-.*")
        for here, there in (
            (source.bootstrap, target.bootstrap),
            (source.bootstrap, nowhere),
            (nowhere, target.bootstrap),
        )
    )

    begin = "scope", "--config", settings, "--folder", history, "--same-offsets", "--digest", "sha256"
    assert reconcile(*begin, carried) == 0
    assert [one.outcome for one in runs(history)] == ["unfinished"]
    code = 3
    of_source = "digest", "--config", at_source, "--site", "source", "--keys-folder", kept_here, carried
    of_target = "digest", "--config", at_target, "--site", "target", "--keys-folder", kept_there, carried
    for _ in range(ROUNDS_MAX):
        assert reconcile(*of_source) == 0
        assert reconcile(*of_target) == 0
        code = reconcile("compare", carried, "--folder", history, "--metrics-file", metrics)
        if code != 3:
            break
        assert [one.outcome for one in runs(history)] == ["unfinished"]

    assert code == 10
    (noted,) = runs(history)
    assert (noted.outcome, noted.flow, noted.summary["folder"]) == ("mismatch", "proof", str(carried))
    assert 'twinsite_reconcile_outcome{flow="proof",outcome="mismatch"} 1' in metrics.read_text()
    assert json.loads((carried / "summary.json").read_text())["digest"] == "sha256"
    found = spark.read.parquet(str(carried / "differences")).collect()
    for name, planted in made.items():
        named = [(row.kind, row.source_offset, row.target_offset) for row in found if row.topic == name]
        expected = [(d.kind.value, d.named_source_offset, d.target_offset) for d in seen(planted)]
        assert in_order(named) == in_order(expected), (name, planted.what)
    of_keys = [
        (row.kind, None if row.key is None else bytes(row.key), row.source_offset, row.target_offset)
        for row in found
        if row.topic == "carried-keys"
    ]
    assert in_order(of_keys) == in_order([(kind.value, *at) for kind, *at, _ in keyed.expected]), keyed.what
    told = spark.read.parquet(str(carried / "answers" / "source-keys")).count()
    assert told < len({row.key for row in keyed.source if isinstance(row, Row)}) / 2
    assert not [*kept_here.iterdir(), *kept_there.iterdir()]
    sent = sum(file.stat().st_size for file in (carried / "answers").rglob("*.parquet"))
    held = (entry for planted in made.values() for entry in planted.source if isinstance(entry, Row))
    data = sum(len(row.value or b"") for row in held)
    assert sent < data / 4
    summary = json.loads((carried / "summary.json").read_text())
    assert sum(summary["answer_bytes"].values()) == sent
    assert min(summary["answer_seconds"].values()) > 0
    assert "answering took" in (carried / "report.html").read_text()
    assert min(summary["read_bytes"].values()) > summary["source"]["bytes"], "what differs was read again"


def test_what_is_lost_or_fails_on_the_way_is_named_and_nothing_is_said_of_the_copy(
    reconcile: Command,
    source: KafkaCluster,
    target: KafkaCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """
    A file that is not there any more, one too many, one that is damaged; and Spark, that has no disk.
    """
    for cluster in (source, target):
        asyncio.run(cluster.create_topic("carried-lost"))
        load(cluster.bootstrap, "carried-lost", [Row(key=b"k", value=b"v", timestamp_ms=1)])
    settings = settings_file(tmp_path / "f.yaml", source.bootstrap, target.bootstrap, "carried-lost")
    carried, history, metrics = (tmp_path / name for name in ("carried", "history", "twinsite.prom"))
    compare = "compare", carried, "--folder", history, "--metrics-file", metrics
    assert reconcile("scope", "--config", settings, "--folder", history, "--same-offsets", carried) == 0
    for site in ("source", "target"):
        assert reconcile("digest", "--config", settings, "--site", site, carried) == 0
    (part,) = (carried / "answers" / "target-digests").glob("*.parquet")
    told, beside = part.read_bytes(), part.with_name("part-older.parquet")
    capsys.readouterr()

    part.unlink()
    codes = [reconcile(*compare)]
    beside.write_bytes(told)
    part.write_bytes(told)
    codes.append(reconcile(*compare))
    beside.unlink()
    part.write_bytes(told + b"!")
    codes.append(reconcile(*compare))
    part.write_bytes(told)
    said = capsys.readouterr().err
    noted = runs(history)
    with monkeypatch.context() as broken:
        broken.setattr(spark_jobs.reconcile, "write", no_disk)
        codes.append(reconcile(*compare))
    (failed,) = runs(history)
    told_of_it = metrics.read_text()
    codes.append(reconcile(*compare))
    (done,) = runs(history)
    pages = list(history.rglob("report.html"))
    part.unlink()
    codes.append(reconcile(*compare))
    (afterwards,) = runs(history)

    assert codes == [1, 1, 1, 1, 0, 1]
    assert (
        said.count(f"target-digests is not as the site left it; missing, damaged or not its own: {part.name}")
        == 2
    )
    assert (
        said.count(
            f"target-digests is not as the site left it; missing, damaged or not its own: {beside.name}"
        )
        == 1
    )
    assert [one.outcome for one in noted] == ["failed"]
    assert (failed.outcome, failed.summary["error"]) == ("failed", "no space left on device")
    assert 'twinsite_reconcile_outcome{flow="proof",outcome="failed"} 1' in told_of_it
    assert (done.outcome, done.name) == ("match", failed.name)
    assert not pages, "of the attempt that failed"
    assert afterwards == done, "a result stays, whatever becomes of its folder"


def test_answers_of_an_older_comparison_are_none(
    reconcile: Command,
    source: KafkaCluster,
    target: KafkaCluster,
    tmp_path: Path,
) -> None:
    """
    A new comparison is carried into folders that hold the answers of the last one, which was a match.
    """
    rows = [Row(key=b"k", value=b"v", timestamp_ms=1)]
    for cluster in (source, target):
        asyncio.run(cluster.create_topic("carried-again"))
        load(cluster.bootstrap, "carried-again", rows)
    settings = settings_file(tmp_path / "f.yaml", source.bootstrap, target.bootstrap, "carried-again")
    old, new = tmp_path / "old", tmp_path / "new"
    begin = "scope", "--config", settings, "--folder", tmp_path / "history", "--same-offsets"
    compare = "compare", old, "--folder", tmp_path / "history"
    assert reconcile(*begin, old) == 0
    for site in ("source", "target"):
        assert reconcile("digest", "--config", settings, "--site", site, old) == 0
    assert reconcile(*compare) == 0
    for cluster, value in ((source, b"here"), (target, b"there")):
        load(cluster.bootstrap, "carried-again", [Row(key=b"k", value=value, timestamp_ms=2)])
    assert reconcile(*begin, new) == 0
    shutil.copytree(new, old, dirs_exist_ok=True)

    before = reconcile(*compare)
    for site in ("source", "target"):
        assert reconcile("digest", "--config", settings, "--site", site, old) == 0
    waiting = reconcile(*compare)

    assert (before, waiting) == (3, 3), "the second time for the records that differ"


def test_what_retention_has_overtaken_begins_again_without_what_goes_next(
    reconcile: Command,
    source: KafkaCluster,
    target: KafkaCluster,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """
    Days may lie between the question and the answer: what was asked for is gone, and more goes meanwhile.
    """
    name = "carried-overtaken"
    for cluster in (source, target):
        asyncio.run(cluster.create_topic(name))
        load(cluster.bootstrap, name, [replace(row, timestamp_ms=1) for row in json_rows(1_000, 100)])
    settings = settings_file(tmp_path / "f.yaml", source.bootstrap, target.bootstrap, name)
    begin = "scope", "--config", settings, "--folder", tmp_path / "history", "--same-offsets"
    first, second = tmp_path / "first", tmp_path / "second"

    def digest(site: str, folder: Path) -> int:
        return reconcile("digest", "--config", settings, "--site", site, folder)

    assert reconcile(*begin, first) == 0
    assert reconcile(*begin, "--overtaken", first, second) == 2
    assert "can still be read" in capsys.readouterr().err
    assert digest("target", first) == 0
    source.delete_records(name, {0: 200})

    assert digest("source", first) == 1
    assert "scope --overtaken DIRECTORY" in capsys.readouterr().err
    assert reconcile(*begin, "--overtaken", first, second) == 0
    source.delete_records(name, {0: 500})
    assert [digest(site, second) for site in ("source", "target")] == [0, 0]
    assert reconcile("compare", second, "--folder", tmp_path / "history") == 0

    (one,) = json.loads((second / "summary.json").read_text())["partitions"]
    assert (one["expired_at_source"], one["leaving"]) == ([0, 200], [200, 600])
    assert one["source_offsets"] == [600, 1_000]


def no_disk(*_: object, **__: object) -> None:
    raise SparkFailedError("no space left on device")


def test_a_folder_is_about_one_comparison(
    reconcile: Command,
    source: KafkaCluster,
    target: KafkaCluster,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    asyncio.run(source.create_topic("carried-once"))
    asyncio.run(target.create_topic("carried-once"))
    settings = settings_file(tmp_path / "f.yaml", source.bootstrap, target.bootstrap, "carried-once")

    always = "--folder", tmp_path / "runs", "--same-offsets", tmp_path / "folder"
    begin = "scope", "--config", settings, *always
    first, second = reconcile(*begin), reconcile(*begin)

    assert (first, second) == (0, 2)
    assert "already holds a comparison" in capsys.readouterr().err


def test_a_folder_without_a_comparison_is_refused(
    reconcile: Command,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert reconcile("compare", tmp_path) == 2
    assert "twinsite reconcile scope" in capsys.readouterr().err
