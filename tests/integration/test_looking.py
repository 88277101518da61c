"""Where logs end, and what stands there, asked of real brokers."""

from __future__ import annotations

from pathlib import Path

import pytest

from mirror.clusters import connected
from mirror.config import parse
from mirror.errors import BrokerError
from mirror.flow.facts import Tail
from mirror.flow.looking import last_batches
from mirror.kafka.offsets import LATEST, list_offsets, offsets_of_all
from mirror.model import TopicPartition
from tests.conftest import TopicFactory
from tests.harness.checker import watermarks
from tests.harness.data import json_rows
from tests.harness.kafka import KafkaCluster
from tests.harness.loading import load

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
