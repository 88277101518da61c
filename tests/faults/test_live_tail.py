"""A catch-up of days over a narrow link: what is up to date stays so."""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from tests.conftest import TopicFactory
from tests.faults.flows import complete, configured, partition, partitions, reached
from tests.harness.checker import assert_exact
from tests.harness.daemon import free_ports
from tests.harness.data import Row
from tests.harness.kafka import KafkaCluster
from tests.harness.loading import load
from tests.harness.process import Twinsite, twinsite
from tests.harness.relay import listens, through
from tests.harness.trickle import Written, came, trickling
from tests.harness.wan import Wan, wan, why_not

pytestmark = [pytest.mark.skipif(bool(why_not()), reason=why_not()), pytest.mark.timeout(300)]

RATE, ONE_WAY_SECONDS, QUEUE_BYTES = 20e6 / 8, 0.05, 250_000
"""Of the link; what it carries in a round trip may wait in front of it."""
WIDER = {"rate": 400e6 / 8, "queue_bytes": 4 << 20}
BACKLOG_RECORDS, RECORD_BYTES, BACKLOG_SECONDS = 20_000, 10_000, 3 * 86_400
"""The link needs 80 seconds for what was written in three days."""
TRICKLE_PER_SECOND, TIMED_RECORDS = 20, 200
LATE_SECONDS_MAX = 1.0
"""A fifth of it is enough where nobody else wants the processors."""
TRIES_MAX = 2
"""So often it is watched where something was late: a machine that stood still for a second makes all late."""
FULL, FULL_SECONDS = 0.85, 2.0
"""While BBR looks how long the way is it leaves some of the link empty."""
BEGINNING_RECORDS = 3 * TRICKLE_PER_SECOND
"""So long it takes until the link is full."""
CUT_RECORDS = 2 * TRICKLE_PER_SECOND
RECOVERS_SECONDS = 5.0
"""A kernel that has had no answer for two seconds sends again after two more at the latest."""
BURSTS, BURST_RECORDS, BURST_BYTES = 20, 20, 200_000
"""One a second takes the link a twelfth of it; nothing makes it smaller."""
BURST_SECONDS_MAX, STOOD_STILL_SECONDS_MAX = 2.0, 5.0
"""Of a burst in the middle, beside a catch-up that fills the link, and the most."""
OTHER_RELAY_SECONDS_MAX = 15.0
"""What has a lower rank takes the link a minute and more."""


@pytest.fixture
def link() -> Iterator[Wan]:
    with wan(seed=13) as one:
        one.both(rate=RATE, delay_seconds=ONE_WAY_SECONDS, queue_bytes=QUEUE_BYTES)
        yield one


