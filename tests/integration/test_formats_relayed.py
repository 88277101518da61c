"""Every batch that brokers hand out once more, through a relay: old, odd, gapped and rotten ones."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.harness.kafka import KafkaCluster
from tests.harness.relay import AS_IF_FAR, running_relay, through
from tests.integration.test_compaction import *  # noqa: F403 - the tests are what it is about
from tests.integration.test_corruption import *  # noqa: F403
from tests.integration.test_formats import *  # noqa: F403
from tests.integration.test_payloads import *  # noqa: F403


@pytest.fixture(scope="module")
def source(source: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """Reached through a relay by mirrors."""
    with running_relay(source, tmp_path_factory.mktemp("relay"), limits=AS_IF_FAR) as relay:
        yield through(source, relay.address)


@pytest.fixture(scope="module")
def breakable(breakable: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """Likewise."""
    with running_relay(breakable, tmp_path_factory.mktemp("breakable-relay"), limits=AS_IF_FAR) as relay:
        yield through(breakable, relay.address)
