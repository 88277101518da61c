"""Comparisons as people see them: the result of one, and the history of all."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from mirror.cli.output import clean, console, duration, number, plain, print_json, size
from mirror.errors import UsageError
from spark_jobs.findings import Kind
from spark_jobs.history import runs
from spark_jobs.logs import Compared
from spark_jobs.result import Found, NotCompared, Outcome, Result, examples, key_text, said_of_ends

SHOWN = 20
"""How many differences are shown; the run's files name all."""
STYLES = {"match": "green", "mismatch": "bold red"}


def show(result: Result, folder: Path) -> None:
    """A table of topics, the first differences, and where the rest is."""
    screen = console()
    screen.print(_topics(result))
    findings = sum(len(one.findings) for one in result.compared)
    if findings:
        screen.print()
        screen.print(_differences(examples(result, SHOWN)))
    if findings > SHOWN:
        screen.print(f"and {number(findings - SHOWN)} more")
    if result.unnamed:
        screen.print(f"{number(result.unnamed)} more places or keys differ, too many to be read one by one")
    for line in _ends(result)[:SHOWN]:
        screen.print(plain(line))
    left_out = result.left_out
    for unknown in left_out[:SHOWN]:
        screen.print(plain(f"not compared: {_name(unknown)}: {unknown.why}"))
    if len(left_out) > SHOWN:
        screen.print(f"and {number(len(left_out) - SHOWN)} more that were not compared")
    screen.print()
    _conclude(screen, result)
    shows = "shows where" if findings or result.unnamed else "shows what was compared"
    screen.print(plain(f"{clean(folder)}/report.html {shows}"))


def _topics(result: Result) -> Table:
    topics: defaultdict[str, list[Compared]] = defaultdict(list)
    for one in result.compared:
        topics[one.log.name.topic].append(one)
    table = Table(box=None, pad_edge=False)
    table.add_column("topic")
    for heading in ("partitions", "records", "bytes", "not copied yet", "expired", "differences"):
        table.add_column(heading, justify="right")
    for topic, partitions in sorted(topics.items()):
        count = sum(len(one.findings) + one.unnamed for one in partitions)
        table.add_row(
            plain(topic),
            number(len(partitions)),
            number(sum(one.source_records for one in partitions)),
            size(sum(one.source_bytes for one in partitions)),
            number(sum(one.pending for one in partitions)),
            number(sum(one.expired for one in partitions)),
            plain(number(count), "bold red" if count else ""),
        )
    return table


def _differences(findings: list[Found]) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in ("topic", "kind"):
        table.add_column(heading)
    for heading in ("source offset", "target offset"):
        table.add_column(heading, justify="right")
    table.add_column("key")
    table.add_column("")
    for one, finding in findings:
        difference = finding.difference
        row = difference.kind is Kind.SHIFTED
        table.add_row(
            plain(one.log.name),
            difference.kind.value,
            _offset(difference.source_offset),
            _offset(difference.target_offset),
            plain("" if row else "null" if finding.key is None else key_text(finding.key)),
            f"{number(difference.records)} records by {difference.shift:+d}"
            if row
            else ", ".join(part.value for part in difference.parts),
        )
    return table


def _ends(result: Result) -> list[str]:
    """What there is to know about target logs that do not end where the source's do."""
    lost = [
        f"{one.log.name}: source offsets {one.log.lost.start} to {one.log.lost.end} were at the target, "
        "which has lost the end of its log"
        for one in result.compared
        if one.log.lost.offsets
    ]
    pending = sum(one.log.window.pending.offsets for one in result.compared)
    late = (
        [f"{number(pending)} source offsets were not copied yet: {said_of_ends(result)}"] if pending else []
    )
    return [*lost, *late]


def _conclude(screen: Console, result: Result) -> None:
    records = sum(one.source_records for one in result.compared)
    read = sum(cost.read_bytes for cost in result.costs)
    said = {
        Outcome.MATCH: "the copy is the original"
        if result.extent.is_all
        else f"the same, in the part that was compared: {result.extent.words}",
        Outcome.MISMATCH: "the sites differ",
        Outcome.INCOMPLETE: "what was compared is the same, but not everything was compared"
        if result.has_compared
        else "nothing was compared",
    }
    screen.print(
        f"{result.outcome.value}: {said[result.outcome]} ({number(records)} records, {size(read)} read, "
        f"{duration(result.seconds)})",
        style=STYLES.get(result.outcome.value, "yellow"),
    )


def _offset(offset: int | None) -> str:
    return "none" if offset is None else str(offset)


def _name(one: NotCompared) -> str:
    return one.topic if one.partition is None else f"{one.topic}-{one.partition}"


def show_history(folder: Path, output: str) -> None:
    """Show the runs of a folder, the last one first, including those of which nothing is known.

    Raises:
        UsageError: There is no such folder.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder}: there is no such folder", hint="--folder must be where the runs are")
    known = runs(folder)[::-1]
    if output == "json":
        print_json([{"run": run.name, "outcome": run.outcome} | run.summary for run in known])
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("run", "flow", "outcome", "records", "differences", "took", "digest", "asked for"):
        table.add_column(heading, justify="right" if heading in {"records", "differences"} else "left")
    for run in known:
        summary = run.summary
        completed = "source" in summary
        table.add_row(
            plain(run.name),
            plain(run.flow or "?"),
            plain(run.outcome, STYLES.get(run.outcome, "yellow")),
            number(summary["source"]["records"] if completed else None),
            number(sum(summary["differences"].values()) + summary["unnamed"] if completed else None),
            duration(summary.get("seconds")),
            plain(summary.get("digest") or "?"),
            plain(summary.get("wanted") or summary.get("error") or ""),
        )
    console().print(table)
