"""Clocks that are hours apart at the two ends of a link: what is copied, and what is said of it."""

from __future__ import annotations

import asyncio
import time
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import TopicFactory
from tests.faults.flows import complete, configured, copied, once, partitions, writing
from tests.harness.checker import assert_exact
from tests.harness.clock import LIBRARY, clock_off_by
from tests.harness.daemon import Site, free_ports
from tests.harness.data import json_rows
from tests.harness.kafka import KafkaCluster
from tests.harness.loading import load
from tests.harness.process import Twinsite, twinsite
from tests.harness.relay import listens, through

pytestmark = pytest.mark.skipif(LIBRARY is None, reason="the Debian package faketime is not installed")

HOUR_MS = 3_600_000
LAG_SECONDS_MAX = 60
LOOKS_MIN = 10
"""At a partition, while it is written."""
OLD_HOURS, KEPT_HOURS = 4, 24
"""The oldest record, by the clock of its site, and how long each is kept there."""
RECORDS, SLOWLY = 20_000, "8 Mbit/s"
"""It takes some seconds to copy them."""


@pytest.mark.parametrize(("who", "hours"), [("relay", 3), ("mirror", 3), ("mirror", -3)])
async def test_clocks_that_are_hours_apart_change_nothing_but_what_is_said_of_them(
    source: KafkaCluster,
    target: KafkaCluster,
    relay_site: Site,
    topic: TopicFactory,
    tmp_path: Path,
    who: str,
    hours: int,
) -> None:
    """
    The copy is exact, a lag is never negative nor nothing, nor hours while it is up to date, and the status
    says by how much the relay's clock is ahead.
    """
    name = await topic(source, partitions=2, prefix="clocks")
    await asyncio.to_thread(load, source.bootstrap, name, json_rows(5_000, 300), "lz4")
    address = f"{relay_site.host}:{free_ports(1)[0]}"
    environment = {one: clock_off_by(hours=hours) if one == who else {} for one in ("relay", "mirror")}
    settings = {"topics": {"include": [name]}, "lagging_after_seconds": LAG_SECONDS_MAX}
    command = configured(tmp_path, through(source, address), target, name, **settings)
    seen: list[dict[str, Any]] = []

    def goes_on(wanted: int) -> bool:
        seen.extend(partitions(mirror))
        return copied(mirror) >= wanted and len(seen) >= LOOKS_MIN

    with ExitStack() as stack:
        listen = ("relay", "--cluster", source.bootstrap, "--listen", address)
        relay = stack.enter_context(
            Twinsite.run(
                *listen,
                work_dir=tmp_path,
                listen=False,
                environment=environment["relay"],
                inside=relay_site.inside,
            )
        )
        await listens(relay)
        mirror = stack.enter_context(
            Twinsite.run(*command, work_dir=tmp_path, environment=environment["mirror"])
        )
        await mirror.wait_for(lambda: is_up_to_date(mirror), "it is up to date", 60)
        await mirror.wait_for(lambda: offset_ms(mirror) is not None, "the clocks are compared")
        async with writing(source, name):
            wanted = copied(mirror) + 2_000
            await mirror.wait_for(partial(goes_on, wanted), "what is written is copied", 60)
        await mirror.wait_for(lambda: complete(mirror, source, [name]), "all is copied", 60)
        await mirror.wait_for(lambda: is_up_to_date(mirror), "it is up to date", 60)
        said = offset_ms(mirror)
        metrics = mirror.get("/metrics").decode()

    assert_exact(source.bootstrap, target.bootstrap, [name])
    ahead = hours if who == "relay" else -hours
    assert said == pytest.approx(ahead * HOUR_MS, abs=2_000)
    lags = [p["lag_seconds"] for p in seen if p["lag_seconds"] is not None]
    assert len(lags) > LOOKS_MIN / 2
    assert [lag for lag in lags if lag <= 0 or lag > LAG_SECONDS_MAX] == []
    assert [p["lag_records"] for p in seen if (p["lag_records"] or 0) < 0] == []
    assert negative(metrics) == []


