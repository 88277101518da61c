"""The mirror on real brokers once more, through a relay: what is true of one way in is true of the other."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.harness.kafka import KafkaCluster
from tests.harness.relay import running_relay, through
from tests.integration.test_mirror import *  # noqa: F403 - the tests are what it is about


@pytest.fixture(scope="module")
def source(source: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """Reached through a relay by mirrors."""
    with running_relay(source, tmp_path_factory.mktemp("relay")) as relay:
        yield through(source, relay.address)
