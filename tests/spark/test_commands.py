"""What somebody at a terminal, a script and Prometheus get of a comparison."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from mirror.errors import UsageError
from mirror.proving.comparable import AROUND
from spark_jobs.session import session
from tests.conftest import TopicFactory
from tests.harness.data import Row, json_rows
from tests.harness.kafka import KafkaCluster
from tests.harness.loading import load
from tests.spark.commands import Command, settings_file, submitted
from tests.spark.test_mapped import copy


def summaries(folder: Path) -> list[dict[str, Any]]:
    return [json.loads((run / "summary.json").read_text()) for run in sorted(folder.iterdir())]


def test_a_copy_is_proven_again_and_again_and_damage_is_found(
    reconcile: Command,
    source: KafkaCluster,
    target: KafkaCluster,
    topic: TopicFactory,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """
    A match, then only what came after it, then nothing, then a foreign record; history and metrics tell of
    all four. What was found the same by a weaker digest is compared again by a stronger one.
    """
    name = asyncio.run(topic(source, prefix="proven"))
    load(source.bootstrap, name, json_rows(2000, 100))
    asyncio.run(copy(source, target, name, name, tmp_path))
    settings = settings_file(tmp_path / "flow.yaml", source.bootstrap, target.bootstrap, name, flow=name)
    folder, metrics = tmp_path / "runs", tmp_path / "twinsite.prom"
    always = "--config", settings, "--folder", folder, "--metrics-file", metrics

    first = reconcile(*always)
    load(source.bootstrap, name, json_rows(500, 100, seed=2))
    asyncio.run(copy(source, target, name, name, tmp_path))
    second = reconcile(*always, "--since-last-match")
    matched = metrics.read_text()
    capsys.readouterr()
    nothing = reconcile(*always, "--since", "2100-01-01")
    said = capsys.readouterr().out
    load(target.bootstrap, name, [Row(key=b"zombie", value=b"x")])
    third = reconcile(*always, "--since-last-match", "--digest", "sha256")
    shown = capsys.readouterr().out

    assert (first, second, nothing, third) == (0, 0, 1, 10)
    assert f"not compared: {name}-0: nothing of it lies within what was asked for" in said
    assert "zombie" in shown
    assert [one["source"]["records"] for one in summaries(folder)] == [2000, 500 + AROUND, 0, 2500]
    first_summary = summaries(folder)[0]
    assert first_summary["read_bytes"] == {one: first_summary[one]["bytes"] for one in ("source", "target")}
    assert extras(matched) == [0]
    assert extras(metrics.read_text()) == [1]
    assert success(metrics.read_text()) == success(matched)
    assert "zombie" in next(iter(sorted(folder.iterdir())[-1].glob("report.html"))).read_text()
    assert reconcile("history", "--folder", folder, "-o", "json") == 0
    told = json.loads(capsys.readouterr().out)
    assert [run["outcome"] for run in told] == ["mismatch", "incomplete", "match", "match"]
    assert [run["digest"] for run in told] == ["sha256", "xxhash64", "xxhash64", "xxhash64"]


def extras(metrics: str) -> list[float]:
    found = re.findall(r'^twinsite_reconcile_mismatches{.*kind="extra"} (.*)$', metrics, re.MULTILINE)
    return [float(value) for value in found]


def success(metrics: str) -> list[str]:
    return [line for line in metrics.splitlines() if line.startswith("twinsite_reconcile_last_success")]


def test_a_comparison_that_cannot_be_completed_is_no_match(
    reconcile: Command,
    source: KafkaCluster,
    target: KafkaCluster,
    topic: TopicFactory,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """
    A topic that nobody has copied, among others that are the same.
    """
    name = asyncio.run(topic(source, prefix="halfway"))
    load(source.bootstrap, name, json_rows(10, 100))
    asyncio.run(copy(source, target, name, name, tmp_path))
    other = asyncio.run(topic(source, prefix="halfway"))
    settings = settings_file(tmp_path / "f.yaml", source.bootstrap, target.bootstrap, "halfway-.*", flow=name)

    always = "--config", settings, "--folder", tmp_path / "runs"

    code = reconcile(*always)

    assert code == 1
    assert f"not compared: {other}-0: the target has no such partition" in capsys.readouterr().out
    metrics = tmp_path / "twinsite.prom"
    assert reconcile(*always, "--topic", name, "--metrics-file", metrics) == 0
    assert not success(metrics.read_text()), "the flow as a whole was never seen to be the same"
    assert [one["topics"] for one in summaries(tmp_path / "runs")] == [[], [name]]


def test_a_cluster_that_does_not_answer_ends_in_1_and_leaves_word(
    reconcile: Command,
    source: KafkaCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("mirror.proving.asking.START_SECONDS", 1.0)
    settings = settings_file(tmp_path / "f.yaml", source.bootstrap, "127.0.0.1:1", ".*")

    code = reconcile("--config", settings, "--folder", tmp_path / "runs")

    assert code == 1
    (summary,) = summaries(tmp_path / "runs")
    assert summary["outcome"] == "failed"
    assert summary["error"] in capsys.readouterr().err
    (page,) = (tmp_path / "runs").rglob("report.html")
    assert "The comparison was not completed" in page.read_text()


def test_a_mirror_that_is_to_be_asked_and_does_not_answer_ends_in_1(
    reconcile: Command,
    source: KafkaCluster,
    target: KafkaCluster,
    topic: TopicFactory,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """
    What it would have said is not known: without it less would be proven than was asked for.
    """
    name = asyncio.run(topic(source, prefix="unheard"))
    settings = settings_file(tmp_path / "f.yaml", source.bootstrap, target.bootstrap, name)

    code = reconcile("--config", settings, "--folder", tmp_path / "runs", "--url", "http://127.0.0.1:1")

    assert code == 1
    assert "http://127.0.0.1:1: " in capsys.readouterr().err
    assert [one["outcome"] for one in summaries(tmp_path / "runs")] == ["failed"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "--config: missing"),
        (("--config", "nowhere.yaml"), "nowhere.yaml"),
        (("--config", "f.yaml", "--since", "yesterday"), "'yesterday' is not a time"),
        (("--config", "f.yaml", "--conf", "driver.memory=4g"), "'driver.memory=4g' is not a Spark setting"),
        (("--config", "f.yaml", "--conf", "spark.driver.memory"), "as in spark.driver.memory=4g"),
        (("--config", "f.yaml", "--from-offset", "-1"), "--from-offset"),
        (("--config", "f.yaml", "--url", "mirror-1"), "mirror-1"),
        (("compare", "nothing"), "scope.json"),
    ],
)
def test_what_cannot_be_meant_ends_in_2(
    arguments: tuple[str, ...],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    reconcile: Command,
) -> None:
    monkeypatch.chdir(tmp_path)
    settings_file(tmp_path / "f.yaml", "127.0.0.1:1", "127.0.0.1:2", ".*")

    assert reconcile(*arguments) == 2
    assert said in capsys.readouterr().err


def test_topics_that_are_not_there_are_named(
    reconcile: Command,
    source: KafkaCluster,
    target: KafkaCluster,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    settings = settings_file(tmp_path / "f.yaml", source.bootstrap, target.bootstrap, "no-such-topic")

    assert reconcile("--config", settings, "--folder", tmp_path) == 2
    assert "no-such-topic" in capsys.readouterr().err


def test_a_topic_that_is_not_the_flow_s_is_named_before_spark_starts(
    reconcile: Command,
    source: KafkaCluster,
    target: KafkaCluster,
    topic: TopicFactory,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """
    Also where another one is.
    """
    name, other = (asyncio.run(topic(source, prefix=prefix)) for prefix in ("chosen", "left-out"))
    settings = settings_file(tmp_path / "f.yaml", source.bootstrap, target.bootstrap, "chosen-.*")
    limits = "--folder", tmp_path / "runs", "--topic", name, "--topic", other

    assert reconcile("scope", "--config", settings, *limits, tmp_path / "carried") == 2
    assert f"--topic {other}: flow proof copies no such topic" in capsys.readouterr().err


@pytest.mark.timeout(300)
def test_spark_submit_does_the_same(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    In a process and a Spark of its own, which ends with what was found.
    """
    name = asyncio.run(topic(source, prefix="submitted"))
    load(source.bootstrap, name, json_rows(100, 100))
    asyncio.run(copy(source, target, name, name, tmp_path))
    load(target.bootstrap, name, [Row(key=b"zombie", value=b"x")])
    settings = settings_file(tmp_path / "f.yaml", source.bootstrap, target.bootstrap, name, flow=name)

    done = submitted("--config", settings, "--folder", "runs", work_dir=tmp_path)

    assert done.code == 10, f"{done.stdout}\n{done.stderr}"
    assert "zombie" in done.stdout
    (summary,) = summaries(tmp_path / "runs")
    assert (summary["outcome"], summary["source"]["records"]) == ("mismatch", 100)
    assert {file.name for file in (tmp_path / "runs").rglob("report.html")} == {"report.html"}


@pytest.mark.parametrize(
    "said",
    [{"master": "local[2]"}, {"jars_folder": Path("jars")}, {"settings": {"spark.driver.memory": "4g"}}],
)
def test_where_spark_runs_is_said_to_spark_submit_alone(
    monkeypatch: pytest.MonkeyPatch, said: dict[str, Any]
) -> None:
    """
    It has decided when our options are read.
    """
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")

    with pytest.raises(UsageError, match="spark-submit decides where"), session(**said):
        pass
