"""What a mirror that has caught up costs, how late it is, and whether its memory stays where it was."""

from __future__ import annotations

import asyncio
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from bench.contestants import CONTESTANTS, OURS, Job
from bench.goals import Goal, ratio
from bench.measuring import LogEnds, cpu_seconds, peak_megabytes, resident_megabytes, wait
from tests.harness.data import json_rows
from tests.harness.jvm import BENCHMARK_JVM
from tests.harness.kafka import KafkaCluster
from tests.harness.loading import load
from tests.harness.trickle import came, trickling

TRICKLE_PER_SECOND = 100
TRICKLE_SECONDS = 30.0
WARM_UP_RECORDS = 1500
"""Records that are not timed: some of them wait until the mirror has started."""
IDLE_TOPICS, IDLE_PARTITIONS = 10, 100
IDLE_SECONDS = 60.0
BACKLOG_MEGABYTES = 1500
BACKLOG_PARTITIONS = 64
SAMPLES = 10


@dataclass(frozen=True, slots=True)
class Latency:
    """From handing a record to the source's producer to reading it from the target, in milliseconds."""

    p50: float
    p99: float
    longest: float
    records: int


@dataclass(frozen=True, slots=True)
class Standing:
    """All that is measured here.

    Attributes:
        idle_core_percent: Of one core, for :data:`IDLE_TOPICS` x :data:`IDLE_PARTITIONS` without news.
        resident_megabytes: While a backlog is copied, at equal shares of it.
        peak_megabytes: The most in that time.
    """

    latency: dict[str, Latency]
    idle_core_percent: float
    resident_megabytes: list[float]
    peak_megabytes: float


def from_json(saved: dict[str, Any]) -> Standing:
    """What ``dataclasses.asdict`` made of it, back again."""
    latency = {name: Latency(**figures) for name, figures in saved["latency"].items()}
    return Standing(**{**saved, "latency": latency})


def judged(found: Standing) -> list[Goal]:
    """What is wanted of a mirror that has caught up, or is far behind."""
    first, *_, last = found.resident_megabytes
    return [
        Goal("a trickle: p99", 50.0, found.latency[OURS].p99, at_most=True, unit=" ms"),
        Goal("idle partitions, of a core", 3.0, found.idle_core_percent, at_most=True, unit=" %"),
        Goal("a backlog: memory", 150.0, found.peak_megabytes, at_most=True, unit=" MB"),
        Goal("a backlog: memory at its end, times that at first", 1.1, ratio(last, first), at_most=True),
    ]


async def stand(folder: Path) -> Standing:
    """Measure a trickle, then idle partitions, then a backlog."""
    async with (
        KafkaCluster.start(version="3.9", name="source", work_dir=folder, jvm=BENCHMARK_JVM) as source,
        KafkaCluster.start(version="4.3", name="target", work_dir=folder, jvm=BENCHMARK_JVM) as target,
    ):
        latency = {
            name: await _latency(source, target, folder, name)
            for name in ("twinsite", "MirrorMaker 2", "MirrorMaker 2 tuned")
        }
        idle = await _idle(source, target, folder)
        samples, peak = await _backlog(source, target, folder)
    return Standing(latency, idle, samples, peak)


def _job(
    source: KafkaCluster, target: KafkaCluster, folder: Path, topic: str, *, records: int, partitions: int
) -> Job:
    return Job(source, target, topic, topic, records, 1024, "none", partitions, folder / "payload", folder)


# -- a trickle -----------------------------------------------------------------------------------


async def _latency(source: KafkaCluster, target: KafkaCluster, folder: Path, name: str) -> Latency:
    topic = f"trickle-{name.replace(' ', '-')}"
    for cluster in source, target:
        await cluster.create_topic(topic, 1)
    job = _job(source, target, folder, topic, records=0, partitions=1)
    with CONTESTANTS[name](job):
        return await asyncio.to_thread(trickle, source.bootstrap, target.bootstrap, topic)


