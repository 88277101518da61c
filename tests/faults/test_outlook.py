"""A copy that is slower than its source, of a topic that keeps little: what is foretold comes true."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from confluent_kafka import Producer

from tests.faults.flows import configured, partition, partitions, state
from tests.harness.daemon import Site
from tests.harness.kafka import KafkaCluster
from tests.harness.process import Twinsite, events
from tests.harness.proxy import proxy
from tests.harness.relay import running_relay, through
from tests.harness.wan import wan, why_not

pytestmark = [pytest.mark.timeout(240), pytest.mark.asyncio(loop_scope="module")]

KEPT_SECONDS = 30
VALUE_BYTES = 1_000
WRITTEN_PER_SECOND, COPIED_PER_SECOND = 400, 200
"""Records of bytes that nobody compresses. At half the speed of the source its time goes by twice as fast."""
TOLD_SECONDS = 30.0
"""So long before the loss it is believed: after half of the time."""
OFF_AT_MOST = 0.3
"""Segments go whole, two each second."""
WINDOW_BYTES, BUFFER_BYTES, FRAMES_READ_AHEAD = 262_144, 1 << 20, 5
"""Of frames of an eighth of the buffer a relay has some ready beside those on their way, and reads on."""
READ_AHEAD_SECONDS = (
    (WINDOW_BYTES + FRAMES_READ_AHEAD * BUFFER_BYTES // 8)
    / VALUE_BYTES
    / (WRITTEN_PER_SECOND - COPIED_PER_SECOND)
)
"""What a relay has read is not lost any more, though the mirror does not have it: it is so much later."""
KEPT = {"retention.ms": KEPT_SECONDS * 1_000, "segment.bytes": 200_000}
LITTLE_AT_A_TIME = {"fetch_bytes_max": 65_536, "partition_fetch_bytes_max": 65_536}


RELAYED, DIRECT = "outlook-relayed", "outlook-direct"
"""Topics, and flows."""


@pytest.fixture(scope="module")
def relay(source: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_relay(source, tmp_path_factory.mktemp("relay")) as running:
        yield running.address


class Narrow:
    """Lets so many bytes a second through, of all connections together."""

    def __init__(self, bytes_per_second: float) -> None:
        self._rate = bytes_per_second
        self._free_at = time.monotonic()
        self._lock = threading.Lock()

    def __call__(self, _: int, __: int, data: bytes) -> bytes:
        with self._lock:
            self._free_at = max(self._free_at, time.monotonic()) + len(data) / self._rate
            wait = self._free_at - time.monotonic()
        time.sleep(max(wait, 0.0))
        return data


@asynccontextmanager
async def steadily_written(source: KafkaCluster, topic: str) -> AsyncIterator[None]:
    """Write so many records a second for as long as the block lasts, stamped as they are written."""
    enough = threading.Event()

    def write() -> None:
        producer = Producer({"bootstrap.servers": source.bootstrap, "linger.ms": 5})
        began, written = time.monotonic(), 0
        while not enough.wait(0.05):
            due = int((time.monotonic() - began) * WRITTEN_PER_SECOND)
            for _ in range(written, due):
                producer.produce(topic, os.urandom(VALUE_BYTES))
            written = due
            producer.poll(0)
        producer.flush(10)

    task = asyncio.create_task(asyncio.to_thread(write))
    try:
        yield
    finally:
        enough.set()
        await task


@dataclass(frozen=True, slots=True)
class Seen:
    """What a mirror said of a partition before and after it was overtaken.

    Attributes:
        seconds: From one to the other.
    """

    foretold: dict[str, Any]
    metrics: str
    seconds: float
    lost: dict[str, Any]
    log: str


Copies = dict[str, asyncio.Task[Seen]]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def copies(
    source: KafkaCluster, target: KafkaCluster, relay: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Copies]:
    """Both copies, begun at the same time: each takes a minute, in which it hardly does anything."""
    folder = tmp_path_factory.mktemp("outlook")
    begun = {RELAYED: asyncio.create_task(overtaken_behind_a_relay(source, target, relay, folder))}
    if not why_not():
        begun[DIRECT] = asyncio.create_task(overtaken_over_a_link(target, folder))
    try:
        yield begun
    finally:
        for one in begun.values():
            one.cancel()
        await asyncio.wait(begun.values())


async def test_a_loss_through_a_relay_is_foretold_and_comes_true(copies: Copies) -> None:
    """
    A copy at half the speed of its source is overtaken after twice the time that is kept: status, metrics and
    log say so long before, and the partition stops when they have said.
    """
    assert_foretold(await copies[RELAYED], RELAYED, later_seconds=READ_AHEAD_SECONDS)


@pytest.mark.skipif(bool(why_not()), reason=why_not())
async def test_a_loss_is_foretold_to_a_mirror_that_reads_far_brokers_itself(copies: Copies) -> None:
    """
    The same without a relay, over a link that is too narrow.
    """
    assert_foretold(await copies[DIRECT], DIRECT)


async def overtaken_behind_a_relay(
    source: KafkaCluster, target: KafkaCluster, relay: str, work_dir: Path
) -> Seen:
    """A copy that a proxy before the relay slows down."""
    await source.create_topic(RELAYED, config=KEPT)
    with proxy(relay, Narrow(COPIED_PER_SECOND * VALUE_BYTES)) as between:
        slowed = through(source, between.address)
        link = {"relays": [between.address], "window_bytes": WINDOW_BYTES}
        limits = {"buffer_bytes_max": BUFFER_BYTES, "partition_buffer_bytes_max": 1 << 16}
        return await overtaken(slowed, target, RELAYED, work_dir, link=link, limits=limits)


async def overtaken_over_a_link(target: KafkaCluster, work_dir: Path) -> Seen:
    """A copy of far brokers, which a link slows down."""
    with wan() as link:
        far = Site(link.far, link.inside)
        async with KafkaCluster.start(name="far", work_dir=work_dir, site=far) as source:
            await source.create_topic(DIRECT, config=KEPT)
            link.to_near(rate=COPIED_PER_SECOND * VALUE_BYTES * 1.05)
            return await overtaken(source, target, DIRECT, work_dir)


async def overtaken(
    source: KafkaCluster, target: KafkaCluster, topic: str, work_dir: Path, **sections: Any
) -> Seen:
    """Mirror a topic that is written all the time until retention has overtaken the copy."""
    sections |= {"topics": {"include": [topic]}, "lagging_after_seconds": 2, "read": LITTLE_AT_A_TIME}
    command = configured(work_dir, source, target, topic, **sections)
    foretold: dict[str, Any] = {}
    async with steadily_written(source, topic):
        with Twinsite.run(*command, work_dir=work_dir) as mirror:
            await mirror.wait_for(told(mirror, topic, foretold), "a loss is foretold", 90)
            at, metrics = time.monotonic(), mirror.get("/metrics").decode()
            await mirror.wait_for(lambda: state(mirror, topic) == "DATA_LOSS", "it is lost", 90)
            seconds = time.monotonic() - at
            return Seen(foretold, metrics, seconds, partition(partitions(mirror), topic), mirror.stderr)


def assert_foretold(seen: Seen, topic: str, later_seconds: float = 0.0) -> None:
    """It was said when, why, and what to do, and so it came, or so much later; and how fast the copy is: on a
    busy machine less than its way lets through.
    """
    outlook = seen.foretold["outlook"]
    copied = seen.lost["next_offset"] - seen.foretold["next_offset"]
    foretold = outlook["retention_loss_seconds"]
    assert foretold * (1 - OFF_AT_MOST) <= seen.seconds <= foretold * (1 + OFF_AT_MOST) + later_seconds
    assert outlook["copied_per_second"] == pytest.approx(copied / seen.seconds, rel=OFF_AT_MOST)
    assert outlook["copied_per_second"] < COPIED_PER_SECOND * 1.2
    assert outlook["produced_per_second"] > outlook["copied_per_second"]
    assert (outlook["catch_up"], outlook["catch_up_seconds"]) == ("never", None)
    assert (seen.foretold["state"], seen.foretold["reason"]) == ("LAGGING", "retention_near")
    assert "before it has caught up" in seen.foretold["detail"]
    assert "Raise retention.ms" in seen.foretold["hint"]
    assert f'twinsite_catch_up_seconds{{flow="{topic}",partition="0",topic="{topic}"}} +Inf' in seen.metrics
    assert seen.lost["outlook"]["retention_loss_seconds"] == 0
    assert len(events(seen.log, "retention_loss_near")) == 1


def told(mirror: Twinsite, topic: str, said: dict[str, Any]) -> Callable[[], bool]:
    """Whether a loss is foretold, not far from now; what was said of the partition then."""

    def asked() -> bool:
        said.clear()
        said.update(partition(partitions(mirror), topic))
        outlook = said.get("outlook", {})
        seconds, produced = outlook.get("retention_loss_seconds"), outlook.get("produced_per_second")
        near = seconds is not None and seconds < TOLD_SECONDS and said["reason"] == "retention_near"
        return near and produced is not None

    return asked
