"""A mirror that may hold very little at once still comes to its end."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import TopicFactory
from tests.harness.checker import assert_exact
from tests.harness.data import json_rows
from tests.harness.kafka import KafkaCluster
from tests.harness.loading import load_transactions
from tests.harness.process import twinsite
from tests.integration.test_mirror import flags

pytestmark = pytest.mark.timeout(120)

LEAST = """
read: {partition_fetch_bytes_max: 16 KiB, fetch_bytes_max: 64 KiB}
limits: {buffer_bytes_max: 1 MiB, partition_buffer_bytes_max: 64 KiB}
"""


async def test_what_a_doubt_drops_makes_room_for_what_is_read_next(
    source: KafkaCluster, target: KafkaCluster, topic: TopicFactory, tmp_path: Path
) -> None:
    """
    A mirror that follows a killed one may not fill gaps at once: what it had fetched by then is dropped.
    """
    name = await topic(source)
    load_transactions(source.bootstrap, name, json_rows(200, 1000), 10, 4, transactional_id=name)
    settings = tmp_path / "flow.yaml"
    settings.write_text(LEAST)
    arguments = flags(source, target, name, name, "--once", "--config", str(settings))

    killed = await twinsite(*arguments, work_dir=tmp_path, failpoints="produce_answered:1")
    done = await twinsite(*arguments, "--timeout-seconds", "50", work_dir=tmp_path)

    assert (killed.code, done.code) == (-9, 0), done.stderr
    assert assert_exact(source.bootstrap, target.bootstrap, [name]) == 200
