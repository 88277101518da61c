"""``python -m bench.proof``: what it costs to prove a copy, against reading it and against the obvious way.

Five ways run in turns, in one Spark session, on two brokers that hold the same records: the cheapest
aggregate that touches every column (the most that Spark's Kafka source can read), the digests of a site with
either algorithm, the comparison of both sites by digests, and a full outer join of both topics. Medians over
the rounds, and ratios.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from itertools import cycle, islice
from pathlib import Path
from statistics import median

import click
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from rich.console import Console
from rich.table import Table

from bench.measuring import peak_megabytes
from mirror.config import Settings, parse
from mirror.consumer_options import consumer_options
from mirror.proving import asking
from mirror.proving.wanted import Wanted
from spark_jobs.algorithms import Algorithm, Hashing
from spark_jobs.digest import digests
from spark_jobs.documents import Scope
from spark_jobs.kafka_source import BULK_BYTES, OPTIONS, Cluster, at_offsets, read, task_offsets, with_times
from spark_jobs.reconcile import compare, kafka_sites
from spark_jobs.session import JARS_VARIABLE, session
from spark_jobs.sites import Sites
from tests.harness.data import Row, json_rows
from tests.harness.jvm import BENCHMARK_JVM, cache_folder
from tests.harness.kafka import KafkaCluster
from tests.harness.loading import load
from tests.harness.segments import segments

TOPIC = "proof"
PARTITIONS = 4
PAYLOAD_RECORDS = 20_000
FLOOR, DIGEST, STRONG = "cheapest aggregate", "digest of a site", "digest of a site, SHA-256"
COMPARE, JOIN = "comparison", "full outer join"
SPARK = {"spark.driver.memory": "4g", "spark.ui.showConsoleProgress": "false"}
CORES = 2
TERABYTE_MB = 1_000_000
CLUSTER_CORES, CLUSTER_BROKERS = 32, 6
"""Of each site, in the projection to a terabyte."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Medians of one way.

    Attributes:
        megabytes: Keys and values it read.
        link_megabytes: What has to cross from one site to the other, as records or as digests.
    """

    seconds: float
    megabytes: float
    link_megabytes: float

    @property
    def megabytes_per_second(self) -> float:
        return self.megabytes / self.seconds


@dataclass(frozen=True, slots=True)
class Found:
    """The figures of a case."""

    ways: Mapping[str, Measured]
    driver_peak_megabytes: float


def rows(size: int, count: int, seed: int) -> list[Row]:
    """Records whose keys and values repeat; their timestamps and offsets make each one unique."""
    made = list(json_rows(min(count, PAYLOAD_RECORDS), size, seed))
    return [
        Row(key=row.key, value=row.value, timestamp_ms=1_700_000_000_000 + number)
        for number, row in enumerate(islice(cycle(made), count))
    ]


async def measure(size: int, codec: str, megabytes: int, rounds: int, folder: Path) -> Found:
    """Run every way in turn."""
    async with (
        KafkaCluster.start(version="3.9", name="source", work_dir=folder, jvm=BENCHMARK_JVM) as source,
        KafkaCluster.start(version="4.3", name="target", work_dir=folder, jvm=BENCHMARK_JVM) as target,
    ):
        for cluster in (source, target):
            await cluster.create_topic(TOPIC, PARTITIONS)
        data = rows(size, megabytes * 1_000_000 // size, 1)
        for cluster in (source, target):
            load(cluster.bootstrap, TOPIC, data, codec)
        settings = parse(
            {
                "source": {"bootstrap_servers": source.bootstrap},
                "target": {"bootstrap_servers": target.bootstrap},
                "topics": {"include": [TOPIC]},
            }
        )
        scope = await asking.scope(settings, Wanted(same_offsets=True))
        fetched = (
            sum(log.stat().st_size for p in range(PARTITIONS) for log in segments(source, TOPIC, p)) / 1e6
        )
        return await asyncio.to_thread(
            _in_turns, settings, scope, rounds, folder, _bytes(data) / 1e6, fetched
        )


def _bytes(data: list[Row]) -> int:
    return sum(len(row.key or b"") + len(row.value or b"") for row in data)


def _in_turns(
    settings: Settings, scope: Scope, rounds: int, folder: Path, megabytes: float, fetched: float
) -> Found:
    """
    Args:
        megabytes: Of keys and values.
        fetched: Megabytes of batches, as consumers get them.
    """
    with session(master=f"local[{CORES}]", settings=SPARK) as spark:
        source = Cluster("source", consumer_options(settings.way_to_source))
        target = Cluster("target", consumer_options(settings.target))
        sites = kafka_sites(spark, (source, target), scope, folder / "job", lambda _: None)
        digest_folder, strong_folder = folder / "digest", folder / "strong"

        def whole(cluster: Cluster) -> DataFrame:
            return read(spark, cluster, {log.name: [log.window.source] for log in scope.append_only})

        ways: dict[str, Callable[[], object]] = {
            FLOOR: lambda: _cheapest(_of_sparks_source(spark, source, scope)),
            DIGEST: lambda: _digested(whole(source), Algorithm.XXHASH64, digest_folder),
            STRONG: lambda: _digested(whole(source), Algorithm.SHA256, strong_folder),
            COMPARE: lambda: _matches(sites, scope),
            JOIN: lambda: _joined(whole(source), whole(target)),
        }
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        for turn in range(rounds + 1):
            for name, way in ways.items():
                began = time.monotonic()
                way()
                took = time.monotonic() - began
                if turn:  # the first one warms up
                    seconds[name].append(took)
                click.echo(f"round {turn}, {name}: {took:.1f} s", err=True)
        sent, strong = _size(digest_folder), _size(strong_folder)
        read_by = dict.fromkeys(ways, megabytes) | {COMPARE: 2 * megabytes, JOIN: 2 * megabytes}
        link = {FLOOR: 0.0, DIGEST: sent, STRONG: strong, COMPARE: sent, JOIN: fetched}
        return Found(
            {name: Measured(median(some), read_by[name], link[name]) for name, some in seconds.items()},
            peak_megabytes(_driver(spark)),
        )


def _digested(records: DataFrame, algorithm: Algorithm, folder: Path) -> None:
    digests(records, Hashing(algorithm, "salt")).write.mode("overwrite").parquet(str(folder))


def _size(folder: Path) -> float:
    """Megabytes of Parquet."""
    return sum(file.stat().st_size for file in folder.rglob("*.parquet")) / 1e6


def _cheapest(records: DataFrame) -> None:
    """Lengths and counts, range by range: every column is read, nothing is hashed."""
    size = F.octet_length("key") + F.octet_length("value") + F.coalesce(F.size("headers"), F.lit(0))
    group = ("topic", "partition", F.expr("place div 1024"))
    sums = F.sum(size).alias("size"), F.sum("timestamp_ms").alias("time")
    records.groupBy(*group).agg(*sums).write.format("noop").mode("overwrite").save()


def _of_sparks_source(spark: SparkSession, cluster: Cluster, scope: Scope) -> DataFrame:
    """The records as Spark's own source reads them."""
    options = {**OPTIONS, **cluster.options, "kafka.max.partition.fetch.bytes": str(BULK_BYTES)}
    total = sum(log.window.source.offsets for log in scope.append_only)
    starts: dict[str, dict[str, int]] = {TOPIC: {}}
    ends: dict[str, dict[str, int]] = {TOPIC: {}}
    for log in scope.append_only:
        partition = str(log.name.partition)
        starts[TOPIC][partition], ends[TOPIC][partition] = log.window.source
    options |= {"assign": json.dumps({TOPIC: [log.name.partition for log in scope.append_only]})}
    options |= {"startingOffsets": json.dumps(starts), "endingOffsets": json.dumps(ends)}
    options |= {"maxRecordsPerPartition": str(task_offsets(total, CORES))}
    return at_offsets(with_times(spark.read.format("kafka").options(**options).load()))


