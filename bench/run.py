"""twinsite and MirrorMaker 2 on the same data, in the same run, in turn.

For each kind of data a topic is filled once; then every round copies it with each contestant into a target
topic that is deleted in between. Time runs from the first record at the target to the last, so that the
start of a JVM does not count; CPU time is that of the contestant's process from its start to that moment.
Medians over the rounds, and ratios, which noise hurts less than absolute figures.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from tests.harness.checker import watermarks
from tests.harness.data import json_rows, load
from tests.harness.jvm import BENCHMARK_JVM
from tests.harness.kafka import KafkaCluster
from tests.harness.mm2 import DEFAULT, TUNED, mirror_maker
from tests.harness.process import Twinsite

POLL_SECONDS = 0.02
GIVE_UP_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Job:
    """A topic to copy: so many records in so many partitions."""

    source: KafkaCluster
    target: KafkaCluster
    topic: str
    records: int
    megabytes: float
    folder: Path


@dataclass(frozen=True, slots=True)
class Run:
    """What one copy took."""

    megabytes_per_second: float
    cpu_seconds_per_gigabyte: float
    peak_megabytes: float


@contextmanager
def twinsite(job: Job) -> Iterator[int]:
    """The mirror as its users start it; answers with its process id."""
    arguments = (
        "mirror", "--source", job.source.bootstrap, "--target", job.target.bootstrap,
        "--topics", re.escape(job.topic), "--flow", f"bench-{time.time_ns()}", "--log-level", "error",
    )  # fmt: skip
    with Twinsite.run(*arguments, work_dir=job.folder) as mirror:
        yield mirror.process.pid


@contextmanager
def mm2_default(job: Job) -> Iterator[int]:
    with mirror_maker(
        job.source, job.target, re.escape(job.topic), work_dir=job.folder, settings=DEFAULT
    ) as mm2:
        yield mm2.pid


@contextmanager
def mm2_tuned(job: Job) -> Iterator[int]:
    with mirror_maker(
        job.source, job.target, re.escape(job.topic), work_dir=job.folder, settings=TUNED
    ) as mm2:
        yield mm2.pid


CONTESTANTS = {"twinsite": twinsite, "MirrorMaker 2": mm2_default, "MirrorMaker 2 tuned": mm2_tuned}


def copied(job: Job) -> int:
    """Records at the target; none while the topic is not there."""
    return sum(high for _, high in watermarks(job.target.bootstrap, job.topic).values())


def measure(job: Job, contestant: str) -> Run:
    """Let a contestant copy the topic, and say what it took."""
    with CONTESTANTS[contestant](job) as pid:
        first = wait(lambda: copied(job) > 0, f"{contestant} copies something")
        last = wait(lambda: copied(job) >= job.records, f"{contestant} copies everything")
        seconds = max(last - first, POLL_SECONDS)
        return Run(job.megabytes / seconds, cpu_seconds(pid) / job.megabytes * 1000, peak_megabytes(pid))


def wait(condition: Callable[[], bool], what: str) -> float:
    """The moment at which the condition came true."""
    give_up = time.monotonic() + GIVE_UP_SECONDS
    while not condition():
        if time.monotonic() > give_up:
            raise click.ClickException(f"not within {GIVE_UP_SECONDS:g} s: {what}")
        time.sleep(POLL_SECONDS)
    return time.monotonic()


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def peak_megabytes(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    return int(found[1]) / 1000 if found else float("nan")


def median(runs: list[Run]) -> Run:
    return Run(*(statistics.median(getattr(run, name) for run in runs) for name in asdict(runs[0])))


def show(title: str, runs: dict[str, list[Run]]) -> None:
    ours = median(runs["twinsite"])
    table = Table(title=title)
    for column in ("", "MB/s", "CPU-s/GB", "peak MB", "twinsite is faster by", "and cheaper by"):
        table.add_column(column, justify="right")
    for name, of in runs.items():
        run = median(of)
        table.add_row(
            name,
            f"{run.megabytes_per_second:,.0f}",
            f"{run.cpu_seconds_per_gigabyte:.1f}",
            f"{run.peak_megabytes:,.0f}",
            f"{ours.megabytes_per_second / run.megabytes_per_second:.1f}",
            f"{run.cpu_seconds_per_gigabyte / ours.cpu_seconds_per_gigabyte:.1f}",
        )
    Console(width=110).print(table)


async def bench(
    size: int, codec: str, partitions: int, megabytes: int, rounds: int, folder: Path
) -> dict[str, list[Run]]:
    """Fill one topic, then let every contestant copy it, round by round."""
    records = megabytes * 1_000_000 // size
    async with (
        KafkaCluster.start(version="3.9", name="source", work_dir=folder, jvm=BENCHMARK_JVM) as source,
        KafkaCluster.start(version="4.3", name="target", work_dir=folder, jvm=BENCHMARK_JVM) as target,
    ):
        await source.create_topic("bench", partitions)
        await asyncio.to_thread(
            load, source.bootstrap, "bench", json_rows(records, size), codec, batch_size=65536, linger_ms=50
        )
        runs: dict[str, list[Run]] = {name: [] for name in CONTESTANTS}
        for turn in range(rounds):
            for name in CONTESTANTS:
                await target.create_topic("bench", partitions)
                job = Job(source, target, "bench", records, megabytes, folder)
                run = measure(job, name)
                runs[name].append(run)
                click.echo(f"round {turn + 1}, {name}: {run.megabytes_per_second:.0f} MB/s", err=True)
                await target.delete_topic("bench")
    return runs


@click.command()
@click.option("--size", default=1024, show_default=True, help="Bytes of a record.")
@click.option("--codec", default="none", show_default=True, type=click.Choice(["none", "lz4"]))
@click.option("--partitions", default=4, show_default=True)
@click.option("--megabytes", default=300, show_default=True)
@click.option("--rounds", default=3, show_default=True)
@click.option("--out", type=click.Path(path_type=Path), help="Save the figures of every run here, as JSON.")
def main(size: int, codec: str, partitions: int, megabytes: int, rounds: int, out: Path | None) -> None:
    """Compare twinsite with MirrorMaker 2 on the same data in the same run."""
    with tempfile.TemporaryDirectory(prefix="twinsite-bench-") as folder:
        runs = asyncio.run(bench(size, codec, partitions, megabytes, rounds, Path(folder)))
    show(f"{megabytes} MB, records of {size} bytes, {codec}, {partitions} partitions, {rounds} rounds", runs)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        figures = {name: [asdict(run) for run in of] for name, of in runs.items()}
        out.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
