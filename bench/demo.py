"""The main job on real data, crashes included, and the proof that the copy is exact.

Starts two clusters of different versions, fills one with Debian's package index, lets its cleaner leave gaps
in a compacted topic, and mirrors it through two relays while it is still being written: over an emulated long
link where that is allowed, else with relays that keep to the same rate. On the way it kills the relay in use,
then the mirror, starts the mirror again, and compares both logs record by record with an independent client.
Then the copy is proven with Spark, damaged, repaired and proven again. Only the pages of the comparisons are
left behind, also when Ctrl-C or SIGTERM stops it.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Coroutine, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from bench.mending import RUNS, DemoError, mend
from tests.harness.checker import ReadStalledError, compare_topic, watermarks
from tests.harness.daemon import NotReadyError, free_ports, until
from tests.harness.data import NotLoadedError, Row, debian_packages
from tests.harness.far_site import FarSite, far_site, next_door
from tests.harness.judging import Verdict
from tests.harness.jvm import REPOSITORY, JarsMissingError, JavaFailedError
from tests.harness.kafka import KafkaCluster
from tests.harness.loading import load, load_compacted, load_transactions
from tests.harness.process import Twinsite
from tests.harness.relay import listens, through
from tests.harness.segments import is_clean

TOPICS = ("packages", "changes", "installs")
"""Keyed by package and compacted; append-only; written by a transactional producer that also aborts."""
PARTITIONS = 2
PACKAGES, PACKAGES_MIN = 60_000, 12_000
"""With fewer the compacted topic has no segment that its cleaner cleans."""
OLDER_EVERY, HEADERS_EVERY = 10, 10
HEADERS = (("from", b"debian"), ("from", b"main"), ("empty", b""), ("null", None))
AT_ONCE = {"segment.bytes": 1 << 20, "min.cleanable.dirty.ratio": 0}
"""The cleaner cleans a segment as soon as another one is written to."""
NOT_ANY_MORE = {"min.cleanable.dirty.ratio": 1}
"""Otherwise the copy, which gets the same settings, may be compacted further than the source when both are
compared."""
RELAY_KILLED, MIRROR_KILLED, WRITER_STOPPED = 0.1, 0.35, 0.5
"""When: as shares of what the mirror that runs missed at first. Each is reached, however fast the copy is."""
PART_COPIED_SECONDS, COMPACTED_SECONDS, CAUGHT_UP_SECONDS = 60.0, 60.0, 90.0
RELAYS = 2
MBIT_PER_SECOND, MBIT_PER_SECOND_MIN, ONE_WAY_SECONDS = 50.0, 5.0, 0.04
STOPPING = (signal.SIGINT, signal.SIGTERM)
FAILURES = (
    *(DemoError, NotLoadedError, NotReadyError, ReadStalledError),
    *(JarsMissingError, JavaFailedError),
)
"""What may go wrong; each says in words what it was."""
COLUMNS = (
    *("mirror", "MB of records", "MB on the link", "link used", "took", "MB/s"),
    *("behind at first", "in the end"),
)
FOUND = ("partition", "records compared", "gaps", "lost, doubled, reordered, changed, shifted")

console = Console()


@dataclass(frozen=True, slots=True)
class Wanted:
    """How large a demo is, and what it shows.

    Attributes:
        packages: The most of Debian's packages that are copied; a third as many are written meanwhile.
        mbit_per_second: What the link carries, or what the relays keep to where there is none.
        link: Emulate a link, where that is allowed.
        proof: Prove the copy with Spark, damage it and repair it.
    """

    packages: int
    mbit_per_second: float
    link: bool
    proof: bool


@dataclass(frozen=True, slots=True)
class Measured:
    """What one mirror did until it was ended.

    Attributes:
        megabytes: Of record batches, as the target has them.
        crossed_megabytes: Meanwhile received from the source: counted at the link, or by the mirror.
        link_share: Share of what the link could carry in that time; None where there is no link.
        seconds: Since the first bytes were copied.
        lag_first: Records it was behind when it first knew; None when it never did.
        lag_last: Records it was behind in the end.
    """

    how: str
    megabytes: float
    crossed_megabytes: float
    link_share: float | None
    seconds: float
    lag_first: int | None
    lag_last: int | None


class Watch:
    """Follows a running mirror through its status.

    Attributes:
        relay: The relay that was in use last; empty before the first.
    """

    def __init__(self, mirror: Twinsite, source: KafkaCluster, far: FarSite) -> None:
        self._mirror = mirror
        self._source = source
        self._far = far
        self.relay = ""
        self._crossed_before = self._crossed_when_began = far.crossed()
        self._began: float | None = None
        self._lag_first: int | None = None

    def copied(self, share: float) -> bool:
        """Whether this share of what it missed at first is copied."""
        now = lag(self._partitions())
        return is_copied(share, self._lag_first, now)

    def caught_up(self) -> bool:
        """Whether every partition is copied up to the present end of its source log."""
        found = {(p["topic"], p["partition"]): p for p in self._partitions()}
        ends = {
            (topic, partition): high
            for topic in TOPICS
            for partition, (_, high) in watermarks(self._source.bootstrap, topic).items()
        }
        return bool(found) and all(found[where]["next_offset"] == end for where, end in ends.items())

    def measured(self, how: str) -> Measured:
        """What it has done by now."""
        partitions = self._partitions()
        seconds = time.monotonic() - (self._began or time.monotonic())
        megabytes, crossed = sum(p["bytes"] for p in partitions) / 1e6, self._crossed() / 1e6
        share = self._link_share(seconds)
        return Measured(how, megabytes, crossed, share, seconds, self._lag_first, lag(partitions))

    def _crossed(self) -> int:
        now = self._far.crossed()
        if now is None or self._crossed_before is None:
            return int(self._mirror.status()["bytes_fetched"])
        return now - self._crossed_before

    def _link_share(self, seconds: float) -> float | None:
        now, before, rate = self._far.crossed(), self._crossed_when_began, self._far.bytes_per_second
        if now is None or before is None or rate is None or not seconds:
            return None
        return (now - before) / seconds / rate

    def _partitions(self) -> list[dict[str, Any]]:
        """Its partitions as they are now; notes when the first bytes came, and what was missing at first."""
        status = self._mirror.status()
        self.relay = (status.get("link") or {}).get("relay", self.relay)
        found: list[dict[str, Any]] = status.get("partitions", [])
        if self._lag_first is None:
            self._lag_first = lag(found)
        if self._began is None and any(p["bytes"] for p in found):
            self._began, self._crossed_when_began = time.monotonic(), self._far.crossed()
        return found


def lag(partitions: list[dict[str, Any]]) -> int | None:
    """Records behind, all partitions together; None while that of one is not known."""
    lags = [p["lag_records"] for p in partitions]
    return sum(lags) if lags and None not in lags else None


def is_copied(share: float, first: int | None, now: int | None) -> bool:
    """Whether a share of the records that were missing at first is copied; False while that is not known."""
    return first is not None and now is not None and now <= (1 - share) * first


def limits_of(far: FarSite, mbit_per_second: float) -> list[dict[str, str]]:
    """The limits of relays: where no link holds anything back, they keep to what it would carry."""
    return [] if far.bytes_per_second is not None else [{"rate": f"{mbit_per_second:g} Mbit/s"}]


def between(far: FarSite, limits: list[dict[str, str]]) -> str:
    """What is between the sites, in words."""
    return ", ".join((far.says, *(f"with relays that keep to {limit['rate']}" for limit in limits)))


def say(text: str) -> None:
    console.print(text, style="bold", markup=False, highlight=False)


def index(limit: int) -> list[Row]:
    """Debian's package index; some of its records with headers."""
    return [
        row if number % HEADERS_EVERY else replace(row, headers=HEADERS)
        for number, row in enumerate(debian_packages(limit))
    ]