def _matches(sites: Sites, scope: Scope) -> None:
    found = compare(sites, scope)
    if not found or not all(one.is_match for one in found):
        raise click.ClickException("the comparison finds differences; the copy was made the same")


def _joined(source: DataFrame, target: DataFrame) -> None:
    """The obvious way: every record is joined with its copy."""
    key, content = ["topic", "partition", "offset"], ("timestamp_ms", "key", "value", "headers")
    here = source.select(*key, F.struct(*content).alias("here"))
    there = target.select(*key, F.struct(*content).alias("there"))
    both = here.join(there, key, "full_outer")
    if not both.where(~F.col("here").eqNullSafe(F.col("there"))).isEmpty():
        raise click.ClickException("the join finds differences; the copy was made the same")


def _driver(spark: SparkSession) -> int:
    return int(spark.sparkContext._jvm.ProcessHandle.current().pid())  # type: ignore[union-attr]


def table(title: str, found: Found) -> Table:
    """The figures, with ratios to the most that can be read."""
    made = Table(title=title)
    for heading in ("", "s", "MB/s", "of what can be read", "MB over the link"):
        made.add_column(heading, justify="right" if heading else "left")
    floor = found.ways[FLOOR].megabytes_per_second
    for name, way in found.ways.items():
        rate = way.megabytes_per_second
        made.add_row(
            name, f"{way.seconds:.1f}", f"{rate:.0f}", f"{rate / floor:.0%}", f"{way.link_megabytes:,.3f}"
        )
    return made