def trickle(source: str, target: str, topic: str) -> Latency:
    """Write records evenly and read them; those of the warm-up do not count.

    Args:
        source, target: Where the topic, which has one partition, is written and read.
    """
    wanted = int(TRICKLE_PER_SECOND * TRICKLE_SECONDS)
    with trickling(source, target, topic, TRICKLE_PER_SECOND) as records:
        wait(lambda: came(records, WARM_UP_RECORDS + wanted), f"{wanted} records have been timed")
        timed = records[WARM_UP_RECORDS : WARM_UP_RECORDS + wanted]
    late = sorted((one.read_at - one.handed_at) * 1000 for one in timed)
    return Latency(statistics.median(late), late[wanted * 99 // 100], late[-1], wanted)


# -- nothing to do -------------------------------------------------------------------------------


async def _idle(source: KafkaCluster, target: KafkaCluster, folder: Path) -> float:
    for number in range(IDLE_TOPICS):
        name = f"idle-{number}"
        for cluster in source, target:
            await cluster.create_topic(name, IDLE_PARTITIONS)
        load(source.bootstrap, name, json_rows(IDLE_PARTITIONS * 3, 100))
    job = _job(source, target, folder, "idle-.*", records=0, partitions=IDLE_PARTITIONS)
    ends = [
        (
            LogEnds(source.bootstrap, f"idle-{n}", IDLE_PARTITIONS),
            LogEnds(target.bootstrap, f"idle-{n}", IDLE_PARTITIONS),
        )
        for n in range(IDLE_TOPICS)
    ]
    with CONTESTANTS["twinsite"](job) as [pid]:
        await asyncio.to_thread(
            wait, lambda: all(there.records() == here.records() for here, there in ends), "all is copied"
        )
        return await asyncio.to_thread(_core_percent, pid)


def _core_percent(pid: int) -> float:
    began, before = time.monotonic(), cpu_seconds(pid)
    time.sleep(IDLE_SECONDS)
    return (cpu_seconds(pid) - before) / (time.monotonic() - began) * 100


# -- a backlog -----------------------------------------------------------------------------------


async def _backlog(source: KafkaCluster, target: KafkaCluster, folder: Path) -> tuple[list[float], float]:
    records = BACKLOG_MEGABYTES * 1_000_000 // 1024
    for cluster in source, target:
        await cluster.create_topic("backlog", BACKLOG_PARTITIONS)
    rows = json_rows(records, 1024)
    await asyncio.to_thread(load, source.bootstrap, "backlog", rows, batch_size=65536, linger_ms=50)
    job = _job(source, target, folder, "backlog", records=records, partitions=BACKLOG_PARTITIONS)
    with CONTESTANTS["twinsite"](job) as [pid]:
        samples = await asyncio.to_thread(_sampled, job, pid)
        return samples, peak_megabytes(pid)


def _sampled(job: Job, pid: int) -> list[float]:
    ends = LogEnds(job.target.bootstrap, job.topic, job.partitions)
    samples = []
    for share in range(1, SAMPLES + 1):
        reached = job.records * share // SAMPLES
        wait(lambda at=reached: ends.records() >= at, f"{share * 100 // SAMPLES} % are copied")  # type: ignore[misc]
        samples.append(resident_megabytes(pid))
    return samples


def table(standing: Standing) -> Table:
    """What was found, a line for each figure."""
    shown = Table(title="latency, idle cost, memory")
    shown.add_column("")
    shown.add_column("", justify="right")
    for name, late in standing.latency.items():
        shown.add_row(
            f"{name}: {TRICKLE_PER_SECOND} records/s, producer to consumer, p50 / p99 / longest",
            f"{late.p50:.1f} / {late.p99:.1f} / {late.longest:.1f} ms",
        )
    partitions = IDLE_TOPICS * IDLE_PARTITIONS
    shown.add_row(f"twinsite: {partitions} idle partitions", f"{standing.idle_core_percent:.2f} % of a core")
    resident = standing.resident_megabytes
    shown.add_row(
        f"twinsite: {BACKLOG_PARTITIONS} partitions, {BACKLOG_MEGABYTES} MB behind, resident (least to most)",
        f"{min(resident):.0f} to {max(resident):.0f} MB, peak {standing.peak_megabytes:.0f}",
    )
    return shown
