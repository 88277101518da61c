"""Where logs end, and what stands there, asked of real brokers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from uuid import uuid4

import pytest
from structlog.testing import capture_logs

from mirror.clusters import connected
from mirror.config import parse
from mirror.errors import BrokerError
from mirror.flow.facts import Tail
from mirror.flow.looking import last_batches
from mirror.kafka.fetch import Want
from mirror.kafka.offsets import LATEST, list_offsets, offsets_of_all
from mirror.kafka.peek import peek_at
from mirror.kafka.record_batch import MAGIC_AT
from mirror.model import TopicPartition
from tests.conftest import TopicFactory
from tests.harness.checker import watermarks
from tests.harness.data import json_rows
from tests.harness.kafka import KafkaCluster
from tests.harness.loading import load
from tests.harness.segments import damage, mend, stored_batches

pytestmark = pytest.mark.timeout(180)

PARTITIONS = 8
RECORD_BYTES = 900_000


async def test_the_last_batch_of_every_log_is_found_however_little_fits_an_answer(
    target: KafkaCluster, topic: TopicFactory
) -> None:
    """
    Eight last batches of nearly a megabyte: an answer holds four, the fifth is cut off and says nothing.
    """
    name = await topic(target, partitions=PARTITIONS)
    load(target.bootstrap, name, json_rows(3 * PARTITIONS, RECORD_BYTES), "none", message_max_bytes=1_000_000)
    empty = await topic(target)
    settings = parse(
        {
            "source": {"bootstrap_servers": "127.0.0.1:1"},
            "target": {"bootstrap_servers": target.bootstrap},
            "topics": {"include": [name]},
        }
    )
    ends = {
        TopicPartition(name, number): end for number, (_, end) in watermarks(target.bootstrap, name).items()
    }

    async with connected("target", settings.target) as cluster:
        cluster.follow([name, empty])
        await cluster.refresh()
        found = await last_batches(cluster, {**ends, TopicPartition(empty, 0): 0})

    assert found.keys() == ends.keys()
    assert all(
        isinstance(tail, Tail) and tail.base_offset + tail.records == ends[tp] for tp, tail in found.items()
    )


@pytest.mark.parametrize(
    ("at", "bit"),
    [
        pytest.param(7, 4, id="beyond the end: 10 to 26"),
        pytest.param(7, 2, id="partly beyond the end: 10 to 14"),
        pytest.param(7, 3, id="before, where a broker passes over it: 10 to 2"),
        pytest.param(MAGIC_AT, 1, id="an old format, of which it would be one record"),
    ],
)
async def test_a_last_batch_that_its_leader_has_elsewhere_is_read_from_another_replica(
    breakable: KafkaCluster, at: int, bit: int
) -> None:
    """
    No CRC covers offset and format. Either the leader gives the batch with what its header says, or nothing.
    """
    name = f"elsewhere-{uuid4().hex[:8]}"
    await breakable.create_topic(name, replication=2)
    load(breakable.bootstrap, name, json_rows(20, 200), batch_num_messages=10)
    leader = await breakable.leader(name)
    *_, last = stored_batches(breakable, name, node=leader)
    one = TopicPartition(name, 0)
    settings = parse(
        {
            "source": {"bootstrap_servers": "127.0.0.1:1"},
            "target": {"bootstrap_servers": breakable.bootstrap},
            "topics": {"include": [name]},
        }
    )

    async with connected("target", settings.target) as cluster:
        cluster.follow([name])
        await cluster.refresh()
        async with asyncio.timeout(30):  # what is acknowledged, a follower hears later
            while not await peek_at(cluster, 3 - leader, {one: Want(19, -1, -1, 1 << 20)}):  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        intact = await last_batches(cluster, {one: 20})
        damage(last, at, bit)
        with capture_logs() as lines:
            damaged = await last_batches(cluster, {one: 20})
        mend(last)

    assert damaged == intact
    assert isinstance(intact[one], Tail)
    assert [line["event"] for line in lines] == ["read_from_another_replica"]


async def test_where_all_logs_end_is_asked_again_when_a_leader_has_moved(tmp_path: Path) -> None:
    """
    The snapshot is older than the move: the first broker asked leads one of the two partitions no more.
    """
    async with KafkaCluster.start(version="4.3", nodes=2, name="moving", work_dir=tmp_path) as moving:
        await moving.create_topic("orders", assignment=[[1, 2], [1, 2]])
        load(moving.bootstrap, "orders", json_rows(100, 300))
        both = [TopicPartition("orders", 0), TopicPartition("orders", 1)]
        settings = parse(
            {
                "source": {"bootstrap_servers": "127.0.0.1:1"},
                "target": {"bootstrap_servers": moving.bootstrap},
                "topics": {"include": ["orders"]},
            }
        )

        async with connected("target", settings.target) as cluster:
            cluster.follow(["orders"])
            await cluster.refresh()
            await moving.move_leader("orders", 1, 2)
            stale = await list_offsets(cluster, both, LATEST)
            ends = await offsets_of_all(cluster, both, LATEST)

        assert isinstance(stale[both[1]], BrokerError)
        assert ends == {tp: watermarks(moving.bootstrap, "orders")[tp.partition][1] for tp in both}