def conclusions(found: Found, record_bytes: int) -> list[str]:
    """In words: ratios, and what a terabyte would take."""
    ours, obvious, digest = found.ways[COMPARE], found.ways[JOIN], found.ways[DIGEST]
    core_hours = TERABYTE_MB / digest.megabytes_per_second * CORES / 3600
    seconds = core_hours * 3600 / CLUSTER_CORES
    each_sends = TERABYTE_MB / CLUSTER_BROKERS / seconds
    crosses = TERABYTE_MB * digest.link_megabytes / digest.megabytes
    return [
        f"digests are {digest.link_megabytes / digest.megabytes:.4%} of the data",
        f"{obvious.link_megabytes / ours.link_megabytes:,.0f} times fewer bytes over the link than a join, "
        f"{obvious.seconds / ours.seconds:.1f} times as fast",
        f"the driver peaked at {found.driver_peak_megabytes:,.0f} MB",
        f"a terabyte of records of {record_bytes} B: {core_hours:.1f} core-hours a site, brokers included",
        f"with {CLUSTER_CORES} cores and {CLUSTER_BROKERS} brokers at each site {seconds / 60:.0f} minutes, "
        f"while each broker reads and sends {each_sends:.0f} MB/s; {crosses:,.0f} MB cross the link",
    ]


@click.command(context_settings={"show_default": True})
@click.option("--size", "sizes", type=int, multiple=True, default=(1024, 100), help="Bytes per record.")
@click.option("--codec", type=click.Choice(["none", "lz4"]), default="lz4")
@click.option("--megabytes", default=1000, help="MB to prove; a quarter of it for records of 100 B.")
@click.option("--rounds", default=3)
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path(__file__).parent / "results" / "proof.json"
)
def main(sizes: tuple[int, ...], codec: str, megabytes: int, rounds: int, out: Path) -> None:
    """Measure what it costs to prove a copy with Spark on two cores."""
    import os

    os.environ.setdefault(JARS_VARIABLE, str(cache_folder() / "spark" / "jars"))
    found = {}
    for size in sizes:
        with tempfile.TemporaryDirectory(prefix="twinsite-proof-") as folder:
            amount = megabytes if size > 500 else megabytes // 4
            one = asyncio.run(measure(size, codec, amount, rounds, Path(folder)))
        title = f"{amount} MB, records of {size} B, {codec}, {PARTITIONS} partitions"
        found[title] = asdict(one)
        console = Console(width=120)
        console.print(table(title, one))
        for sentence in conclusions(one, size):
            console.print(f"- {sentence}")
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
