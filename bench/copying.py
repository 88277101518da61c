"""All contestants copy the same topic, in turn, in the same run.

A topic is filled once, and copies that do not count warm the brokers up. Then, in every round, each
contestant copies the topic. In between the target topic is deleted, with all that MirrorMaker 2 has noted of
its progress. Medians over the rounds, and ratios, which noise hurts less than absolute figures.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import click
from rich.table import Table

from bench.contestants import CEILING, CONTESTANTS, DEFAULT, OURS, RELAYED, TUNED, Contestant, Job
from bench.goals import Goal, ratio
from bench.measuring import LogEnds, Run, measure, median
from tests.harness.data import Row, json_rows
from tests.harness.jvm import BENCHMARK_JVM
from tests.harness.kafka import KafkaCluster
from tests.harness.loading import load

TOPIC = "bench"
PAYLOAD_RECORDS = 20_000
OLD_MS = 3 * 86_400_000
WARM_UP = (CEILING, OURS) * 3
"""A broker takes three times as long until the JVM has compiled what it runs often."""

Runs = dict[str, list[Run]]
"""Every run of every contestant."""


@dataclass(frozen=True, slots=True)
class Case:
    """One kind of data.

    Attributes:
        old: Its records are three days old, as most of a first copy are: brokers soon forget their producers.
    """

    size: int
    codec: str
    partitions: int
    megabytes: int
    old: bool = False

    def __str__(self) -> str:
        kind = f"records of {self.size} B, {self.codec}{', three days old' if self.old else ''}"
        return f"{self.megabytes} MB, {kind}, {self.partitions} partitions"

    def rows(self) -> Iterator[Row]:
        """All of its records."""
        rows = json_rows(self.megabytes * 1_000_000 // self.size, self.size)
        if not self.old:
            return rows
        long_ago_ms = int(time.time() * 1000) - OLD_MS
        return (replace(row, timestamp_ms=long_ago_ms) for row in rows)


async def compete(
    case: Case,
    rounds: int,
    folder: Path,
    contestants: Mapping[str, Contestant],
    *,
    target_alone: bool = False,
) -> Runs:
    """Let contestants copy the data of a case, round by round, between two new brokers.

    Each round begins with another contestant: whoever comes first in a round is a tenth slower.

    Args:
        target_alone: The target has a core of its own, and all others share the rest, as if it ran on another
            machine. Otherwise what a contestant uses is taken from the broker it writes to.
    """
    async with (
        KafkaCluster.start(version="3.9", name="source", work_dir=folder, jvm=BENCHMARK_JVM) as source,
        KafkaCluster.start(version="4.3", name="target", work_dir=folder, jvm=BENCHMARK_JVM) as target,
    ):
        job = await _prepared(case, source, target, folder)
        runs: Runs = {name: [] for name in contestants}
        pinned = alone(target.broker(1).pid, [source.broker(1).pid]) if target_alone else nullcontext()
        with pinned:
            for name in WARM_UP:
                await _one(job, CONTESTANTS[name])
            for turn in range(rounds):
                for name in rotated(list(contestants), turn):
                    run = await _one(job, contestants[name])
                    runs[name].append(run)
                    click.echo(f"round {turn + 1}, {name}: {run.megabytes_per_second:.0f} MB/s", err=True)
    return runs


def rotated(names: Sequence[str], turn: int) -> list[str]:
    """The order of a round, counted from 0: each begins one name later."""
    first = turn % len(names)
    return [*names[first:], *names[:first]]


@contextmanager
def alone(pid: int, others: Sequence[int]) -> Iterator[None]:
    """Give a process a core for itself; the others, and what we start meanwhile, share the rest.

    Raises:
        ClickException: There is one core only.
    """
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise click.ClickException("giving the target a core of its own takes two cores")
    _pin(pid, cores[:1])
    for other in (*others, os.getpid()):
        _pin(other, cores[1:])
    try:
        yield
    finally:
        _pin(os.getpid(), cores)


def _pin(pid: int, cores: Sequence[int]) -> None:
    for task in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(task.name), cores)


async def _prepared(case: Case, source: KafkaCluster, target: KafkaCluster, folder: Path) -> Job:
    """Fill the topic at the source."""
    records = case.megabytes * 1_000_000 // case.size
    await source.create_topic(TOPIC, case.partitions)
    rows = case.rows()
    await asyncio.to_thread(load, source.bootstrap, TOPIC, rows, case.codec, batch_size=65536, linger_ms=50)
    payload = folder / "payload"
    values = (row.value or b"" for row in islice(case.rows(), PAYLOAD_RECORDS))
    payload.write_bytes(b"\n".join(values))
    return Job(source, target, TOPIC, TOPIC, records, case.size, case.codec, case.partitions, payload, folder)


async def _one(job: Job, contestant: Contestant) -> Run:
    await job.target.create_topic(job.topic, job.partitions)
    ends = LogEnds(job.target.bootstrap, job.topic, job.partitions)
    await asyncio.to_thread(ends.records)
    target_pid = job.target.broker(1).pid
    with contestant(job) as pids:
        run = await asyncio.to_thread(measure, pids, target_pid, ends.records, job.records, job.megabytes)
    await forget(job)
    return run


async def forget(job: Job) -> None:
    """Delete the copy, and what MirrorMaker 2 would resume from: all topics but the job's at the source."""
    for cluster, kept in (job.source, {job.topic}), (job.target, set[str]()):
        found = await asyncio.to_thread(cluster.admin.list_topics, timeout=10)
        for name in found.topics:
            if name not in kept and not name.startswith("__"):
                await cluster.delete_topic(name)


