"""A source whose nodes may be stopped and whose disks may be changed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tests.harness.kafka import KafkaCluster


@pytest.fixture(scope="module")
def breakable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """Two nodes of the older version, shared: leave both running, and no file damaged that others read.

    They go with the file: few want them, and idle nodes take time from all that runs beside them.
    """
    cluster = KafkaCluster.prepare("3.9", 2, "breakable", {}, tmp_path_factory.mktemp("kafka"))
    try:
        asyncio.run(cluster.launch())
        yield cluster
    finally:
        cluster.close()
