"""Comparisons that read a part, that read slowly, and that are cut short."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession

import spark_jobs.sites
from mirror.consumer_options import consumer_options
from mirror.model import TopicPartition
from mirror.proving.asking import scope
from mirror.proving.wanted import Wanted
from spark_jobs import kafka_source
from spark_jobs.algorithms import Hashing
from spark_jobs.documents import Scope
from spark_jobs.failures import SparkFailedError
from spark_jobs.findings import Kind
from spark_jobs.kafka_ranges import new_group
from spark_jobs.kafka_source import RECORD_SCHEMA, Cluster, Spared
from spark_jobs.pace import FIRST_OFFSETS, SHARE_BYTES_MIN, SLICE_SECONDS
from spark_jobs.questions import Buckets, Lines, Question, Ranges, What, ended
from spark_jobs.reconcile import compare, compare_as_it_stands, kafka_sites
from spark_jobs.sampling import Sample
from spark_jobs.sites import KafkaSite, Sites, check_is_here
from spark_jobs.window import ALL, Range
from tests.conftest import TopicFactory
from tests.harness.data import json_rows
from tests.harness.kafka import KafkaCluster
from tests.harness.loading import load
from tests.spark.commands import Command, settings_file
from tests.spark.planting import plant, write
from tests.spark.sites import compared, settings_of

FIRST_MS = 1_700_000_000_000
PACED, RATE = 12_000, 150_000
SPREAD = 6


async def test_a_sample_finds_damage_in_its_turn_and_names_it(
    spark: SparkSession, source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    One changed record in forty blocks: three of four turns see nothing and read a quarter.
    """
    name = await topic(source, prefix="sampled")
    await target.create_topic(name)
    planted = plant(1, records=40_000, plants=1, kinds=("value",))
    write({"source": source.bootstrap, "target": target.bootstrap}, name, planted)
    settings = settings_of(source, target, name)

    turns = []
    for turn in range(4):
        wanted = Wanted(same_offsets=True, sample=Sample(4, turn))
        found = await compared(spark, settings, tmp_path / str(turn), wanted)
        turns.append(found[TopicPartition(name, 0)])

    (damaged,) = [one for one in turns if not one.is_match]
    assert [finding.difference for finding in damaged.findings] == planted.expected
    assert damaged.source_records == 40_000
    others = [one.source_records for one in turns if one.is_match]
    assert max(others) <= 11_000
    assert sum(others) < 40_000


class Clock:
    """Time that passes while somebody sleeps, and does not otherwise."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


async def test_a_paced_comparison_finds_the_same_and_takes_its_time(
    spark: SparkSession,
    source: KafkaCluster,
    target: KafkaCluster,
    topic: TopicFactory,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    All it asks is read in slices, of which the first is small: records, keys, and what differs again.
    """
    name = await topic(source, prefix="paced")
    keyed = await topic(source, prefix="paced", cleanup_policy="compact")
    rows = [replace(row, timestamp_ms=FIRST_MS) for row in json_rows(PACED, 100, keys=500)]
    for one in (name, keyed):
        await target.create_topic(one)
        load(source.bootstrap, one, rows)
        load(target.bootstrap, one, [*rows, *json_rows(1, 100)])
    settings = settings_of(source, target, "paced-.*")
    about = await scope(settings, Wanted(same_offsets=True))
    clusters = (
        Cluster("source", consumer_options(settings.way_to_source)),
        Cluster("target", consumer_options(settings.target)),
    )
    shares: list[float] = []
    sites = kafka_sites(
        spark, clusters, about, tmp_path, lambda _: None, tell=shares.append, bytes_per_second=RATE
    )
    clock = Clock()
    monkeypatch.setattr(spark_jobs.sites, "time", clock)

    found = {one.log.name.topic: one for one in await asyncio.to_thread(compare, sites, about)}

    for result in found.values():
        assert [finding.difference.kind for finding in result.findings] == [Kind.EXTRA]
    assert (found[name].source_records, found[keyed].source_records) == (PACED, 500)
    records = 4 * PACED + 2 + sum(one.read_again for one in found.values())
    record_bytes = sum(len(row.key or b"") + len(row.value or b"") for row in rows) / PACED
    assert clock.now == pytest.approx(records * record_bytes / RATE, rel=0.01)
    assert shares[0] == FIRST_OFFSETS / PACED
    largest = max(later - earlier for earlier, later in pairwise(shares[:3]))
    assert largest * PACED * record_bytes == pytest.approx(RATE * SLICE_SECONDS, rel=0.1)
    assert shares.count(1.0) == 11, "of each site digests, keys, those behind, records; what may be doubled"


