"""Logs that no longer tell the same story once more: the mirror has it all from a relay."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults.test_truncation import *  # noqa: F403 - the tests are what it is about
from tests.harness.daemon import Site
from tests.harness.kafka import KafkaCluster
from tests.harness.relay import WayIn, running_relay, through, through_its_relay


@pytest.fixture(scope="module")
def source(
    source: KafkaCluster, relay_site: Site, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[KafkaCluster]:
    """Reached through a relay by mirrors."""
    with running_relay(source, tmp_path_factory.mktemp("relay"), site=relay_site) as relay:
        yield through(source, relay.address)


@pytest.fixture
def way_in() -> WayIn:
    """Likewise, to a source that the test starts."""
    return through_its_relay
