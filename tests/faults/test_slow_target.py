"""The target takes what comes more slowly than it is read: nothing is read twice over that."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import TopicFactory
from tests.faults.flows import complete, configured
from tests.harness.checker import assert_exact
from tests.harness.data import Row
from tests.harness.kafka import KafkaCluster
from tests.harness.loading import load
from tests.harness.process import Twinsite
from tests.harness.quotas import limit

pytestmark = pytest.mark.timeout(120)

KIB = 1 << 10
PARTITIONS, RECORDS_EACH, RECORD_BYTES = 32, 6, 16_000
"""Four records, each a batch of its own, fill what a partition may bring: hardly anything comes cut off."""
QUOTA = 150 * KIB


async def test_what_waits_for_a_slow_target_is_read_once(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    A quota lets so little through that for more than five seconds no buffer becomes free: each holds batches
    of many partitions, which take turns.
    """
    name = await topic(source, partitions=PARTITIONS)
    size = load(source.bootstrap, name, rows(), batch_num_messages=1) * RECORD_BYTES
    await limit(target, client_id=name, quota="producer_byte_rate", bytes_per_second=QUOTA)
    command = configured(
        tmp_path, source, target, name,
        target={"bootstrap_servers": target.bootstrap, "client_id": name},
        topics={"include": [name]},
        read={"fetch_bytes_max": 960 * KIB, "partition_fetch_bytes_max": 64 * KIB},
        append={"request_bytes_max": 64 * KIB, "requests_in_flight_max": 1, "connections_per_broker": 1},
        limits={"buffer_bytes_max": 2048 * KIB},
    )  # fmt: skip

    with Twinsite.run(*command, work_dir=tmp_path) as mirror:
        began = time.monotonic()
        await mirror.wait_for(lambda: complete(mirror, source, [name]), "all is copied", 60)
        seconds = time.monotonic() - began
        fetched = mirror.status()["bytes_fetched"]

    assert_exact(source.bootstrap, target.bootstrap, [name])
    assert seconds > size / QUOTA / 2, "the quota has held nothing up"
    assert fetched < 1.2 * size


def rows() -> Iterator[Row]:
    """What no compression makes smaller, as much for each partition."""
    dice = random.Random(32)
    for number in range(PARTITIONS * RECORDS_EACH):
        yield Row(key=None, value=dice.randbytes(RECORD_BYTES), partition=number % PARTITIONS)