def sent_bytes(cluster: KafkaCluster) -> int:
    """What brokers have written since they began: to clients, while nobody writes to them."""
    counters = (Path(f"/proc/{broker.pid}/io").read_text() for broker in cluster.brokers)
    return sum(int(line.split()[1]) for text in counters for line in text.splitlines() if "wchar" in line)


async def test_a_paced_comparison_has_brokers_send_little_that_nobody_wants(
    spark: SparkSession,
    source: KafkaCluster,
    target: KafkaCluster,
    topic: TopicFactory,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    A slice is a small part of each partition, and what lies behind it could be sent with it every time.
    """
    name = await topic(source, partitions=SPREAD, prefix="spared")
    await target.create_topic(name, SPREAD)
    rows = [
        replace(row, partition=at % SPREAD, timestamp_ms=FIRST_MS) for at, row in enumerate(json_rows(9_000))
    ]
    for cluster in (source, target):
        load(cluster.bootstrap, name, rows, batch_size=16_384)  # as Java's producers do
    settings = settings_of(source, target, name)
    about = await scope(settings, Wanted(same_offsets=True))
    clusters = (
        Cluster("source", consumer_options(settings.way_to_source)),
        Cluster("target", consumer_options(settings.target)),
    )
    shares: list[float] = []
    rate = SPREAD * SHARE_BYTES_MIN / SLICE_SECONDS
    sites = kafka_sites(
        spark, clusters, about, tmp_path, lambda _: None, tell=shares.append, bytes_per_second=rate
    )
    monkeypatch.setattr(spark_jobs.sites, "time", Clock())
    before = [sent_bytes(cluster) for cluster in (source, target)]

    found = await asyncio.to_thread(compare, sites, about)

    sent = [sent_bytes(cluster) - earlier for cluster, earlier in zip((source, target), before, strict=True)]
    wanted = sum(len(row.key or b"") + len(row.value or b"") for row in rows)
    assert all(one.is_match for one in found)
    assert sum(one.source_bytes for one in found) == wanted
    assert len(shares) > 2 * 6, "each site was read in many slices"
    assert wanted < min(sent)
    assert max(sent) < 1.8 * wanted


async def test_what_is_read_up_to_the_end_of_a_log_is_read_in_slices_too(
    spark: SparkSession, source: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    The log ends where a transaction is open. At full speed the answer is the same.
    """
    name = await topic(source, partitions=2, prefix="endless")
    rows = [replace(row, partition=at % 2) for at, row in enumerate(json_rows(4_000, 100))]
    load(source.bootstrap, name, rows)
    lasting = {"transaction.timeout.ms": 600_000}
    producer = Producer({"bootstrap.servers": source.bootstrap, "transactional.id": name, **lasting})
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(name, b"open", partition=0)
    producer.flush()
    cluster = Cluster("source", {"kafka.bootstrap.servers": source.bootstrap})
    question = Question(
        name="records",
        what=What.RECORDS,
        ranges={TopicPartition(name, 0): [Range(100, ALL.end)], TopicPartition(name, 1): [Range(0, 300)]},
        hashing=Hashing(),
    )
    shares: list[float] = []

    def ask(folder: str, rate: float | None) -> set[tuple[int, int]]:
        place = tmp_path / folder
        site = KafkaSite(spark, cluster, {name: name}, place, place, shares.append, rate)
        return {(row.partition, row.offset) for row in site.ask(question).collect()}

    slow = await asyncio.to_thread(ask, "slow", 1e9)

    assert slow == {*((0, at) for at in range(100, 2_000)), *((1, at) for at in range(300))}
    assert shares == [FIRST_OFFSETS / 2_200, 1.0]
    assert await asyncio.to_thread(ask, "fast", None) == slow
    producer.abort_transaction()


class GrowingLog:
    """A log whose end moves on once it was asked for, and which is compacted then."""

    name = "source"

    def __init__(self, keys: Mapping[int, bytes], then: Mapping[int, bytes]) -> None:
        self._keys, self._then = keys, then

    def bounded(self, _spark: SparkSession, ranges: Ranges, /) -> Ranges:
        end = max(self._keys) + 1
        self._keys = self._then
        return ended(ranges, lambda _, __: end)

    def read(self, spark: SparkSession, ranges: Ranges, _lines: Lines, _little: bool, /) -> DataFrame:
        rows: list[tuple[object, ...]] = [
            (tp.topic, tp.partition, at, at, FIRST_MS, bytearray(key), None, [])
            for tp, some in ranges.items()
            for at, key in self._keys.items()
            if any(one.start <= at < one.end for one in some)
        ]
        return spark.createDataFrame(rows, RECORD_SCHEMA)


@pytest.mark.parametrize("rate", [100.0, None], ids=["slowly", "at full speed"])
def test_a_key_that_is_written_again_while_what_is_behind_is_read_is_known_to_be_in_flight(
    rate: float | None, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Its record behind the window is compacted away before it is read; the newer one stands where the log had
    already ended.
    """
    before = {at: b"%03d" % at for at in range(400)}
    after = {at: key for at, key in before.items() if at != 350} | {400: before[350]}
    name = TopicPartition("t", 0)
    question = Question(
        name="keys-behind",
        what=What.KEYS_WRITTEN,
        ranges={name: [Range(0, ALL.end)], TopicPartition("t", 1): [Range(0, 0)]},
        hashing=Hashing(),
        buckets={name: Buckets(1, (Range(0, 1),))},
    )
    told: list[tuple[float, float]] = []
    clock = Clock()
    monkeypatch.setattr(spark_jobs.sites, "time", clock)
    monkeypatch.setattr(spark_jobs.sites, "SLICE_OFFSETS", 200)
    log = GrowingLog(before, after)
    site = KafkaSite(
        spark, log, {"t": "t"}, tmp_path, tmp_path, lambda share: told.append((share, clock.now)), rate
    )

    found = site.ask(question)

    assert found.count() == len(before)
    if rate is not None:
        assert clock.now == pytest.approx(400 * 3 / rate)
        assert [share for share, _ in told] == [FIRST_OFFSETS / 400, 400 / 401, 1.0]
        assert told[-1] == (1.0, clock.now), "everything is done after the last pause only"


def test_what_was_fetched_too_early_is_what_the_next_slice_begins_with(
    spark: SparkSession, source: KafkaCluster, topic: TopicFactory
) -> None:
    """
    Batches that are larger than what a slice takes of a partition are sent once, and not for every slice.
    """
    name = asyncio.run(topic(source, prefix="ahead"))
    load(source.bootstrap, name, json_rows(6_000), linger_ms=500)
    cluster = Cluster("source", {"kafka.bootstrap.servers": source.bootstrap})

    def sent(group: Callable[[], str]) -> int:
        before = sent_bytes(source)
        for start in range(0, 6_000, 300):
            spared = cluster.sparing(Spared(1_024.0, group()))
            ranges = {TopicPartition(name, 0): [Range(start, start + 300)]}
            assert spared.read(spark, ranges, {}, False).count() == 300
        return sent_bytes(source) - before

    one = new_group()

    assert sent(lambda: one) < 1.5 * 6_000 * 1_024
    assert sent(new_group) > 3 * 6_000 * 1_024


@pytest.fixture
async def dying(tmp_path: Path) -> AsyncIterator[KafkaCluster]:
    """A cluster of its own, for its broker to be killed."""
    async with KafkaCluster.start(version="4.3", name="dying", work_dir=tmp_path / "dying") as cluster:
        yield cluster


def test_a_broker_that_dies_half_way_ends_the_comparison_without_a_result(
    reconcile: Command,
    source: KafkaCluster,
    dying: KafkaCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """
    A part of the target was read, and was the same. Neither a match nor a mismatch is said.
    """
    rows = [replace(row, timestamp_ms=FIRST_MS) for row in json_rows(PACED, 100)]
    for cluster in (source, dying):
        asyncio.run(cluster.create_topic("dying"))
        load(cluster.bootstrap, "dying", rows)
    settings = settings_file(tmp_path / "f.yaml", source.bootstrap, dying.bootstrap, "dying")
    folder, metrics = tmp_path / "runs", tmp_path / "twinsite.prom"
    for name in ("kafkaConsumer.pollTimeoutMs", "kafka.default.api.timeout.ms", "kafka.request.timeout.ms"):
        monkeypatch.setitem(kafka_source.OPTIONS, name, "5000")
    monkeypatch.setattr("mirror.proving.asking.START_SECONDS", 5.0)

    with ThreadPoolExecutor() as threads:
        killed = threads.submit(_kill_once_read, dying, folder)
        code = reconcile(
            "--config", settings, "--folder", folder, "--same-offsets", "--metrics-file", metrics,
            "--rate", "0.1", "-o", "json",
        )  # fmt: skip
        killed.result()

    assert code == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert "asking the target: digests" in said.err
    (run,) = folder.iterdir()
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["outcome"], summary.get("partitions")) == ("failed", None)
    assert summary["error"].startswith("asking the target: digests: ")
    assert "dying-0" in summary["error"]
    assert not (run / "differences").exists()
    told = metrics.read_text()
    assert 'twinsite_reconcile_outcome{flow="proof",outcome="failed"} 1' in told
    assert "last_success_timestamp_seconds{" not in told


def _kill_once_read(cluster: KafkaCluster, folder: Path, seconds: float = 60.0) -> None:
    """While the comparison rests: it has read a part of what the target holds."""
    end = time.monotonic() + seconds
    while not list(folder.glob("*/answers/target-digests-parts/000001/_SUCCESS")):
        assert time.monotonic() < end, "nothing of the target was read"
        time.sleep(0.02)
    asyncio.run(cluster.broker(1).kill())


def test_an_answer_of_which_a_worker_kept_a_part_is_none(spark: SparkSession, tmp_path: Path) -> None:
    """
    What a worker writes to a disk of its own is not missed by Spark: another one would do without it as well.
    """
    place = tmp_path / "answer"
    frame = spark.range(0, 100, 1, 4)
    frame.write.parquet(str(place))
    check_is_here(frame, str(place), 100)
    elsewhere = next(iter(place.glob("part-00002*.parquet")))
    elsewhere.unlink()

    with pytest.raises(SparkFailedError, match="holds 75 of the 100 rows"):
        check_is_here(frame, str(place), 100)


async def test_retention_that_overtakes_a_comparison_begins_it_again(
    spark: SparkSession, source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    The offsets that were asked for are gone when Spark gets there: what is left is compared, and of that not
    what goes next. More goes meanwhile, as it does where retention is steady.
    """
    name = await topic(source, prefix="overtaken")
    await target.create_topic(name)
    rows = [replace(row, timestamp_ms=FIRST_MS) for row in json_rows(2_000, 100)]
    for cluster in (source, target):
        load(cluster.bootstrap, name, rows)
    settings = settings_of(source, target, name)
    gone = [900, 500]
    said: list[str] = []

    def say(words: str) -> None:
        said.append(words)
        if words == "asking the source: digests" and gone:
            upto = gone.pop()
            target.delete_records(name, {0: upto})

    def ask(leaving: Mapping[TopicPartition, int]) -> Scope:
        return asyncio.run(scope(settings, Wanted(same_offsets=True), leaving))

    def sites(about: Scope) -> Sites:
        clusters = (
            Cluster("source", consumer_options(settings.way_to_source)),
            Cluster("target", consumer_options(settings.target)),
        )
        return kafka_sites(spark, clusters, about, tmp_path, say)

    about, (found,) = await asyncio.to_thread(compare_as_it_stands, ask, sites)

    assert found.is_match
    assert found.log.window.target == Range(1_250, 2_000)
    assert found.log.window.expired_at_target == Range(0, 500)
    assert found.log.window.expired_at_source.offsets == 0
    assert found.log.window.leaving == Range(500, 1_250)
    assert found.source_records == 750
    assert about.logs == [found.log]
    assert said.count("a log lost its start while it was read: comparing again, from a later start") == 1
