"""A link that is slower than what is produced: the copy falls behind, says so, and catches up."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bench.measuring import resident_megabytes
from tests.conftest import TopicFactory
from tests.faults.flows import complete, configured, partition, partitions
from tests.harness.checker import assert_exact, watermarks
from tests.harness.daemon import free_ports
from tests.harness.data import Row, device_rows, json_rows
from tests.harness.kafka import KafkaCluster
from tests.harness.loading import load
from tests.harness.process import Twinsite, events
from tests.harness.relay import listens, through
from tests.harness.wan import Wan, wan, why_not

pytestmark = [pytest.mark.skipif(bool(why_not()), reason=why_not()), pytest.mark.timeout(420)]

TOPIC = "more-than-goes-through"
MBIT = 1e6 / 8
LINK_BYTES_PER_SECOND, PRODUCED_BYTES_PER_SECOND = 2 * MBIT, 900_000
"""More than three times as much as goes through: for two minutes, until so much is held up."""
RECORD_BYTES, RECORDS_AT_ONCE = 1_000, 100
LAGGING_SECONDS, FAR_BEHIND_SECONDS = 3, 15
HELD_UP_RECORDS, GROWTH_MEGABYTES_MAX = 80_000, 40.0
"""Eighty megabytes that do not get through, and half of that: zstd takes more at the level of a full link."""
BEHIND_BYTES, FAR_BACK = 300_000_000, " at level 2 over 16 MiB"
"""So many, and it is tried to look for what repeats all over the window."""
SILENCES_MAX = 1
"""Where others leave no processor to the far end for seconds; it was one with each frame."""


@pytest.fixture
def link() -> Iterator[Wan]:
    with wan(seed=11) as one:
        yield one


async def test_a_link_slower_than_production_makes_a_lag_that_is_told_and_made_up_for(
    link: Wan, source: KafkaCluster, target: KafkaCluster, tmp_path: Path
) -> None:
    """
    A quarter of what is produced gets through, for two minutes: the lag grows in the status and is told at
    any moment, the partition is LAGGING and said not to catch up at this pace, memory grows on neither side,
    and nobody takes the source for silent. When nobody writes any more the lag becomes less; on a wider link
    soon.
    """
    await source.create_topic(TOPIC, 1)
    address = f"{link.far}:{free_ports(1)[0]}"
    listen = ("relay", "--cluster", source.bootstrap, "--listen", address)
    settings = {"topics": {"include": [TOPIC]}, "lagging_after_seconds": LAGGING_SECONDS}
    settings["link"] = {"relays": [address], "window_bytes": 1 << 20}
    link.both(rate=LINK_BYTES_PER_SECOND, delay_seconds=0.02, queue_bytes=64 << 10)
    with Twinsite.run(*listen, work_dir=tmp_path, listen=False, inside=link.inside) as relay:
        await listens(relay)
        command = configured(tmp_path, through(source, address), target, TOPIC, **settings)
        with Twinsite.run(*command, work_dir=tmp_path) as mirror:
            await mirror.wait_for(lambda: complete(mirror, source, [TOPIC]), "it is up to date", 60)
            async with producing(source):
                lagging = await behind(mirror, LAGGING_SECONDS)
                before = [resident_megabytes(one.process.pid) for one in (mirror, relay)]
                far_behind = await behind(mirror, FAR_BEHIND_SECONDS)
                looks: list[dict[str, Any]] = []
                held_up = partial(holds_up, mirror, source, looks)
                await mirror.wait_for(held_up, "80 MB are held up", 240)
                after = [resident_megabytes(one.process.pid) for one in (mirror, relay)]
            told: dict[str, Any] = {}
            known = partial(knows_of, mirror, end_of(source), told)
            await mirror.wait_for(known, "it knows how much there is", 90)
            most = told["lag_records"]
            await mirror.wait_for(partial(catches_up, mirror, most), "it catches up", 60)
            link.both(rate=400 * MBIT, queue_bytes=4 << 20)
            await mirror.wait_for(lambda: complete(mirror, source, [TOPIC]), "all is copied", 60)
            await mirror.wait_for(lambda: one_of(mirror).get("state") == "ACTIVE", "it is active again")
            changes = events(mirror.stderr, "partition_state_changed")

    assert_exact(source.bootstrap, target.bootstrap, [TOPIC])
    await source.delete_topic(TOPIC)
    assert len([line for line in changes if "source_unavailable" in line]) <= SILENCES_MAX
    assert {one["state"] for one in (lagging, far_behind)} == {"LAGGING"}
    assert most > HELD_UP_RECORDS / 2
    assert {one["state"] for one in looks} == {"LAGGING"}
    assert min(one["lag_seconds"] for one in looks) > LAGGING_SECONDS
    assert looks[-1]["lag_seconds"] > far_behind["lag_seconds"] * 2
    assert {one["outlook"]["catch_up"] for one in looks[len(looks) // 2 :]} == {"never"}
    assert [round(b - a, 1) for a, b in zip(before, after, strict=True) if b - a > GROWTH_MEGABYTES_MAX] == []


@pytest.mark.parametrize(
    ("rows", "window_bytes", "share_max"),
    [
        (lambda: json_rows(BEHIND_BYTES // RECORD_BYTES, RECORD_BYTES), 0, 0.3),
        (lambda: device_rows(BEHIND_BYTES // 400, devices=15_000, value_bytes=400), 16 << 20, 0.35),
    ],
    ids=["all that repeats is near", "it repeats after 6 MB"],
)
async def test_what_is_behind_is_compressed_as_a_full_link_needs_it_and_the_status_says_so(
    link: Wan,
    source: KafkaCluster,
    target: KafkaCluster,
    topic: TopicFactory,
    tmp_path: Path,
    rows: Callable[[], Iterator[Row]],
    window_bytes: int,
    share_max: float,
) -> None:
    """
    Both ends say what was chosen, and what of all that was tried made it the best: where nothing repeats but
    nearby it is not worth its time to look further back; else a half of all bytes become a twentieth.
    """
    name = await topic(source, partitions=2, prefix="much-behind")
    await asyncio.to_thread(load, source.bootstrap, name, rows())
    address = f"{link.far}:{free_ports(1)[0]}"
    listen = ("relay", "--cluster", source.bootstrap, "--listen", address)
    settings = {"topics": {"include": [name]}, "link": {"relays": [address]}}
    link.both(rate=40 * MBIT, delay_seconds=0.02, queue_bytes=200_000)
    with Twinsite.run(*listen, work_dir=tmp_path, inside=link.inside) as relay:
        await listens(relay)
        command = configured(tmp_path, through(source, address), target, name, **settings)
        with Twinsite.run(*command, work_dir=tmp_path) as mirror:
            chosen: dict[str, Any] = {}

            def chose() -> bool:
                chosen.update(mirror.status().get("link") or {})
                why = str(chosen.get("why"))
                return "; this level is the best of those tried: " in why and FAR_BACK in why

            await mirror.wait_for(chose, "it is known what is best", 90)
            first_bytes = link.counted()[0].bytes
            await mirror.wait_for(lambda: complete(mirror, source, [name]), "all is copied", 90)
            crossed = link.counted()[0].bytes

    assert_exact(source.bootstrap, target.bootstrap, [name])
    assert (chosen["recode"], chosen["level"], chosen["window_bytes"]) == (True, 2, window_bytes)
    assert "MB/s over the link; one core handles " in chosen["why"]
    assert first_bytes < crossed < share_max * BEHIND_BYTES


def one_of(mirror: Twinsite) -> dict[str, Any]:
    """The partition, as the status has it."""
    return partition(partitions(mirror), TOPIC)


def end_of(source: KafkaCluster) -> int:
    """Where the source's log ends now."""
    return watermarks(source.bootstrap, TOPIC)[0][1]