def fill(bootstrap: str, rows: list[Row]) -> None:
    """Write the data that is there before the mirror starts, with an older version of some packages."""
    load(bootstrap, "packages", (replace(row, value=b"older") for row in rows[::OLDER_EVERY]))
    load_compacted(bootstrap, "packages", rows)
    load(bootstrap, "changes", (replace(row, key=None) for row in rows), "zstd")
    load_transactions(bootstrap, "installs", rows[: len(rows) // 3], per_transaction=400, aborted_every=5)


def compacted(cluster: KafkaCluster) -> bool:
    """Whether the cleaner has removed superseded records from ``packages``."""
    return all(is_clean(cluster, "packages", partition) for partition in range(PARTITIONS))


def keep_writing(bootstrap: str, rows: list[Row], stop: threading.Event) -> None:
    """Write more records while the mirror runs, dies and runs again."""
    parts = iter(rows)
    while not stop.is_set():
        part = list(islice(parts, 500))
        if not part:
            return
        load(bootstrap, "changes", part, "lz4")
        load_transactions(bootstrap, "installs", part[:100], per_transaction=50, aborted_every=2)
        stop.wait(0.2)


def settings_of(source: KafkaCluster, target: KafkaCluster, folder: Path) -> Path:
    """The settings file of the flow: through relays where the source has any, else to its brokers."""
    document = {
        "flow": "demo",
        **source.source_settings,
        "target": {"bootstrap_servers": target.bootstrap},
        "topics": {"include": list(TOPICS)},
    }
    return written(document, folder / ("flow.yaml" if source.relays else "proof.yaml"))


def written(settings: dict[str, Any], file: Path) -> Path:
    """The file, with these settings."""
    file.write_text(json.dumps(settings))  # JSON is YAML too
    return file


@contextmanager
def running_relays(
    source: KafkaCluster, far: FarSite, limits: list[dict[str, str]], folder: Path
) -> Iterator[dict[str, Twinsite]]:
    """Relays next to the source, by their addresses."""
    with ExitStack() as stack:
        relays = {}
        for port in free_ports(RELAYS):
            address = f"{far.relays.host}:{port}"
            document = {
                "cluster": {"bootstrap_servers": source.bootstrap},
                "listen": {"address": address},
                "limits": limits,
            }
            command = ("relay", "--config", str(written(document, folder / f"relay-{port}.yaml")))
            one = Twinsite.run(*command, work_dir=folder, listen=False, inside=far.relays.inside)
            relays[address] = stack.enter_context(one)
        yield relays


async def mirror_with_crashes(
    source: KafkaCluster, far: FarSite, relays: dict[str, Twinsite], settings: Path, late: list[Row]
) -> list[Measured]:
    """Copy, kill a relay, go on, kill the mirror, go on; returns what each of the two mirrors did.

    Args:
        late: Records that are written meanwhile.
    """
    arguments, folder = ("mirror", "--config", str(settings)), settings.parent
    stop = threading.Event()
    writer = threading.Thread(target=keep_writing, args=(source.bootstrap, late, stop), daemon=True)
    measured = []
    with Twinsite.run(*arguments, work_dir=folder) as first:
        writer.start()
        watch = Watch(first, source, far)
        await first.wait_for(
            lambda: watch.copied(RELAY_KILLED) and bool(watch.relay), "a part is copied", PART_COPIED_SECONDS
        )
        used = watch.relay
        say(f"killing the relay in use, {used}, with SIGKILL: the mirror goes on with the other one")
        relays[used].kill()
        await first.wait_for(
            lambda: watch.copied(MIRROR_KILLED) and watch.relay != used,
            "a good part is copied, through the other relay",
            PART_COPIED_SECONDS,
        )
        measured.append(watch.measured("SIGKILL"))
        say(f"killing the mirror with SIGKILL; records that it is behind: {records(measured[-1].lag_last)}")
        first.kill()
    say("starting it again; the source is still being written")
    with Twinsite.run(*arguments, work_dir=folder) as second:
        watch = Watch(second, source, far)
        await second.wait_for(lambda: watch.copied(WRITER_STOPPED), "it goes on", CAUGHT_UP_SECONDS)
        stop.set()
        await asyncio.to_thread(writer.join)
        await second.wait_for(watch.caught_up, "all has arrived", CAUGHT_UP_SECONDS)
        measured.append(watch.measured("caught up"))
        say("stopping it with SIGTERM")
        second.terminate()
        ended = await second.finished()
    if ended.code:
        raise DemoError(f"the mirror ended with {ended.code}:\n{ended.stderr[-2000:]}")
    return measured


def judge(source: KafkaCluster, target: KafkaCluster) -> dict[str, Verdict]:
    """Read both logs with confluent-kafka and compare offsets, timestamps, keys, values, headers."""
    verdicts: dict[str, Verdict] = {}
    for topic in TOPICS:
        verdicts |= compare_topic(source.bootstrap, target.bootstrap, topic, topic)
    return verdicts


def spans(cluster: KafkaCluster) -> dict[str, int]:
    """How many offsets each partition has from the start of its log to its end."""
    return {
        f"{topic}-{partition}": end - start
        for topic in TOPICS
        for partition, (start, end) in watermarks(cluster.bootstrap, topic).items()
    }


def show(verdicts: dict[str, Verdict], offsets: dict[str, int], measured: list[Measured], link: str) -> None:
    """Print both tables, and what was found wrong.

    Args:
        link: What is between the sites.
    """
    console.print(what_happened(measured, link))
    console.print(what_was_found(verdicts, offsets))
    for verdict in verdicts.values():
        for finding in verdict.findings[:5]:
            say(f"  {finding}")


def what_happened(measured: list[Measured], link: str) -> Table:
    """A line for each mirror."""
    table = Table(title=f"the copying, over {link}")
    for column in COLUMNS:
        is_name = column == COLUMNS[0]
        table.add_column(column, justify="left" if is_name else "right", no_wrap=is_name)
    for number, part in enumerate(measured, 1):
        rate = f"{part.megabytes / part.seconds:,.0f}" if part.seconds else "unknown"
        crossed = (
            f"{part.crossed_megabytes:,.0f}",
            "-" if part.link_share is None else f"{part.link_share:.0%}",
        )
        figures = (f"{part.megabytes:,.0f}", *crossed, f"{part.seconds:.1f} s", rate)
        table.add_row(f"{number}, {part.how}", *figures, records(part.lag_first), records(part.lag_last))
    return table


def records(lag: int | None) -> str:
    return "unknown" if lag is None else f"{lag:,}"


def what_was_found(verdicts: dict[str, Verdict], offsets: dict[str, int]) -> Table:
    """A line for each partition.

    Args:
        offsets: How many each has; those that hold no record are gaps.
    """
    table = Table(title="source 3.9.1 and target 4.3.0, record by record")
    for column in FOUND:
        table.add_column(column, justify="left" if column == FOUND[0] else "right")
    for name, verdict in verdicts.items():
        counts = f"{verdict.records:,}", f"{offsets[name] - verdict.records:,}"
        table.add_row(name, *counts, "none" if verdict.exact else str(len(verdict.findings)))
    return table


async def demo(wanted: Wanted) -> None:
    """All of it, in a folder that is deleted at the end.

    Raises:
        Exception: One of :data:`FAILURES`.
    """
    with (
        tempfile.TemporaryDirectory(prefix="twinsite-demo-") as folder,
        other_site(wanted) as far,
    ):
        await mirrored(wanted, far, Path(folder))


def other_site(wanted: Wanted) -> AbstractContextManager[FarSite]:
    """Where the source is: beyond an emulated link if one is wanted and allowed, else next door."""
    if not wanted.link:
        return nullcontext(next_door("--no-link"))
    return far_site(mbit_per_second=wanted.mbit_per_second, one_way_seconds=ONE_WAY_SECONDS)


async def mirrored(wanted: Wanted, far: FarSite, folder: Path) -> None:
    """Start both clusters, fill one, mirror it, and show that the copy is exact."""
    limits = limits_of(far, wanted.mbit_per_second)
    link = between(far, limits)
    say(f"between the sites: {link}")
    say("starting two Kafka clusters, 3.9.1 and 4.3.0")
    async with (
        KafkaCluster.start(version="3.9", name="source", work_dir=folder, site=far.brokers) as source,
        KafkaCluster.start(version="4.3", name="target", work_dir=folder) as target,
    ):
        for topic in TOPICS:
            own = {"cleanup.policy": "compact", **AT_ONCE} if topic == "packages" else {}
            await source.create_topic(topic, PARTITIONS, config=own)
        say("loading Debian's package index: compacted, append-only, transactional with aborts")
        rows = index(wanted.packages)
        await asyncio.to_thread(fill, source.bootstrap, rows)
        await until(lambda: compacted(source), "packages is compacted", COMPACTED_SECONDS)
        await source.alter_topic("packages", NOT_ANY_MORE)
        say(f"mirroring {', '.join(TOPICS)} through {RELAYS} relays next to the source")
        with running_relays(source, far, limits, folder) as relays:
            for one in relays.values():
                await listens(one)
            settings = settings_of(through(source, *relays), target, folder)
            late = rows[: len(rows) // 3]
            measured = await mirror_with_crashes(source, far, relays, settings, late)
        say("comparing the two clusters record by record with an independent client")
        verdicts = await asyncio.to_thread(judge, source, target)
        show(verdicts, await asyncio.to_thread(spans, target), measured, link)
        if not all(verdict.exact for verdict in verdicts.values()):
            raise DemoError("THE COPY IS NOT EXACT")
        say("the copy is exact")
        if wanted.proof:
            await mend(target, "packages", rows, settings_of(source, target, folder), say)


async def until_stopped(work: Coroutine[Any, Any, None]) -> None:
    """Do the work, and end this process if a signal stops it, after everything it has begun was put away.

    A signal interrupts the work only where it waits: no file, process or namespace is forgotten, and what is
    being put away is not left halfway.
    """
    came: list[int] = []
    task = asyncio.create_task(work)

    def stop(number: int, _frame: object) -> None:
        came.append(number)
        task.get_loop().call_soon_threadsafe(task.cancel)

    for one in STOPPING:
        signal.signal(one, stop)
    try:
        await task
    except (asyncio.CancelledError, *FAILURES):  # programs that Ctrl-C has reached, too, may fail first
        if not came:
            raise
    else:
        return
    say(f"stopped; {left_behind()}")
    os._exit(128 + came[0])  # a thread may still wait for a broker that is gone


def left_behind() -> str:
    """What there is of a demo once it has ended."""
    if RUNS.exists():
        return f"only the pages in {RUNS.relative_to(REPOSITORY)} are left behind"
    return "nothing is left behind"


@click.command(context_settings={"show_default": True})
@click.option(
    "--packages",
    type=click.IntRange(PACKAGES_MIN),
    default=PACKAGES,
    help="How many of Debian's packages to copy, at most.",
)
@click.option(
    "--mbit-per-second",
    type=click.FloatRange(MBIT_PER_SECOND_MIN),
    default=MBIT_PER_SECOND,
    help="What the emulated link carries, or what the relays keep to where there is none.",
)
@click.option("--link/--no-link", default=True, help="Whether to emulate a long link, where that is allowed.")
@click.option("--proof/--no-proof", default=True, help="Whether to go on with Spark: prove, damage, repair.")
def main(packages: int, mbit_per_second: float, link: bool, proof: bool) -> None:
    """Mirror real data between two Kafka clusters, crashes included, and prove that the copy is exact."""
    began = time.monotonic()
    try:
        asyncio.run(until_stopped(demo(Wanted(packages, mbit_per_second, link, proof))))
    except FAILURES as failure:
        say(str(failure))
        sys.exit(1)
    say(f"done in {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