@pytest.mark.parametrize("hours", [3, -3])
async def test_a_site_whose_clock_is_hours_off_writes_records_that_never_look_younger_than_they_are(
    source: KafkaCluster,
    target: KafkaCluster,
    relay_site: Site,
    topic: TopicFactory,
    tmp_path: Path,
    hours: int,
) -> None:
    """
    Its producers and its relay have that clock, and what there is was written four hours ago. Of a first copy
    it is as old as by the site's own clock where that is ahead, and as by the mirror's where it is behind: so
    the lag is a bound, and retention leaves at least the time that is told. In the end the copy is exact.
    """
    name = await topic(source, prefix="site-clock", retention_ms=KEPT_HOURS * HOUR_MS)
    site_ms = int(time.time() * 1000) + hours * HOUR_MS
    rows = json_rows(RECORDS, 1_000)
    old = [
        replace(row, timestamp_ms=site_ms - OLD_HOURS * HOUR_MS + number) for number, row in enumerate(rows)
    ]
    await asyncio.to_thread(load, source.bootstrap, name, old)
    address = f"{relay_site.host}:{free_ports(1)[0]}"
    settings = {
        "topics": {"include": [name]},
        "link": {"relays": [address], "limits": [{"rate": SLOWLY}]},
        "lagging_after_seconds": LAG_SECONDS_MAX,
    }
    command = configured(tmp_path, through(source, address), target, name, **settings)
    behind: dict[str, Any] = {}

    def tells_how_old() -> bool:
        known = offset_ms(mirror) is not None
        (found,) = partitions(mirror) or ({},)
        if known and found.get("state") == "LAGGING" and found["lag_seconds"]:
            behind.update(found, hours_since=(time.time() * 1000 + hours * HOUR_MS - site_ms) / HOUR_MS)
        return bool(behind)

    with ExitStack() as stack:
        listen = ("relay", "--cluster", source.bootstrap, "--listen", address)
        relay = stack.enter_context(
            Twinsite.run(
                *listen,
                work_dir=tmp_path,
                listen=False,
                environment=clock_off_by(hours=hours),
                inside=relay_site.inside,
            )
        )
        await listens(relay)
        mirror = stack.enter_context(Twinsite.run(*command, work_dir=tmp_path))
        await mirror.wait_for(tells_how_old, "it is known how old what is missing is", 60)
        await mirror.wait_for(lambda: is_up_to_date(mirror), "it is up to date", 60)
        now = [replace(row, timestamp_ms=site_ms) for row in json_rows(1_000, 100, seed=2)]
        await asyncio.to_thread(load, source.bootstrap, name, now)
        await mirror.wait_for(lambda: complete(mirror, source, [name]), "all is copied", 60)
        await mirror.wait_for(lambda: is_up_to_date(mirror), "it is up to date", 60)
        metrics = mirror.get("/metrics").decode()

    assert_exact(source.bootstrap, target.bootstrap, [name])
    age_hours = OLD_HOURS + max(-hours, 0) + behind["hours_since"]
    about = LAG_SECONDS_MAX
    assert behind["lag_records"] > 0
    assert behind["lag_seconds"] == pytest.approx(age_hours * 3_600, abs=about)
    assert behind["retention_headroom_seconds"] == pytest.approx((KEPT_HOURS - age_hours) * 3_600, abs=about)
    assert negative(metrics) == []


def is_up_to_date(mirror: Twinsite) -> bool:
    """Whether it says so; from then on a lag counts from such a moment, and not from a record's time."""
    found = partitions(mirror)
    return bool(found) and all(
        p["state"] == "ACTIVE" and p["lag_records"] == 0 and p["next_offset"] for p in found
    )


async def test_a_clock_that_a_broker_refuses_is_named(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    The topic of the flow's state was made by an older version, with the times of its writers.
    """
    name = await topic(source, prefix="ahead")
    await target.create_topic(f"__twinsite_state.{name}", 1, config={"cleanup.policy": "compact"})

    command = once(source, target, name, name)
    done = await twinsite(*command, work_dir=tmp_path, environment=clock_off_by(hours=3))

    assert done.code == 1
    assert f"Produce to __twinsite_state.{name}-0: INVALID_TIMESTAMP" in done.stderr
    assert "the clock of this machine is far ahead of the broker's: correct it" in done.stderr


def offset_ms(mirror: Twinsite) -> float | None:
    """By how much the mirror takes the relay's clock to be ahead of its own."""
    found: float | None = (mirror.status().get("link") or {}).get("clock_offset_ms")
    return found


def negative(metrics: str) -> list[str]:
    """Durations and counts below zero; the difference between the clocks may be."""
    lines = [line for line in metrics.splitlines() if not line.startswith("#")]
    return [line for line in lines if float(line.rpartition(" ")[2]) < 0 and "clock_skew" not in line]
