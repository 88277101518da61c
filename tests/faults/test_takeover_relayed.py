"""Two mirrors of one flow with mapped offsets once more, through a relay at the far end of a link."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults.test_takeover import *  # noqa: F403 - the tests are what it is about
from tests.harness.daemon import Site
from tests.harness.kafka import KafkaCluster
from tests.harness.relay import running_relay, through


@pytest.fixture(scope="module")
def source(
    source: KafkaCluster, relay_site: Site, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[KafkaCluster]:
    """Reached through a relay by mirrors."""
    with running_relay(source, tmp_path_factory.mktemp("relay"), site=relay_site) as relay:
        yield through(source, relay.address)
