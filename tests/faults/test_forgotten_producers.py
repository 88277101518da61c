"""Target brokers that forget the mirror's producer: what then guards the log is looked at, not guessed.

A broker forgets a producer whose newest record is older than ``producer.id.expiration.ms``, going by the
record's own timestamp. The records here are of 2023, so it happens at every check, four times a second.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import pytest_asyncio
from kafka.admin import KafkaAdminClient
from kafka.structs import TopicPartition

from mirror.flow import owner
from mirror.flow.holding import HOLD_SECONDS
from mirror.flow.turn import COUNTS_FOR_SECONDS, WHY_NOT
from mirror.kafka.log_port import TopicLog
from mirror.model import PartitionStatus
from tests.conftest import TopicFactory
from tests.contract.connected import connected
from tests.faults.flows import complete, copied, mirror_of, once, partitions
from tests.harness.checker import assert_exact, watermarks
from tests.harness.daemon import until
from tests.harness.data import Row, json_rows
from tests.harness.kafka import KafkaCluster
from tests.harness.loading import load, load_transactions
from tests.harness.mirror import flow_of, running
from tests.harness.node import Broker
from tests.harness.process import Twinsite, twinsite

pytestmark = pytest.mark.timeout(240)

LONG_AGO_MS = 1_700_000_000_000
A_MOMENT_SECONDS = COUNTS_FOR_SECONDS - HOLD_SECONDS - 0.05
"""So long a mirror may stand still, and then send before it asks again whose turn it is."""
FORGETFUL = {"producer.id.expiration.ms": 1000, "producer.id.expiration.check.interval.ms": 250}


@pytest_asyncio.fixture
async def forgetful(tmp_path: Path) -> AsyncIterator[KafkaCluster]:
    """A target that knows nobody for longer than a quarter of a second."""
    async with KafkaCluster.start(
        version="4.3", name="forgetful", properties=FORGETFUL, work_dir=tmp_path
    ) as cluster:
        yield cluster


def old_rows(count: int, seed: int = 1, value_bytes: int = 100) -> Iterator[Row]:
    """Records with timestamps of long ago."""
    rows = json_rows(count, value_bytes, seed)
    return (replace(row, timestamp_ms=LONG_AGO_MS + at) for at, row in enumerate(rows))


async def test_a_forgotten_mirror_goes_on_where_the_log_ends(
    source: KafkaCluster, forgetful: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    Idle until the broker knows nothing of it, then writing on; the same over a restart, with gaps in the log.
    """
    plain, gapped = await topic(source, partitions=2), await topic(source)
    load_both(source, plain, gapped, seed=1)
    with Twinsite.run(*mirror_of(source, forgetful, f"{plain}|{gapped}", plain), work_dir=tmp_path) as mirror:
        await mirror.wait_for(lambda: complete(mirror, source, [plain, gapped]), "all is copied")
        await until(lambda: not known_producers(forgetful, [plain]), "the broker has forgotten", 10)
        load_both(source, plain, gapped, seed=2)
        await mirror.wait_for(lambda: complete(mirror, source, [plain, gapped]), "it goes on")
    await until(lambda: not known_producers(forgetful, [plain, gapped]), "all is forgotten", 10)
    load_both(source, plain, gapped, seed=3)

    again = await twinsite(*once(source, forgetful, f"{plain}|{gapped}", plain), work_dir=tmp_path)

    assert again.code == 0, again.stderr
    assert assert_exact(source.bootstrap, forgetful.bootstrap, [plain, gapped]) == 3 * (200 + 60)


