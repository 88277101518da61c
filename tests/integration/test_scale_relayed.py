"""Many partitions, and much of them, once more with a relay before the source."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.harness.kafka import KafkaCluster
from tests.harness.relay import running_relay, through
from tests.integration.test_scale import (  # noqa: F401 - the tests are what it is about
    test_a_backlog_many_times_the_buffers_stays_within_the_promised_memory,
    test_two_hundred_partitions_of_one_topic_are_copied_while_they_are_written,
)

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def source(source: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """Reached through a relay by mirrors."""
    with running_relay(source, tmp_path_factory.mktemp("relay")) as relay:
        yield through(source, relay.address)
