"""How late a record is while a catch-up fills the link: ``python -m bench.live_tail``; needs root.

The source and its relay are at the far end of an emulated link, the mirror and the target at this end. One
topic is far behind, another is written at an even rate, in records of 100 bytes. Latency is from handing a
record to the producer until a consumer at the target has it.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from bench import goals
from bench.goals import Goal
from bench.measuring import LogEnds, wait
from bench.over_the_link import FULL_SPEED, PROFILES, Profile
from bench.standing import Latency, trickle
from tests.faults.flows import configured
from tests.harness.daemon import Site
from tests.harness.data import json_rows
from tests.harness.jvm import BENCHMARK_JVM
from tests.harness.kafka import KafkaCluster
from tests.harness.loading import load
from tests.harness.process import Twinsite
from tests.harness.relay import through_its_far_relay
from tests.harness.wan import Wan, wan, why_not

BEHIND, LIVE, PARTITIONS = "behind", "live", 4
LATER_MS = 200.0
"""The p99 may exceed a round trip by this, in milliseconds."""
RECORD_BYTES = 1024


async def measure(
    link: Wan, profile: Profile, source: KafkaCluster, target: KafkaCluster, folder: Path, records: int
) -> tuple[Latency, float]:
    """Latency of the topic that is caught up, and the share of the link that was used meanwhile."""
    link.both(**FULL_SPEED)
    flow = f"live-{time.time_ns()}"
    live = f"{LIVE}-{flow}"
    for cluster in (source, target):
        await cluster.create_topic(live, 1)
    profile.of(link)
    async with through_its_far_relay(source, link, folder) as relayed:
        to_copy = configured(folder, relayed, target, flow, topics={"include": [BEHIND, live]})
        await target.create_topic(BEHIND, PARTITIONS)
        ends = LogEnds(target.bootstrap, BEHIND, PARTITIONS)
        with Twinsite.run(*to_copy, work_dir=folder):
            await asyncio.to_thread(wait, lambda: ends.records() > 0, "the catch-up has begun")
            began, before = time.monotonic(), link.counted()[0].bytes
            late = await asyncio.to_thread(trickle, source.bootstrap, target.bootstrap, live)
            used = (link.counted()[0].bytes - before) / (time.monotonic() - began) / profile.rate
            if ends.records() >= records:
                raise click.ClickException("all had caught up before the end: raise --megabytes")
    link.both(**FULL_SPEED)
    await target.delete_topic(BEHIND)
    return late, used


async def run(profiles: list[Profile], megabytes: int, folder: Path) -> tuple[Table, list[Goal]]:
    """Measure each profile in turn."""
    wanted: list[Goal] = []
    shown = Table(title="100 records/s while a catch-up fills the link, producer to consumer")
    for column in ("", "p50 ms", "p99 ms", "longest ms", "link used"):
        shown.add_column(column, justify="right" if column else "left")
    with wan(seed=7) as link:
        async with (
            KafkaCluster.start(
                name="far", work_dir=folder, jvm=BENCHMARK_JVM, site=Site(link.home)
            ) as source,
            KafkaCluster.start(version="4.3", name="near", work_dir=folder, jvm=BENCHMARK_JVM) as target,
        ):
            await source.create_topic(BEHIND, PARTITIONS)
            records = megabytes * 1_000_000 // RECORD_BYTES
            rows = json_rows(records, RECORD_BYTES)
            await asyncio.to_thread(load, source.bootstrap, BEHIND, rows, linger_ms=50)
            for profile in profiles:
                late, used = await measure(link, profile, source, target, folder, records)
                figures = (late.p50, late.p99, late.longest)
                shown.add_row(str(profile), *(f"{figure:.0f}" for figure in figures), f"{used:.0%}")
                latest = profile.rtt_ms + LATER_MS
                wanted.append(Goal(f"{profile}: p99", latest, late.p99, at_most=True, unit=" ms"))
    return shown, wanted


@click.command(context_settings={"show_default": True})
@click.option("--profile", "which", type=click.IntRange(1, len(PROFILES)), multiple=True, help="Only these.")
@click.option("--megabytes", default=3000, help="MB of values at the source: more than a minute's copy.")
def main(which: tuple[int, ...], megabytes: int) -> None:
    """Measure the latency of a caught-up topic while a catch-up fills the link; exit 1 if it is too high."""
    if why_not():
        raise click.ClickException(f"no link can be emulated here: {why_not()}")
    profiles = [PROFILES[number - 1] for number in which] or list(PROFILES)
    with tempfile.TemporaryDirectory(prefix="twinsite-bench-") as folder:
        shown, wanted = asyncio.run(run(profiles, megabytes, Path(folder)))
    Console(width=110).print(shown)
    Console(width=110).print(goals.table("Goals", wanted))
    goals.end(wanted)


if __name__ == "__main__":
    main()