async def test_a_mirror_frozen_until_the_broker_has_forgotten_it_does_no_harm(
    source: KafkaCluster, forgetful: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    It wakes up with batches in hand that another mirror has written long since, and that the broker would
    take. It asks first whose turn it is, and sends none of them.
    """
    name = await topic(source, partitions=4)
    load(source.bootstrap, name, old_rows(100_000), batch_num_messages=50)
    with Twinsite.run(*mirror_of(source, forgetful, name, name), work_dir=tmp_path) as frozen:
        await frozen.wait_for(lambda: copied(frozen) > 0, "something is copied")
        frozen.freeze()
        other = await twinsite(*once(source, forgetful, name, name), work_dir=tmp_path)
        await until(lambda: not known_producers(forgetful, [name]), "the broker has forgotten", 10)
        frozen.thaw()
        load(source.bootstrap, name, old_rows(20_000, seed=2))
        await frozen.wait_for(lambda: complete(frozen, source, [name]), "it takes its turn again", 60)
        woken = {p["state"] for p in partitions(frozen)}
    load(source.bootstrap, name, old_rows(20_000, seed=3))

    later = await twinsite(*once(source, forgetful, name, name), work_dir=tmp_path)

    assert other.code == 0, other.stderr
    assert woken == {"ACTIVE"}
    assert later.code == 0, later.stderr
    assert assert_exact(source.bootstrap, forgetful.bootstrap, [name]) == 140_000


async def test_a_mirror_that_is_replaced_while_it_stands_still_for_a_moment_does_no_harm(
    source: KafkaCluster, forgetful: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    It wakes up in time, and it is its turn still. The broker knows the producer by a marker, which is new;
    with the next record, which is old, it has forgotten. So whoever comes new has to wait.
    """
    name = await topic(source)
    load_transactions(source.bootstrap, name, old_rows(20), per_transaction=20)
    with Twinsite.run(*mirror_of(source, forgetful, name, name), work_dir=tmp_path) as before:
        await before.wait_for(lambda: complete(before, source, [name]), "it is at work")
        before.freeze()
        frozen_at = time.monotonic()
        load(source.bootstrap, name, old_rows(20, seed=2))
        end = watermarks(source.bootstrap, name)[0][1]
        async with running(flow_of(source, forgetful, name)) as until_it_says:
            await asyncio.sleep(frozen_at + A_MOMENT_SECONDS - time.monotonic())
            before.thaw()
            await until_it_says(lambda seen: seen[0].next_offset == end)
        said = before.stderr

    assert "DIVERGED" not in said
    assert assert_exact(source.bootstrap, forgetful.bootstrap, [name]) == 40


async def test_two_that_have_had_the_right_do_not_both_write_while_the_coordinator_is_frozen(
    source: KafkaCluster, topic: TopicFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    It freezes right after the right was taken, so who had it is not told any more. The flow's state tells it,
    and who has it now goes on meanwhile.
    """
    properties = {**FORGETFUL, "transaction.state.log.num.partitions": 1, "broker.session.timeout.ms": 60_000}
    async with KafkaCluster.start(
        version="4.3", nodes=3, name="forgetful", properties=properties, work_dir=tmp_path
    ) as target:
        name = await topic(source)
        await target.create_topic(name, config={}, assignment=[[1]])
        await target.create_topic(
            f"__twinsite_state.{name}", config={"cleanup.policy": "compact"}, assignment=[[1]]
        )
        load(source.bootstrap, name, old_rows(20))
        with Twinsite.run(*mirror_of(source, target, name, name), work_dir=tmp_path) as before:
            await before.wait_for(lambda: complete(before, source, [name]), "it is at work")
            await target.move_leader("__transaction_state", 0, 2)
            monkeypatch.setattr(owner, "reach", lambda _: freeze_at_once(target.broker(2)))  # it is claimed
            async with running(flow_of(source, target, name)) as until_it_says:
                for seed in range(2, 10):
                    await asyncio.to_thread(load, source.bootstrap, name, old_rows(20, seed=seed))
                    await until_it_says(partial(ends_at, 20 * seed))
            said, frozen = before.stderr, target.broker(2).frozen
            await target.broker(2).thaw()

        assert frozen
        assert "DIVERGED" not in said
        assert assert_exact(source.bootstrap, target.bootstrap, [name]) == 180


async def test_a_mirror_frozen_with_half_a_request_sent_never_sends_the_other_half(
    source: KafkaCluster, forgetful: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    The broker does not read, so more is on its way than kernels hold. Another mirror then writes all of that.
    """
    name = await topic(source, partitions=4)
    load(source.bootstrap, name, old_rows(1_000))
    with Twinsite.run(*mirror_of(source, forgetful, name, name), work_dir=tmp_path) as frozen:
        await frozen.wait_for(lambda: complete(frozen, source, [name]), "it is at work")
        before = megabytes_sent(frozen)
        await forgetful.brokers[0].freeze()
        rows = old_rows(100_000, seed=2, value_bytes=500)
        load(source.bootstrap, name, rows, batch_size=1 << 20, linger_ms=2_000)
        await frozen.wait_for(lambda: megabytes_sent(frozen) > before, "it sends")
        await frozen.wait_for(unchanged(lambda: megabytes_sent(frozen), 1.0), "the kernel takes no more")
        frozen.freeze()
        await forgetful.brokers[0].thaw()
        other = await twinsite(*once(source, forgetful, name, name), work_dir=tmp_path)
        await until(lambda: not known_producers(forgetful, [name]), "the broker has forgotten", 10)
        frozen.thaw()
        load(source.bootstrap, name, old_rows(20_000, seed=3))
        await frozen.wait_for(lambda: complete(frozen, source, [name]), "it takes its turn again", 60)
        woken = frozen.stderr

    assert other.code == 0, other.stderr
    assert WHY_NOT in woken
    assert "DIVERGED" not in woken
    assert assert_exact(source.bootstrap, forgetful.bootstrap, [name]) == 121_000


async def test_of_two_mirrors_of_a_broker_that_forgets_one_copies(
    source: KafkaCluster, forgetful: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    Nothing at the broker keeps one mirror's batch from following the same batch of the other. So they take
    turns, and both end when all is there.
    """
    name = await topic(source, partitions=4)
    load(source.bootstrap, name, old_rows(40_000), batch_num_messages=20)
    command = once(source, forgetful, name, name)

    with (
        Twinsite.run(*command, work_dir=tmp_path, listen=False) as one,
        Twinsite.run(*command, work_dir=tmp_path, listen=False) as two,
    ):
        racing = [await mirror.finished(90) for mirror in (one, two)]
    later = await twinsite(*command, work_dir=tmp_path)

    assert {run.code for run in (*racing, later)} == {0}, [run.stderr[-3000:] for run in (*racing, later)]
    assert assert_exact(source.bootstrap, forgetful.bootstrap, [name]) == 40_000


async def test_a_batch_that_was_appended_twice_all_the_same_is_seen_by_everybody_who_comes_later(
    source: KafkaCluster, forgetful: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    As by a process that was stopped right before the system call: the last batch once more, as it was sent.
    Even when the source has grown, so that by its length all fits again.
    """
    name = await topic(source)
    load(source.bootstrap, name, old_rows(1_000), batch_num_messages=50)
    first = await twinsite(*once(source, forgetful, name, name), work_dir=tmp_path)
    await until(lambda: not known_producers(forgetful, [name]), "the broker has forgotten", 10)
    doubled_at = await append_the_last_again(forgetful, name)
    end = watermarks(forgetful.bootstrap, name)[0]
    load(source.bootstrap, name, old_rows(500, seed=2))

    later = [await twinsite(*once(source, forgetful, name, name), work_dir=tmp_path) for _ in range(2)]

    assert first.code == 0, first.stderr
    assert (doubled_at, end[1] > 1_000) == (1_000, True)
    for run in later:
        assert run.code == 3, run.stderr
        assert [p["state"] for p in run.document["partitions"]] == ["DIVERGED"]
    assert watermarks(forgetful.bootstrap, name)[0] == end


def ends_at(offset: int, seen: dict[int, PartitionStatus]) -> bool:
    """Whether the only partition is copied up to there."""
    return seen[0].next_offset == offset


def freeze_at_once(broker: Broker) -> None:
    """Stop it where it is, before anybody else has a turn."""
    os.kill(broker.pid, signal.SIGSTOP)
    broker.frozen = True


def megabytes_sent(mirror: Twinsite) -> int:
    """What the kernel has taken for the target, in whole megabytes."""
    return int(mirror.status().get("bytes_appended", 0)) // 1_000_000


def unchanged(read: Callable[[], int], seconds: float) -> Callable[[], bool]:
    """A condition: what is read has been the same for so long."""
    seen = read(), time.monotonic()

    def is_unchanged() -> bool:
        nonlocal seen
        value = read()
        if value != seen[0]:
            seen = value, time.monotonic()
        return time.monotonic() - seen[1] >= seconds

    return is_unchanged


def load_both(source: KafkaCluster, plain: str, gapped: str, seed: int) -> None:
    """Old records to one topic, and to another with an aborted transaction among them."""
    load(source.bootstrap, plain, old_rows(200, seed))
    load_transactions(source.bootstrap, gapped, old_rows(60, seed), per_transaction=20, aborted_every=3)


def known_producers(cluster: KafkaCluster, topics: Sequence[str]) -> list[int]:
    """Producers the broker remembers of the first partition of each topic."""
    admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap)
    try:
        states = admin.describe_producers([TopicPartition(topic, 0) for topic in topics])
    finally:
        admin.close()
    return [producer.producer_id for state in states.values() for producer in state.active_producers]


async def append_the_last_again(target: KafkaCluster, topic: str) -> int:
    """Append the last batch of a topic with one partition once more; returns where it came to stand."""
    async with connected(target) as cluster:
        log = TopicLog(cluster, topic)
        batch = await log.read(await log.end() - 1)
        return await log.append(bytes(8) + batch[8:])