def holds_up(mirror: Twinsite, source: KafkaCluster, looks: list[dict[str, Any]]) -> bool:
    """Whether as much as that is at the source and not at the target; notes what is said meanwhile."""
    found = one_of(mirror)
    looks.extend([found] if found else [])
    return bool(found) and end_of(source) - int(found["next_offset"]) > HELD_UP_RECORDS


def knows_of(mirror: Twinsite, end: int, told: dict[str, Any]) -> bool:
    """Whether it was told of the last record: what it hears stands in line behind what it copies. Notes what
    is said then.
    """
    told.update(one_of(mirror))
    return bool(told.get("source_high_watermark") == end)


def catches_up(mirror: Twinsite, most: int) -> bool:
    """Whether it is less far behind than that."""
    found = one_of(mirror)
    return bool(found) and int(found["lag_records"]) < most


async def behind(mirror: Twinsite, seconds: float) -> dict[str, Any]:
    """Wait until the partition is said to lag by so much, and give what is said of it."""
    found: dict[str, Any] = {}

    def told() -> bool:
        found.update(one_of(mirror))
        return found.get("reason") == "catching_up" and (found["lag_seconds"] or 0) > seconds

    await mirror.wait_for(told, f"it is behind by {seconds} s", 90)
    return found


@asynccontextmanager
async def producing(source: KafkaCluster) -> AsyncIterator[None]:
    """Write what no compression makes smaller, at a steady pace, as long as the block lasts."""
    enough = threading.Event()
    dice = random.Random(20)

    def rows() -> Iterator[Row]:
        due = time.monotonic()
        while not enough.wait(max(due - time.monotonic(), 0)):
            for _ in range(RECORDS_AT_ONCE):
                yield Row(key=None, value=dice.randbytes(RECORD_BYTES))
            due += RECORD_BYTES * RECORDS_AT_ONCE / PRODUCED_BYTES_PER_SECOND

    task = asyncio.create_task(asyncio.to_thread(load, source.bootstrap, TOPIC, rows()))
    try:
        yield
    finally:
        enough.set()
        await task
