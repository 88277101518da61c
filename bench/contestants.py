"""The contestants, which copy, or at least write, the same topic: each a process, started as its users do."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.harness import mm2 as maker
from tests.harness.daemon import free_ports
from tests.harness.jvm import BENCHMARK_JVM, REPOSITORY, java_command, logging_flag, spawn
from tests.harness.kafka import KafkaCluster
from tests.harness.mm2 import mirror_maker
from tests.harness.process import Twinsite

VERSION = "3.9"
"""Kafka's, for the Java programs."""


@dataclass(frozen=True, slots=True)
class Job:
    """A topic to copy, with records of one size.

    Attributes:
        topics: The regular expression that mirrors are given; it matches ``topic``.
        payload: A file with some of the records, one a line, for contestants that make their own.
    """

    source: KafkaCluster
    target: KafkaCluster
    topic: str
    topics: str
    records: int
    size: int
    codec: str
    partitions: int
    payload: Path
    folder: Path

    @property
    def megabytes(self) -> float:
        """Of values, before compression."""
        return self.records * self.size / 1e6


Contestant = Callable[[Job], contextlib.AbstractContextManager[Sequence[int]]]
"""Starts what copies a topic; yields the ids of its processes, and ends them."""


def twinsite(checkout: Path = REPOSITORY) -> Contestant:
    """The mirror of a checkout as its users start it."""

    @contextmanager
    def start(job: Job) -> Iterator[Sequence[int]]:
        command = _mirror(job, "--source", job.source.bootstrap)
        with Twinsite.run(*command, work_dir=job.folder, checkout=checkout) as mirror:
            yield (mirror.process.pid,)

    return start


@contextmanager
def relayed(job: Job) -> Iterator[Sequence[int]]:
    """Twinsite through a relay on the same machine: what a relay costs where no link is the limit."""
    address = f"127.0.0.1:{free_ports(1)[0]}"
    command = ("relay", "--cluster", job.source.bootstrap, "--listen", address)
    with (
        Twinsite.run(*command, work_dir=job.folder, listen=False) as relay,
        Twinsite.run(*_mirror(job, "--relay", address), work_dir=job.folder) as mirror,
    ):
        yield relay.process.pid, mirror.process.pid


def _mirror(job: Job, *source: str) -> Sequence[str]:
    return (
        "mirror", *source, "--target", job.target.bootstrap,
        "--topics", job.topics, "--flow", f"bench-{time.time_ns()}", "--log-level", "error",
    )  # fmt: skip


def mm2(settings: Mapping[str, object]) -> Contestant:
    """MirrorMaker 2 with these settings over its defaults."""

    @contextmanager
    def start(job: Job) -> Iterator[Sequence[int]]:
        with mirror_maker(
            job.source, job.target, job.topics, work_dir=job.folder, settings=settings
        ) as maker:
            yield (maker.pid,)

    return start


@contextmanager
def producer_performance(job: Job) -> Iterator[Sequence[int]]:
    """Kafka's own load generator: it reads no source, and writes as many records of the same size."""
    command = java_command(
        VERSION, "org.apache.kafka.tools.ProducerPerformance",
        "--topic", job.topic, "--num-records", str(job.records), "--throughput", "-1",
        "--payload-file", str(job.payload), "--producer-props", f"bootstrap.servers={job.target.bootstrap}",
        f"compression.type={job.codec}", "acks=all", "batch.size=65536", "linger.ms=20",
        jvm=(*BENCHMARK_JVM, logging_flag(VERSION, job.folder)),
    )  # fmt: skip
    with _running(command, job.folder / "producer-performance.out") as pids:
        yield pids


@contextmanager
def bare(job: Job) -> Iterator[Sequence[int]]:
    """The bare produce loop, see :mod:`bench.bare`."""
    command = [sys.executable, "-m", "bench.bare", job.source.bootstrap, job.target.bootstrap, job.topic]
    with _running(command, job.folder / "bare.out") as pids:
        yield pids


@contextmanager
def pass_through(job: Job) -> Iterator[Sequence[int]]:
    """Fetch, append and nothing else, see :mod:`bench.loops`."""
    command = [sys.executable, "-m", "bench.loops", "asyncio"]
    addresses = [job.source.bootstrap, job.target.bootstrap, job.topic]
    with _running([*command, *addresses], job.folder / "pass-through.out") as pids:
        yield pids


@contextmanager
def _running(command: list[str], output: Path) -> Iterator[Sequence[int]]:
    process = spawn(command, output)
    try:
        yield (process.pid,)
    finally:
        process.kill()
        process.wait()


OURS, RELAYED = "twinsite", "twinsite through a relay"
DEFAULT, TUNED, CEILING = "MirrorMaker 2", "MirrorMaker 2 tuned", "bare produce loop"
CONTESTANTS: Mapping[str, Contestant] = {
    OURS: twinsite(),
    RELAYED: relayed,
    DEFAULT: mm2(maker.DEFAULT),
    TUNED: mm2(maker.TUNED),
    "ProducerPerformance": producer_performance,
    "bare pass-through": pass_through,
    CEILING: bare,
}