def table(title: str, runs: Mapping[str, Sequence[Run]]) -> Table:
    """Medians, and how many times each of the others is slower, takes more CPU, and is larger at its peak;
    for the second half the first two of these.
    """
    ours = median(runs[OURS])
    shown = Table(title=f"{title}: medians of {len(runs[OURS])}")
    columns = (
        "",
        "MB/s",
        "CPU-s\n/GB",
        "of the\ntarget",
        "to\nstart",
        "peak\nMB",
        "we are\nfaster by",
        "cheaper\nby",
        "smaller\nby",
        "2nd half:\nMB/s",
        "CPU-s\n/GB",
        "faster",
        "cheaper",
    )
    for column in columns:
        shown.add_column(column, justify="left" if not column else "right")
    for name, of in runs.items():
        run = median(of)
        shown.add_row(
            name,
            f"{run.megabytes_per_second:,.0f}",
            f"{run.cpu_seconds_per_gigabyte:.1f}",
            f"{run.target_cpu_seconds_per_gigabyte:.1f}",
            f"{run.start_cpu_seconds:.1f}",
            f"{run.peak_megabytes:,.0f}",
            f"{ours.megabytes_per_second / run.megabytes_per_second:.2f}",
            f"{run.cpu_seconds_per_gigabyte / ours.cpu_seconds_per_gigabyte:.1f}",
            f"{run.peak_megabytes / ours.peak_megabytes:.1f}",
            f"{run.warm_megabytes_per_second:,.0f}",
            f"{run.warm_cpu_seconds_per_gigabyte:.1f}",
            f"{ratio(ours.warm_megabytes_per_second, run.warm_megabytes_per_second):.2f}",
            f"{ratio(run.warm_cpu_seconds_per_gigabyte, ours.warm_cpu_seconds_per_gigabyte):.1f}",
        )
    return shown


def judged(title: str, runs: Mapping[str, Sequence[Run]]) -> list[Goal]:
    """The goals of a case, as far as the contestants took part that we are compared with."""
    medians = {name: median(of) for name, of in runs.items()}
    ours = medians[OURS]

    def faster(name: str, wanted: float) -> Goal:
        times = ratio(ours.megabytes_per_second, medians[name].megabytes_per_second)
        return Goal(f"{title}: MB/s, times {name}", wanted, times)

    def cheaper(name: str, wanted: float) -> Goal:
        times = ratio(medians[name].cpu_seconds_per_gigabyte, ours.cpu_seconds_per_gigabyte)
        return Goal(f"{title}: CPU of {name}, times ours", wanted, times)

    found = [Goal(f"{title}: memory", 150.0, ours.peak_megabytes, at_most=True, unit=" MB")]
    if DEFAULT in medians:
        found += [faster(DEFAULT, 5.0), cheaper(DEFAULT, 15.0)]
    if TUNED in medians:
        found += [faster(TUNED, 2.5), cheaper(TUNED, 10.0)]
    if CEILING in medians:
        found.append(faster(CEILING, 0.85))
    if RELAYED in medians:
        found.append(Goal(f"{title}: MB/s through a relay, times ours", 0.75, 1 / faster(RELAYED, 1.0).found))
    return found
