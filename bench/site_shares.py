"""How two sites share a link: ``python -m bench.site_shares``; needs root.

Two source clusters, each with a relay, are at the far end of an emulated link; their mirrors and the one
target are at this end. One site has many partitions, the other few, and both are behind. The bytes that
arrive from each are counted in spans of some seconds.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from bench import goals
from bench.goals import Goal, ratio
from bench.measuring import wait
from tests.faults.flows import configured
from tests.harness.daemon import Site
from tests.harness.data import json_rows
from tests.harness.jvm import BENCHMARK_JVM
from tests.harness.kafka import KafkaCluster
from tests.harness.loading import load
from tests.harness.process import Twinsite
from tests.harness.relay import through_its_far_relay
from tests.harness.wan import Wan, wan, why_not

SITES = {"large": 24, "small": 2}
"""Partitions of each source cluster."""
RECORD_BYTES, BYTES_FOR_EACH = 1024, 0.24
"""Size of a record, and how many bytes of it cross the link for each."""
SPAN_SECONDS, SPANS = 6.0, 16
LEAST = 0.4
"""The least share of a site once both have found their pace: in the second half of the time."""

Spans = list[Mapping[str, int]]
"""Bytes that arrived from each site, span by span."""


async def measure(stack: AsyncExitStack, link: Wan, mbit: float, rtt_ms: float, folder: Path) -> Spans:
    """Let both catch up at the same time."""
    rate = mbit * 1e6 / 8
    records = int(rate * SPAN_SECONDS * (SPANS + 4) / BYTES_FOR_EACH / RECORD_BYTES)
    target = await stack.enter_async_context(
        KafkaCluster.start(version="4.3", name="near", work_dir=folder, jvm=BENCHMARK_JVM)
    )
    sources = {}
    for name, partitions in SITES.items():
        started = KafkaCluster.start(name=name, work_dir=folder, jvm=BENCHMARK_JVM, site=Site(link.home))
        sources[name] = await stack.enter_async_context(started)
        await sources[name].create_topic(name, partitions)
        rows = json_rows(records, RECORD_BYTES, seed=partitions)
        await asyncio.to_thread(load, sources[name].bootstrap, name, rows, linger_ms=50)
    queue = max(int(rate * rtt_ms / 1000), 65_536)
    link.both(rate=rate, delay_seconds=rtt_ms / 2000, queue_bytes=queue)
    mirrors = {}
    for name, source in sources.items():
        relayed = await stack.enter_async_context(through_its_far_relay(source, link, folder))
        to_copy = configured(folder, relayed, target, name, topics={"include": [name]})
        mirrors[name] = stack.enter_context(Twinsite.run(*to_copy, work_dir=folder))
    await asyncio.to_thread(wait, lambda: all(map(_fetched, mirrors.values())), "both have begun")
    return await asyncio.to_thread(_watch, mirrors)


def _watch(mirrors: Mapping[str, Twinsite]) -> Spans:
    found: Spans = []
    before = {name: _fetched(mirror) for name, mirror in mirrors.items()}
    due = time.monotonic()
    for _ in range(SPANS):
        due += SPAN_SECONDS
        time.sleep(max(due - time.monotonic(), 0))
        now = {name: _fetched(mirror) for name, mirror in mirrors.items()}
        found.append({name: now[name] - before[name] for name in now})
        before = now
    return found


def _fetched(mirror: Twinsite) -> int:
    return int(mirror.status().get("bytes_fetched", 0))


def table(title: str, spans: Spans) -> Table:
    """The share of each site, span by span."""
    shown = Table(title=title)
    for column in ("seconds", *SITES, "Mbit/s"):
        shown.add_column(column, justify="right")
    for at, span in enumerate(spans, 1):
        both = sum(span.values())
        shares = (f"{ratio(span[name], both):.0%}" for name in SITES)
        shown.add_row(f"{at * SPAN_SECONDS:.0f}", *shares, f"{both * 8 / SPAN_SECONDS / 1e6:.1f}")
    return shown


def judged(spans: Spans) -> list[Goal]:
    """The goal for the site with the smaller share."""
    later = spans[len(spans) // 2 :]
    shares = [
        ratio(sum(span[name] for span in later), sum(sum(span.values()) for span in later)) for name in SITES
    ]
    return [Goal("least share of a site, in the second half", LEAST, min(shares))]


async def run(mbit: float, rtt_ms: float, folder: Path) -> Spans:
    """Start all of it, and end it."""
    with wan(seed=11) as link:
        async with AsyncExitStack() as stack:
            return await measure(stack, link, mbit, rtt_ms, folder)


@click.command(context_settings={"show_default": True})
@click.option("--mbit", default=20.0, help="Rate of the link, in Mbit/s.")
@click.option("--rtt-ms", default=60.0, help="Round trip of the link, in ms.")
def main(mbit: float, rtt_ms: float) -> None:
    """See how two sites of different sizes divide a link; exit 1 if one of them gets too little."""
    if why_not():
        raise click.ClickException(f"no link can be emulated here: {why_not()}")
    with tempfile.TemporaryDirectory(prefix="twinsite-bench-") as folder:
        spans = asyncio.run(run(mbit, rtt_ms, Path(folder)))
    wanted = judged(spans)
    sizes = " and ".join(f"{partitions} partitions" for partitions in SITES.values())
    Console(width=100).print(table(f"{mbit:g} Mbit/s, {rtt_ms:g} ms, sites with {sizes}", spans))
    Console(width=100).print(goals.table("Goals", wanted))
    goals.end(wanted)


if __name__ == "__main__":
    main()
