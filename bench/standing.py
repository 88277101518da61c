"""What a mirror that has caught up costs, how late it is, and whether its memory stays the same.

Latency is measured in rounds; in each of them every contestant is started for its turn. The cost of idling is
measured as often, of one mirror. Medians are shown. A backlog is copied once, and memory is sampled all the
while.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from bench.contestants import CONTESTANTS, DEFAULT, OURS, TUNED, Job
from bench.copying import forget
from bench.goals import Goal, ratio
from bench.measuring import LogEnds, cpu_seconds, peak_megabytes, resident_megabytes, wait
from tests.harness.data import json_rows
from tests.harness.jvm import BENCHMARK_JVM
from tests.harness.kafka import KafkaCluster
from tests.harness.loading import load
from tests.harness.trickle import came, trickling

ROUNDS = 3
TRICKLE_PER_SECOND = 100
TRICKLE_SECONDS, ROUND_SECONDS = 30.0, 12.0
"""How long a trickle is timed that is measured once, and each of several."""
WARM_UP_RECORDS = 1500
"""Records that are not timed, from the arrival of the first on: those written before waited for the mirror to
start, and a JVM has to get warm.
"""
IDLE_TOPICS, IDLE_PARTITIONS = 10, 100
IDLE_SECONDS = 20.0
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
        latency: Of each contestant, round by round.
        idle_core_percent: Percent of one core, for :data:`IDLE_TOPICS` x :data:`IDLE_PARTITIONS` idle
            partitions; each time it was measured.
        resident_megabytes: While a backlog is copied, at equal shares of it.
        peak_megabytes: The most in that time.
    """

    latency: dict[str, list[Latency]]
    idle_core_percent: list[float]
    resident_megabytes: list[float]
    peak_megabytes: float


def from_json(saved: dict[str, Any]) -> Standing:
    """The reverse of ``dataclasses.asdict``; also reads the older form with one round."""
    latency = {name: [Latency(**one) for one in _each(figures)] for name, figures in saved["latency"].items()}
    return Standing(**{**saved, "latency": latency, "idle_core_percent": _each(saved["idle_core_percent"])})


def _each(saved: Any) -> list[Any]:
    return saved if isinstance(saved, list) else [saved]


def median(rounds: Sequence[Latency]) -> Latency:
    """The median of each figure by itself."""
    return Latency(*(statistics.median(getattr(one, name) for one in rounds) for name in asdict(rounds[0])))


def judged(found: Standing) -> list[Goal]:
    """The goals for a mirror that has caught up, or is far behind."""
    first, *_, last = found.resident_megabytes
    idle = statistics.median(found.idle_core_percent)
    return [
        Goal("a trickle: p99", 50.0, median(found.latency[OURS]).p99, at_most=True, unit=" ms"),
        Goal("idle partitions, of a core", 3.0, idle, at_most=True, unit=" %"),
        Goal("a backlog: memory", 150.0, found.peak_megabytes, at_most=True, unit=" MB"),
        Goal("a backlog: memory at its end, times that at its start", 1.1, ratio(last, first), at_most=True),
    ]


async def stand(folder: Path) -> Standing:
    """Measure a trickle, then idle partitions, then a backlog."""
    async with (
        KafkaCluster.start(version="3.9", name="source", work_dir=folder, jvm=BENCHMARK_JVM) as source,
        KafkaCluster.start(version="4.3", name="target", work_dir=folder, jvm=BENCHMARK_JVM) as target,
    ):
        latency: dict[str, list[Latency]] = {OURS: [], DEFAULT: [], TUNED: []}
        for turn in range(1, ROUNDS + 1):
            for name, rounds in latency.items():
                late = await _latency(source, target, folder, name, turn)
                rounds.append(late)
                click.echo(f"round {turn}, {name}: p99 {late.p99:.1f} ms", err=True)
        idle = await _idle(source, target, folder)
        samples, peak = await _backlog(source, target, folder)
    return Standing(latency, idle, samples, peak)


def _job(
    source: KafkaCluster, target: KafkaCluster, folder: Path, topic: str, *, records: int, partitions: int
) -> Job:
    return Job(source, target, topic, topic, records, 1024, "none", partitions, folder / "payload", folder)


# -- a trickle -----------------------------------------------------------------------------------


async def _latency(source: KafkaCluster, target: KafkaCluster, folder: Path, name: str, turn: int) -> Latency:
    topic = f"trickle-{name.replace(' ', '-')}-{turn}"
    for cluster in source, target:
        await cluster.create_topic(topic, 1)
    job = _job(source, target, folder, topic, records=0, partitions=1)
    with CONTESTANTS[name](job):
        late = await asyncio.to_thread(
            trickle, source.bootstrap, target.bootstrap, topic, seconds=ROUND_SECONDS
        )
    await forget(job)
    return late


def trickle(source: str, target: str, topic: str, *, seconds: float = TRICKLE_SECONDS) -> Latency:
    """Write records at an even rate and read them; those of the warm-up do not count.

    Args:
        source, target: Where the topic, which has one partition, is written and read.
        seconds: How long records are timed.
    """
    wanted = int(TRICKLE_PER_SECOND * seconds)
    with trickling(source, target, topic, TRICKLE_PER_SECOND) as records:
        wait(lambda: came(records, 1), "the first record is there")
        first = len(records) + WARM_UP_RECORDS
        wait(lambda: came(records, first + wanted), f"{wanted} records have been timed")
        timed = records[first : first + wanted]
    late = sorted((one.read_at - one.handed_at) * 1000 for one in timed)
    return Latency(statistics.median(late), late[wanted * 99 // 100], late[-1], wanted)


# -- nothing to do -------------------------------------------------------------------------------


async def _idle(source: KafkaCluster, target: KafkaCluster, folder: Path) -> list[float]:
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
        return [await asyncio.to_thread(_core_percent, pid) for _ in range(ROUNDS)]


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
        _wait_for(ends, job.records * share // SAMPLES)
        samples.append(resident_megabytes(pid))
    return samples


def _wait_for(ends: LogEnds, records: int) -> None:
    wait(lambda: ends.records() >= records, f"{records} records are copied")


def table(standing: Standing) -> Table:
    """The figures, a line for each."""
    idle = standing.idle_core_percent
    shown = Table(title=f"latency, idle cost, memory: medians of {len(idle)}")
    shown.add_column("")
    shown.add_column("", justify="right")
    for name, rounds in standing.latency.items():
        late = median(rounds)
        shown.add_row(
            f"{name}: {TRICKLE_PER_SECOND} records/s, producer to consumer, p50 / p99 / longest",
            f"{late.p50:.1f} / {late.p99:.1f} / {late.longest:.1f} ms",
        )
    partitions = IDLE_TOPICS * IDLE_PARTITIONS
    shown.add_row(f"twinsite: {partitions} idle partitions", f"{statistics.median(idle):.2f} % of a core")
    resident = standing.resident_megabytes
    behind = f"{BACKLOG_PARTITIONS} partitions, {BACKLOG_MEGABYTES} MB behind, once"
    shown.add_row(
        f"twinsite: {behind}, resident after each tenth, and peak",
        f"{' '.join(f'{one:.0f}' for one in resident)} MB, peak {standing.peak_megabytes:.0f}",
    )
    return shown
