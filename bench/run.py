"""``make bench``: latency, idle cost and memory, then every kind of data through every contestant.

Takes about an hour on two cores. Prints tables, compares them with the goals, and saves every run as JSON,
along with the tables.

A gigabyte of records of every size is copied, so that the fastest take seconds and JVMs get warm. With less,
the start of a copy decides: 300 MB of 100 B took 0.7 seconds, and rounds varied from 314 to 438 MB/s.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from bench import copying, goals, standing
from bench.contestants import CONTESTANTS, OURS, Contestant, twinsite
from bench.copying import Case
from bench.goals import Goal
from bench.measuring import as_json, from_json

SIZES = (100, 1024, 10240)
"""Bytes of a record."""
MEGABYTES = 1000
CODECS = ("none", "lz4")
PARTITIONS = (4, 64)
STANDING = "standing"
WIDTH = 150
RESULTS = Path(__file__).parent / "results"


class Report:
    """The figures, printed at once and saved after each part, so that an interrupted run is not lost.

    Parts that were saved by an earlier run and are not measured again stay as they are.
    """

    def __init__(self, out: Path) -> None:
        self._figures, self._tables = out / "figures.json", out / "tables.txt"
        out.mkdir(parents=True, exist_ok=True)
        self._found: dict[str, Any] = {}
        self.wanted: list[Goal] = []
        """Goals of the parts that were measured by this run."""
        if self._figures.exists():
            self._found = json.loads(self._figures.read_text())

    def add(self, name: str, figures: Any) -> None:
        """Add a part: print its table, and save it."""
        self._found[name] = figures
        self.wanted += judged(name, figures)
        Console(width=WIDTH).print(shown(name, figures))
        self._figures.write_text(json.dumps(self._found, indent=1) + "\n")
        with self._tables.open("w") as file:
            page = Console(width=WIDTH, file=file)
            for part, saved in self._found.items():
                page.print(shown(part, saved))


def shown(name: str, figures: Any) -> Table:
    """The table of a part, from its figures."""
    if name == STANDING:
        return standing.table(standing.from_json(figures))
    return copying.table(name, from_json(figures))


def judged(name: str, figures: Any) -> list[Goal]:
    """The goals of a part, from its figures."""
    if name == STANDING:
        return standing.judged(standing.from_json(figures))
    return copying.judged(name, from_json(figures))


def cases(
    sizes: Sequence[int], codecs: Sequence[str], partitions: Sequence[int], megabytes: int, *, old: bool
) -> list[Case]:
    """Every combination."""
    return [
        Case(size, codec, count, megabytes, old) for size in sizes for codec in codecs for count in partitions
    ]


async def bench(
    todo: Sequence[Case],
    rounds: int,
    contestants: Mapping[str, Contestant],
    report: Report,
    *,
    with_standing: bool,
    target_alone: bool,
) -> None:
    """Run everything, on new brokers for each case."""
    if with_standing:
        with tempfile.TemporaryDirectory(prefix="twinsite-bench-") as folder:
            found = await standing.stand(Path(folder))
        report.add(STANDING, asdict(found))
    for case in todo:
        with tempfile.TemporaryDirectory(prefix="twinsite-bench-") as folder:
            runs = await copying.compete(case, rounds, Path(folder), contestants, target_alone=target_alone)
        report.add(f"{case}{', the target on a core of its own' if target_alone else ''}", as_json(runs))


@click.command(context_settings={"show_default": True})
@click.option("--size", "sizes", type=int, multiple=True, default=SIZES, help="Bytes per record.")
@click.option("--codec", "codecs", type=click.Choice(CODECS), multiple=True, default=CODECS)
@click.option("--partitions", type=int, multiple=True, default=PARTITIONS)
@click.option("--megabytes", type=click.IntRange(min=1), default=MEGABYTES, help="MB of values to copy.")
@click.option("--rounds", default=3)
@click.option(
    "--only",
    "names",
    type=click.Choice(list(CONTESTANTS)),
    multiple=True,
    default=tuple(CONTESTANTS),
    show_default=False,
    help="Run only this contestant, besides twinsite; all by default.",
)
@click.option(
    "--beside",
    "checkouts",
    type=click.Path(exists=True, file_okay=False, resolve_path=True, path_type=Path),
    multiple=True,
    help="Also run the twinsite of another checkout, to see what a change brings.",
)
@click.option("--old", is_flag=True, help="Copy records three days old, as most of a first copy are.")
@click.option("--target-alone", is_flag=True, help="Give the target broker a core of its own.")
@click.option("--standing/--no-standing", "with_standing", default=True, help="Latency, idle cost, memory.")
@click.option("--out", type=click.Path(path_type=Path), default=RESULTS, show_default="bench/results")
def main(
    sizes: tuple[int, ...],
    codecs: tuple[str, ...],
    partitions: tuple[int, ...],
    megabytes: int,
    rounds: int,
    names: tuple[str, ...],
    checkouts: tuple[Path, ...],
    old: bool,
    target_alone: bool,
    with_standing: bool,
    out: Path,
) -> None:
    """Compare with MirrorMaker 2, ProducerPerformance and a bare produce loop, on the same data in turn; ends
    with 1 where a goal is missed.
    """
    todo = cases(sizes, codecs, partitions, megabytes, old=old) if rounds else []
    competing = {name: start for name, start in CONTESTANTS.items() if name in {OURS, *names}}
    competing |= {f"twinsite of {checkout}": twinsite(checkout) for checkout in checkouts}
    report = Report(out)
    asyncio.run(
        bench(todo, rounds, competing, report, with_standing=with_standing, target_alone=target_alone)
    )
    Console(width=WIDTH).print(goals.table("Goals", report.wanted))
    goals.end(report.wanted)


if __name__ == "__main__":
    main()
