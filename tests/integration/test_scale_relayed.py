"""Many topics and many partitions once more, with a relay before the source."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.harness.kafka import KafkaCluster
from tests.harness.relay import WayIn, running_relay, through, through_its_relay
from tests.integration.test_scale import *  # noqa: F403 - the tests are what it is about


@pytest.fixture(scope="module")
def source(source: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """Reached through a relay by mirrors."""
    with running_relay(source, tmp_path_factory.mktemp("relay")) as relay:
        yield through(source, relay.address)


@pytest.fixture
def way_in() -> WayIn:
    """Likewise, to a source that the test starts."""
    return through_its_relay