async def test_a_catch_up_of_days_never_delays_the_live_tail_by_more_than_a_second(
    link: Wan, source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    Each record, from its acknowledgement at the source until a consumer at the target has it: when the
    catch-up begins, while it fills the link, and again soon after the link was cut for two seconds.
    """
    behind, live = await topic(source, prefix="behind"), await topic(source, prefix="live")
    await target.create_topic(live)
    address = f"{link.far}:{free_ports(1)[0]}"
    listen = ("relay", "--cluster", source.bootstrap, "--listen", address)
    with Twinsite.run(*listen, work_dir=tmp_path, listen=False, inside=link.inside) as relay:
        await listens(relay)
        topics = {"include": [behind, live]}
        command = configured(tmp_path, through(source, address), target, live, topics=topics)
        with Twinsite.run(*command, work_dir=tmp_path) as mirror:
            await mirror.wait_for(lambda: complete(mirror, source, [behind, live]), "it is up to date", 60)
            await tell(mirror, "pause", behind, tmp_path)
            await asyncio.to_thread(load, source.bootstrap, behind, rows_of_days(), batch_size=200_000)
            with trickling(source.bootstrap, target.bootstrap, live, TRICKLE_PER_SECOND) as records:
                begun_seconds = await beside_a_beginning(mirror, behind, records, tmp_path)
                before = await beside_a_full_link(mirror, link, records)
                await cut(mirror, link, records)
                back_at = time.monotonic()
                await mirror.wait_for(
                    lambda: is_in_time(records, back_at), "the trickle is in time again", 60
                )
                recovered_seconds = in_time_since(records) - back_at
                after = await beside_a_full_link(mirror, link, records)
                left = partition(partitions(mirror), behind)["next_offset"]
            link.both(**WIDER)
            await mirror.wait_for(lambda: complete(mirror, source, [behind, live]), "all is copied", 60)

    assert_exact(source.bootstrap, target.bootstrap, [behind, live])
    await source.delete_topic(behind)
    assert begun_seconds < LATE_SECONDS_MAX
    assert left < BACKLOG_RECORDS
    assert max(before.longest_seconds, after.longest_seconds) < LATE_SECONDS_MAX
    assert min(before.link_used, after.link_used) > FULL
    assert 0 < recovered_seconds < RECOVERS_SECONDS


async def test_a_tail_that_comes_in_bursts_waits_for_no_backlog_that_goes_first(
    link: Wan, source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    Every record counts, from the first one on, but those between the end of a relay and the first that is in
    time through another one. That takes seconds: it is not waited for all that has a lower rank.
    """
    behind, live = await topic(source, prefix="behind"), await topic(source, prefix="live")
    await target.create_topic(live)
    await asyncio.to_thread(load, source.bootstrap, behind, rows_of_days(), batch_size=200_000)
    one, other = (f"{link.far}:{port}" for port in free_ports(2))
    sections = {
        "topics": {"include": [behind, live]},
        "link": {"relays": [one, other], "topics_first": [behind]},
    }
    command = configured(tmp_path, through(source, one, other), target, live, **sections)
    with relay_at(one, source, link, tmp_path) as first, relay_at(other, source, link, tmp_path) as second:
        for relay in (first, second):
            await listens(relay)
        with Twinsite.run(*command, work_dir=tmp_path) as mirror:
            await mirror.wait_for(partial(begun, mirror, behind, live), "both are copied", 60)
            with bursts(source.bootstrap, target.bootstrap, live) as records:
                before = await next_bursts(mirror, records)
                {one: first, other: second}[mirror.status()["link"]["relay"]].kill()
                cut_at = time.monotonic()
                await mirror.wait_for(partial(is_in_time, records, cut_at), "the tail is in time", 120)
                recovered_seconds = time.monotonic() - cut_at
                after = await next_bursts(mirror, records)
                left = reached(mirror, behind)
            link.both(**WIDER)
            await mirror.wait_for(lambda: complete(mirror, source, [behind, live]), "all is copied", 60)

    assert_exact(source.bootstrap, target.bootstrap, [behind, live])
    await source.delete_topic(behind)
    assert left < BACKLOG_RECORDS
    in_order = sorted(before + after)
    assert in_order[len(in_order) // 2] < BURST_SECONDS_MAX
    assert in_order[-1] < STOOD_STILL_SECONDS_MAX
    assert recovered_seconds < OTHER_RELAY_SECONDS_MAX


def relay_at(
    address: str, cluster: KafkaCluster, link: Wan, folder: Path
) -> AbstractContextManager[Twinsite]:
    """A relay at the far end."""
    command = ("relay", "--cluster", cluster.bootstrap, "--listen", address)
    return Twinsite.run(*command, work_dir=folder, listen=False, inside=link.inside)


def begun(mirror: Twinsite, behind: str, live: str) -> bool:
    """One topic is being copied, and of the other nothing is missing."""
    return reached(mirror, behind) > 0 and partition(partitions(mirror), live).get("lag_records") == 0


def bursts(source: str, target: str, topic: str) -> AbstractContextManager[Sequence[Written]]:
    """A burst each second, in this block."""
    noise_bytes = BURST_BYTES // BURST_RECORDS
    return trickling(source, target, topic, BURST_RECORDS, at_once=BURST_RECORDS, noise_bytes=noise_bytes)


async def next_bursts(mirror: Twinsite, records: Sequence[Written]) -> list[float]:
    """Wait for the next bursts; answers how many seconds each of their records took."""
    first = len(records)
    last = first + BURSTS * BURST_RECORDS
    await mirror.wait_for(partial(came, records, last), "bursts are copied", 120)
    return [took(one) for one in records[first:last]]


def rows_of_days() -> Iterator[Row]:
    """What was written evenly in days, up to now; nothing makes it smaller."""
    began_ms = int((time.time() - BACKLOG_SECONDS) * 1000)
    for number in range(BACKLOG_RECORDS):
        since_ms = BACKLOG_SECONDS * 1000 * number // BACKLOG_RECORDS
        yield Row(key=None, value=os.urandom(RECORD_BYTES), timestamp_ms=began_ms + since_ms)


@dataclass(frozen=True, slots=True)
class Beside:
    """What became of the trickle while a catch-up went on, and which share of the link was used for it."""

    longest_seconds: float
    link_used: float


class Gauge:
    """Which share of what the link carries has come from the far site since it was last set back."""

    def __init__(self, link: Wan) -> None:
        self._link = link
        self.set_back()

    def set_back(self) -> None:
        self.since, self._before = time.monotonic(), self._link.counted()[0].bytes

    def used(self) -> float:
        came = self._link.counted()[0].bytes - self._before
        return came / (time.monotonic() - self.since) / RATE


async def tell(mirror: Twinsite, what: str, topic: str, folder: Path) -> None:
    """Pause a topic, or resume it."""
    done = await twinsite(what, topic, "--url", f"http://127.0.0.1:{mirror.port}", work_dir=folder)
    assert done.code == 0, done.stderr


async def beside_a_beginning(
    mirror: Twinsite, behind: str, records: Sequence[Written], folder: Path
) -> float:
    """What the trickle, which is in time, takes at most while the catch-up of a paused topic begins.

    Where something is late all the same it is paused, and begins once more.
    """
    for _ in range(TRIES_MAX):
        await tell(mirror, "pause", behind, folder)
        paused_at = time.monotonic()
        await mirror.wait_for(partial(is_in_time, records, paused_at), "the trickle is in time", 60)
        copied_before, first = partition(partitions(mirror), behind)["next_offset"], len(records)
        await tell(mirror, "resume", behind, folder)
        await mirror.wait_for(partial(goes_on, mirror, behind, copied_before), "it has begun", 60)
        last = len(records) + BEGINNING_RECORDS
        await mirror.wait_for(partial(came, records, last), "the trickle goes on beside a beginning", 60)
        longest_seconds = max(map(took, records[first:last]))
        if longest_seconds < LATE_SECONDS_MAX:
            break
    return longest_seconds


def goes_on(mirror: Twinsite, topic: str, before: int) -> bool:
    """More of it has been copied than was before."""
    return reached(mirror, topic) > before


async def beside_a_full_link(mirror: Twinsite, link: Wan, records: Sequence[Written]) -> Beside:
    """Wait until the link is full and nothing of the trickle is late, then watch the trickle for a while.

    Where something is late all the same, or the link is not full, it is waited for and watched once more.
    """
    for _ in range(TRIES_MAX):
        beside = await watched(mirror, link, records)
        if beside.longest_seconds < LATE_SECONDS_MAX and beside.link_used > FULL:
            break
    return beside


async def watched(mirror: Twinsite, link: Wan, records: Sequence[Written]) -> Beside:
    """Wait until it is so, and watch once."""
    gauge = Gauge(link)

    def is_settled() -> bool:
        if time.monotonic() - gauge.since < FULL_SECONDS:
            return False
        settled = gauge.used() > FULL and longest(records, gauge.since) < LATE_SECONDS_MAX
        gauge.set_back()
        return settled

    await mirror.wait_for(is_settled, "the link is full, and the trickle in time", 60)
    first = len(records)
    await mirror.wait_for(lambda: came(records, first + TIMED_RECORDS), "the trickle goes on", 60)
    return Beside(longest(records, records[first].acknowledged_at), gauge.used())


async def cut(mirror: Twinsite, link: Wan, records: Sequence[Written]) -> None:
    """Let nothing through, either way, for as long as two seconds of the trickle take."""
    link.both(is_cut=True)
    first = len(records)
    await mirror.wait_for(lambda: len(records) > first + CUT_RECORDS, "records are written meanwhile")
    assert not came(records, first + 1)
    link.both(is_cut=False)


def took(one: Written) -> float:
    """Seconds from a record's acknowledgement to its being read, or to now."""
    return min(one.read_at, time.monotonic()) - one.acknowledged_at


def longest(records: Sequence[Written], since: float) -> float:
    """What the latest took of the records acknowledged since then; without end where there is none."""
    since_then = (took(one) for one in records if since <= one.acknowledged_at < math.inf)
    return max(since_then, default=math.inf)


def is_in_time(records: Sequence[Written], since: float) -> bool:
    """Whether one that was acknowledged since then, and with it all before, was read, and not late."""
    since_then = (one for one in records if since <= one.acknowledged_at < math.inf)
    return any(one.read_at < math.inf and took(one) <= LATE_SECONDS_MAX for one in since_then)


def in_time_since(records: Sequence[Written]) -> float:
    """The moment from which on no record was late of those that were read."""
    return max(one.read_at for one in records if one.read_at < math.inf and took(one) > LATE_SECONDS_MAX)
