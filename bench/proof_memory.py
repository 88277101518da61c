"""``python -m bench.proof_memory``: does proving a large copy take more memory than proving a small one?

``twinsite reconcile`` with one heap over topics of growing size, then over a compacted topic of many keys,
each as a process of its own, as a schedule would start it. The peak is of Python and Java together.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import cycle, islice
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from bench.measuring import resident_megabytes
from spark_jobs.session import JARS_VARIABLE
from tests.harness.data import Row, json_rows
from tests.harness.jvm import BENCHMARK_JVM, cache_folder
from tests.harness.kafka import KafkaCluster
from tests.harness.loading import load
from tests.harness.process import Twinsite

PARTITIONS = 4
PAYLOAD_RECORDS = 20_000
POLL_SECONDS = 0.2
VALUE_BYTES = 1024
KEYED_VALUE_BYTES = 100
UPDATES = 3
"""Records of each key in the compacted topic."""


@dataclass(frozen=True, slots=True)
class Case:
    """A topic to prove."""

    name: str
    records: int
    value_bytes: int
    keys: int | None = None

    @property
    def megabytes(self) -> float:
        return self.records * self.value_bytes / 1e6

    def rows(self) -> Iterator[Row]:
        """Contents repeat, times do not."""
        made = list(json_rows(min(self.records, PAYLOAD_RECORDS), self.value_bytes))
        for number, row in enumerate(islice(cycle(made), self.records)):
            key = row.key if self.keys is None else b"%012d" % (number % self.keys)
            yield Row(key=key, value=row.value, timestamp_ms=1_700_000_000_000 + number)


@dataclass(frozen=True, slots=True)
class Proven:
    """What it took."""

    case: Case
    seconds: float
    exit_code: int
    peak_megabytes: float


async def prove(cases: list[Case], heap: str, folder: Path) -> list[Proven]:
    """Prove each case, on brokers that keep running."""
    async with (
        KafkaCluster.start(version="3.9", name="source", work_dir=folder, jvm=BENCHMARK_JVM) as source,
        KafkaCluster.start(version="4.3", name="target", work_dir=folder, jvm=BENCHMARK_JVM) as target,
    ):
        return [await _prove(case, heap, source, target, folder) for case in cases]


async def _prove(case: Case, heap: str, source: KafkaCluster, target: KafkaCluster, folder: Path) -> Proven:
    config = {"cleanup.policy": "compact"} if case.keys else {}
    for cluster in (source, target):
        await cluster.create_topic(case.name, PARTITIONS, config=config)
        await asyncio.to_thread(load, cluster.bootstrap, case.name, case.rows(), "lz4")
    settings = folder / f"{case.name}.json"
    document = {
        "source": {"bootstrap_servers": source.bootstrap},
        "target": {"bootstrap_servers": target.bootstrap},
        "topics": {"include": [case.name]},
    }
    settings.write_text(json.dumps(document))
    found = await asyncio.to_thread(_run, case, settings, heap, folder)
    for cluster in (source, target):
        await cluster.delete_topic(case.name)
    return found


def _run(case: Case, settings: Path, heap: str, folder: Path) -> Proven:
    arguments = (
        "reconcile", "--config", str(settings), "--same-offsets", "--folder", str(folder / "runs"),
        "--master", "local[2]", "--conf", f"spark.driver.memory={heap}",
    )  # fmt: skip
    jars = {JARS_VARIABLE: str(cache_folder() / "spark" / "jars")}
    peak = 0.0
    began = time.monotonic()
    with Twinsite.run(*arguments, work_dir=folder, environment=jars, listen=False) as job:
        while job.running:
            peak = max(peak, _resident(_family(job.process.pid)))
            time.sleep(POLL_SECONDS)
        took = time.monotonic() - began
        if job.process.returncode:
            click.echo(job.stderr[-2000:] + job.stdout[-2000:], err=True)
        return Proven(case, took, job.process.returncode, peak)


def _resident(pids: Iterable[int]) -> float:
    """Resident megabytes of these processes; of each program only the largest counts.

    Java starts its children like threads: for a moment they seem to have all of Java's memory as well.
    """
    largest: dict[Path, float] = {}
    for pid in pids:
        with contextlib.suppress(OSError):  # it has ended meanwhile
            program = Path(f"/proc/{pid}/exe").readlink()
            largest[program] = max(largest.get(program, 0.0), resident_megabytes(pid))
    return sum(largest.values())


def _family(pid: int) -> list[int]:
    """A process and all it has started."""
    children: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            children += map(int, (task / "children").read_text().split())
    return [pid, *(one for child in children for one in _family(child))]


def table(heap: str, found: list[Proven]) -> Table:
    """The figures."""
    made = Table(title=f"twinsite reconcile, local[2], heap {heap}")
    for heading in ("topic", "MB", "records", "s", "exit code", "peak MB"):
        made.add_column(heading, justify="left" if heading == "topic" else "right")
    for one in found:
        case = one.case
        made.add_row(
            case.name, f"{case.megabytes:,.0f}", f"{case.records:,}", f"{one.seconds:.0f}",
            str(one.exit_code), f"{one.peak_megabytes:,.0f}",
        )  # fmt: skip
    return made


@click.command(context_settings={"show_default": True})
@click.option("--megabytes", "amounts", type=int, multiple=True, default=(250, 1000, 4000))
@click.option("--keys", default=1_000_000, help="Keys of the compacted topic; 0 leaves it out.")
@click.option("--heap", default="1g", help="Heap for the topics of growing size.")
@click.option("--keyed-heap", default="2g", help="Heap for the compacted topic.")
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path(__file__).parent / "results" / "proof-memory.json"
)
def main(amounts: tuple[int, ...], keys: int, heap: str, keyed_heap: str, out: Path) -> None:
    """Measure how much memory it takes to prove a copy."""
    growing = [Case(f"log-{some}", some * 1_000_000 // VALUE_BYTES, VALUE_BYTES) for some in amounts]
    keyed = [Case("keyed", keys * UPDATES, KEYED_VALUE_BYTES, keys)] if keys else []
    saved = []
    for cases, given in ((growing, heap), (keyed, keyed_heap)):
        with tempfile.TemporaryDirectory(prefix="twinsite-proof-") as folder:
            found = asyncio.run(prove(cases, given, Path(folder))) if cases else []
        Console(width=120).print(table(given, found))
        saved += [asdict(one) | {"heap": given} for one in found]
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(saved, indent=1) + "\n")


if __name__ == "__main__":
    main()
