"""Everything at once and at random: a seed settles what happens to whom, and then the copies are judged.

Longer, with other seeds, and with three nodes at the source as well::

    make chaos CHAOS_SEED=7 CHAOS_SECONDS=600

What happened to whom, and when, is printed.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

import pytest
from confluent_kafka import KafkaException

from tests.faults.flows import configured, owns, pairs, partition, partitions, translate
from tests.faults.mishaps import (
    ClusterVictim,
    LinkVictim,
    Mishaps,
    ProcessVictim,
    TopicsVictim,
    Victim,
    loss_accepted,
    records_deleted,
    setting_changed,
    suffer,
    topic_paused,
)
from tests.harness.checker import assert_exact, read_partition, watermarks
from tests.harness.daemon import free_ports, until
from tests.harness.data import NotLoadedError, Row, json_rows
from tests.harness.kafka import KafkaCluster
from tests.harness.loading import leave_open, load, load_transactions
from tests.harness.process import Twinsite
from tests.harness.proxy import Proxy, proxy
from tests.harness.relay import through

SEED = int(os.environ.get("CHAOS_SEED", "1"))
SECONDS = float(os.environ.get("CHAOS_SECONDS", "20"))
SOURCE_NODES = 3 if "CHAOS_SECONDS" in os.environ else 1
"""Beside other tests there is no room for more."""
HEALING_SECONDS = 240.0
THREADS = 32
"""Each writer takes one for itself."""
pytestmark = pytest.mark.timeout(SECONDS + HEALING_SECONDS + 180)

LONG_AGO_MS, SEED_MS = int(time.time() * 1000) - 10 * 86_400_000, 2_000
FORGETFUL = {"producer.id.expiration.ms": 1000, "producer.id.expiration.check.interval.ms": 250}
REMEMBERING = {"producer.id.expiration.ms": 2**31 - 1}
"""Longer than ``LONG_AGO_MS`` is ago: a broker that forgot at a restart who writes would take what a producer
sends again for new, and double it at the source.
"""
SAFE = {"min.insync.replicas": 2}
LOGS = {"old": 4, "ledger": 2, "large": 2}
COMPACTED, SHORT = "keys", "short"
"""The source deletes records of the short one."""
TOPICS = {**LOGS, COMPACTED: 2, SHORT: 2}
OFTEN_CLEANED = {"cleanup.policy": "compact", "segment.ms": 1000, "min.cleanable.dirty.ratio": 0.0}
TRANSLATED = 100
"""Offsets of each partition."""
SOURCE_SETTINGS = {
    "compression.type": ("gzip", "zstd", "producer"),
    "message.timestamp.type": ("CreateTime", "LogAppendTime"),
    "segment.ms": (2000, 3_600_000),
}
TARGET_SETTINGS = {"compression.type": ("gzip", "zstd", "producer"), "min.insync.replicas": (2, 3)}
IN_TWO: dict[str, object] = {
    "on_data_loss": "continue",
    "read": {"fetch_bytes_max": 1 << 18, "partition_fetch_bytes_max": 1 << 15},
    "limits": {"buffer_bytes_max": 1 << 20, "partition_buffer_bytes_max": 1 << 16},
    "append": {"request_bytes_max": 1 << 16, "requests_in_flight_max": 2},
}
"""The other flow asks nobody, and has room for little at a time."""
KNOWN_SECONDS = 10.0
"""After this time a mirror no longer says that nothing is missing when something is."""
NEVER = ('"state": "DIVERGED"', '"state": "TOPIC_RECREATED"', "internal_error", "Traceback")
"""In no log."""


@dataclass(frozen=True, slots=True)
class Copy:
    """A flow, and the mirrors of it that run."""

    flow: str
    offsets: Literal["same", "mapped"]
    prefix: str
    mirrors: Sequence[ProcessVictim]


@pytest.mark.parametrize("offsets", ["same", "mapped"])
async def test_whatever_happens_at_once_nothing_is_lost_doubled_or_reordered(
    tmp_path: Path, offsets: Literal["same", "mapped"]
) -> None:
    """
    Two clusters, two relays, three mirrors of a flow, of which one passes the relays by, and one of another
    flow that reads the same, in small portions. The target's brokers forget within a second who wrote, as
    most records are of long ago. Meanwhile topics get more partitions and other settings, one loses records,
    operators pause topics and accept losses, and no mirror says that nothing is missing when something is.
    """
    happened: list[str] = []
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(THREADS))
    async with clusters(tmp_path) as (source, target):
        with ExitStack() as stack:
            relayed, victims, proxies = stack.enter_context(two_relays(source, tmp_path))
            ways = [relayed, relayed, source]
            copies = [
                Copy("one", offsets, "", [mirror(way, target, "one", offsets, "", tmp_path) for way in ways]),
                Copy(
                    "two",
                    "same",
                    "two.",
                    [mirror(relayed, target, "two", "same", "two.", tmp_path, **IN_TWO)],
                ),
            ]
            mirrors = [one for copy in copies for one in copy.mirrors]
            for one in mirrors:
                stack.callback(one.close)
            victims += [*mirrors, ClusterVictim(source, TOPICS, 12), ClusterVictim(target, led(copies), 8)]
            victims += [TopicsVictim("growing topics", source, LOGS, 15), *others(source, target, copies)]
            await until(lambda: any(one.connections for one in proxies), "a mirror has come to a relay", 30)
            over = time.monotonic() + SECONDS
            try:
                async with written_on(source), none_fooled(source, mirrors), asyncio.TaskGroup() as group:
                    for victim in victims:
                        group.create_task(suffer(victim, SEED, over, happened))
            finally:
                print(*happened, sep="\n")
            named = "\n".join(happened)
            assert [one.name for one in victims if f" {one.name}: " not in named] == []
            for copy in copies:
                await healed(source, copy)
                assert_rest(source, target, copy)
                if copy.offsets == "mapped":
                    translates(source, target, copy)
        for copy in copies:
            judge(source, target, copy)


@asynccontextmanager
async def clusters(work_dir: Path) -> AsyncIterator[tuple[KafkaCluster, KafkaCluster]]:
    """The source, with its topics, and the target."""
    start, kept = KafkaCluster.start, REMEMBERING | (SAFE if SOURCE_NODES > 1 else {})
    async with (
        start(version="3.9", nodes=SOURCE_NODES, name="source", properties=kept, work_dir=work_dir) as source,
        start(
            version="4.3", nodes=3, name="target", properties=SAFE | FORGETFUL, work_dir=work_dir
        ) as target,
    ):
        for topic, count in TOPICS.items():
            config = OFTEN_CLEANED if topic == COMPACTED else {}
            await source.create_topic(topic, count, SOURCE_NODES, config)
        yield source, target


@contextmanager
def two_relays(
    source: KafkaCluster, work_dir: Path
) -> Iterator[tuple[KafkaCluster, list[Victim], list[Proxy]]]:
    """The source as mirrors are to reach it, what may happen to relays and the way to them, and that way."""
    with ExitStack() as stack:
        victims: list[Victim] = []
        proxies: list[Proxy] = []
        addresses: list[str] = []
        for number, port in enumerate(free_ports(2), 1):
            link = LinkVictim(f"link {number}", 12)
            command = ("relay", "--cluster", source.bootstrap, "--listen", f"127.0.0.1:{port}")
            relay = process(f"relay-{number}", command, 15, work_dir, listen=False)
            stack.callback(relay.close)
            between = stack.enter_context(proxy(f"127.0.0.1:{port}", link.spoil, link.spoil))
            addresses.append(between.address)
            proxies.append(between)
            victims += [link, relay]
        yield through(source, *addresses), victims, proxies


def mirror(
    source: KafkaCluster,
    target: KafkaCluster,
    flow: str,
    offsets: str,
    prefix: str,
    work_dir: Path,
    **more: object,
) -> ProcessVictim:
    """One of the mirrors of a flow."""
    name = f"mirror-{len(list(work_dir.glob('mirror-*'))) + 1}"
    folder = work_dir / name
    folder.mkdir()
    names = {"names": "prefix", "prefix": prefix} if prefix else {}
    topics = {"include": list(TOPICS), "replication_factor": 3, **names}
    command = configured(folder, source, target, flow, topics=topics, offsets=offsets, **more)
    return process(name, command, 8, work_dir)


def process(
    name: str, command: Sequence[str], every_seconds: float, work_dir: Path, **how: Any
) -> ProcessVictim:
    """Something of ours that runs, and whose output is in a folder of its name."""
    folder = work_dir / name
    folder.mkdir(exist_ok=True)
    return ProcessVictim(name, partial(Twinsite.run, *command, work_dir=folder, **how), every_seconds)


def led(copies: Sequence[Copy]) -> dict[str, int]:
    """Topics of the target, whose leaders are moved: copies, and what the right to copy hangs on."""
    copied = {copy.prefix + topic: count for copy in copies for topic, count in TOPICS.items()}
    return copied | {"__transaction_state": 4} | {f"__twinsite_state.{copy.flow}": 1 for copy in copies}


def others(source: KafkaCluster, target: KafkaCluster, copies: Sequence[Copy]) -> list[Victim]:
    """What happens to topics, at either side and at the mirrors of the first flow."""
    mirrors, copied = copies[0].mirrors, [copy.prefix + topic for copy in copies for topic in TOPICS]
    return [
        Mishaps("settings of the source", 6, [partial(setting_changed, source, [*LOGS], SOURCE_SETTINGS)]),
        Mishaps("settings of the target", 6, [partial(setting_changed, target, copied, TARGET_SETTINGS)]),
        Mishaps("short topic", 5, [partial(records_deleted, source, SHORT)]),
        Mishaps("pauses", 4, [partial(topic_paused, mirrors, [*TOPICS])]),
        Mishaps("accepted losses", 4, [partial(loss_accepted, mirrors, SHORT)]),
    ]


@asynccontextmanager
async def none_fooled(source: KafkaCluster, mirrors: Sequence[ProcessVictim]) -> AsyncIterator[None]:
    """Demand that, as long as the block lasts, no mirror says of a partition that nothing is missing when
    something has been for KNOWN_SECONDS.
    """
    enough, fooled = threading.Event(), list[object]()
    task = asyncio.create_task(asyncio.to_thread(watch, source.bootstrap, mirrors, enough, fooled))
    try:
        yield
    finally:
        enough.set()
        await task
    assert fooled == []


def watch(
    bootstrap: str, mirrors: Sequence[ProcessVictim], enough: threading.Event, fooled: list[object]
) -> None:
    """Look every second, and note who says so."""
    seen: list[tuple[float, dict[tuple[str, int], int]]] = []
    while not enough.wait(1):
        with suppress(KafkaException):
            ends = ends_of(bootstrap)
            seen.append((time.monotonic(), ends))
        for one in mirrors:
            before = time.monotonic() - KNOWN_SECONDS
            known = next((ends for at, ends in reversed(seen) if at < before), {})
            for p in partitions(one.process):
                end = known.get((p["topic"], p["partition"]), 0)
                if (p["state"], p["lag_records"]) == ("ACTIVE", 0) and p["next_offset"] < end:
                    fooled.append((one.name, end, p))


# -- the source is written meanwhile ---------------------------------------------------------------


@asynccontextmanager
async def written_on(source: KafkaCluster) -> AsyncIterator[None]:
    """Write to all topics as long as the block lasts; no transaction is open in the end."""
    enough = threading.Event()
    writers = [write_old, write_short, write_large, write_keys, write_ledger]
    tasks = [
        asyncio.create_task(asyncio.to_thread(write, partial(writer, source.bootstrap), enough))
        for writer in writers
    ]
    try:
        yield
    finally:
        enough.set()
        await asyncio.gather(*tasks)
    await asyncio.to_thread(write_ledger, source.bootstrap, 0)


def write(some: Callable[[int], int], enough: threading.Event) -> None:
    """Write some again and again; what the source does not take is nothing that is to be copied."""
    for seed in itertools.count():
        with suppress(NotLoadedError, KafkaException):
            some(seed)
        if enough.wait(random.Random(seed).uniform(0, 0.3)):
            return


def old_rows(count: int, seed: int, value_bytes: int, keys: int | None = None) -> list[Row]:
    """Records with timestamps of long ago, those of each seed some seconds later."""
    at = LONG_AGO_MS + SEED_MS * seed
    return [replace(row, timestamp_ms=at) for row in json_rows(count, value_bytes, seed, keys)]


def write_old(bootstrap: str, seed: int) -> int:
    """Small batches, so that many are on their way."""
    return load(bootstrap, "old", old_rows(400, seed, 300), batch_num_messages=25, message_timeout_ms=20_000)


def write_short(bootstrap: str, seed: int) -> int:
    """Some of it is deleted before it is copied."""
    return load(bootstrap, SHORT, old_rows(100, seed, 300), batch_num_messages=10, message_timeout_ms=20_000)


def write_large(bootstrap: str, seed: int) -> int:
    """Batches of which a kernel holds a part."""
    rows = old_rows(12, seed, 200_000)
    return load(bootstrap, "large", rows, batch_size=1 << 20, message_timeout_ms=20_000)


def write_keys(bootstrap: str, seed: int) -> int:
    """Few keys, and deletes of some."""
    return load(bootstrap, COMPACTED, key_rows(seed), message_timeout_ms=20_000)


def key_rows(seed: int) -> list[Row]:
    """What is written of a seed to the compacted topic."""
    rows = old_rows(60, seed, 100, keys=50)
    return [replace(row, value=None) if number % 17 == 0 else row for number, row in enumerate(rows)]


def write_ledger(bootstrap: str, seed: int) -> int:
    """Transactions, some of them aborted, and at times behind one that its producer has left open."""
    rows = old_rows(60, seed, 100)
    if seed % 5 == 4:
        leave_open(bootstrap, "ledger", rows, "left open", timeout_ms=5000)
    return load_transactions(bootstrap, "ledger", rows, 15, aborted_every=3, transactional_id="ledger")


# -- what is to be so in the end -------------------------------------------------------------------


def ends_of(bootstrap: str) -> dict[tuple[str, int], int]:
    """Up to where each partition of the source may be read."""
    return {(topic, p): end for topic in TOPICS for p, (_, end) in watermarks(bootstrap, topic).items()}


async def healed(source: KafkaCluster, copy: Copy) -> None:
    """Wait until one mirror is the owner, all is ACTIVE there, and all know that nothing is missing; what was
    lost is given up.
    """
    ends = ends_of(source.bootstrap)
    seen: list[object] = []

    def well() -> bool:
        seen.clear()
        views = [(one.process.status().get("owner"), partitions(one.process)) for one in copy.mirrors]
        seen.extend(
            [
                (p["topic"], p["partition"], p["state"], p["reason"], p["detail"], p["next_offset"])
                for p in parts
            ]
            for _, parts in views
        )
        for one, (_, parts) in zip(copy.mirrors, views, strict=True):
            if any(p["state"] == "DATA_LOSS" for p in parts):
                one.process.control(SHORT, "accept-loss")
        owned = [parts for owner, parts in views if owner]
        return (
            len(owned) == 1
            and all(p["state"] == "ACTIVE" for p in owned[0])
            and all(
                {(p["topic"], p["partition"]): p["next_offset"] for p in parts} == ends for _, parts in views
            )
        )

    try:
        await until(well, f"flow {copy.flow} is well again, and all is copied", HEALING_SECONDS)
    except BaseException:
        print(ends, *seen, sep="\n")
        raise


def judge(source: KafkaCluster, target: KafkaCluster, copy: Copy) -> None:
    """Demand that a copy is exact, and that nobody took it for anything else meanwhile."""
    lines = [line for one in copy.mirrors for log in one.logs for line in log.splitlines()]
    assert [line for line in lines if any(words in line for words in NEVER)] == []
    lost = [line for line in lines if '"state": "DATA_LOSS"' in line]
    assert [line for line in lost if f'"topic": "{SHORT}"' not in line] == []
    rename = partial(str.__add__, copy.prefix)
    for topic in LOGS:
        assert assert_exact(source.bootstrap, target.bootstrap, [topic], copy.offsets, rename) > 0
    for number in range(TOPICS[COMPACTED]):
        assert_same_keys(source, target, number, copy)


def assert_rest(source: KafkaCluster, target: KafkaCluster, copy: Copy) -> None:
    """Of the topic that loses records, all that the source has and that was not given up is the end of the
    copy, and nothing is there twice. After a broker was killed, what it had deleted may be there again: also
    what was gone before the copy began.
    """
    owner = next(one.process for one in copy.mirrors if owns(one.process))
    for number in watermarks(source.bootstrap, SHORT):
        lost = partition(partitions(owner), SHORT, number)["lost_ranges"]
        ours = list(read_partition(source.bootstrap, SHORT, number))
        left = [one for one in ours if not any(start <= one.offset < end for start, end in lost)]
        theirs = list(read_partition(target.bootstrap, copy.prefix + SHORT, number))
        both = min(len(left), len(theirs))
        rest, left = theirs[len(theirs) - both :], left[len(left) - both :]
        assert [one.content for one in rest] == [one.content for one in left]
        assert copy.offsets == "mapped" or [one.offset for one in rest] == [one.offset for one in left]
        assert [one for one, count in Counter(one.content for one in theirs).items() if count > 1] == []


def assert_same_keys(source: KafkaCluster, target: KafkaCluster, number: int, copy: Copy) -> None:
    """Of each key the newest record, as cleaners are at work at both sides; what both have is alike, once and
    in its order, and what only the copy has was written.
    """
    ours = list(read_partition(source.bootstrap, COMPACTED, number))
    theirs = list(read_partition(target.bootstrap, copy.prefix + COMPACTED, number))
    assert ours
    newest, copied = ({record.key: record for record in log} for log in (ours, theirs))
    assert {key: one.content for key, one in newest.items()} == {
        key: one.content for key, one in copied.items()
    }
    values, copies = ([one.content for one in log if one.value is not None] for log in (ours, theirs))
    assert [one for one in copies if one in {*values}] == [one for one in values if one in {*copies}]
    assert [one for one, count in Counter(copies).items() if count > 1] == []
    assert [one for one in theirs if (one.key, one.value) not in written(one.timestamp_ms)] == []
    if copy.offsets == "same":
        assert {key: one.offset for key, one in newest.items()} == {
            key: one.offset for key, one in copied.items()
        }
        at = {record.offset: record.content for record in ours}
        assert [one for one in theirs if at.get(one.offset, one.content) != one.content] == []


@cache
def written(timestamp_ms: int) -> frozenset[tuple[bytes | None, bytes | None]]:
    """Keys and values that were, or were to be, written to the compacted topic with this timestamp."""
    return frozenset((row.key, row.value) for row in key_rows((timestamp_ms - LONG_AGO_MS) // SEED_MS))


def translates(source: KafkaCluster, target: KafkaCluster, copy: Copy) -> None:
    """Demand that the owner makes of an offset the one at which the same record stands at the target, and the
    way back; some of each partition, and those that are no record.
    """
    owner = next(one.process for one in copy.mirrors if owns(one.process))
    dice = random.Random(SEED)
    for topic in LOGS:
        for number in watermarks(source.bootstrap, topic):
            expected = pairs(source, target, topic, number)
            some = dice.sample(range(max(expected, default=-1) + 1), min(len(expected), TRANSLATED))
            found = {at: translate(owner, topic, number, at, "target_offset") for at in some}
            assert found == {at: expected.get(at) for at in some}
            there = [(at, to) for at, to in found.items() if to is not None]
            back = [translate(owner, topic, number, to, "source_offset", "&reverse=true") for _, to in there]
            assert back == [at for at, _ in there]
