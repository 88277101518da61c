"""What a log of record batches promises, tried on the one in memory and on real brokers."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import replace
from functools import partial

import pytest

from checkpoint.errors import StateTakenOverError
from checkpoint.store import StateStore
from checkpoint.topic_store import LogPort, TopicStore
from mirror.errors import BrokerError, TwinsiteError
from mirror.kafka.log_port import StateTopicError, TopicLog, ensure_state_topic
from mirror.kafka.record_batch import walk
from mirror.kafka.topics import describe_configs
from tests.conftest import TopicFactory
from tests.contract.connected import BROKERS, NUMBERS, connected
from tests.contract.memory_log import MemoryLog
from tests.harness.kafka import KafkaCluster

pytestmark = pytest.mark.timeout(180)


def batch(*keys: str) -> bytes:
    return MemoryLog.encode([(delta, key.encode(), b"value") for delta, key in enumerate(keys)])


def base_offsets(data: bytes) -> list[int]:
    return [header.base_offset for header, _ in walk(memoryview(data))]


async def batches_left(log: LogPort) -> int:
    """The broker hands out one segment at a time."""
    found, at = 0, await log.start()
    while data := await log.read(at):
        headers = [header for header, _ in walk(memoryview(data))]
        found, at = found + len(headers), headers[-1].next_offset
    return found


async def test_an_empty_log_begins_and_ends_at_zero(log: LogPort) -> None:
    """
    There is nothing to read.
    """
    assert (await log.start(), await log.end(), await log.read(0)) == (0, 0, b"")


async def test_an_append_answers_where_its_first_record_is(log: LogPort) -> None:
    """
    One offset a record.
    """
    bases = [await log.append(batch("a", "b")), await log.append(batch("c")), await log.append(batch("d"))]

    assert bases == [0, 2, 3]
    assert (await log.start(), await log.end()) == (0, 4)


async def test_reading_begins_with_the_batch_that_holds_the_offset(log: LogPort) -> None:
    """
    A batch is handed out whole, also from its middle.
    """
    for keys in ("ab", "cd", "ef"):
        await log.append(batch(*keys))

    assert base_offsets(await log.read(3))[0] == 2
    assert base_offsets(await log.read(4)) == [4]
    assert await log.read(6) == b""


async def test_when_a_state_was_written_last_is_known_to_who_has_read_it(log: LogPort) -> None:
    """
    In milliseconds since 1970.
    """
    began_ms = int(time.time() * 1000)
    await TopicStore(log).put({"kept": b"value"})
    store = TopicStore(log)

    before = store.written_at_ms
    await store.load()
    after = store.written_at_ms

    assert before is None
    assert after is not None
    assert began_ms <= after <= time.time() * 1000


# -- the state topic on real brokers -------------------------------------------------------------


async def test_the_state_topic_is_made_again_for_its_writer_and_what_it_held_is_written_again(
    target: KafkaCluster,
) -> None:
    """
    Somebody has deleted it under a mirror that runs. Whoever only reads it makes nothing.
    """
    name = f"__twinsite_state.contract-{next(NUMBERS)}"
    async with connected(target) as cluster:
        make = partial(ensure_state_topic, cluster, name, 1)
        await make()
        store = TopicStore(TopicLog(cluster, name, make=make), writer=lambda: (4000, 1))
        await store.load()
        await store.put({"flow": b"kept", "partition/orders/0": b"kept, too"})
        await target.delete_topic(name)

        with pytest.raises(BrokerError):
            await TopicLog(cluster, name, patience_seconds=5.0).end()
        with suppress(StateTakenOverError):  # it lands where nobody expects it
            await store.put({"owner": b"here"})
        await store.load()
        await store.put({"owner": b"here"})

        assert await TopicStore(TopicLog(cluster, name)).load() == {
            "flow": b"kept",
            "partition/orders/0": b"kept, too",
            "owner": b"here",
        }
        await target.delete_topic(name)


async def test_the_state_topic_is_made_once_and_compacted(target: KafkaCluster) -> None:
    """
    Two mirrors that start at once both find it. What brokers do by default with topics does not hold for it.
    """
    name = f"__twinsite_state.{next(NUMBERS)}"
    async with connected(target) as one, connected(target) as other:
        both = await asyncio.gather(ensure_state_topic(one, name, 1), ensure_state_topic(other, name, 1))
        assert sorted((state.made, state.replicas) for state in both) == [(False, 1), (True, 1)]
        assert await ensure_state_topic(one, name, 1) == (False, 1, True)

        assert await TopicLog(other, name).append(batch("a")) == 0
        made = (await describe_configs(one, [name]))[name]
        await target.delete_topic(name)

    assert not isinstance(made, TwinsiteError)
    assert made["cleanup.policy"] == ("compact", True)
    assert made["compression.type"] == ("producer", True)
    assert made["flush.messages"] == ("1", True)


async def test_of_a_state_topic_made_by_hand_it_is_told_that_it_is_not_on_disk(
    target: KafkaCluster, topic: TopicFactory
) -> None:
    """
    It keeps its settings.
    """
    name = await topic(target, cleanup_policy="compact")

    async with connected(target) as cluster:
        assert await ensure_state_topic(cluster, name, 1) == (False, 1, False)


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
async def test_a_state_topic_that_the_broker_compresses_is_read_and_written(
    target: KafkaCluster, topic: TopicFactory, codec: str
) -> None:
    """
    It was made by hand, or where that is the broker's default.
    """
    name = await topic(target, cleanup_policy="compact", compression_type=codec)

    async with connected(target) as cluster:
        await TopicStore(TopicLog(cluster, name), writer=lambda: (4711, 0)).load()
        store = TopicStore(TopicLog(cluster, name), writer=lambda: (4711, 1))
        await store.load()
        await store.put({"kept": b"value" * 100, "gone": b"1"})
        await store.put({"gone": None})

        assert await store.load() == {"kept": b"value" * 100}
        assert await TopicStore(TopicLog(cluster, name)).load() == {"kept": b"value" * 100}


async def test_a_leader_that_came_after_the_mirror_is_found_at_once(
    target: KafkaCluster, topic: TopicFactory
) -> None:
    """
    The topic is asked for by name, and its answer tells of a broker that the snapshot does not have.
    """
    name = await topic(target, cleanup_policy="compact")

    async with connected(target) as cluster:
        cluster.info = replace(cluster.info, brokers={})

        async with asyncio.timeout(10):
            assert await TopicLog(cluster, name).append(batch("a")) == 0


async def test_a_state_topic_whose_records_expire_is_refused(
    target: KafkaCluster, topic: TopicFactory
) -> None:
    """
    Somebody made it by hand, with the broker's default policy.
    """
    name = await topic(target, cleanup_policy="delete")

    async with connected(target) as cluster:
        with pytest.raises(StateTopicError, match=r"cleanup\.policy=delete"):
            await ensure_state_topic(cluster, name, 1)


@pytest.mark.parametrize("version", list(BROKERS))
async def test_the_brokers_cleaner_takes_nothing_away_that_counts(
    version: str, source: KafkaCluster, target: KafkaCluster, topic: TopicFactory
) -> None:
    """
    Values overwritten a hundred times, keys removed and their tombstones expired.
    """
    brokers = source if version == "3.9" else target
    name = await topic(
        brokers, cleanup_policy="compact", segment_bytes=1 << 20, segment_ms=200,
        min_cleanable_dirty_ratio=0.001, delete_retention_ms=0,
    )  # fmt: skip
    async with connected(brokers) as cluster:
        store: StateStore = TopicStore(TopicLog(cluster, name))
        for n in range(100):
            await store.put({f"key-{n % 7}": str(n).encode(), "gone": None if n > 50 else b"1"})
        await store.put({"tick": b"1"})
        before = await TopicStore(TopicLog(cluster, name)).load()

        async with asyncio.timeout(30):
            while await batches_left(TopicLog(cluster, name)) > 60:
                await store.put({"tick": b"1"})  # a segment ends only when something is written
                await asyncio.sleep(0.1)

        after = await TopicStore(TopicLog(cluster, name)).load()
        assert after == before
        assert after["key-0"] == b"98"
