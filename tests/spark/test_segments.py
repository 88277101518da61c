"""What lies in log directories is what brokers serve; and what is damaged there is no copy."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from kafka.record.util import calc_crc32c
from pyspark.sql import DataFrame, SparkSession

from mirror.model import TopicPartition
from spark_jobs.algorithms import Hashing
from spark_jobs.digest import digests
from spark_jobs.kafka_source import Cluster
from spark_jobs.pace import FIRST_OFFSETS
from spark_jobs.places import Line
from spark_jobs.questions import Lines, Question, Ranges, What, endless, offsets_of
from spark_jobs.segments.source import SegmentFiles
from spark_jobs.sites import KafkaSite
from spark_jobs.window import ALL, Range
from tests.conftest import TopicFactory
from tests.harness.checker import watermarks
from tests.harness.daemon import until
from tests.harness.data import edge_rows, json_rows
from tests.harness.kafka import KafkaCluster
from tests.harness.loading import CODECS, load, load_interleaved, load_transactions
from tests.harness.old_logs import RECORDS
from tests.harness.segments import (
    Files,
    cleaned_up_to,
    damage,
    mend,
    segments,
    serve_logs,
    stored_batches,
)
from tests.spark.commands import Command, settings_file
from tests.spark.test_commands import summaries
from tests.spark.test_digest import said
from tests.spark.test_mapped import copy
from tests.unit.batches import entries, v2
from tests.unit.test_segments import write

SMALL: dict[str, Any] = {"segment_bytes": 40_000, "max_message_bytes": 30_000}
BATCHES: dict[str, Any] = {"batch_size": 8_000}


async def compacted(source: KafkaCluster, topic: TopicFactory) -> str:
    """A topic of several files that the cleaner has been over, transactions and tombstones in it."""
    name = await topic(source, cleanup_policy="compact", min_cleanable_dirty_ratio=0.0, **SMALL)
    rows = list(json_rows(3000, 100, keys=1000))
    gone = [replace(row, value=None) for row in rows[::50]]
    load(source.bootstrap, name, [*rows, *gone], "lz4", **BATCHES)
    load_transactions(source.bootstrap, name, json_rows(300, 100, keys=1000), transactional_id=name)
    load(source.bootstrap, name, json_rows(400, 100, seed=2), **BATCHES)

    def is_clean() -> bool:
        return cleaned_up_to(source, name) == int(segments(source, name)[-1].stem)

    await until(is_clean, f"{name} is compacted")
    await source.alter_topic(name, {"min.cleanable.dirty.ratio": 1})
    return name


async def test_files_have_the_digests_that_their_broker_gives(
    spark: SparkSession, source: KafkaCluster, topic: TopicFactory
) -> None:
    """
    Of whole logs, and of ranges that begin and end in the middle of batches and transactions.
    """
    odd = await topic(source, **SMALL)
    for codec in CODECS:
        load(source.bootstrap, odd, [*edge_rows(), *json_rows(100, 500)], codec, **BATCHES)
    source.delete_records(odd, {0: 222})
    timed = await topic(source, message_timestamp_type="LogAppendTime")
    load(source.bootstrap, timed, json_rows(100, 100), "lz4")
    committed = await topic(source, **SMALL)
    load_transactions(source.bootstrap, committed, json_rows(500, 100), transactional_id=committed)
    load_interleaved(source.bootstrap, committed, json_rows(300, 100))
    keyed = await compacted(source, topic)
    assert min(len(segments(source, name)) for name in (odd, committed, keyed)) > 2
    names = [TopicPartition(name, 0) for name in (odd, timed, committed, keyed)]
    logs = {name: Range(*watermarks(source.bootstrap, name.topic)[0]) for name in names}
    some = {
        name: [Range(log.start + 7, log.start + 60), Range(log.start + 75, log.end - 15)]
        for name, log in logs.items()
    }
    whole = {name: [log] for name, log in logs.items()}
    live, read = await asyncio.to_thread(both, spark, source, {keyed}, whole)
    assert read == live
    counts = {name.topic: sum(row[3] for row in live if row[0] == name.topic) for name in names}
    assert counts == {odd: 5 * 148 - 222, timed: 100, committed: 700, keyed: counts[keyed]}
    live, read = await asyncio.to_thread(both, spark, source, {keyed}, some, 1000)
    assert read == live


async def test_files_of_old_formats_have_the_digests_that_their_broker_gives(
    spark: SparkSession, own_source: KafkaCluster, old_logs: Mapping[str, Files]
) -> None:
    """
    Kafka's own consumers read each record that brokers of 0.9 and 0.10 wrote as it is read from their files.
    """
    await own_source.create_topic("old", len(old_logs))
    await serve_logs(own_source, "old", dict(enumerate(old_logs.values())))
    ends = watermarks(own_source.bootstrap, "old")
    whole = {TopicPartition("old", number): [Range(*marks)] for number, marks in ends.items()}

    live, read = await asyncio.to_thread(both, spark, own_source, {"old"}, whole)

    assert read == live
    assert sum(row[3] for row in live) == sum(RECORDS.values())


async def test_files_end_where_their_broker_says_while_a_transaction_is_open_across_them(
    source: KafkaCluster, topic: TopicFactory
) -> None:
    """
    It began in an earlier file than the last one, and goes on there.
    """
    name = await topic(source, **SMALL)
    tp = TopicPartition(name, 0)
    load(source.bootstrap, name, json_rows(50, 100))
    files = SegmentFiles("source", [source.log_dir()], set())
    producer = Producer({"bootstrap.servers": source.bootstrap, "transactional.id": name})
    producer.init_transactions()
    producer.begin_transaction()
    for seed in (2, 3):
        producer.produce(name, b"of the transaction")
        producer.flush()
        load(source.bootstrap, name, json_rows(300, 500, seed=seed), **BATCHES)
    producer.produce(name, b"of the transaction")
    producer.flush()
    assert len(segments(source, name)) > 3

    assert files.ends([tp]) == {tp: 50}
    assert watermarks(source.bootstrap, name) == {0: (0, 50)}

    producer.commit_transaction()
    end = 50 + 3 + 2 * 300 + 1
    await until(lambda: watermarks(source.bootstrap, name) == {0: (0, end)}, "the transaction has ended")
    assert files.ends([tp]) == {tp: end}


def both(
    spark: SparkSession,
    cluster: KafkaCluster,
    compacted: Set[str],
    ranges: Mapping[TopicPartition, Sequence[Range]],
    places: int = 0,
) -> list[set[tuple[Any, ...]]]:
    """The digests that a broker gives of its logs, and those of its files."""
    broker = Cluster("source", {"kafka.bootstrap.servers": cluster.bootstrap})
    files = SegmentFiles("source", [cluster.log_dir()], compacted)
    lines = {name: [Line(0, 1 << 40, 1, places)] for name in ranges} if places else {}
    return [
        said(digests(records.read(spark, ranges, lines, False), Hashing())) for records in (broker, files)
    ]


def test_mapped_partitions_are_read_slowly_as_they_are_read_fast(spark: SparkSession, tmp_path: Path) -> None:
    """
    Partitions of which one has been read before the other, and one of which nothing is wanted.
    """
    counts = {TopicPartition("t", 0): 900, TopicPartition("t", 1): 100, TopicPartition("t", 2): 0}
    for tp in counts:
        write(tmp_path / "logs", {0: [v2(entries(0, 1_000))]}, str(tp))
    files = SegmentFiles("source", [tmp_path / "logs"], set())
    fast, slow = (
        KafkaSite(spark, files, {"t": "t"}, tmp_path / name, tmp_path / name, lambda _: None, rate)
        for name, rate in (("fast", None), ("slow", 1e9))
    )
    question = Question(
        name="digests",
        what=What.DIGESTS,
        ranges={tp: [Range(0, count)] for tp, count in counts.items()},
        hashing=Hashing(),
        lines={tp: [Line(0, 1_000, 1, 7)] for tp in counts},
    )
    nothing = replace(question, name="nothing", ranges={tp: [Range(5, 5)] for tp in counts})

    found = said(slow.ask(question))

    assert found == said(fast.ask(question))
    assert sum(row[3] for row in found) == sum(counts.values())
    assert said(slow.ask(nothing)) == set()


@dataclass
class Watched:
    """Records of a site, and what was read of them.

    Attributes:
        reads: The ranges of each read.
    """

    files: SegmentFiles
    name: str = "source"
    reads: list[Ranges] = field(default_factory=list)

    def bounded(self, spark: SparkSession, ranges: Ranges, /) -> Ranges:
        return self.files.bounded(spark, ranges)

    def read(self, spark: SparkSession, ranges: Ranges, lines: Lines, little: bool, /) -> DataFrame:
        self.reads.append(ranges)
        return self.files.read(spark, ranges, lines, little)


def test_what_is_read_up_to_the_end_of_a_log_is_read_in_slices_too(
    spark: SparkSession, tmp_path: Path
) -> None:
    """
    The first one is small: the size of records is not known yet.
    """
    to_the_end, some = TopicPartition("t", 0), TopicPartition("t", 1)
    for tp in (to_the_end, some):
        write(tmp_path / "logs", {0: [v2(entries(0, 3_000)), v2(entries(3_000, 2_000))]}, str(tp))
    watched = Watched(SegmentFiles("source", [tmp_path / "logs"], set()))
    shares: list[float] = []
    site = KafkaSite(spark, watched, {"t": "t"}, tmp_path, tmp_path, shares.append, 1e9)
    question = Question(
        name="records",
        what=What.RECORDS,
        ranges={to_the_end: [Range(100, ALL.end)], some: [Range(0, 3_000)]},
        hashing=Hashing(),
    )

    found = site.ask(question)

    assert found.count() == 4_900 + 3_000
    assert [offsets_of(ranges) for ranges in watched.reads] == [FIRST_OFFSETS, 7_900 - FIRST_OFFSETS]
    assert not any(endless(ranges) for ranges in watched.reads)
    assert shares == [FIRST_OFFSETS / 7_900, 1.0]


@pytest.mark.timeout(300)
def test_a_backup_is_proven_without_its_brokers(
    reconcile: Command,
    source: KafkaCluster,
    target: KafkaCluster,
    topic: TopicFactory,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """
    Its damage is named with file, position and offset, and so is a file that it lacks.
    """
    keyed = asyncio.run(compacted(source, topic))
    name = asyncio.run(topic(source, prefix=keyed, **SMALL))
    load(source.bootstrap, name, json_rows(300, 500), **BATCHES)
    asyncio.run(copy(source, target, f"{keyed}.*", name, tmp_path))
    backup, carried = tmp_path / "backup", tmp_path / "carried"
    for folder in (f"{name}-0", f"{keyed}-0"):
        shutil.copytree(source.log_dir() / folder, backup / folder)
    settings, cold = (
        settings_file(tmp_path / f"{at}.yaml", at, target.bootstrap, f"{keyed}.*", flow=name)
        for at in (source.bootstrap, "127.0.0.1:1")
    )
    kept = tmp_path / "kept"
    of_backup = (
        "digest",
        "--config",
        cold,
        "--site",
        "source",
        "--keys-folder",
        kept,
        "--segments",
        backup,
        carried,
    )
    of_target = "digest", "--config", settings, "--site", "target", "--keys-folder", kept, carried
    first, second, third, *_ = [
        replace(batch, file=backup / f"{name}-0" / batch.file.name)
        for file in segments(source, name)
        for batch in stored_batches(source, name)
        if batch.file == file and not batch.position
    ]

    assert reconcile("scope", "--config", settings, carried) == 0
    assert reconcile(*of_target) == 0
    assert reconcile(*of_backup) == 0
    assert len(list(kept.iterdir())) == 2
    assert reconcile("compare", carried) == 0
    assert reconcile(*of_target) == 0
    assert len(list(kept.iterdir())) == 1
    assert json.loads((carried / "summary.json").read_text())["files"] == {"source": [str(backup)]}

    shutil.rmtree(carried / "answers")
    damage(second)
    assert reconcile(*of_backup) == 1
    assert f"{second.file}, position 0: batch at offset {second.offset}: its CRC" in capsys.readouterr().err
    mend(second)
    second.file.rename(second.file.with_suffix(".lost"))
    assert reconcile(*of_backup) == 1
    missing = f"{name}-0: offsets [{second.offset}, {third.offset}) are missing at {first.file}"
    assert missing in capsys.readouterr().err
    second.file.with_suffix(".lost").rename(second.file)

    load(target.bootstrap, name, json_rows(1, 100))
    files = "--source-segments", backup, "--target-segments", target.log_dir()
    assert reconcile("--config", settings, "--folder", tmp_path / "runs", *files) == 10
    (run,) = (tmp_path / "runs").iterdir()
    assert not (run / "plan.json").exists()
    assert str(backup) in (run / "report.html").read_text()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("site", ["source", "target"])
def test_an_older_copy_is_proven_as_far_as_it_goes(
    site: str,
    reconcile: Command,
    source: KafkaCluster,
    target: KafkaCluster,
    topic: TopicFactory,
    tmp_path: Path,
) -> None:
    """
    Partitions that ended at different offsets then, and a compacted topic whose keys were written anew since.
    """
    name = asyncio.run(topic(source, partitions=3, prefix="old"))
    keyed = asyncio.run(topic(source, prefix=name, cleanup_policy="compact"))
    rows = [replace(row, partition=min(2, at // 30)) for at, row in enumerate(json_rows(100, 100))]
    load(source.bootstrap, name, rows)
    load(source.bootstrap, keyed, json_rows(200, 100, keys=50))
    mirrored = source, target, f"{name}.*", name, tmp_path
    asyncio.run(copy(*mirrored))
    cluster = source if site == "source" else target
    backup = tmp_path / "backup"
    for folder in (f"{name}-0", f"{name}-1", f"{name}-2", f"{keyed}-0"):
        shutil.copytree(cluster.log_dir() / folder, backup / folder)
    load(source.bootstrap, name, rows[20:90])
    load(source.bootstrap, keyed, json_rows(80, 100, seed=2, keys=40))
    asyncio.run(copy(*mirrored))
    settings = settings_file(tmp_path / "f.yaml", source.bootstrap, target.bootstrap, f"{name}.*", flow=name)
    always = "--config", settings, "--folder", tmp_path / "runs", f"--{site}-segments", backup

    assert reconcile(*always[:4]) == 0, "the brokers, which have more: that is not lost with the files"
    assert reconcile(*always) == 0
    damage_value(cluster, name, 1, backup)
    assert reconcile(*always) == 10

    _, first, second = summaries(tmp_path / "runs")
    assert (first[site]["records"], first["unnamed"]) == (100 + 50, 0)
    ends = {one["partition"]: one["source_offsets"][1] for one in first["partitions"] if one["topic"] == name}
    assert ends == {0: 30, 1: 30, 2: 40}
    assert second["differences"] == {"changed": 1}


def damage_value(cluster: KafkaCluster, topic: str, partition: int, folder: Path) -> None:
    """Another byte in the last value of a copied log, with a checksum that is right."""
    (file,) = (folder / f"{topic}-{partition}").glob("*.log")
    *_, last = (
        one for one in stored_batches(cluster, topic, partition) if one.position < file.stat().st_size
    )
    batch = bytearray(last.data)
    batch[-2] ^= 1
    batch[17:21] = calc_crc32c(batch[21:]).to_bytes(4)
    with file.open("r+b") as held:
        held.seek(last.position)
        held.write(batch)


def test_a_directory_that_is_no_log_directory_ends_in_2(
    reconcile: Command,
    source: KafkaCluster,
    target: KafkaCluster,
    topic: TopicFactory,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    name = asyncio.run(topic(source))
    asyncio.run(target.create_topic(name))
    settings = settings_file(tmp_path / "f.yaml", source.bootstrap, target.bootstrap, name)
    assert reconcile("scope", "--config", settings, "--same-offsets", tmp_path / "carried") == 0
    asked = "digest", "--config", settings, "--site", "source", tmp_path / "carried"

    assert reconcile(*asked, "--segments", tmp_path) == 2
    assert f"{tmp_path} holds no partition's segment files" in capsys.readouterr().err
    assert reconcile(*asked, "--segments", tmp_path / "nowhere") == 2
    assert reconcile(*asked, "--segments", source.log_dir()) == 0
